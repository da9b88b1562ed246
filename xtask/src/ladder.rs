//! `cargo xtask test`: runs the steps, in order, and sums up.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::{Args, meant};
use crate::count::{Count, failures, reasons, without_successes};
use crate::exec::capture;
use crate::members::{Package, members};
use crate::packages;
use crate::place::{self, cargo};
use crate::report::Report;
use crate::steps::{FEATURES, Lane, MODELS, STEPS, Step, Work};
use crate::toolchain;

/// The outcome of a step.
#[derive(Debug)]
enum Fate {
    Ran(Count, Duration, Details),
    Skipped(String),
}

/// What the summary says of the tests of a step.
#[derive(Debug, Default)]
struct Details {
    /// Why tests were skipped, and how many for each reason.
    skips: BTreeMap<String, u32>,
    /// The tests that failed, with the first lines of their output.
    failures: Vec<String>,
}

/// Runs the ladder. It prints what failed once more at the end, since an output can be so long that
/// only its ends are kept. The last line is `N passed, N failed, N skipped`. The exit code is 1 if
/// something failed or nothing ran. A step that `--only` leaves out does not count, because nobody
/// asked for it.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    let choice = Choice::read(words)?;
    place::make(&place::state().join("log"))?;
    toolchain::tell();
    let steps: Vec<&Step> = STEPS.iter().filter(|step| choice.wants(step.name)).collect();
    let fates = all(&steps, &choice);
    let sum = summary(&fates);
    println!("{sum}");
    Ok(u8::from(sum.failed > 0 || sum.passed == 0))
}

/// Runs the steps, those of each lane one after the other; returns their outcomes in the same
/// order.
fn all<'a>(steps: &[&'a Step], choice: &Choice) -> Vec<(&'a Step, Fate)> {
    let mut fates: Vec<Option<Fate>> = steps.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let (mut lanes, mut begun) = (Vec::new(), vec![Lane::Main]);
        let mut broken = false;
        for (index, step) in steps.iter().enumerate() {
            if broken {
                fates[index] = Some(Fate::Skipped("the build failed".to_owned()));
            } else if step.lane == Lane::Main {
                let fate = one(step, choice);
                broken = matches!((&step.work, &fate), (Work::Build(_), Fate::Ran(count, ..))
                    if count.failed > 0);
                fates[index] = Some(fate);
            } else if !begun.contains(&step.lane) {
                begun.push(step.lane);
                let rest = steps.iter().enumerate().skip(index);
                let lane = rest.filter(|(_, other)| other.lane == step.lane);
                let run = |(index, step): (usize, &&Step)| (index, one(step, choice));
                lanes.push(scope.spawn(move || lane.map(run).collect::<Vec<_>>()));
            }
        }
        for lane in lanes {
            for (index, fate) in lane.join().into_iter().flatten() {
                fates[index] = Some(fate);
            }
        }
    });
    let lost = || {
        let details = Details { failures: vec!["it panicked\n".to_owned()], ..Details::default() };
        Fate::Ran(Count::one(false), Duration::ZERO, details)
    };
    steps.iter().copied().zip(fates.into_iter().map(|fate| fate.unwrap_or_else(lost))).collect()
}

/// Runs one step unless it is to be skipped, prints what failed, and keeps the whole output in a
/// file.
fn one(step: &Step, choice: &Choice) -> Fate {
    let name = step.name;
    if choice.skips(name) {
        return Fate::Skipped("--skip".to_owned());
    }
    println!("{name}: {}", step.shows);
    let since = Instant::now();
    let done = packages::ensure(step.needs).and_then(|()| attempt(&step.work));
    let (mut count, mut text) = match done {
        Ok(Ok(done)) => done,
        Ok(Err(reason)) => {
            println!("      {name} skipped: {reason}");
            return Fate::Skipped(reason);
        }
        Err(message) => (Count::one(false), message),
    };
    let log = place::state().join("log").join(format!("{name}.log"));
    if let Err(message) = place::write(&log, &text) {
        count += Count::one(false);
        text.push_str(&message);
    }
    let time = since.elapsed();
    let seconds = time.as_secs_f32();
    let mut details = Details { skips: reasons(&text), failures: Vec::new() };
    if count.failed > 0 {
        details.failures = failures(&text);
        let text = without_successes(&text);
        println!("{}\n      {name} FAILED in {seconds:.1} s: {count}", text.trim_end());
    } else {
        println!("      {name} ok in {seconds:.1} s: {count}");
    }
    let more = (count.failed as usize).saturating_sub(details.failures.len());
    if more > 0 {
        let log = log.display();
        details.failures.push(format!("{more} that the output does not name; see {log}\n"));
    }
    Fate::Ran(count, time, details)
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
        let feature = FEATURES.iter().find(|(sign, _)| sign == word).map(|(_, feature)| feature);
        let packages: Vec<Package> = match feature {
            None if *word == MODELS => members().into_iter().filter(Package::has_models).collect(),
            None => {
                cargo.arg(word);
                continue;
            }
            Some(feature) => members().into_iter().filter(|it| it.has_feature(feature)).collect(),
        };
        if packages.is_empty() {
            return Err(format!("no package is meant by {word}"));
        }
        for package in packages {
            cargo.args(["--package", &package.name]);
        }
        cargo.args(feature.iter().flat_map(|feature| ["--features", feature]));
    }
    if tests {
        // Tests that are skipped say so in their output.
        cargo.args(["--", "--show-output"]);
    }
    let done = capture(&mut cargo)?;
    let count = if tests { Count::of_program(&done.text, done.ok) } else { Count::one(done.ok) };
    Ok(Ok((count, done.text)))
}

/// Prints the table of steps, the reasons for skips, and the failures; returns the sum of all
/// counts.
fn summary(fates: &[(&Step, Fate)]) -> Count {
    let mut sum = Count::default();
    let mut skips: BTreeMap<&str, (u32, Vec<&str>)> = BTreeMap::new();
    let mut skip = |reason, number, step| {
        let (sum, steps) = skips.entry(reason).or_default();
        *sum += number;
        steps.push(step);
    };
    println!();
    for (step, fate) in fates {
        match fate {
            Fate::Ran(count, time, details) => {
                sum += *count;
                println!("{:<14}{:>7.1} s  {count}", step.name, time.as_secs_f32());
                for (reason, number) in &details.skips {
                    skip(reason, *number, step.name);
                }
            }
            Fate::Skipped(reason) => {
                sum += Count::SKIPPED;
                println!("{:<14}  skipped  {reason}", step.name);
                skip(reason, 1, step.name);
            }
        }
    }
    println!();
    for (reason, (number, steps)) in skips {
        println!("skipped {number:>4}  {reason} ({})", steps.join(", "));
    }
    for (step, fate) in fates {
        if let Fate::Ran(_, _, details) = fate {
            details.failures.iter().for_each(|text| print!("failed in {}: {text}", step.name));
        }
    }
    sum
}

/// The steps that the command line selects.
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
                other => {
                    let meant = meant(other, &["--only", "--skip"]);
                    return Err(format!("there is no option `{other}` here; {meant}"));
                }
            };
            for name in args.value::<String>(option)?.split(',') {
                if !STEPS.iter().any(|step| step.name == name) {
                    let names: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
                    return Err(format!("no step is called `{name}`; {}", meant(name, &names)));
                }
                list.push(name.to_owned());
            }
        }
        Ok(choice)
    }

    /// True unless `--only` leaves the step out.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|entry| entry == name)
    }

    /// True if `--skip` names the step.
    fn skips(&self, name: &str) -> bool {
        self.skip.iter().any(|entry| entry == name)
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
        assert!(only.wants("fmt") && only.wants("vm") && !only.wants("tests"));
        let skip = choice("--skip vm").expect("it exists");
        assert!(skip.skips("vm") && skip.wants("vm") && !skip.skips("fmt"));
        assert!(choice("--only none-such").is_err());
        assert!(Choice::default().wants("vm"), "nothing is left out unasked");
    }

    #[test]
    fn every_step_has_its_own_name() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
    }

    #[test]
    fn the_sum_has_tests_and_whole_steps_that_were_skipped() {
        let ran = |count| Fate::Ran(count, Duration::ZERO, Details::default());
        let fates = [
            (&STEPS[0], ran(Count { passed: 5, failed: 1, skipped: 2 })),
            (&STEPS[1], Fate::Skipped(String::new())),
            (&STEPS[2], ran(Count::one(true))),
        ];
        let sum = summary(&fates);
        assert_eq!(sum, Count { passed: 6, failed: 1, skipped: 3 });
        assert_eq!(sum.to_string(), "6 passed, 1 failed, 3 skipped");
    }

    fn step(work: Work) -> Step {
        Step { name: "unit-test", shows: "", needs: &[], work, lane: Lane::Main }
    }

    #[test]
    fn a_skipped_step_names_what_it_lacks() {
        let lacks = Work::Able(|| Some("no such compiler".to_owned()), || panic!("it lacks it"));
        let fate = one(&step(lacks), &Choice::default());
        assert!(matches!(fate, Fate::Skipped(reason) if reason == "no such compiler"));
    }

    #[test]
    fn a_step_that_cannot_start_fails() {
        place::make(&place::state().join("log")).expect("the target folder can be written");
        let fate = one(&step(Work::Own(|| Err("no machine".to_owned()))), &Choice::default());
        let Fate::Ran(count, _, details) = fate else { panic!("it ran") };
        assert_eq!(count, Count::one(false));
        assert!(details.failures[0].starts_with("1 that the output does not name"));
    }

    #[test]
    fn a_step_keeps_the_reasons_of_its_tests() {
        const TEXT: &str = "test a ... ignored, no device\ntest result: ok. 1 passed; 0 failed; \
                            1 ignored; 0 measured; 0 filtered out\n";
        place::make(&place::state().join("log")).expect("the target folder can be written");
        let report = || Ok(Report { count: Count::of(TEXT), text: TEXT.to_owned() });
        let fate = one(&step(Work::Own(report)), &Choice::default());
        let Fate::Ran(count, _, details) = fate else { panic!("it ran") };
        assert_eq!(count, Count { passed: 1, failed: 0, skipped: 1 });
        assert!(details.failures.is_empty());
        assert_eq!(details.skips.into_iter().collect::<Vec<_>>(), [("no device".to_owned(), 1)]);
    }

    fn held() -> Outcome<Report> {
        Ok(Report { count: Count::one(true), text: String::new() })
    }

    #[test]
    fn lanes_run_beside_each_other_and_keep_their_places() {
        place::make(&place::state().join("log")).expect("the target folder can be written");
        // Each waits for the other, so both must run at once.
        static MET: std::sync::Barrier = std::sync::Barrier::new(2);
        fn meets() -> Outcome<Report> {
            MET.wait();
            held()
        }
        let names = ["unit-test-1", "unit-test-2", "unit-test-3", "unit-test-4"];
        let mut steps: Vec<Step> = [meets as fn() -> _, held, meets, held]
            .into_iter()
            .zip(names)
            .map(|(work, name)| Step { name, ..step(Work::Own(work)) })
            .collect();
        steps[0].lane = Lane::Machine;
        steps[3].lane = Lane::Machine;
        let fates = all(&steps.iter().collect::<Vec<_>>(), &Choice::default());
        assert_eq!(fates.iter().map(|(step, _)| step.name).collect::<Vec<_>>(), names);
        assert_eq!(summary(&fates), Count { passed: 4, failed: 0, skipped: 0 });
    }

    #[test]
    fn nothing_runs_after_a_build_that_failed() {
        place::make(&place::state().join("log")).expect("the target folder can be written");
        let build = step(Work::Build(&["no-such-command"]));
        let mut beside = step(Work::Own(held));
        beside.lane = Lane::Machine;
        let after = step(Work::Own(held));
        let fates = all(&[&build, &beside, &after], &Choice::default());
        assert_eq!(summary(&fates), Count { passed: 0, failed: 1, skipped: 2 });
    }
}
