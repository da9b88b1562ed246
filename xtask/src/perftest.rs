//! `cargo xtask compare --device NAME`: an RDMA device measured by Doorbell, by perftest and
//! cmtime, and by UCX and libfabric where they run, in turn. The device is this machine's, or rxe0
//! of the virtual machine. The script `xtask/vm/perftest.sh` takes the figures; this file reports
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::args::{Args, quoted};
use crate::bench::RESULTS;
use crate::exec::{self, Limit, Sink, stream};
use crate::machine::{Job, Shared};
use crate::packages::{self, Need};
use crate::place::{self, cargo, program, target};
use crate::{setup, vm};

const BENCH: &str = "doorbell-bench";
const SCRIPT: &str = "xtask/vm/perftest.sh";

/// The device of the virtual machine, and its address there.
const EMULATED: (&str, &str) = ("rxe0", "192.168.77.1");

/// A hung device must not hang the command.
const LIMIT: Duration = Duration::from_secs(3600);

/// The options.
#[derive(Debug, PartialEq)]
struct Options {
    device: String,
    /// The device's address; none for that of the virtual machine.
    addr: Option<String>,
    rounds: u32,
    /// Seconds of each figure.
    time: u32,
    /// Write the section of `benches/RESULTS.md`, too.
    results: bool,
}

impl Options {
    fn read(words: &[String]) -> Outcome<Options> {
        let (device, results) = (EMULATED.0.to_owned(), false);
        let mut options = Options { device, addr: None, rounds: 3, time: 2, results };
        let mut args = Args::new(words);
        while let Some(option) = args.option()? {
            match option {
                "--device" => options.device = args.value(option)?,
                "--addr" => options.addr = Some(args.value(option)?),
                "--rounds" => options.rounds = args.value(option)?,
                RESULTS => options.results = true,
                "--quick" => (options.rounds, options.time) = (1, 1),
                other => return Err(format!("with --device there is no option `{other}`")),
            }
        }
        if !(1..=99).contains(&options.rounds) {
            return Err("--rounds is 1 to 99".to_owned());
        }
        Ok(options)
    }
}

/// True if the words name an RDMA device.
pub(crate) fn is_meant(words: &[String]) -> bool {
    let mut devices = words.windows(2).filter(|pair| pair[0] == "--device");
    devices.any(|pair| !pair[1].starts_with("soft"))
}

/// Builds, measures and reports.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    let options = Options::read(words)?;
    packages::ensure(&[Need::Verbs, Need::Peers])?;
    let mut build = cargo();
    build.args(["build", "--release", "--quiet", "--package", BENCH, "--features", "verbs"]);
    let built = build.status().map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !built.success() {
        return Ok(exec::code(built));
    }
    let bench = target().join("release").join(BENCH);
    let Options { device, rounds, time, .. } = &options;
    println!("{device}, {rounds} rounds with figures of {time} s each: this takes minutes");
    let text = match Path::new("/sys/class/infiniband").join(device).exists() {
        true => here(&options, &bench)?,
        false if device == EMULATED.0 => emulated(&options, &bench)?,
        false => return Err(format!("there is no device {device}; `rdma link` lists them")),
    };
    let file = place::state().join(format!("compare-{device}.txt"));
    place::write(&file, &text)?;
    let figures = Figures::read(&text);
    let table = figures.table();
    print!("{table}");
    println!("every figure: {}", file.display());
    if options.results && !figures.rounds.is_empty() {
        let printed = place::state().join(format!("compare-{device}.table.txt"));
        place::write(&printed, &format!("{device}, {rounds} rounds of {time} s\n{table}"))?;
        let mut page = program(&bench);
        exec::must(page.args(["results", "--only-compare", "--perftest"]).arg(&printed))?;
    }
    Ok(u8::from(figures.rounds.is_empty()))
}

/// The script's variables.
fn variables(options: &Options, bench: &Path, addr: &str) -> [(&'static str, String); 5] {
    [
        ("BENCH", bench.display().to_string()),
        ("DEVICE", options.device.clone()),
        ("ADDRESS", addr.to_owned()),
        ("ROUNDS", options.rounds.to_string()),
        ("TIME", options.time.to_string()),
    ]
}

/// On this machine.
fn here(options: &Options, bench: &Path) -> Outcome<String> {
    packages::ensure(&[Need::Machine])?;
    let addr = options.addr.as_deref();
    let addr = addr.ok_or("--addr IP: which of this machine's addresses is the device's?")?;
    let mut bash: Command = program("bash");
    bash.arg(SCRIPT).envs(variables(options, bench, addr));
    let ended = stream(&mut bash, Sink::Shown, Limit::Total(LIMIT), &|| false)?;
    ended.status.map(|_| ended.text).ok_or_else(|| "it did not end in time".to_owned())
}

/// In the virtual machine, which sees this machine's files, except those below `/tmp`.
fn emulated(options: &Options, bench: &Path) -> Outcome<String> {
    let parts = setup::machine()?;
    let shared = Shared::new()?;
    let copy = shared.folder.join(BENCH);
    fs::copy(bench, &copy).map_err(|cause| format!("cannot copy {BENCH}: {cause}"))?;
    let addr = options.addr.as_deref().unwrap_or(EMULATED.1);
    let words = variables(options, &copy, addr);
    let words = words.map(|(name, value)| format!("{name}={}", quoted(&value)));
    let line = format!("{} bash {SCRIPT}", words.join(" "));
    let machine = vm::usual(LIMIT);
    let job =
        Job { machine: &machine, shared: &shared, role: "command", line: &line, sink: Sink::Shown };
    job.run(&parts, &|| false).map(|(_, text)| text)
}

/// What the script measured.
#[derive(Debug, Default, PartialEq)]
struct Figures {
    /// By round, then by what was measured: the program, or the setting.
    rounds: BTreeMap<u32, BTreeMap<String, Vec<(String, f64)>>>,
    /// By what was to be measured: those who gave no figure.
    missing: BTreeMap<String, BTreeSet<String>>,
}

/// One line of the table: our figure, theirs, and the allowed ratio.
struct Row {
    name: &'static str,
    /// The names of ours and theirs; without theirs, the figure itself has an aim.
    ours: &'static str,
    theirs: Option<&'static str>,
    aim: Aim,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Aim {
    /// At most this many times theirs; without theirs, at most this figure.
    AtMost(f64),
    /// At least this many times theirs.
    AtLeast(f64),
    /// Less is better, or more, and there is no bound.
    Less,
    More,
}

const ROWS: &[Row] = &[
    Row {
        name: "latency, median, ns",
        ours: "latency",
        theirs: Some("latency"),
        aim: Aim::AtMost(1.05),
    },
    Row {
        name: "messages/s, its best with --use-srq",
        ours: "rate",
        theirs: Some("rate-srq"),
        aim: Aim::AtLeast(1.0),
    },
    Row {
        name: "messages/s, its best without",
        ours: "rate",
        theirs: Some("rate-own"),
        aim: Aim::AtLeast(0.95),
    },
    Row {
        name: "latency beside UCX, median, ns",
        ours: "latency",
        theirs: Some("latency-ucx"),
        aim: Aim::Less,
    },
    Row { name: "messages/s beside UCX", ours: "rate", theirs: Some("rate-ucx"), aim: Aim::More },
    Row {
        name: "latency beside libfabric, its mean",
        ours: "latency-mean",
        theirs: Some("latency-libfabric"),
        aim: Aim::Less,
    },
    Row {
        name: "connections/s, 500 at once",
        ours: "connect",
        theirs: Some("connect"),
        aim: Aim::AtLeast(1.0),
    },
    Row {
        name: "messages to a doorbell, batch 32",
        ours: "doorbells",
        theirs: None,
        aim: Aim::AtLeast(16.0),
    },
];

impl Figures {
    /// The script's lines.
    fn read(text: &str) -> Figures {
        let mut figures = Figures::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["figure", round, what, who, number] => {
                    let (Ok(round), Ok(number)) = (round.parse(), number.parse()) else { continue };
                    let of_round = figures.rounds.entry(round).or_default();
                    of_round.entry(what.to_owned()).or_default().push((who.to_owned(), number));
                }
                ["missing", _, what, who] => {
                    figures.missing.entry(what.to_owned()).or_default().insert(who.to_owned());
                }
                _ => {}
            }
        }
        figures
    }

    /// The best program of ours, or of theirs: by the median, because the best of a few rounds is
    /// luck.
    fn best(&self, what: &str, ours: bool, aim: Aim) -> Option<&str> {
        let all = self.rounds.values().filter_map(|round| round.get(what)).flatten();
        let names: BTreeSet<&str> = all.map(|(who, _)| who.as_str()).collect();
        let of = names.into_iter().filter(|who| who.starts_with("doorbell") == ours);
        let medians = of.filter_map(|who| Some((who, median(&self.all(what, who))?)));
        let better = |one: f64, two: f64| match aim {
            Aim::AtMost(_) | Aim::Less => two.total_cmp(&one),
            Aim::AtLeast(_) | Aim::More => one.total_cmp(&two),
        };
        medians.max_by(|one, two| better(one.1, two.1)).map(|(who, _)| who)
    }

    /// The median of one program over all rounds.
    fn all(&self, what: &str, who: &str) -> Vec<f64> {
        self.rounds.keys().filter_map(|round| self.one(*round, what, who)).collect()
    }

    /// Its figure in a round: the median of several turns.
    fn one(&self, round: u32, what: &str, who: &str) -> Option<f64> {
        let all = self.rounds.get(&round)?.get(what)?.iter();
        let turns = all.filter(|(name, _)| name == who).map(|(_, number)| *number);
        median(&turns.collect::<Vec<_>>())
    }

    fn table(&self) -> String {
        let mut text = format!(
            "{:<36} {:>10} {:>10} {:>6} {:>7}  each round; the settings that were best\n",
            "64 bytes, RC, medians", "doorbell", "theirs", "times", "aim"
        );
        for row in ROWS {
            text.push_str(&self.line(row));
        }
        text
    }

    fn line(&self, row: &Row) -> String {
        let (mut ours, mut theirs, mut measures) = (Vec::new(), Vec::new(), Vec::new());
        let me = self.best(row.ours, true, row.aim);
        let peer = row.theirs.and_then(|what| Some((what, self.best(what, false, row.aim)?)));
        for round in self.rounds.keys() {
            let mine = me.and_then(|who| self.one(*round, row.ours, who));
            let number = peer.and_then(|(what, who)| self.one(*round, what, who));
            match (mine, number, row.theirs) {
                (Some(mine), Some(number), _) => measures.push(mine / number),
                (Some(mine), None, None) => measures.push(mine),
                _ => continue,
            }
            ours.extend(mine);
            theirs.extend(number);
        }
        let settings = [me, peer.map(|(_, who)| who)].into_iter().flatten();
        let settings: Vec<&str> = settings.filter(|setting| setting.contains('-')).collect();
        let Some(measure) = median(&measures) else {
            let theirs = row.theirs.and_then(|what| self.missing.get(what));
            let missing = theirs.map_or(String::new(), |names| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!(": {} gave none, see the file", names.join(" "))
            });
            return format!("{:<36} no figures{missing}\n", row.name);
        };
        let verdict = |met| if met { "met   " } else { "missed" };
        let (limit, verdict) = match row.aim {
            Aim::AtMost(most) => (format!("≤ {most}"), verdict(measure <= most)),
            Aim::AtLeast(least) => (format!("≥ {least}"), verdict(measure >= least)),
            Aim::Less | Aim::More => ("-".to_owned(), "      "),
        };
        let whole = |numbers: &[f64]| {
            median(numbers).map_or(String::new(), |number| match number {
                ..100.0 => format!("{number:.1}"),
                _ => format!("{number:.0}"),
            })
        };
        let times = row.theirs.map_or(String::new(), |_| format!("{measure:.2}"));
        let rounds: Vec<String> = measures.iter().map(|times| format!("{times:.2}")).collect();
        format!(
            "{:<36} {:>10} {:>10} {times:>6} {limit:>7} {verdict} {} {}\n",
            row.name,
            whole(&ours),
            whole(&theirs),
            rounds.join(" "),
            settings.join(" "),
        )
    }
}

fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some((sorted[low] + sorted[high]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
figure 1 latency doorbell 103
figure 1 latency ib_send_lat 100
figure 1 rate doorbell-batch-1 50
figure 1 rate doorbell-batch-16 20
figure 1 rate doorbell-batch-16 98
figure 1 rate doorbell-batch-16 99
missing 1 rate-srq ib_send_bw-l1-Q1-I0
figure 1 rate-srq ib_send_bw-l16-Q16-I0 100
figure 1 rate-srq ib_send_bw-l1-Q16-I0 70
figure 2 latency doorbell 120
figure 2 latency ib_send_lat 100
figure 2 doorbells doorbell 11.5
missing 1 latency-ucx rc_verbs
missing 1 latency-ucx ud_verbs
missing 1 rate-ucx rc_verbs
figure 1 rate-ucx ud_verbs 60
a word of something else
";

    fn line(name: &str) -> String {
        let table = Figures::read(TEXT).table();
        table.lines().find(|line| line.starts_with(name)).map(str::to_owned).unwrap_or_default()
    }

    #[test]
    fn rounds_are_compared_by_themselves_with_the_best_setting_of_each_side() {
        let latency = line("latency");
        assert!(latency.contains("1.11") && latency.contains("missed 1.03 1.20"), "{latency}");
        let rate = line("messages/s, its best with --use-srq");
        assert!(rate.contains(" 98.0        100   0.98     ≥ 1 missed 0.98"), "{rate}");
        assert!(rate.ends_with("doorbell-batch-16 ib_send_bw-l16-Q16-I0"), "{rate}");
    }

    #[test]
    fn a_missing_figure_says_so_and_a_row_without_a_peer_has_an_aim() {
        assert!(line("connections/s").ends_with("no figures"));
        let doorbells = line("messages to a doorbell");
        assert!(doorbells.contains("11.5") && doorbells.contains("missed"), "{doorbells}");
        assert_eq!(Figures::read("no such device"), Figures::default());
    }

    #[test]
    fn those_who_gave_nothing_are_named_and_no_bound_is_no_verdict() {
        let latency = line("latency beside UCX");
        assert!(latency.ends_with("no figures: rc_verbs ud_verbs gave none, see the file"));
        let rate = line("messages/s beside UCX");
        let words: Vec<&str> = rate.split_whitespace().collect();
        assert_eq!(words[3..], ["98.0", "60.0", "1.63", "-", "1.63", "doorbell-batch-16"]);
    }

    #[test]
    fn options_are_read_and_soft_devices_are_not_meant() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(is_meant(&words("--device rxe0")) && !is_meant(&words("--quick --rounds 2")));
        assert!(!is_meant(&words("--device soft0")));
        let options = Options::read(&words("--device mlx5_0 --addr 10.0.0.1 --rounds 5"));
        let addr = Some("10.0.0.1".to_owned());
        let (device, results) = ("mlx5_0".to_owned(), false);
        let wanted = Options { device, addr, rounds: 5, time: 2, results };
        assert_eq!(options, Ok(wanted));
        assert!(Options::read(&words("--device rxe0 --rounds 0")).is_err());
        assert!(Options::read(&words("--size 8")).is_err());
    }
}
