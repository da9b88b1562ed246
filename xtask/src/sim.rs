//! `cargo xtask sim`: builds and runs the simulation; and the step that must find the planted
//! mistakes.

use std::thread;
use std::time::SystemTime;

use crate::Outcome;
use crate::count::Count;
use crate::exec::{self, capture};
use crate::place::{cargo, program, target};
use crate::report::Report;

/// The packages with the feature `sim`, and that feature.
const SIM: &[&str] = &[
    "--package",
    "doorbell-seam",
    "--package",
    "doorbell-soft",
    "--package",
    "doorbell-examples",
    "--features",
    "sim",
];

/// Seeds of the step, in which each planted mistake must be found.
const SEEDS: &str = "2000";

/// Seeds that probably nobody ran before: that many, or as many as fit into the time.
const NEW: &[&str] = &["--seeds", "10000", "--within", "120"];

/// Cargo's arguments to build the program.
const BUILD: &[&str] = &[
    "build",
    "--release",
    "--quiet",
    "--package",
    "doorbell-examples",
    "--features",
    "sim",
    "--bin",
    "sim",
];

/// Builds the program. Passes the arguments to it unchanged, and returns its exit code.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    let built = cargo().args(BUILD).status();
    let built = built.map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !built.success() {
        return Ok(exec::code(built));
    }
    let ended = program(target().join("release").join("sim")).args(words).status();
    ended.map(exec::code).map_err(|cause| format!("cannot start the simulation: {cause}"))
}

/// Tests of the feature; then all seeds must hold, and each planted mistake be found.
pub(crate) fn check() -> Outcome<Report> {
    let mut text = String::new();
    let mut count = Count::default();
    let filter = ["--lib", "--no-fail-fast", "--", "sim::", "prng::"];
    let tests = capture(cargo().arg("test").args(SIM).args(filter))?;
    count += Count::of_program(&tests.text, tests.ok);
    text.push_str(&tests.text);
    exec::must(cargo().args(BUILD))?;
    let first = from_clock().to_string();
    // Now, because a run that hangs tells nothing at its end.
    println!("      new seeds from {first}");
    // The new seeds have a core of their own.
    let (new, known) = thread::scope(|scope| {
        let new = scope.spawn(|| simulate(&[&["--first", &first], NEW].concat()));
        let known = find_planted();
        (new.join(), known)
    });
    let new = new.map_err(|_| "the new simulations broke off")??;
    count += Count::one(new.ok);
    text.push_str(&new.text);
    let known = known?;
    count += known.count;
    text.push_str(&known.text);
    Ok(Report { count, text })
}

/// All seeds of the step must hold, and each planted mistake be found.
fn find_planted() -> Outcome<Report> {
    let seeds = simulate(&["--seeds", SEEDS])?;
    let mut count = Count::one(seeds.ok);
    let mut text = seeds.text;
    let plants = capture(program(target().join("release").join("sim")).arg("--plants"))?;
    count += Count::one(plants.ok && plants.text.lines().count() > 0);
    for plant in plants.text.lines() {
        let done = simulate(&["--seeds", SEEDS, "--plant", plant])?;
        count += Count::one(is_found(plant, &done));
        text.push_str(&format!("planted {plant}: {}", done.text));
    }
    Ok(Report { count, text })
}

/// Microseconds since 1970.
fn from_clock() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros())
}

fn simulate(words: &[&str]) -> Outcome<exec::Captured> {
    let mut sim = program(target().join("release").join("sim"));
    capture(sim.args(words))
}

/// True if the simulation ended at a seed that shows the planted mistake, and printed how to repeat
/// it.
fn is_found(plant: &str, done: &exec::Captured) -> bool {
    !done.ok && done.text.contains("cargo xtask sim --seed ") && done.text.contains(plant)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Captured;

    #[test]
    fn a_mistake_is_found_only_by_a_seed_that_fails() {
        let text = "sim: seed 3 fails: …; again with: cargo xtask sim --seed 3 --plant lost-tail";
        let done = |text: &str, ok| Captured { text: text.to_owned(), ok };
        assert!(is_found("lost-tail", &done(text, false)));
        assert!(!is_found("early-slot", &done(text, false)));
        assert!(!is_found("lost-tail", &done("2000 seeds held", true)));
        assert!(!is_found("lost-tail", &done("error: no such option", false)));
    }
}
