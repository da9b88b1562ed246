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

/// A yield that lasts this long has met others that need the processor: a sleeper is woken sooner
/// than a thread that yields again and again.
const CROWDED: Duration = Duration::from_micros(200);

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
}

impl Rest {
    /// A policy that spins for at most `most` empty turns.
    pub(crate) fn new(most: u32) -> Rest {
        Rest { empty: 0, spins: most.min(SPINS), most }
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
            empty if empty > self.spins => Step::Sleep,
            empty if empty % YIELD == 1 => Step::Yield,
            _ => Step::Spin,
        }
    }

    /// Lets others run.
    fn let_run(&mut self) {
        let begun = Instant::now();
        thread::yield_now();
        if begun.elapsed() > CROWDED {
            self.crowded();
        }
    }

    /// Others need the processor: the next empty turn ends in a sleep.
    fn crowded(&mut self) {
        self.empty = self.spins;
        self.spins = (self.spins / 2).max(SPINS).min(self.most);
    }

    /// A sleep has ended, because something came or because its time was over. A loop that is
    /// woken again and again spins longer.
    fn slept(&mut self, woken: bool) {
        self.empty = 0;
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
        assert_eq!(spins(&mut rest), SPINS);
    }

    #[test]
    fn a_crowded_processor_ends_the_spin() {
        let mut rest = Rest::new(1 << 13);
        (0..9).for_each(|_| rest.slept(true));
        rest.worked();
        assert_eq!(rest.next(), Step::Yield);
        rest.crowded();
        assert_eq!(rest.next(), Step::Sleep);
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
