//! `cargo xtask test`: runs the steps, in order, and sums up.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::Args;
use crate::count::Count;
use crate::exec::capture;
use crate::packages;
use crate::place::{self, cargo, packages_with};
use crate::steps::{FEATURES, Report, STEPS, Step, Work};

/// How a step ended.
#[derive(Debug)]
enum Fate {
    Ran(Count, Duration),
    Skipped(String),
}

/// Runs the ladder. The last line is `N passed, N failed`; the exit code is 1 if something failed
/// or nothing ran.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    let choice = Choice::read(words)?;
    place::make(&place::state().join("log"))?;
    let mut fates = Vec::new();
    let mut broken = false;
    for (index, step) in STEPS.iter().enumerate() {
        let fate = match choice.skips(step.name) {
            _ if broken => Fate::Skipped("the build failed".to_owned()),
            Some(reason) => Fate::Skipped(reason),
            None => {
                println!("[{}/{}] {}: {}", index + 1, STEPS.len(), step.name, step.shows);
                one(step)?
            }
        };
        broken |= matches!((&step.work, &fate), (Work::Build(_), Fate::Ran(count, _))
            if count.failed > 0);
        fates.push((step, fate));
    }
    let sum = summary(&fates);
    println!("{} passed, {} failed", sum.passed, sum.failed);
    Ok(u8::from(sum.failed > 0 || sum.passed == 0))
}

/// Runs one step, prints what is worth it, and keeps the whole output in a file.
fn one(step: &Step) -> Outcome<Fate> {
    let since = Instant::now();
    let (count, text) = match attempt(&step.work) {
        Ok(Ok(done)) => done,
        Ok(Err(reason)) => {
            println!("      skipped: {reason}");
            return Ok(Fate::Skipped(reason));
        }
        Err(message) => (Count::one(false), message),
    };
    let log = place::state().join("log").join(format!("{}.log", step.name));
    place::write(&log, &text)?;
    let time = since.elapsed();
    if count.failed > 0 {
        println!("{}", text.trim_end());
        println!("      FAILED in {:.1} s: {}", time.as_secs_f32(), told(count));
    } else {
        println!("      ok in {:.1} s: {}", time.as_secs_f32(), told(count));
    }
    Ok(Fate::Ran(count, time))
}

fn told(count: Count) -> String {
    let ignored = match count.ignored {
        0 => String::new(),
        number => format!(", {number} ignored"),
    };
    format!("{} passed, {} failed{ignored}", count.passed, count.failed)
}

/// Counts and output of a step, or why it does not apply.
fn attempt(work: &Work) -> Outcome<Result<(Count, String), String>> {
    let own =
        |check: fn() -> Outcome<Report>| check().map(|report| Ok((report.count, report.text)));
    let (words, tests) = match work {
        Work::Own(check) => return own(*check),
        Work::Able(lacks, check) => return lacks().map_or_else(|| own(*check), |it| Ok(Err(it))),
        Work::Tests(words) => (words, true),
        Work::Cargo(words) | Work::Build(words) => (words, false),
    };
    let mut cargo = cargo();
    for word in *words {
        let Some((_, feature, need)) = FEATURES.iter().find(|(sign, ..)| sign == word) else {
            cargo.arg(word);
            continue;
        };
        let packages = packages_with(feature);
        if packages.is_empty() {
            return Ok(Err("no package has the feature".to_owned()));
        }
        packages::ensure(&[*need])?;
        for (name, _) in packages {
            cargo.args(["--package", &name]);
        }
        cargo.args(["--features", feature]);
    }
    let done = capture(&mut cargo)?;
    let count = if tests { Count::of_program(&done.text, done.ok) } else { Count::one(done.ok) };
    Ok(Ok((count, done.text)))
}

fn summary(fates: &[(&Step, Fate)]) -> Count {
    let mut sum = Count::default();
    println!();
    for (step, fate) in fates {
        match fate {
            Fate::Ran(count, time) => {
                sum += *count;
                println!("{:<14}{:>7.1} s  {}", step.name, time.as_secs_f32(), told(*count));
            }
            Fate::Skipped(reason) => println!("{:<14}  skipped  {reason}", step.name),
        }
    }
    sum
}

/// Which steps the command line asks for.
#[derive(Debug, Default)]
struct Choice {
    only: Vec<String>,
    skip: Vec<String>,
}

impl Choice {
    fn read(words: &[String]) -> Outcome<Self> {
        let mut choice = Self::default();
        let mut args = Args::new(words);
        while let Some(option) = args.option()? {
            let list = match option {
                "--only" => &mut choice.only,
                "--skip" => &mut choice.skip,
                other => return Err(format!("there is no option `{other}` here")),
            };
            for name in args.value::<String>(option)?.split(',') {
                if !STEPS.iter().any(|step| step.name == name) {
                    let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
                    return Err(format!("no step is called `{name}`; there are {names:?}"));
                }
                list.push(name.to_owned());
            }
        }
        Ok(choice)
    }

    /// Why a step is skipped, if it is.
    fn skips(&self, name: &str) -> Option<String> {
        let listed = |list: &[String]| list.iter().any(|entry| entry == name);
        if listed(&self.skip) {
            return Some("--skip".to_owned());
        }
        (!self.only.is_empty() && !listed(&self.only)).then(|| "not in --only".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(line: &str) -> Outcome<Choice> {
        Choice::read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn steps_are_chosen_by_name() {
        let only = choice("--only fmt,vm").expect("both exist");
        assert!(only.skips("fmt").is_none() && only.skips("vm").is_none());
        assert!(only.skips("tests").is_some());
        let skip = choice("--skip vm").expect("it exists");
        assert!(skip.skips("vm").is_some() && skip.skips("fmt").is_none());
        assert!(choice("--only none-such").is_err());
        assert!(Choice::default().skips("vm").is_none(), "nothing is skipped unasked");
    }

    #[test]
    fn every_step_has_its_own_name() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
    }

    #[test]
    fn the_sum_is_over_steps_that_ran() {
        let ran = Count { passed: 5, failed: 1, ignored: 2 };
        let fates = [
            (&STEPS[0], Fate::Ran(ran, Duration::ZERO)),
            (&STEPS[1], Fate::Skipped(String::new())),
            (&STEPS[2], Fate::Ran(Count::one(true), Duration::ZERO)),
        ];
        assert_eq!(summary(&fates), Count { passed: 6, failed: 1, ignored: 2 });
    }

    #[test]
    fn a_step_that_lacks_something_says_what() {
        let work = Work::Able(|| Some("no such compiler".to_owned()), || panic!("it lacks it"));
        let step = Step { name: "unit-test", shows: "", work };
        let fate = one(&step).expect("no error");
        assert!(matches!(fate, Fate::Skipped(reason) if reason == "no such compiler"));
    }

    #[test]
    fn a_step_that_cannot_start_fails() {
        let step =
            Step { name: "unit-test", shows: "", work: Work::Own(|| Err("no machine".to_owned())) };
        place::make(&place::state().join("log")).expect("the target folder can be written");
        let fate = one(&step).expect("a failure is counted, not an error");
        assert!(matches!(fate, Fate::Ran(count, _) if count == Count::one(false)));
    }
}
