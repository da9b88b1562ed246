//! `cargo xtask bench`: builds the benchmark and runs its report; with `--results` it writes the
//! page of all figures.

use crate::Outcome;
use crate::exec;
use crate::packages::{self, Need};
use crate::place::{cargo, program, target};

const PACKAGE: &str = "doorbell-bench";

/// The option that writes the page of all figures, `benches/RESULTS.md`.
const RESULTS: &str = "--results";

/// Where the build without link-time optimization goes, below the target folder.
const WITHOUT_LTO: &str = "no-lto";

/// Builds with default features, which need no system library; a real device needs the feature
/// `verbs`. Passes the arguments to the report unchanged, and returns its exit code.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    if words.iter().any(|word| word == RESULTS) {
        return results(words);
    }
    let mut build = cargo();
    build.args(["build", "--release", "--quiet", "--package", PACKAGE]);
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
    let folder = target().join(WITHOUT_LTO);
    let build = || {
        let mut build = cargo();
        build.args(["build", "--release", "--quiet", "--package", PACKAGE]);
        build
    };
    let mut without_lto = build();
    without_lto.arg("--target-dir").arg(&folder);
    without_lto.env("CARGO_PROFILE_RELEASE_LTO", "off");
    without_lto.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    for mut build in [build(), without_lto] {
        let built = build.status().map_err(|cause| format!("cannot start cargo: {cause}"))?;
        if !built.success() {
            return Ok(exec::code(built));
        }
    }
    let mut results = program(target().join("release").join(PACKAGE));
    results.arg("results").arg("--without-lto").arg(folder.join("release").join(PACKAGE));
    results.args(words.iter().filter(|word| *word != RESULTS));
    let ended = results.status();
    ended.map(exec::code).map_err(|cause| format!("cannot start {PACKAGE}: {cause}"))
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
