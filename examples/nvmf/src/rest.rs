//! When an idle poll loop rests. A sleep and its end cost more than a command, and a loop that
//! never sleeps takes the processor from the kernel's part of the device, or from the host's
//! programs on the same machine.

use std::thread;
use std::time::{Duration, Instant};

/// Empty turns between two yields: on a device in the kernel's software, what was posted moves
/// only when this thread lets another run.
const YIELD: u32 = 8;
/// Empty turns before a sleep, at least.
const SPINS: u32 = 64;

/// A yield that lasts this long has met others that need the processor.
const CROWDED: Duration = Duration::from_micros(200);
/// Sleeps without a yield before them after such a yield, at least and at most. A thread that has
/// given its turn away may get it back milliseconds later; one that sleeps is woken sooner.
const AVOIDED: u32 = 16;
const AVOIDED_MOST: u32 = 1 << 12;

/// What to do after an empty turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next turn.
    Spin,
    /// Let others run, then the next turn.
    Yield,
    /// Sleep until something comes.
    Sleep,
}

/// The policy.
#[derive(Debug)]
pub(crate) struct Rest {
    empty: u32,
    spins: u32,
    most: u32,
    /// Sleeps to come before the next yield, and how many the next crowded yield asks for.
    avoid: u32,
    avoided: u32,
}

impl Rest {
    /// A policy that spins for at most `most` empty turns.
    pub(crate) fn new(most: u32) -> Rest {
        Rest { empty: 0, spins: most.min(SPINS), most, avoid: 0, avoided: AVOIDED }
    }

    /// A turn has found work.
    pub(crate) fn worked(&mut self) {
        self.empty = 0;
    }

    /// A turn was empty: spins, lets others run, or calls `sleep`, which ends after `limit` unless
    /// something comes. True if it has slept.
    pub(crate) fn after_empty<E>(
        &mut self,
        limit: Duration,
        sleep: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        match self.next() {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => self.let_run(),
            Step::Sleep => {
                let begun = Instant::now();
                sleep()?;
                self.slept(begun.elapsed() < limit);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A turn was empty.
    fn next(&mut self) -> Step {
        self.empty += 1;
        match self.empty {
            YIELD.. if self.avoid > 0 => Step::Sleep,
            _ if self.avoid > 0 => Step::Spin,
            empty if empty > self.spins => Step::Sleep,
            empty if empty % YIELD == 1 => Step::Yield,
            _ => Step::Spin,
        }
    }

    /// Lets others run.
    fn let_run(&mut self) {
        let begun = Instant::now();
        thread::yield_now();
        self.yielded(begun.elapsed() > CROWDED);
    }

    /// A yield has ended. On a crowded processor the next empty turn ends in a sleep, and so do the
    /// next times without work: twice as many whenever a yield finds it crowded again.
    fn yielded(&mut self, crowded: bool) {
        if crowded {
            self.empty = YIELD;
            self.avoid = self.avoided;
            self.avoided = (self.avoided * 2).min(AVOIDED_MOST);
            self.spins = self.most.min(SPINS);
        } else {
            self.avoided = AVOIDED;
        }
    }

    /// A sleep has ended, because something came or because its time was over. A loop that is
    /// woken again and again spins longer.
    fn slept(&mut self, woken: bool) {
        // After a sleep in which nothing came, one look is enough.
        self.empty = if woken { 0 } else { self.spins.max(YIELD) };
        if self.avoid > 0 {
            self.avoid -= 1;
            return;
        }
        let spins = if woken { self.spins.saturating_mul(4) } else { self.spins / 2 };
        self.spins = spins.max(SPINS).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spins(rest: &mut Rest) -> u32 {
        (0..).find(|_| rest.next() == Step::Sleep).unwrap()
    }

    #[test]
    fn a_loop_that_is_woken_spins_longer_and_one_that_is_not_shorter() {
        let mut rest = Rest::new(1 << 13);
        assert_eq!(spins(&mut rest), SPINS);
        (0..9).for_each(|_| rest.slept(true));
        assert_eq!(spins(&mut rest), 1 << 13);
        (0..9).for_each(|_| rest.slept(false));
        assert_eq!(rest.next(), Step::Sleep, "nothing has come");
        rest.worked();
        assert_eq!(spins(&mut rest), SPINS);
    }

    #[test]
    fn a_crowded_processor_ends_spins_for_a_while_and_for_longer_each_time() {
        let mut rest = Rest::new(1 << 13);
        (0..9).for_each(|_| rest.slept(true));
        for avoided in [AVOIDED, AVOIDED * 2, AVOIDED * 4] {
            rest.worked();
            assert_eq!(rest.next(), Step::Yield);
            rest.yielded(true);
            assert_eq!(rest.next(), Step::Sleep);
            rest.slept(true);
            for _ in 1..avoided {
                rest.worked();
                assert_eq!((1..YIELD).filter(|_| rest.next() != Step::Spin).count(), 0);
                assert_eq!(rest.next(), Step::Sleep);
                rest.slept(true);
            }
        }
        rest.worked();
        assert_eq!(rest.next(), Step::Yield);
        rest.yielded(false);
        rest.worked();
        assert_eq!((rest.avoided, spins(&mut rest)), (AVOIDED, SPINS));
    }

    #[test]
    fn others_run_at_once_after_the_last_work() {
        let mut rest = Rest::new(1 << 13);
        rest.worked();
        assert_eq!(rest.next(), Step::Yield);
        assert_eq!((1..YIELD).filter(|_| rest.next() != Step::Spin).count(), 0);
        assert_eq!(rest.next(), Step::Yield);
    }
}
