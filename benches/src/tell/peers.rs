//! The section on other libraries, from the JSON that `cargo xtask compare` wrote.

use serde_json::Value;

use crate::measure::piece::median;
use crate::tell::aims::{self, Aims};
use crate::tell::grid::Grid;
use crate::tell::sections::{cell, records};

/// A test at one size: several libraries in turn, for several rounds.
struct Contest<'a>(&'a Value);

impl Contest<'_> {
    fn size(&self) -> u64 {
        self.0["size"].as_u64().unwrap_or_default()
    }

    fn rounds(&self) -> &[Value] {
        self.0["rounds"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Where a library's figures stand in each round.
    fn place(&self, peer: &str, batch: Option<u64>) -> Option<usize> {
        let entries = self.0["entries"].as_array()?;
        let is = |entry: &Value| entry["peer"] == peer && entry["batch"].as_u64() == batch;
        entries.iter().position(is)
    }

    fn in_round(&self, round: &Value, entry: (&str, Option<u64>), name: &str) -> Option<f64> {
        round["figures"][self.place(entry.0, entry.1)?][name].as_f64()
    }

    /// The median of a library's figure over the rounds.
    fn figure(&self, entry: (&str, Option<u64>), name: &str) -> Option<f64> {
        let rounds = self.rounds().iter();
        median(rounds.filter_map(|round| self.in_round(round, entry, name)))
    }

    /// The median over the rounds of a ratio within each.
    fn ratio(&self, ours: (&str, Option<u64>), name: &str) -> Option<f64> {
        let ratio = |round| {
            let theirs = self.in_round(round, ("ucx", None), name)?;
            Some(self.in_round(round, ours, name)? / theirs)
        };
        median(self.rounds().iter().filter_map(ratio))
    }

    /// The median over the rounds of the mean half round trip, in floors.
    fn floors(&self) -> Option<f64> {
        let floors = |round| {
            let of = |name| self.in_round(round, ("doorbell", None), name);
            Some(of("mean_ns")? / of("floor_ns")?)
        };
        median(self.rounds().iter().filter_map(floors))
    }

    /// Rounds that count and the mode of the cores, the last cells of a row.
    fn ending(&self) -> [String; 2] {
        let mode = self.0["mode"].as_str().unwrap_or("-");
        let note = if self.0["disturbed"] == true { ", disturbed" } else { "" };
        [format!("{}{note}", self.rounds().len()), mode.to_owned()]
    }
}

fn contests<'a>(document: &'a Value, test: &'a str) -> impl Iterator<Item = Contest<'a>> {
    records(document).iter().filter(move |outcome| outcome["test"] == test).map(Contest)
}

/// Half round trips.
pub(crate) fn latency(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "bytes",
        "floor ns",
        "doorbell p50 ns",
        "mean / floor",
        "aim",
        "",
        "UCX p50 ns",
        "times UCX",
        "aim",
        "",
        "iceoryx2 p50 ns",
        "libfabric mean ns",
        "rounds",
        "cores",
    ]);
    let ours = ("doorbell", None);
    for contest in contests(document, "latency") {
        let (size, mode) = (contest.size(), contest.0["mode"].as_str().unwrap_or_default());
        let (floors, times) = (contest.floors(), contest.ratio(ours, "p50_ns"));
        let ns = |entry, name| cell(contest.figure(entry, name), 0);
        let what = format!("compare, half round trip of {size} bytes");
        let mut row = vec![size.to_string(), ns(ours, "floor_ns"), ns(ours, "p50_ns")];
        row.push(cell(floors, 2));
        let aim = aims::latency(size, mode);
        row.extend(aims.judge(&format!("{what}, in floors"), (floors, 2), aim));
        row.extend([ns(("ucx", None), "p50_ns"), cell(times, 2)]);
        let aim = aims::latency_beside_ucx(size);
        row.extend(aims.judge(&format!("{what}, times UCX"), (times, 2), aim));
        row.extend([ns(("iceoryx2", None), "p50_ns"), ns(("libfabric", None), "mean_ns")]);
        row.extend(contest.ending());
        grid.push(row);
    }
    grid
}

/// Messages a second, one way.
pub(crate) fn rate(document: &Value, aims: &mut Aims) -> Grid {
    const NAME: &str = "messages_per_second";
    let mut grid = Grid::new(&[
        "bytes",
        "batch",
        "doorbell M/s",
        "UCX M/s",
        "times UCX",
        "aim",
        "",
        "iceoryx2 M/s",
        "rounds",
        "cores",
    ]);
    for contest in contests(document, "rate") {
        let size = contest.size();
        let millions = |entry| cell(contest.figure(entry, NAME).map(|rate| rate / 1e6), 1);
        for batch in [1, 16] {
            let ours = ("doorbell", Some(batch));
            let times = contest.ratio(ours, NAME);
            let mut row = vec![size.to_string(), batch.to_string(), millions(ours)];
            row.extend([millions(("ucx", None)), cell(times, 2)]);
            let what = format!("compare, rate of {size} bytes in batches of {batch}, times UCX");
            let aim = aims::rate_beside_ucx(size, batch);
            row.extend(aims.judge(&what, (times, 2), aim));
            row.push(millions(("iceoryx2", None)));
            row.extend(contest.ending());
            grid.push(row);
        }
    }
    grid
}

/// The rates of the other libraries, messages a second by size.
pub(crate) fn rates(document: &Value) -> Vec<(String, Vec<(u32, f64)>)> {
    let rate = |contest: Contest<'_>, peer| {
        let size = u32::try_from(contest.size()).ok()?;
        Some((size, contest.figure((peer, None), "messages_per_second")?))
    };
    let peers = [("ucx", "UCX"), ("iceoryx2", "iceoryx2")].into_iter().map(|(peer, name)| {
        let rates = contests(document, "rate").filter_map(|contest| rate(contest, peer));
        (name.to_owned(), rates.collect::<Vec<_>>())
    });
    peers.filter(|(_, rates)| !rates.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ratios_are_taken_within_a_round() {
        let round = |ours: f64, ucx: f64| {
            json!({"figures": [
                {"floor_ns": 50.0, "p50_ns": ours, "mean_ns": ours},
                {"floor_ns": 50.0, "p50_ns": ucx, "mean_ns": ucx},
            ]})
        };
        let document = json!({"results": [{
            "test": "latency", "size": 8, "mode": "NEAR", "disturbed": false,
            "entries": [{"peer": "doorbell"}, {"peer": "ucx"}],
            // The ratio of the medians would be 70 / 150. The rounds have 0.5, 0.5 and 0.33.
            "rounds": [round(60.0, 120.0), round(75.0, 150.0), round(70.0, 210.0)],
        }]});
        let mut aims = Aims::default();
        let text = latency(&document, &mut aims).markdown();
        let row = text.lines().last().unwrap();
        let expected = "| 8 | 50 | 70 | 1.40 | ≤ 1.4 | met | 150 | 0.50 | ≤ 0.6 | met | - | - | 3 \
                        | NEAR |";
        assert_eq!(row, expected);
        assert_eq!((aims.met, aims.missed.len()), (2, 0));
    }
}
