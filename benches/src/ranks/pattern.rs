//! Who calls whom.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// Which ranks send messages to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pattern {
    /// Each rank of the first half to one of the second half
    Pairs,
    /// All other ranks to rank 0
    FanIn,
    /// Rank 0 to all other ranks
    FanOut,
    /// Each rank to every other one
    AllToAll,
}

impl Pattern {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Pairs => "pairs",
            Pattern::FanIn => "fan-in",
            Pattern::FanOut => "fan-out",
            Pattern::AllToAll => "all-to-all",
        }
    }

    /// # Errors
    /// It needs another number of ranks.
    pub(crate) fn check(self, size: u32) -> Result<(), Failure> {
        match self == Pattern::Pairs && !size.is_multiple_of(2) {
            true => Err(Failure::new(format!(
                "--pattern pairs: {size} ranks are no pairs; start an even number, or choose \
                 fan-in, fan-out or all-to-all"
            ))),
            false => Ok(()),
        }
    }

    /// The ranks that `rank` sends to, of `size`.
    pub(crate) fn targets(self, rank: u32, size: u32) -> Vec<u32> {
        let half = size / 2;
        match self {
            Pattern::Pairs if rank < half => vec![rank + half],
            Pattern::FanIn if rank > 0 => vec![0],
            Pattern::FanOut if rank == 0 => (1..size).collect(),
            // Each begins behind itself, so that not all call rank 0 first.
            Pattern::AllToAll => (1..size).map(|by| (rank + by) % size).collect(),
            Pattern::Pairs | Pattern::FanIn | Pattern::FanOut => Vec::new(),
        }
    }

    /// How many ranks send to `rank`.
    pub(crate) fn callers(self, rank: u32, size: u32) -> u32 {
        let calls = |from: &u32| self.targets(*from, size).contains(&rank);
        (0..size).filter(calls).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_has_its_links() {
        let all = |pattern: Pattern, size: u32| -> Vec<(u32, u32)> {
            let each = |rank| pattern.targets(rank, size).into_iter().map(move |to| (rank, to));
            (0..size).flat_map(each).collect()
        };
        assert_eq!(all(Pattern::Pairs, 4), [(0, 2), (1, 3)]);
        assert_eq!(all(Pattern::FanIn, 3), [(1, 0), (2, 0)]);
        assert_eq!(all(Pattern::FanOut, 3), [(0, 1), (0, 2)]);
        assert_eq!(all(Pattern::AllToAll, 3), [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)]);
        for pattern in [Pattern::Pairs, Pattern::FanIn, Pattern::FanOut, Pattern::AllToAll] {
            let callers: u32 = (0..4).map(|rank| pattern.callers(rank, 4)).sum();
            assert_eq!(callers as usize, all(pattern, 4).len(), "{pattern:?}");
            assert!(pattern.check(4).is_ok());
        }
        let text = Pattern::Pairs.check(3).unwrap_err().to_string();
        assert!(text.contains("even number"), "{text}");
    }
}
