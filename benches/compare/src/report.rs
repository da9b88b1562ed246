//! The output: a table for people, a file for programs.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use crate::contest::{Peer, Setting, Test};
use crate::error::Failure;
use crate::ice;
use crate::process::{Program, heard};
use crate::round::{Measured, Outcome};

/// Rounds below which a median is only a hint.
const ROUNDS_SOUND: u32 = 5;

/// The whole report.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    schema: u32,
    /// Rounds wanted for each figure.
    rounds: u32,
    /// Seconds of one figure.
    seconds: f64,
    cores: [usize; 2],
    /// As Doorbell's benchmark reports them.
    commit: Value,
    machine: Value,
    versions: Versions,
    results: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
struct Versions {
    ucx: String,
    iceoryx2: &'static str,
    libfabric: String,
}

impl Document {
    /// With the conditions that the figures hold for.
    pub(crate) fn new(
        set: &Setting,
        rounds: u32,
        results: Vec<Outcome>,
    ) -> Result<Document, Failure> {
        let mut about = heard(&set.bench);
        about.args("latency --device soft0 --size 8 --duration 0.001 --json -".split(' '));
        let about = Program::start(&mut about, None)?.finish()?;
        let about: Value = serde_json::from_str(&about)
            .map_err(Failure::at("read what doorbell-bench tells of the machine"))?;
        let versions = Versions {
            ucx: version("ucx_info", "-v"),
            iceoryx2: ice::VERSION,
            libfabric: version("fi_info", "--version"),
        };
        Ok(Document {
            schema: 1,
            rounds,
            seconds: set.time.as_secs_f64(),
            cores: set.cores,
            commit: about["commit"].clone(),
            machine: about["machine"].clone(),
            versions,
            results,
        })
    }

    /// Writes it as JSON.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(Failure::at("write the figures"))?;
        fs::write(path, text + "\n").map_err(Failure::at(format!("write {}", path.display())))
    }
}

/// Makes the folder of an output file, before anything is measured.
pub(crate) fn writable(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let made = fs::create_dir_all(folder);
    made.map_err(Failure::at(format!("make the folder {}", folder.display())))
}

/// The first number with dots in a program's output.
fn version(program: &str, option: &str) -> String {
    let text = Command::new(program).arg(option).output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
    let mut words = text.split_whitespace();
    let number = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    words.find(number).unwrap_or("unknown").to_owned()
}

/// A figure of one entry in one round.
type Pick = fn(&Measured) -> Option<f64>;

const P50: Pick = |measured| measured.figure.p50_ns;
const MEAN: Pick = |measured| measured.figure.mean_ns;
const RATE: Pick = |measured| measured.figure.messages_per_second;

impl Outcome {
    fn index(&self, peer: Peer, batch: Option<u32>) -> Option<usize> {
        self.entries.iter().position(|entry| entry.peer == peer && entry.batch == batch)
    }

    /// The median over the rounds of a value of a round.
    fn median(&self, of: impl Fn(&[Measured]) -> Option<f64>) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| of(&round.figures)).collect())
    }

    /// The median of one entry's figures.
    fn figure(&self, peer: Peer, batch: Option<u32>, pick: Pick) -> Option<f64> {
        let at = self.index(peer, batch)?;
        self.median(|figures| pick(&figures[at]))
    }

    /// The median of the ratios, each of two figures of one round.
    fn ratio(&self, over: (Peer, Option<u32>), under: (Peer, Option<u32>), pick: Pick) -> Cell {
        let over = self.index(over.0, over.1);
        let under = self.index(under.0, under.1);
        let ratio = over.zip(under).and_then(|(over, under)| {
            self.median(|figures| Some(pick(&figures[over])? / pick(&figures[under])?))
        });
        Cell(ratio.map(|ratio| format!("{ratio:.2}")))
    }

    fn floor(&self) -> Option<f64> {
        let means = self.median(|figures| {
            let sum: f64 = figures.iter().map(|measured| measured.floor_ns).sum();
            Some(sum / figures.len() as f64)
        });
        means.filter(|ns| ns.is_finite())
    }

    /// The largest share of the cores that others used during a figure that counts.
    fn others(&self) -> f64 {
        self.rounds.iter().map(|round| round.others).fold(0.0, f64::max)
    }

    fn times_floor(&self) -> Cell {
        let at = self.index(Peer::Doorbell, None);
        let times = at.and_then(|at| self.median(|all| Some(MEAN(&all[at])? / all[at].floor_ns)));
        Cell(times.map(|times| format!("{times:.2}")))
    }
}

/// The middle value; for an even number the mean of the middle two.
fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    match figures.len() {
        0 => None,
        even if even % 2 == 0 => Some((figures[half - 1] + figures[half]) / 2.0),
        _ => Some(figures[half]),
    }
}

/// A table cell; empty if there is no figure.
struct Cell(Option<String>);

fn ns(figure: Option<f64>) -> Cell {
    Cell(figure.map(|ns| format!("{ns:.0}")))
}

fn millions(figure: Option<f64>) -> Cell {
    Cell(figure.map(|rate| format!("{:.1}", rate / 1e6)))
}

const LATENCY: &[&str] = &[
    "bytes",
    "mode",
    "floor",
    "doorbell p50",
    "mean",
    "x floor",
    "UCX p50",
    "mean",
    "UCX/doorbell",
    "iceoryx2 p50",
    "libfabric mean",
    "rounds",
    "dropped",
    "others",
];

fn latency(outcome: &Outcome) -> Vec<Cell> {
    let (ours, ucx) = ((Peer::Doorbell, None), (Peer::Ucx, None));
    vec![
        ns(outcome.floor()),
        ns(outcome.figure(Peer::Doorbell, None, P50)),
        ns(outcome.figure(Peer::Doorbell, None, MEAN)),
        outcome.times_floor(),
        ns(outcome.figure(Peer::Ucx, None, P50)),
        ns(outcome.figure(Peer::Ucx, None, MEAN)),
        outcome.ratio(ucx, ours, P50),
        ns(outcome.figure(Peer::Iceoryx2, None, P50)),
        ns(outcome.figure(Peer::Libfabric, None, MEAN)),
    ]
}

const RATES: &[&str] = &[
    "bytes",
    "mode",
    "floor",
    "doorbell b1",
    "b16",
    "UCX",
    "b1/UCX",
    "b16/UCX",
    "iceoryx2",
    "rounds",
    "dropped",
    "others",
];

fn rates(outcome: &Outcome) -> Vec<Cell> {
    let (one, many, ucx) =
        ((Peer::Doorbell, Some(1)), (Peer::Doorbell, Some(16)), (Peer::Ucx, None));
    vec![
        ns(outcome.floor()),
        millions(outcome.figure(Peer::Doorbell, Some(1), RATE)),
        millions(outcome.figure(Peer::Doorbell, Some(16), RATE)),
        millions(outcome.figure(Peer::Ucx, None, RATE)),
        outcome.ratio(one, ucx, RATE),
        outcome.ratio(many, ucx, RATE),
        millions(outcome.figure(Peer::Iceoryx2, None, RATE)),
    ]
}

/// The tables, and the conditions that they hold for.
pub(crate) fn text(document: &Document) -> String {
    let mut text = String::new();
    let [here, there] = document.cores;
    let _ = writeln!(
        text,
        "two processes, cores {here},{there}; each figure between two probes of the floor, all in \
         turn; medians, ratios within a round"
    );
    table(&mut text, document, Test::Latency, "half round trip, ns", LATENCY, latency);
    table(&mut text, document, Test::Rate, "one way, M messages/s", RATES, rates);
    let words = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let Versions { ucx, iceoryx2, libfabric } = &document.versions;
    let _ = writeln!(
        text,
        "\nUCX {ucx} (UCT posix, am_lat and am_bw), iceoryx2 {iceoryx2} (publish-subscribe), \
         libfabric {libfabric} (shm, fi_pingpong); doorbell {}\n{}, kernel {}",
        words(&document.commit),
        words(&document.machine["cpu"]),
        words(&document.machine["kernel"])
    );
    for outcome in &document.results {
        for (peer, why) in &outcome.absent {
            let _ = writeln!(text, "{:?}, {} B: no {peer:?}: {why}", outcome.test, outcome.size);
        }
    }
    if document.results.iter().any(|outcome| outcome.disturbed) {
        text.push_str(
            "other programs used these cores all the time: where others had more than 5 % \
             of them, the figures are only a hint\n",
        );
    }
    if document.results.iter().any(|outcome| outcome.kept() < ROUNDS_SOUND as usize) {
        let _ = writeln!(text, "fewer than {ROUNDS_SOUND} rounds: only a hint");
    }
    text
}

/// One test's table.
fn table(
    text: &mut String,
    document: &Document,
    test: Test,
    title: &str,
    head: &[&str],
    cells: fn(&Outcome) -> Vec<Cell>,
) {
    let outcomes = document.results.iter().filter(|outcome| outcome.test == test);
    let mut rows = vec![head.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for outcome in outcomes {
        let mut row = vec![outcome.size.to_string(), outcome.mode.to_owned()];
        let filled = |cell: Cell| cell.0.unwrap_or_else(|| "-".to_owned());
        row.extend(cells(outcome).into_iter().map(filled));
        row.extend([outcome.kept().to_string(), outcome.dropped.len().to_string()]);
        row.push(format!("{:.0} %", outcome.others() * 100.0));
        rows.push(row);
    }
    let widths: Vec<usize> = (0..head.len())
        .map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or_default())
        .collect();
    let _ = writeln!(text, "\n{title}");
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Entry;
    use crate::peer::Figure;
    use crate::round::Round;

    /// Rounds of (floor, ours, UCX's).
    fn outcome(rounds: &[(f64, f64, f64)]) -> Outcome {
        let entry = |peer| Entry { peer, batch: None };
        let measured = |floor_ns, ns| {
            let figure = Figure { p50_ns: Some(ns), mean_ns: Some(ns), messages_per_second: None };
            Measured { floor_ns, figure }
        };
        let round = |(floor, ours, ucx): &(f64, f64, f64)| Round {
            mode: "NEAR",
            first: 0,
            others: 0.0,
            figures: vec![measured(*floor, *ours), measured(*floor, *ucx)],
        };
        Outcome {
            test: Test::Latency,
            size: 8,
            entries: vec![entry(Peer::Doorbell), entry(Peer::Ucx)],
            mode: "NEAR",
            rounds: rounds.iter().map(round).collect(),
            disturbed: true,
            dropped: vec!["it moved".to_owned()],
            absent: vec![(Peer::Libfabric, "not installed".to_owned())],
        }
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_of_one_round_each() {
        // The ratio of the medians would be 150 / 70; the rounds say 2, 2 and 3.
        let outcome = outcome(&[(50.0, 60.0, 120.0), (50.0, 75.0, 150.0), (50.0, 70.0, 210.0)]);
        let cells: Vec<_> = latency(&outcome).into_iter().map(|cell| cell.0).collect();
        let cell = |at: usize| cells[at].as_deref();
        assert_eq!((cell(0), cell(1), cell(3)), (Some("50"), Some("70"), Some("1.40")));
        assert_eq!((cell(4), cell(6), cell(7)), (Some("150"), Some("2.00"), None));
    }

    #[test]
    fn the_table_names_missing_figures() {
        let document = Document {
            schema: 1,
            rounds: 5,
            seconds: 0.2,
            cores: [1, 0],
            commit: Value::Null,
            machine: Value::Null,
            versions: Versions { ucx: "1".into(), iceoryx2: "2", libfabric: "3".into() },
            results: vec![outcome(&[(50.0, 60.0, 120.0)])],
        };
        let text = text(&document);
        assert!(text.contains("no Libfabric: not installed"), "{text}");
        assert!(text.contains("only a hint"), "{text}");
        let row = text.lines().find(|line| line.contains("NEAR")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[cells.len() - 4..], ["1", "1", "0", "%"], "kept, dropped, others");
        assert_eq!(cells.len(), LATENCY.len() + 1, "{row}");
        assert!(text.contains("other programs"), "{text}");
    }
}
