//! Counts tests in the output of the usual test harness, with the reasons for those that were
//! skipped.
//!
//! A test that cannot run on this machine prints a line `skipped: REASON` and returns. The harness
//! calls that a pass, and shows the line under `--show-output`; here it counts as skipped.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// A skipped test prints this before its reason.
const MARK: &str = "skipped: ";

/// The number of tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Passed.
    pub(crate) passed: u32,
    /// Failed.
    pub(crate) failed: u32,
    /// Skipped.
    pub(crate) skipped: u32,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Count {
    /// One skipped check.
    pub(crate) const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// One that passed or failed.
    pub(crate) fn one(ok: bool) -> Self {
        Self { passed: u32::from(ok), failed: u32::from(!ok), skipped: 0 }
    }

    /// The sum of all lines such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`. Tests that
    /// report themselves as skipped do not count as passed.
    pub(crate) fn of(text: &str) -> Self {
        let mut sum = Self::default();
        for line in text.lines() {
            if let Some(result) = line.trim_start().strip_prefix("test result: ") {
                sum += Self {
                    passed: before(result, " passed"),
                    failed: before(result, " failed"),
                    skipped: before(result, " ignored"),
                };
            }
        }
        let said = outputs(text).filter(|(_, line)| line.starts_with(MARK));
        let mut tests: Vec<(usize, &str)> = said.map(|(test, _)| test).collect();
        tests.dedup();
        let skipped = u32::try_from(tests.len()).unwrap_or(u32::MAX).min(sum.passed);
        sum.passed -= skipped;
        sum.skipped += skipped;
        sum
    }

    /// The count of a program. One that reports success but ends with a failure, or reports nothing
    /// at all, counts as one failure.
    pub(crate) fn of_program(text: &str, ok: bool) -> Self {
        let mut count = Self::of(text);
        let silent = count == Self::default();
        if silent || (!ok && count.failed == 0) {
            count.failed += 1;
        }
        count
    }
}

/// Why tests were skipped, and how many for each reason: those that say so, and those that the
/// harness ignored.
pub(crate) fn reasons(text: &str) -> BTreeMap<String, u32> {
    let mut tests = BTreeMap::new();
    for (test, line) in outputs(text) {
        if let Some(reason) = line.strip_prefix(MARK) {
            tests.entry(test).or_insert(reason);
        }
    }
    let ignored = text.lines().filter_map(|line| {
        let (_, result) = line.trim_start().strip_prefix("test ")?.rsplit_once(" ... ignored")?;
        Some(result.strip_prefix(", ").unwrap_or("ignored, without a reason"))
    });
    let mut reasons = BTreeMap::new();
    for reason in tests.into_values().chain(ignored) {
        *reasons.entry(reason.trim_end().to_owned()).or_default() += 1;
    }
    reasons
}

/// The lines shown of a failed test in the summary, at most.
const CAUSE_LINES: usize = 12;

/// The tests that failed, each by its name and the first lines of its output. Those lines are in a
/// block with the name in its title, or right below the result, indented, as `xtask/vm/harness.sh`
/// prints them.
pub(crate) fn failures(text: &str) -> Vec<String> {
    let mut found: Vec<Failure<'_>> = Vec::new();
    // The failure whose lines are read.
    let mut reading = None;
    // The first of the program whose output this is.
    let mut first = 0;
    let mut part = Part::Other;
    for line in text.lines() {
        part = part.after(line);
        let title = title(line).filter(|_| part != Part::Successes);
        if line.starts_with("running ") {
            first = found.len();
        }
        if let Some(name) = failed(line) {
            reading = Some(found.len());
            found.push(Failure { name, lines: Vec::new(), has_block: false });
        } else if let Some(name) = title {
            let is_it = |failure: &Failure<'_>| failure.name == name && !failure.has_block;
            let known = found[first..].iter().rposition(is_it).map(|at| first + at);
            let at = known.unwrap_or(found.len());
            reading = Some(at);
            let failure = Failure { name, lines: Vec::new(), has_block: true };
            match found.get_mut(at) {
                Some(place) => *place = failure,
                // The output of a child may have split the line with the result.
                None => found.push(failure),
            }
        } else if let Some(failure) = reading.and_then(|at| found.get_mut(at)) {
            if !failure.goes_on(line) {
                reading = None;
            } else if !line.trim().is_empty() && failure.lines.len() < CAUSE_LINES {
                failure.lines.push(line.trim());
            }
        }
    }
    found.iter().map(Failure::shown).collect()
}

/// A test that failed.
struct Failure<'a> {
    name: &'a str,
    /// The first lines of its output.
    lines: Vec<&'a str>,
    /// They are in a block of their own, not below the result.
    has_block: bool,
}

impl Failure<'_> {
    /// True if the line belongs to its output.
    fn goes_on(&self, line: &str) -> bool {
        if !self.has_block {
            return line.starts_with("    ");
        }
        let is_heading =
            ["stack backtrace:", "test result: "].iter().any(|it| line.starts_with(it));
        !is_heading && line.trim_end() != "failures:"
    }

    fn shown(&self) -> String {
        let name = format!("{}\n", self.name);
        self.lines.iter().fold(name, |all, line| all + "        " + line + "\n")
    }
}

/// The test that failed, if the line says so. The harness may add how it was run.
fn failed(line: &str) -> Option<&str> {
    const MODES: [&str; 3] = [" - should panic", " - compile fail", " - compile"];
    let name = line.trim_start().strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(MODES.iter().find_map(|mode| name.strip_suffix(mode)).unwrap_or(name))
}

/// The test whose output follows, if the line is such a title.
fn title(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.trim_end().strip_suffix(" stdout ----")
}

/// A text without the output of passed tests, to show when another test has failed.
pub(crate) fn without_successes(text: &str) -> String {
    let mut kept = String::new();
    let mut part = Part::Other;
    for line in text.lines() {
        part = part.after(line);
        if part != Part::Successes {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The part of a test program's output that a line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Successes,
    Other,
}

impl Part {
    fn after(self, line: &str) -> Self {
        match line.trim_end() {
            "successes:" => Part::Successes,
            "failures:" => Part::Other,
            line if line.starts_with("test result: ") => Part::Other,
            _ => self,
        }
    }
}

/// The output lines of passed tests, each with its test. A name may occur again in another program,
/// so its place in the text is included.
fn outputs(text: &str) -> impl Iterator<Item = ((usize, &str), &str)> {
    let (mut part, mut test) = (Part::Other, None);
    text.lines().enumerate().filter_map(move |(number, line)| {
        part = part.after(line);
        if part != Part::Successes || line.trim_end() == "successes:" {
            test = None;
        } else if line.starts_with("---- ") {
            test = title(line).map(|name| (number, name));
        }
        Some((test?, line))
    })
}

/// The number right before a word.
fn before(text: &str, word: &str) -> u32 {
    let number = text.split(word).next().and_then(|head| head.rsplit(' ').next());
    number.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
running 4 tests
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s
test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
a test result: ok. 100 passed
";

    /// Two programs: of six tests three are skipped, two of them for one reason, and one that fails
    /// prints that it was skipped.
    const SKIPS: &str = "\
test a ... ok
test b ... ok
test c ... ignored, not here
test d ... FAILED

successes:

---- a stdout ----
skipped: no device
skipped: no device, again

---- b stdout ----
this is not skipped: it ran

successes:
    a
    b

failures:

---- d stdout ----
skipped: no device
thread panicked

failures:
    d

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out
successes:

---- a stdout ----
skipped: no device

successes:
    a
    e
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out
skipped: no test says this
";

    #[test]
    fn all_result_lines_are_summed() {
        assert_eq!(Count::of(TEXT), Count { passed: 13, failed: 2, skipped: 1 });
    }

    #[test]
    fn a_test_that_says_it_was_skipped_has_not_passed() {
        assert_eq!(Count::of(SKIPS), Count { passed: 2, failed: 1, skipped: 3 });
    }

    #[test]
    fn reasons_are_counted_by_test() {
        let reasons = reasons(SKIPS);
        let expected = [("no device".to_owned(), 2), ("not here".to_owned(), 1)];
        assert_eq!(reasons.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_failure_is_shown_without_the_output_of_those_that_passed() {
        let shown = without_successes(SKIPS);
        assert!(shown.contains("thread panicked") && shown.contains("test a ... ok"), "{shown}");
        assert!(!shown.contains("again") && shown.contains("no test says this"), "{shown}");
        assert_eq!(shown.matches("test result: ").count(), 2);
    }

    #[test]
    fn a_failed_test_is_named_with_the_first_lines_of_its_output() {
        let cause = "        skipped: no device\n        thread panicked\n";
        assert_eq!(failures(SKIPS), [format!("d\n{cause}")]);
        let script =
            "test e, run 1 of 2 ... FAILED\n    code 1\n      of x\ntest f ... ok\n    y\n";
        assert_eq!(failures(script), ["e, run 1 of 2\n        code 1\n        of x\n"]);
        let doc = "test a - f (line 9) - compile ... FAILED\n\nfailures:\n\n\
                   ---- a - f (line 9) stdout ----\nerror: no\nstack backtrace:\n  0: x\n";
        assert_eq!(failures(doc), ["a - f (line 9)\n        error: no\n"]);
        let split = "test h ... words of a child\nFAILED\nfailures:\n---- h stdout ----\nno\n";
        assert_eq!(failures(split), ["h\n        no\n"]);
        // Indented words of a child, and a test of the same name in the next program.
        let two = "running 1 test\ntest a ... FAILED\n    at x\n\nfailures:\n\n\
                   ---- a stdout ----\none\n\nfailures:\n    a\n\ntest result: FAILED.\n\
                   running 1 test\ntest a ... FAILED\nfailures:\n---- a stdout ----\ntwo\n";
        assert_eq!(failures(two), ["a\n        one\n", "a\n        two\n"]);
        let long = "test g ... FAILED\n".to_owned() + &"    more\n".repeat(100);
        assert_eq!(failures(&long)[0].lines().count(), 1 + CAUSE_LINES);
    }

    #[test]
    fn a_program_that_fails_without_a_word_counts_as_failed() {
        assert_eq!(Count::of_program("error: could not compile", false), Count::one(false));
        let text = "test result: ok. 3 passed; 0 failed; 0 ignored";
        assert_eq!(Count::of_program(text, false), Count { passed: 3, failed: 1, skipped: 0 });
        assert_eq!(Count::of_program(text, true), Count { passed: 3, failed: 0, skipped: 0 });
    }

    #[test]
    fn a_program_without_tests_shows_nothing() {
        assert_eq!(Count::of_program("", true).failed, 1);
    }
}
