//! `cargo xtask trials`: whether the benchmark finds what is there. `compare` holds a build beside
//! itself and beside one that is a tenth slower; the search for the best rate is held against a
//! sweep of its own. All runs are in turn, because the machine changes while they last.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::args::Args;
use crate::bench;
use crate::exec;
use crate::place::{self, program};

/// Set for a build that is a tenth slower: `benches/src/machine/planted.rs`.
const PLANTED: &str = "DOORBELL_BENCH_PLANTED";

/// What is compared.
const COMPARED: [&str; 2] = ["latency --size 64", "rate --size 64 --batch 16"];

/// The exit code of a comparison in which a figure is slower.
const SLOWER: u8 = 4;

/// What the rate has to keep, and the time of a try. Beyond the best rate messages wait for longer
/// and longer, so the half of them that counts is soon far above the limit, near and far.
const LOAD: &str = "load --size 64 --slo p50=10us --duration 0.2";

/// Searches, each with a sweep of its own behind it. A hypervisor moves the cores, and the best
/// rate of near ones is twice that of far ones: the tries of a sweep count where the cores are as
/// they were for its search.
const SEARCHES: usize = 5;

/// The sweep has eight rates on each side of the one that the search found, in steps of 2 %. Its
/// tries of a rate, and the most passes that it may take.
const RATES: i32 = 8;
const STEP: f64 = 1.02;
const TRIES: u32 = 9;
const PASSES_MAX: u32 = 50;

/// A search may miss its sweep by this part.
const MISS_MOST: f64 = 0.05;

/// Reads the command line, builds, and holds the trials.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    let (mut compares, mut searches, mut count) = (true, true, 10);
    let mut args = Args::new(words);
    while let Some(option) = args.option()? {
        match option {
            "--compare" => searches = false,
            "--slo" => compares = false,
            "--count" => count = args.value(option)?,
            other => {
                return Err(format!("trials has no option `{other}`: --compare, --slo, --count N"));
            }
        }
    }
    let builds = Builds::make(compares)?;
    let mut is_right = true;
    if compares {
        is_right &= builds.compare(count)?;
    }
    if searches {
        is_right &= builds.search()?;
    }
    println!("{}", if is_right { "trials: all as expected" } else { "trials: NOT as expected" });
    Ok(u8::from(!is_right))
}

/// Copies of the usual build and of the slower one.
struct Builds {
    usual: PathBuf,
    /// If it is wanted.
    slower: Option<PathBuf>,
}

impl Builds {
    /// Builds them without link-time optimization, which takes less time.
    fn make(slower_too: bool) -> Outcome<Builds> {
        let folder = place::state().join("trials");
        place::make(&folder)?;
        let make = |name: &str, is_slower: bool| {
            let (mut build, made) = bench::without_lto();
            match is_slower {
                true => build.env(PLANTED, "1"),
                false => build.env_remove(PLANTED),
            };
            exec::must(&mut build)?;
            let copy = folder.join(name);
            fs::copy(&made, &copy)
                .map_err(|cause| format!("cannot copy {}: {cause}", made.display()))?;
            Ok::<_, String>(copy)
        };
        let slower = slower_too.then(|| make("slower", true)).transpose()?;
        Ok(Builds { slower, usual: make("usual", false)? })
    }

    /// Holds the usual build beside the slower one and beside itself, in turn.
    fn compare(&self, count: u32) -> Outcome<bool> {
        let mut is_right = true;
        for command in COMPARED {
            let mut as_expected = [0, 0];
            for trial in 1..=count {
                for (n, after) in [self.slower.as_ref(), Some(&self.usual)].into_iter().enumerate()
                {
                    let Some(after) = after else { continue };
                    let found = Found::of(&self.usual, after, command)?;
                    as_expected[n] += u32::from(found.is(n == 0));
                    let name = ["a slower build", "itself"][n];
                    println!("{command}, beside {name}, {trial} of {count}: {found}");
                }
            }
            let [slower, same] = as_expected;
            println!(
                "{command}: the slower build is called slower {slower} of {count} times, the same \
                 build no different {same} of {count} times"
            );
            is_right &= as_expected == [count; 2];
        }
        Ok(is_right)
    }

    /// Searches for the best rate, each time with a sweep around the rate that was found.
    fn search(&self) -> Outcome<bool> {
        let mut misses = Vec::new();
        for number in 1..=SEARCHES {
            let search = self.load(&format!("--tries {TRIES} --rate 1M"))?;
            let best = search.iter().find(|line| line.best);
            let Try { rate: best, place, .. } =
                best.ok_or("the search found no rate; is the machine busy?")?;
            let rates = (-RATES..=RATES).map(|n| format!("{:.0}", best * STEP.powi(n)));
            let pass = format!("--tries 1 --rate {}", rates.collect::<Vec<_>>().join(","));
            let mut sweep = Sweep::default();
            for _ in 0..PASSES_MAX {
                let tries = self.load(&pass)?;
                sweep.add(tries.iter().filter(|line| line.place == *place));
                if sweep.has_all() {
                    break;
                }
            }
            let knee = sweep.knee().ok_or("no rate of the sweep holds; is the machine busy?")?;
            let miss = best / knee - 1.0;
            println!(
                "search {number}, {place}: it ends at {best:.0} /s after {} tries, the sweep at \
                 {knee:.0} /s: {:+.1} %",
                search.len(),
                100.0 * miss
            );
            misses.push(miss);
        }
        let within = misses.iter().filter(|miss| miss.abs() <= MISS_MOST).count();
        println!(
            "{LOAD}: {within} of {SEARCHES} searches within {} % of their sweeps",
            100.0 * MISS_MOST
        );
        Ok(within == SEARCHES)
    }

    /// The tries of a load.
    fn load(&self, rest: &str) -> Outcome<Vec<Try>> {
        let file = place::state().join("trials").join("load.csv");
        let mut load = words(&self.usual, &format!("{LOAD} {rest}"));
        exec::must(load.arg("--csv").arg(&file))?;
        let text = fs::read_to_string(&file)
            .map_err(|cause| format!("cannot read {}: {cause}", file.display()))?;
        Try::all(&text)
    }
}

/// A program with the words of a line.
fn words(path: &Path, line: &str) -> Command {
    let mut command = program(path);
    command.args(line.split_whitespace());
    command
}

/// What a comparison said.
struct Found {
    /// How many times as long, and the interval.
    times: String,
    last_line: String,
    code: u8,
}

impl Found {
    fn of(before: &Path, after: &Path, command: &str) -> Outcome<Found> {
        let mut compare = program(before);
        compare.arg("compare").args([before, after]).arg("--").args(command.split_whitespace());
        let output = compare.output().map_err(|cause| format!("cannot compare: {cause}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last_line = text.lines().last().unwrap_or_default().to_owned();
        Ok(Found { times: times(&text), last_line, code: exec::code(output.status) })
    }

    /// True if the verdict is what it has to be.
    fn is(&self, slower: bool) -> bool {
        match slower {
            true => self.last_line.starts_with("slower: ") && self.code == SLOWER,
            false => self.last_line.starts_with("no difference: ") && self.code == 0,
        }
    }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Found { times, last_line, code } = self;
        write!(f, "{times}; {last_line}; exit code {code}")
    }
}

/// The ratio and its interval, from the only row of the table: behind the unit come two figures.
fn times(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.ends_with("verdict")).skip(1);
    let row = lines.next().unwrap_or_default();
    let after_unit = row.split_once(" ns ").or_else(|| row.split_once(" M/s "));
    let figures: Vec<&str> =
        after_unit.map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
    match figures[..] {
        [_, _, times, from, to, ..] => format!("times {times} ({from} to {to})"),
        _ => "no ratio".to_owned(),
    }
}

/// A try of a rate.
#[derive(Debug, PartialEq)]
struct Try {
    rate: f64,
    /// Near or far cores, or both.
    place: String,
    kept: bool,
    best: bool,
}

/// What the benchmark calls a try that does not count.
const DISTURBED: &str = "slo.disturbed";

impl Try {
    /// All tries, from the CSV of a load.
    fn all(text: &str) -> Outcome<Vec<Try>> {
        let mut lines = text.lines().map(cells);
        let head = lines.next().unwrap_or_default();
        let column = |name: &str| {
            let place = head.iter().position(|known| *known == name);
            place.ok_or_else(|| format!("the benchmark's CSV has no column {name}"))
        };
        let (rate, kept) = (column("offered_per_second")?, column("slo.kept")?);
        let (best, place) = (column("slo.best")?, column("placement.mode")?);
        // There is no such column if all count.
        let disturbed = head.iter().position(|known| *known == DISTURBED);
        let counts = |line: &Vec<&str>| {
            disturbed.and_then(|place| line.get(place)).is_none_or(|said| *said != "true")
        };
        let one = |line: Vec<&str>| {
            let of = |place: usize| line.get(place).copied().unwrap_or_default();
            let rate = of(rate).parse().map_err(|_| format!("{} is no rate", of(rate)))?;
            let (kept, best) = (of(kept) == "true", of(best) == "true");
            Ok(Try { rate, place: of(place).to_owned(), kept, best })
        };
        lines.filter(counts).map(one).collect()
    }
}

/// The cells of a line of CSV. A comma between quotes is part of its cell.
fn cells(line: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let ends = |letter: char| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    };
    line.split(ends).collect()
}

/// The tries of each rate, and how many kept the objective.
#[derive(Default)]
struct Sweep(BTreeMap<u64, (u32, u32)>);

impl Sweep {
    fn add<'a>(&mut self, tries: impl Iterator<Item = &'a Try>) {
        for Try { rate, kept, .. } in tries {
            let (held, all) = self.0.entry(rate.round() as u64).or_default();
            *held += u32::from(*kept);
            *all += 1;
        }
    }

    /// True if every rate was tried often enough.
    fn has_all(&self) -> bool {
        self.0.len() == 2 * RATES as usize + 1 && self.0.values().all(|(_, all)| *all >= TRIES)
    }

    /// The highest rate that keeps the objective. Near it some tries do and some do not: each rate
    /// counts for the part of its tries that kept it (Spearman and Kaerber), and the sum tells how
    /// many steps above the lowest rate the best one is.
    fn knee(&self) -> Option<f64> {
        let (lowest, _) = self.0.first_key_value()?;
        let parts = self.0.values().map(|(held, all)| f64::from(*held) / f64::from(*all));
        let sum: f64 = parts.sum();
        (sum >= 1.0).then(|| *lowest as f64 * STEP.powf(sum - 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_read_from_the_table() {
        let table = "round 1: 1.1\n  figure  unit  before  after  times  from  to  verdict\n\
                     latency 64 B  mean ns  44.5  49.0  1.101  1.087  1.116  slower\nbefore: x\n";
        assert_eq!(times(table), "times 1.101 (1.087 to 1.116)");
        let rate = table.replace("mean ns", "M/s");
        assert_eq!(times(&rate), "times 1.101 (1.087 to 1.116)");
        assert_eq!(times("undecided"), "no ratio");
    }

    #[test]
    fn a_sweep_counts_the_part_of_the_tries_that_held() {
        let csv = "cores,offered_per_second,slo.kept,slo.best,placement.mode\n\
                   \"[1,0]\",100,true,false,NEAR\n64,102,true,true,NEAR\n\
                   64,104,false,false,NEAR\n";
        let tries = |csv: &str| Try::all(csv).expect("all columns are there");
        let place = "NEAR".to_owned();
        assert_eq!(tries(csv)[1], Try { rate: 102.0, place, kept: true, best: true });
        let mut sweep = Sweep::default();
        sweep.add(tries(csv).iter());
        assert_eq!((sweep.knee(), sweep.has_all()), (Some(102.0), false));
        // Half of the tries at 102 fail now.
        sweep.add(tries(&csv.replace("102,true", "102,false")).iter());
        assert_eq!(sweep.knee(), Some(100.0 * STEP.sqrt()));
        let none = csv.replace(",true,", ",false,");
        let mut sweep = Sweep::default();
        sweep.add(tries(&none).iter());
        assert_eq!(sweep.knee(), None);
        let disturbed = "offered_per_second,slo.kept,slo.best,placement.mode,slo.disturbed\n\
             100,false,false,FAR,true\n";
        assert_eq!(Try::all(disturbed), Ok(Vec::new()));
        assert!(Try::all("size\n64\n").is_err());
    }

    #[test]
    fn a_verdict_needs_its_words_and_its_exit_code() {
        let found = |last_line: &str, code| {
            let (times, last_line) = (String::new(), last_line.to_owned());
            Found { times, last_line, code }
        };
        assert!(found("slower: 1 of 1 figures", 4).is(true));
        assert!(!found("slower: 1 of 1 figures", 0).is(true));
        assert!(found("no difference: 1 figures", 0).is(false));
        assert!(!found("undecided: no figure could be compared", 3).is(false));
    }
}
