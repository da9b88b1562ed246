//! What a row comes to: every round, and the medians over them.

use serde::Serialize;

use crate::machine::floor::Floor;
use crate::measure::piece;
use crate::measure::record::{Document, Placement, round};
use crate::measure::times::Times;
use crate::tell::grid::Grid;
use crate::tell::table;

/// Three percentiles, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    /// Of round trips, whole or half of each.
    pub(crate) fn of(times: &Times, half: bool) -> Percentiles {
        let at = |quantile| round(times.ns_at(quantile) / if half { 2.0 } else { 1.0 }, 1);
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }

    /// The median of each.
    fn median(all: impl Iterator<Item = Percentiles> + Clone) -> Percentiles {
        Percentiles {
            p50: median(all.clone().map(|of| of.p50)),
            p90: median(all.clone().map(|of| of.p90)),
            p99: median(all.map(|of| of.p99)),
        }
    }

    fn cells(&self) -> [String; 3] {
        [self.p50, self.p90, self.p99].map(|ns| format!("{ns:.0}"))
    }
}

/// The median, or 0 if there are none.
fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    piece::median(numbers).unwrap_or_default()
}

/// One round: both contestants in turn.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// The floor just before and just after.
    pub(crate) floor_ns: [f64; 2],
    /// It is one of the rounds that the medians are taken of.
    pub(crate) counts: bool,
    pub(crate) messages: u64,
    pub(crate) naive_messages: u64,
    pub(crate) doorbell: Percentiles,
    pub(crate) naive: Percentiles,
    /// Cache misses of the connecting side a message, if they can be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_misses: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) naive_cache_misses: Option<f64>,
}

/// A row. Figures that do not apply are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) schema: u32,
    pub(crate) test: &'static str,
    pub(crate) row: String,
    /// `soft` or `verbs`.
    pub(crate) provider: &'static str,
    pub(crate) device: String,
    /// The largest message, in bytes.
    pub(crate) size: u32,
    pub(crate) peers: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handler_ns: Option<u32>,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) handler_random: bool,
    pub(crate) placement: Placement,
    /// Half round trips, of rows with one message in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) half_rtt_ns: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) naive_half_rtt_ns: Option<Percentiles>,
    /// From when a message was due until it was back, of the other rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ns: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) naive_latency_ns: Option<Percentiles>,
    /// The p50, divided by the naive ring's in the same round.
    pub(crate) times_naive: f64,
    /// The p99, divided by the naive ring's in the same round.
    pub(crate) times_naive_p99: f64,
    /// Messages that were due each second: a part of the lower peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offered_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) naive_peak_per_second: Option<f64>,
    pub(crate) messages: u64,
    /// Messages of both that had a wrong byte on either side.
    pub(crate) wrong: u64,
    pub(crate) rounds: Vec<Round>,
}

fn is_false(yes: &bool) -> bool {
    !yes
}

/// The mode of the cores from one probe of the floor to the next.
pub(crate) fn mode([before_ns, after_ns]: [f64; 2]) -> &'static str {
    Floor { before_ns, after_ns }.mode()
}

impl Figures {
    /// Takes the medians over the rounds of one mode: that of the `peak`, if the load is a part of
    /// it, else the one with most rounds; if equal, the near ones. If the cores moved during every
    /// round, all rounds count.
    pub(crate) fn conclude(&mut self, half: bool, peak: Option<&'static str>) {
        let modes = || self.rounds.iter().map(|round| mode(round.floor_ns));
        let of = |wanted| modes().filter(|mode| *mode == wanted).count();
        let most = if of(Floor::FAR) > of(Floor::NEAR) { Floor::FAR } else { Floor::NEAR };
        let chosen = peak.filter(|peak| *peak != Floor::MIX && of(peak) > 0).unwrap_or(most);
        let is_any = of(chosen) > 0;
        for round in &mut self.rounds {
            round.counts = !is_any || mode(round.floor_ns) == chosen;
        }
        let all = self.rounds.iter();
        let rounds: Vec<Round> = all.filter(|round| round.counts).cloned().collect();
        let ours = Percentiles::median(rounds.iter().map(|round| round.doorbell));
        let naive = Percentiles::median(rounds.iter().map(|round| round.naive));
        let times = rounds.iter().map(|round| round.doorbell.p50 / round.naive.p50);
        self.times_naive = round(median(times), 3);
        let times = rounds.iter().map(|round| round.doorbell.p99 / round.naive.p99);
        self.times_naive_p99 = round(median(times), 3);
        let all = self.rounds.iter();
        self.messages = all.map(|round| round.messages + round.naive_messages).sum();
        let floors = || rounds.iter().flat_map(|round| round.floor_ns);
        self.placement.floor_ns = Some(round(median(floors()), 1));
        let least = floors().fold(f64::INFINITY, f64::min);
        let most = floors().fold(0.0, f64::max);
        self.placement.mode = Some(Floor { before_ns: least, after_ns: most }.mode());
        match half {
            true => (self.half_rtt_ns, self.naive_half_rtt_ns) = (Some(ours), Some(naive)),
            false => (self.latency_ns, self.naive_latency_ns) = (Some(ours), Some(naive)),
        }
    }

    fn cells(&self) -> Vec<String> {
        let (what, both) = match (self.half_rtt_ns, self.latency_ns) {
            (Some(_), _) => ("half", self.half_rtt_ns.zip(self.naive_half_rtt_ns)),
            _ => ("full", self.latency_ns.zip(self.naive_latency_ns)),
        };
        let mut cells = vec![self.row.clone(), what.to_owned()];
        if let Some((ours, naive)) = both {
            cells.extend(ours.cells());
            cells.extend(naive.cells());
        }
        cells.extend([self.times_naive, self.times_naive_p99].map(|times| format!("{times:.2}")));
        cells.push(self.placement.floor_ns.map_or("-".into(), |ns| format!("{ns:.0}")));
        cells.push(self.placement.mode.unwrap_or("-").to_owned());
        cells.push(self.wrong.to_string());
        cells
    }
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Traffic {
    #[serde(flatten)]
    pub(crate) document: Document<Figures>,
    pub(crate) seed: u64,
    /// What was counted, or why nothing was.
    pub(crate) cache_counters: String,
}

const HEAD: &[&str] = &[
    "row",
    "rtt",
    "p50",
    "p90",
    "p99",
    "naive p50",
    "p90",
    "p99",
    "p50/naive",
    "p99/naive",
    "floor",
    "mode",
    "wrong",
];

impl Traffic {
    /// The table.
    pub(crate) fn text(&self) -> String {
        let mut grid = Grid::new(HEAD);
        let results = &self.document.results;
        results.iter().for_each(|figures| grid.push(figures.cells()));
        let first = results.first();
        let (device, placement) =
            (first.map_or("", |of| &of.device), first.map(|of| &of.placement));
        let sides = placement.map_or(String::new(), |placement| {
            let cores: Vec<String> = placement.cores.iter().map(usize::to_string).collect();
            format!("{} on cores {}", placement.sides, cores.join(","))
        });
        format!(
            "traffic on {device}: in turn with a naive ring, ns; {sides}; seed {}\n{}\n\
             cache counters: {}\n{}",
            self.seed,
            grid.text(),
            self.cache_counters,
            table::footer(&self.document)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of rounds with these floors, all with a p50 of as much.
    fn row(floors: &[[f64; 2]]) -> Figures {
        let of = |p50| Percentiles { p50, p90: p50, p99: p50 };
        let round = |&floor_ns: &[f64; 2]| Round {
            floor_ns,
            counts: false,
            messages: 1,
            naive_messages: 1,
            doorbell: of(floor_ns[1]),
            naive: of(100.0),
            cache_misses: None,
            naive_cache_misses: None,
        };
        Figures { rounds: floors.iter().map(round).collect(), ..Figures::default() }
    }

    #[test]
    fn rounds_of_one_mode_count_and_all_are_kept() {
        let concluded = |floors: &[[f64; 2]], peak| {
            let mut figures = row(floors);
            figures.conclude(true, peak);
            assert_eq!(
                (figures.rounds.len(), figures.messages),
                (floors.len(), 2 * floors.len() as u64)
            );
            (figures.times_naive, figures.placement.mode.unwrap_or_default())
        };
        let (near, far) = ([50.0, 60.0], [240.0, 250.0]);
        assert_eq!(concluded(&[near, [60.0, 240.0], far, far], None), (2.5, "FAR"));
        assert_eq!(concluded(&[near, [60.0, 240.0], far], None), (0.6, "NEAR"));
        // The load of an open row fits the cores as they were during the peak.
        assert_eq!(concluded(&[near, far, far], Some("NEAR")), (0.6, "NEAR"));
        assert_eq!(concluded(&[far, far], Some("NEAR")), (2.5, "FAR"));
        assert_eq!(concluded(&[near, near, [60.0, 240.0]], Some("MIX")), (0.6, "NEAR"));
        assert_eq!(concluded(&[[60.0, 240.0], [240.0, 60.0]], None), (1.5, "MIX"));
    }

    #[test]
    fn the_median_of_two_is_between_them() {
        let of = |p50| Percentiles { p50, p90: p50, p99: 2.0 * p50 };
        let median = Percentiles::median([of(3.0), of(2.0)].into_iter());
        assert_eq!((median.p50, median.p90, median.p99), (2.5, 2.5, 5.0));
        assert_eq!(Percentiles::median([].into_iter()).p50, 0.0);
    }
}
