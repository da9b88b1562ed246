//! The tests with hostile peers, under AddressSanitizer: an access outside of a link's memory or of
//! a region ends them.

use std::path::PathBuf;

use crate::Outcome;
use crate::count::Count;
use crate::exec::capture;
use crate::members::members;
use crate::place::{cargo, entries};
use crate::report::Report;
use crate::toolchain::rustc;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Parts of the tests' names.
const TESTS: &[&str] = &[
    "hostile",
    "every_read_stays_inside_the_data",
    "nonsense_in_the_memory_is_harmless",
    "an_impossible_record_is_not_predicted",
    "a_peer_that_breaks_the_rules_is_cut_off",
    "a_table_that_claims_too_much_is_not_believed",
];

/// What is missing to run it here, if something is: not every compiler has the sanitizer.
pub(crate) fn lacks() -> Option<String> {
    let none = format!("this compiler has no AddressSanitizer for {TARGET}; rustup's has");
    let told = capture(rustc().args(["--print", "target-libdir", "--target", TARGET])).ok()?;
    let has = entries(&PathBuf::from(told.text.trim())).iter().any(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("librustc") && name.ends_with("_rt.asan.a")
    });
    (!told.ok || !has).then_some(none)
}

/// Builds and runs them.
pub(crate) fn check() -> Outcome<Report> {
    let mut cargo = cargo();
    // The sanitizer is not yet a stable option of the compiler. With an explicit target, macros and
    // build scripts are built without it.
    cargo.env("RUSTC_BOOTSTRAP", "1").args(["test", "--target", TARGET]);
    cargo.args(["--config", "build.rustflags=[\"-Zsanitizer=address\"]"]);
    cargo.args(["--target-dir", "target/asan", "--lib", "--no-fail-fast"]);
    // Without optimization these tests take several times as long as their build.
    cargo.args(["--config", "profile.dev.opt-level=1"]);
    for package in members().into_iter().filter(|package| package.mentions(TESTS)) {
        cargo.args(["--package", &package.name]);
    }
    // To find leaks it must stop its own process, which not every machine allows.
    cargo.env("ASAN_OPTIONS", "detect_leaks=0").args(["--", "--show-output"]).args(TESTS);
    let mut done = capture(&mut cargo)?;
    let mut count = Count::of_program(&done.text, done.ok);
    for name in unmatched(&done.text) {
        count += Count::one(false);
        done.text.push_str(&format!("no test is called like {name}\n"));
    }
    Ok(Report { count, text: done.text })
}

/// The parts of names that no test has. Such a test was renamed, and nobody would miss it.
fn unmatched(text: &str) -> Vec<&'static str> {
    let has =
        |name: &str| text.lines().any(|line| line.starts_with("test ") && line.contains(name));
    TESTS.iter().copied().filter(|name| !has(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_test_is_found() {
        let text = format!("test a::{} ... ok\ntest result: ok. {}\n", TESTS[0], TESTS[1]);
        let rest = unmatched(&text);
        assert!(rest.len() < TESTS.len() && !rest.contains(&TESTS[0]));
    }
}
