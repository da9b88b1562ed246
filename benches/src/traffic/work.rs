//! What the serving side does with a message: it reads every byte, and handles it for a while.

use crate::machine::clock;
use crate::traffic::payload::{self, LINKS_MAX};
use crate::traffic::random::Random;

/// What came, and how it is handled. Each contestant has its own.
pub(crate) struct Work {
    /// The number of the next message of each link, as soon as one has come.
    next: Vec<Option<u64>>,
    pub(crate) received: u64,
    pub(crate) wrong: u64,
    /// Ticks to handle a message.
    handling: u64,
    /// Each time is random, from 0 to `handling`.
    random: Option<Random>,
}

impl Work {
    pub(crate) fn new(links: usize, handling: u64, random: Option<Random>) -> Work {
        Work { next: vec![None; links], received: 0, wrong: 0, handling, random }
    }

    /// What came since the last call, and how much of it was wrong.
    pub(crate) fn take_counts(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.received), std::mem::take(&mut self.wrong))
    }

    /// Takes a message.
    #[inline(always)]
    pub(crate) fn take(&mut self, link: usize, bytes: &[u8]) {
        // The first message tells which numbers this link has.
        let number = self.next[link].unwrap_or_else(|| payload::read_number(bytes));
        self.next[link] = Some(number + LINKS_MAX as u64);
        self.received += 1;
        self.wrong += u64::from(!payload::is_filled(bytes, number));
        if self.handling > 0 {
            let ticks = match &mut self.random {
                Some(random) => random.below(self.handling + 1),
                None => self.handling,
            };
            let start = clock::ticks();
            while clock::ticks().wrapping_sub(start) < ticks {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_a_gap_and_a_repeat_are_counted() {
        let mut work = Work::new(2, 0, None);
        let message = |link, sequence| {
            let mut bytes = [0; 8];
            payload::fill(&mut bytes, payload::number(link, sequence));
            bytes
        };
        // The other side may count its links in another order.
        for (at, link) in [(0, 1), (1, 0)] {
            work.take(at, &message(link, 0));
            work.take(at, &message(link, 1));
        }
        assert_eq!(work.take_counts(), (4, 0));
        let mut spoiled = message(1, 2);
        spoiled[7] ^= 1;
        work.take(0, &spoiled);
        assert_eq!(work.take_counts(), (1, 1));
        work.take(0, &message(1, 4));
        work.take(1, &message(0, 1));
        assert_eq!(work.take_counts(), (2, 2));
    }
}
