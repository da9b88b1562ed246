//! `cargo xtask bench`: builds the benchmark and runs its report; with `--results` it writes the
//! page of all figures.

use std::path::PathBuf;
use std::process::Command;

use crate::Outcome;
use crate::exec;
use crate::packages::{self, Need};
use crate::place::{cargo, program, target};

const PACKAGE: &str = "doorbell-bench";

/// The option that writes the page of all figures, `benches/RESULTS.md`.
pub(crate) const RESULTS: &str = "--results";

/// Where the build without link-time optimization goes, below the target folder.
const WITHOUT_LTO: &str = "no-lto";

/// Builds with default features, which need no system library; a real device needs the feature
/// `verbs`. Passes the arguments to the report unchanged, and returns its exit code.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    if words.iter().any(|word| word == RESULTS) {
        return results(words);
    }
    let mut build = release();
    if names_real_device(words, std::env::var("DOORBELL_DEVICE").ok()) {
        packages::ensure(&[Need::Verbs])?;
        build.args(["--features", "verbs"]);
    }
    let built = build.status().map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !built.success() {
        return Ok(exec::code(built));
    }
    let mut report = program(target().join("release").join(PACKAGE));
    let ended = report.arg("report").args(words).status();
    ended.map(exec::code).map_err(|cause| format!("cannot start {PACKAGE}: {cause}"))
}

/// Builds the program twice, as it is released and without link-time optimization, and lets it
/// write the page. Passes the other arguments to it unchanged.
fn results(words: &[String]) -> Outcome<u8> {
    // The page ends with counts of instructions.
    packages::ensure(&[Need::Counts])?;
    let (without, other) = without_lto();
    for mut build in [release(), without] {
        let built = build.status().map_err(|cause| format!("cannot start cargo: {cause}"))?;
        if !built.success() {
            return Ok(exec::code(built));
        }
    }
    let mut results = program(target().join("release").join(PACKAGE));
    results.arg("results").arg("--without-lto").arg(other);
    results.args(words.iter().filter(|word| *word != RESULTS));
    let ended = results.status();
    ended.map(exec::code).map_err(|cause| format!("cannot start {PACKAGE}: {cause}"))
}

/// Builds the program as it is released.
fn release() -> Command {
    let mut build = cargo();
    build.args(["build", "--release", "--quiet", "--package", PACKAGE]);
    build
}

/// What builds the program without link-time optimization, which takes less time, and where it is
/// then.
pub(crate) fn without_lto() -> (Command, PathBuf) {
    let folder = target().join(WITHOUT_LTO);
    let mut build = release();
    build.arg("--target-dir").arg(&folder);
    build.env("CARGO_PROFILE_RELEASE_LTO", "off");
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    (build, folder.join("release").join(PACKAGE))
}

/// True if the arguments, else the environment, name a device other than the embedded one.
fn names_real_device(words: &[String], environment: Option<String>) -> bool {
    let after = words.iter().skip_while(|word| *word != "--device").nth(1).cloned();
    let joined = words.iter().find_map(|word| word.strip_prefix("--device=").map(str::to_owned));
    after.or(joined).or(environment).is_some_and(|name| !name.starts_with("soft"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(line: &str, environment: Option<&str>) -> bool {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        names_real_device(&words, environment.map(str::to_owned))
    }

    #[test]
    fn only_a_real_device_needs_the_library() {
        assert!(!real("--quick", None));
        assert!(!real("--device soft0", None));
        assert!(!real("--device soft0", Some("rxe0")));
        assert!(real("--quick --device rxe0", None));
        assert!(real("--device=mlx5_0", None));
        assert!(real("--quick", Some("rxe0")));
    }
}
