//! The word of a side to which all its peers add: each addition happens once.

use std::collections::BTreeSet;

/// The account of the word.
#[derive(Clone, Debug, Default)]
pub struct Adds {
    /// The old values that successful additions have returned.
    returned: BTreeSet<u64>,
    /// Additions that failed, and may have happened.
    pub uncertain: u64,
}

impl Adds {
    /// An addition succeeded and returned this old value.
    pub fn returned(&mut self, before: u64) -> Result<(), String> {
        if self.returned.insert(before) {
            return Ok(());
        }
        Err(format!("two additions say that {before} was there before"))
    }

    /// The number of successful additions.
    pub fn count(&self) -> u64 {
        self.returned.len() as u64
    }

    /// Checks the final value: every successful addition is in it, and none that nobody made.
    pub fn account(&self, word: u64) -> Result<(), String> {
        let (sure, most) = (self.count(), self.count() + self.uncertain);
        let last = self.returned.last().copied();
        if word < sure || word > most || last.is_some_and(|last| last >= word) {
            return Err(format!(
                "{sure} additions went well, {} may have, and the word is {word}; the highest \
                 number brought back is {last:?}",
                self.uncertain
            ));
        }
        Ok(())
    }
}
