//! Counting tests in what the usual test harness prints.

use std::ops::AddAssign;

/// How many tests did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Ran and held.
    pub(crate) passed: u32,
    /// Ran and did not.
    pub(crate) failed: u32,
    /// Did not run.
    pub(crate) ignored: u32,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Count {
    /// One that held, or one that did not.
    pub(crate) fn one(ok: bool) -> Self {
        Self { passed: u32::from(ok), failed: u32::from(!ok), ignored: 0 }
    }

    /// The sum of all lines such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    pub(crate) fn of(text: &str) -> Self {
        let mut sum = Self::default();
        for line in text.lines() {
            if let Some(result) = line.trim_start().strip_prefix("test result: ") {
                sum += Self {
                    passed: before(result, " passed"),
                    failed: before(result, " failed"),
                    ignored: before(result, " ignored"),
                };
            }
        }
        sum
    }

    /// The count of a program that ended with or without success: one that says all held but ends
    /// with a failure, or says nothing at all, has failed once.
    pub(crate) fn of_program(text: &str, ok: bool) -> Self {
        let mut count = Self::of(text);
        let silent = count.passed + count.failed == 0;
        if silent || (!ok && count.failed == 0) {
            count.failed += 1;
        }
        count
    }
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

    #[test]
    fn all_result_lines_are_summed() {
        assert_eq!(Count::of(TEXT), Count { passed: 13, failed: 2, ignored: 1 });
    }

    #[test]
    fn a_program_that_fails_without_a_word_counts_as_failed() {
        assert_eq!(Count::of_program("error: could not compile", false), Count::one(false));
        let text = "test result: ok. 3 passed; 0 failed; 0 ignored";
        assert_eq!(Count::of_program(text, false), Count { passed: 3, failed: 1, ignored: 0 });
        assert_eq!(Count::of_program(text, true), Count { passed: 3, failed: 0, ignored: 0 });
    }

    #[test]
    fn a_program_without_tests_shows_nothing() {
        assert_eq!(Count::of_program("", true).failed, 1);
    }
}
