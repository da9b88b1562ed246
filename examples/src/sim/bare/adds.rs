//! The word of a side that all its peers count in: each addition happens once.

use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Adds {
    /// What additions that went well have brought back.
    returned: BTreeSet<u64>,
    /// Additions that failed, and may have happened.
    pub uncertain: u64,
}

impl Adds {
    /// An addition went well; that was there before.
    pub fn returned(&mut self, before: u64) -> Result<(), String> {
        if self.returned.insert(before) {
            return Ok(());
        }
        Err(format!("two additions say that {before} was there before"))
    }

    /// How many went well.
    pub fn count(&self) -> u64 {
        self.returned.len() as u64
    }

    /// Everything is over, and the word is that: every addition that went well is in it, and none
    /// that nobody asked for.
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
