//! The output: a line for each round, tables and verdicts for people, a file for programs.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use crate::contest::{Peer, Setting, Test, bytes};
use crate::error::Failure;
use crate::grid::Grid;
use crate::ice;
use crate::outcome::{Outcome, Round, Worth};
use crate::process::{Program, heard};
use crate::verdict::{self, Judged, with_unit};

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
    /// More was to be measured.
    interrupted: bool,
    results: Vec<Outcome>,
    verdicts: Vec<Judged>,
    /// The section on other libraries, in Markdown.
    section: String,
}

#[derive(Clone, Debug, Serialize)]
struct Versions {
    ucx: String,
    iceoryx2: &'static str,
    libfabric: String,
}

impl Document {
    /// Without figures, but with the conditions that they hold for.
    pub(crate) fn new(set: &Setting, rounds: u32) -> Result<Document, Failure> {
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
            schema: 3,
            rounds,
            seconds: set.time.as_secs_f64(),
            cores: set.cores,
            commit: about["commit"].clone(),
            machine: about["machine"].clone(),
            versions,
            interrupted: true,
            results: Vec::new(),
            verdicts: Vec::new(),
            section: String::new(),
        })
    }

    /// Takes the figures so far. The run is interrupted until [`Document::finish`].
    pub(crate) fn update(&mut self, outcomes: &[Outcome]) {
        self.results = outcomes.iter().filter(|it| !it.rounds.is_empty()).cloned().collect();
        self.verdicts = self.results.iter().flat_map(verdict::judge).collect();
        self.section = self.markdown();
    }

    /// All was measured.
    pub(crate) fn finish(&mut self) {
        self.interrupted = false;
        self.section = self.markdown();
    }

    /// Writes it as JSON: to another file first, so that a run that is interrupted leaves a whole
    /// one.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self).map_err(Failure::at("write the figures"))?;
        let next = path.with_extension("json.next");
        let written = fs::write(&next, text + "\n").and_then(|()| fs::rename(&next, path));
        written.map_err(Failure::at(format!("write {}", path.display())))
    }

    /// How many aims were met and missed.
    fn count(&self) -> String {
        let count = |is: fn(&Judged) -> bool| self.verdicts.iter().filter(|of| is(of)).count();
        let (met, beyond) = (count(|of| of.met), count(|of| of.beyond_limit));
        let mut text = format!("{met} met, {} missed", self.verdicts.len() - met);
        let all: usize = self.results.iter().map(verdict::aims).sum();
        if all > self.verdicts.len() {
            text.push_str(&format!(", {} without a figure", all - self.verdicts.len()));
        }
        if beyond > 0 {
            text.push_str(&format!(", {beyond} of them beyond the limit of this machine"));
        }
        text
    }

    /// What the figures hold for, in sentences.
    fn conditions(&self) -> Vec<String> {
        let Versions { ucx, iceoryx2, libfabric } = &self.versions;
        let [here, there] = self.cores;
        let words = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let mut lines = vec![
            format!(
                "UCX {ucx} (ucx_perftest over posix, with and without cma), iceoryx2 {iceoryx2} \
                 (publish-subscribe) and libfabric {libfabric} (shm, fi_pingpong) in turn with \
                 doorbell {}, two processes on cores {here} and {there}; rounds: {}, of {} s a \
                 figure; {}, kernel {}.",
                words(&self.commit),
                self.rounds,
                self.seconds,
                words(&self.machine["cpu"]),
                words(&self.machine["kernel"])
            ),
            NOTE.to_owned(),
        ];
        let mut absent: Vec<String> = Vec::new();
        for outcome in &self.results {
            absent.extend(outcome.absent.iter().map(|(peer, why)| {
                let contest = format!("{}, {}", outcome.test.name(), bytes(outcome.size));
                format!("{contest}: no {}: {why}", peer.name())
            }));
        }
        lines.extend(absent);
        let results = &self.results;
        if results.iter().any(|outcome| outcome.disturbed && outcome.kept() > 0) {
            lines.push(
                "Other programs used the cores all the time: where others had more than 5 % of \
                 them, the figures are only a hint."
                    .to_owned(),
            );
        }
        if results.iter().any(|outcome| outcome.kept() < ROUNDS_SOUND as usize) {
            lines.push(format!(
                "Rows with fewer than {ROUNDS_SOUND} rounds that count are only a hint."
            ));
        }
        if self.interrupted {
            lines.push("The run was interrupted: these are its figures until then.".to_owned());
        }
        lines
    }

    /// Conditions, tables and verdicts for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (title, grid) in self.tables() {
            let _ = write!(text, "\n{title}\n{}", grid.text());
        }
        let _ = write!(text, "\naims: {}\n{}\n", self.count(), self.aims().text());
        for line in self.conditions() {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// The same for a page.
    fn markdown(&self) -> String {
        let mut text = self.conditions().join("\n\n");
        let _ = write!(text, "\n\nAims: {}.\n\n{}", self.count(), self.aims().markdown());
        for (title, grid) in self.tables() {
            let _ = write!(text, "\n### {title}\n\n{}", grid.markdown());
        }
        text
    }

    /// A table for each test that was run.
    fn tables(&self) -> Vec<(String, Grid)> {
        let of = |test: Test| {
            let outcomes: Vec<&Outcome> =
                self.results.iter().filter(|outcome| outcome.test == test).collect();
            (!outcomes.is_empty()).then(|| (title(test), table(test, &outcomes)))
        };
        Test::ALL.into_iter().filter_map(of).collect()
    }

    /// The verdicts.
    fn aims(&self) -> Grid {
        let head = [
            "contest",
            "",
            "figure",
            "beside",
            "figure",
            "ratio",
            "aim",
            "",
            "limit",
            "each round",
        ];
        let mut grid = Grid::new(&head);
        for judged in &self.verdicts {
            let [ours, theirs] = judged.figures();
            grid.push(vec![
                judged.contest.clone(),
                judged.ours.clone(),
                ours,
                judged.theirs.clone(),
                theirs,
                format!("{:.2}", judged.ratio),
                judged.aim.text(),
                judged.verdict().to_owned(),
                judged.limit(),
                judged.each(),
            ]);
        }
        grid
    }
}

/// What a reader must know to compare.
const NOTE: &str = "\
Doorbell and iceoryx2 write every byte of a message before they send it, and read every byte of \
a message that comes. Each reading is part of the time of a round trip; the first writing is \
not. ucx_perftest and fi_pingpong neither write nor read messages, and UCX does not even copy \
active messages to the receiver. So their figures have an advantage. \"doorbell untouched\" does \
not write or read messages either. One-sided requests and large messages are untouched on all \
sides. The copy of the other core's lines is memcpy on one core from memory that the other core \
has just written. No message that is copied to the receiver's memory can be faster than that. \
The column \"limit\" holds the ratio of that limit to theirs; for \"doorbell untouched\" \
it holds the ratio of memcpy. An aim beyond the limit stays in the table, but this machine \
cannot meet it. UCX and Doorbell's one-sided rows see a message when its last word has come.";

/// The head of a table.
fn title(test: Test) -> String {
    match test {
        Test::Latency => "half round trip, p50 in ns (libfabric: mean)",
        Test::Rate => "one way, thousand messages/s",
        Test::Put => "half round trip of a one-sided write, p50 in ns",
        Test::PutRate => "one-sided writes, MB/s",
        Test::GetRate => "one-sided reads, MB/s",
        Test::Rpc => {
            "half of a call and its answer, p50 in ns (eRPC's paper: 1150 ns, ConnectX-5 NICs)"
        }
        Test::Large => "messages larger than a block (doorbell::large), one way, MB/s",
        Test::LargeBoth => {
            "messages larger than a block (doorbell::large), both ways at once, MB/s in all"
        }
    }
    .to_owned()
}

/// One number of a table.
fn cell(test: Test, size: u32, figure: Option<f64>) -> String {
    let Some(figure) = figure else { return "-".to_owned() };
    match test {
        _ if test.is_time() => format!("{figure:.0}"),
        Test::Rate if figure < 1e5 => format!("{:.2}", figure / 1e3),
        Test::Rate => format!("{:.0}", figure / 1e3),
        _ => format!("{:.0}", figure * f64::from(size) / 1e6),
    }
}

/// A column for each entry that one of the contests has.
fn table(test: Test, outcomes: &[&Outcome]) -> Grid {
    let mut names: Vec<(Peer, Option<u32>, String)> = Vec::new();
    for entry in outcomes.iter().flat_map(|outcome| &outcome.entries) {
        if !names.iter().any(|(peer, batch, _)| (*peer, *batch) == (entry.peer, entry.batch)) {
            names.push((entry.peer, entry.batch, entry.name()));
        }
    }
    // Ours first, the limits of the machine last.
    names.sort_by_key(|(peer, ..)| match peer {
        Peer::Doorbell => 0,
        Peer::Untouched => 1,
        Peer::Uct => 2,
        Peer::Ucx { .. } => 3,
        Peer::Iceoryx2 | Peer::Libfabric => 4,
        Peer::Copy | Peer::Memcpy => 5,
    });
    let mut head = vec!["bytes"];
    head.extend(names.iter().map(|(.., name)| name.as_str()));
    head.extend(["floor", "cores", "rounds", "of", "others"]);
    let mut grid = Grid::new(&head);
    for outcome in outcomes {
        let mut row = vec![outcome.size.to_string()];
        row.extend(names.iter().map(|(peer, batch, _)| {
            let place = outcome.place(*peer, *batch);
            let figure = place.and_then(|at| outcome.median(at, |figure| figure.main(test)));
            cell(test, outcome.size, figure)
        }));
        row.push(outcome.floor().map_or("-".to_owned(), |ns| format!("{ns:.0}")));
        row.push(outcome.mode.to_owned());
        row.extend([outcome.kept().to_string(), outcome.rounds.len().to_string()]);
        row.push(format!("{:.0} %", outcome.others() * 100.0));
        grid.push(row);
    }
    grid
}

/// One line for a round: every figure, and why one does not count.
pub(crate) fn line(outcome: &Outcome, round: &Round) -> String {
    let mut text =
        format!("round {} of {}, {}:", round.number, outcome.test.name(), bytes(outcome.size));
    for (entry, measured) in outcome.entries.iter().zip(&round.figures) {
        let Some(measured) = measured else { continue };
        let figure = measured.figure.main(outcome.test).unwrap_or_default();
        let _ = write!(text, " {} {}", entry.name(), with_unit(figure, outcome.test.is_time()));
        let [before, after] = measured.floor_ns;
        match measured.worth() {
            Worth::Sound => {
                let _ = write!(text, " {}", measured.mode);
            }
            Worth::Moved => {
                let _ = write!(text, " (the floor went from {before:.0} to {after:.0} ns)");
            }
            Worth::Disturbed => {
                let percent = measured.others * 100.0;
                let _ = write!(text, " {} (others had {percent:.0} % of it)", measured.mode);
            }
        }
        text.push(',');
    }
    for error in &round.errors {
        let _ = write!(text, " {error},");
    }
    text.trim_end_matches(',').to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{Api, Entry};
    use crate::outcome::made;

    fn document(outcomes: &[Outcome]) -> Document {
        let versions = Versions { ucx: "1".into(), iceoryx2: "2", libfabric: "3".into() };
        let mut document = Document {
            schema: 3,
            rounds: 5,
            seconds: 0.2,
            cores: [1, 0],
            commit: Value::Null,
            machine: Value::Null,
            versions,
            interrupted: true,
            results: Vec::new(),
            verdicts: Vec::new(),
            section: String::new(),
        };
        document.update(outcomes);
        document
    }

    fn outcomes() -> [Outcome; 2] {
        let entries = [Peer::Doorbell, Peer::Uct, Peer::Libfabric, Peer::Copy].map(Entry::new);
        let mut small = made::outcome(Test::Latency, 208, &entries, &[&[90.0, 180.0, 310.0, 20.0]]);
        small.absent.push((Peer::Libfabric, "not installed".to_owned()));
        let tag = Peer::Ucx { api: Api::Tag, cma: false };
        let entries = [Peer::Doorbell, tag, Peer::Copy].map(Entry::new);
        let large = made::outcome(Test::Latency, 16 << 10, &entries, &[&[900.0, 1000.0, 400.0]]);
        [small, large]
    }

    #[test]
    fn a_table_has_a_column_for_every_entry_and_names_what_is_missing() {
        let text = document(&outcomes()).text();
        let head = text.lines().find(|line| line.contains("bytes")).unwrap();
        let columns = ["doorbell", "UCX uct am", "UCX tag", "libfabric", "copy of the"];
        let places: Vec<_> = columns.iter().map(|name| head.find(name).unwrap()).collect();
        assert!(places.is_sorted(), "{head}");
        let row = text.lines().find(|line| line.trim_start().starts_with("16384")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..7], ["16384", "900", "-", "1000", "-", "400", "50"], "{row}");
        assert_eq!(cells[7..], ["NEAR", "1", "1", "0", "%"], "{row}");
        assert!(text.contains("latency, 208 B: no libfabric: not installed"), "{text}");
        assert!(text.contains("are only a hint"), "{text}");
    }

    #[test]
    fn each_aim_has_both_figures_and_a_verdict() {
        let mut document = document(&outcomes());
        let text = document.text();
        assert!(text.contains("aims: 2 met, 1 missed, 3 without a figure"), "{text}");
        let missed = text.lines().find(|line| line.contains("**missed**")).unwrap();
        let cells = missed.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        let cells: Vec<&str> = cells.collect();
        let expected =
            ["latency, 16 KiB", "doorbell", "900 ns", "UCX tag", "1000 ns", "0.90", "≤ 0.6"];
        assert_eq!(cells[..7], expected);
        assert!(document.section.contains("interrupted"));
        document.finish();
        let page = &document.section;
        assert!(
            !page.contains("interrupted")
                && page.contains("Aims: 2 met, 1 missed, 3 without a figure.")
        );
        assert!(
            page.contains("| latency, 208 B | doorbell | 90 ns | UCX uct am | 180 ns | 0.50 |")
        );
    }

    #[test]
    fn a_round_shows_every_figure_and_why_it_does_not_count() {
        let [mut outcome, _] = outcomes();
        if let Some(measured) = &mut outcome.rounds[0].figures[1] {
            measured.others = 0.25;
        }
        if let Some(measured) = &mut outcome.rounds[0].figures[3] {
            measured.floor_ns = [50.0, 80.0];
        }
        outcome.rounds[0].figures[2] = None;
        outcome.rounds[0].errors.push("libfabric: not installed".to_owned());
        assert_eq!(
            line(&outcome, &outcome.rounds[0]),
            "round 1 of latency, 208 B: doorbell 90 ns NEAR, UCX uct am 180 ns NEAR (others had \
             25 % of it), copy of the other core's lines 20 ns (the floor went from 50 to 80 ns), \
             libfabric: not installed"
        );
    }

    #[test]
    fn rates_are_messages_or_bytes() {
        assert_eq!(cell(Test::Rate, 64, Some(44.8e6)), "44800");
        assert_eq!(cell(Test::Rate, 1 << 20, Some(10_480.0)), "10.48");
        assert_eq!(cell(Test::Large, 1 << 20, Some(10_000.0)), "10486");
        assert_eq!(cell(Test::Put, 64, None), "-");
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let name = format!("doorbell-compare-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        document(&outcomes()).write(&file).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["results"][0]["entries"][1]["peer"], "UCX uct am");
        assert_eq!(read["results"][0]["rounds"][0]["figures"][1]["p50_ns"], 180.0);
        assert_eq!(read["verdicts"][2]["met"], false);
        assert!(!file.with_extension("json.next").exists());
        fs::remove_file(&file).unwrap();
    }
}
