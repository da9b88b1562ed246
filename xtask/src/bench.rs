//! `cargo xtask bench`: builds the benchmark, runs its report.

use crate::Outcome;
use crate::exec;
use crate::packages::{self, Need};
use crate::place::{cargo, packages_with, program, target};

const PACKAGE: &str = "doorbell-bench";

/// Builds with default features, which need no system library; a real device needs the feature
/// `verbs`. The arguments go to the report as they are, and its exit code comes back.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    let mut build = cargo();
    build.args(["build", "--release", "--quiet", "--package", PACKAGE]);
    if names_real_device(words, std::env::var("DOORBELL_DEVICE").ok()) {
        packages::ensure(&[Need::Verbs])?;
        if packages_with("verbs").iter().any(|(name, _)| name == PACKAGE) {
            build.args(["--features", "verbs"]);
        }
    }
    let built = build.status().map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !built.success() {
        return Ok(exec::code(built));
    }
    let mut report = program(target().join("release").join(PACKAGE));
    let ended = report.arg("report").args(words).status();
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
