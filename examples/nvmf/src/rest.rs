//! When an idle poll loop rests. A sleep and its end cost more than a command, and a loop that
//! never sleeps takes the processor from the kernel's part of the device, or from the host's
//! programs on the same machine.

use std::mem::take;
use std::thread;
use std::time::{Duration, Instant};

/// Empty turns between two yields: on a device in the kernel's software, what was posted moves
/// only when this thread lets another run. A host's program on the same processor waits for it too.
const YIELD: u32 = 8;
/// Empty turns before a sleep, at least.
const SPINS: u32 = 64;

/// The processor is crowded if a yield lasts longer than this, and longer than this many times the
/// shortest yield: on an emulated machine every yield takes long.
const CROWDED: Duration = Duration::from_micros(200);
const SLOWER: u32 = 256;
/// Yields between two that are timed. To ask for the time is a system call on some machines.
const TIMED: u32 = 8;
/// After such a yield the loop sleeps this many times before it yields again, at least and at most.
/// A thread that has given its turn away may get it back milliseconds later; one that sleeps is
/// woken sooner.
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
    /// Empty turns before a sleep: more as long as that keeps the loop awake until work comes.
    spins: u32,
    most: u32,
    /// The loop has slept, and has not looked since whether something has come.
    slept: bool,
    /// Sleeps to come before the next yield, and how many the next crowded yield asks for.
    avoid: u32,
    avoided: u32,
    /// Yields so far, and the shortest of those that were timed.
    yields: u32,
    shortest: Duration,
}

impl Rest {
    /// A policy that spins for at most `most` empty turns.
    pub(crate) fn new(most: u32) -> Rest {
        let (spins, shortest) = (most.min(SPINS), Duration::MAX);
        let (empty, slept, avoid, avoided, yields) = (0, false, 0, AVOIDED, 0);
        Rest { empty, spins, most, slept, avoid, avoided, yields, shortest }
    }

    /// A turn has found work. If it came after a sleep, the loop spins longer from now on. If it
    /// spins as long as it may already, work comes too late for that, and it does not spin for a
    /// while.
    pub(crate) fn worked(&mut self) {
        self.empty = 0;
        if !take(&mut self.slept) {
            return;
        }
        if self.avoid > 0 {
            self.avoid -= 1;
        } else if self.spins < self.most {
            self.spins = self.spins.saturating_mul(4).min(self.most);
        } else {
            self.avoid = AVOIDED;
            self.spins = self.most.min(SPINS);
        }
    }

    /// A turn was empty: spins, lets others run, or calls `sleep`, which says whether it has found
    /// work before. True if it has slept.
    pub(crate) fn after_empty<E>(
        &mut self,
        sleep: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        match self.next() {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => {
                self.yields = self.yields.wrapping_add(1);
                let begun = self.yields.is_multiple_of(TIMED).then(Instant::now);
                thread::yield_now();
                if let Some(begun) = begun {
                    self.yielded(begun.elapsed());
                }
            }
            Step::Sleep => {
                self.slept = true;
                if sleep()? {
                    self.worked();
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A turn was empty.
    fn next(&mut self) -> Step {
        if take(&mut self.slept) {
            // After a sleep in which nothing came, one look is enough.
            if self.avoid > 0 {
                self.avoid -= 1;
            } else {
                self.spins = (self.spins / 2).max(SPINS).min(self.most);
            }
            return Step::Sleep;
        }
        self.empty += 1;
        match self.empty {
            empty if empty > self.spins => Step::Sleep,
            YIELD.. if self.avoid > 0 => Step::Sleep,
            _ if self.avoid > 0 => Step::Spin,
            empty if empty % YIELD == 1 => Step::Yield,
            _ => Step::Spin,
        }
    }

    /// A timed yield has ended. On a crowded processor the next empty turn ends in a sleep, and so
    /// do the next times without work: twice as many whenever a yield finds it crowded again.
    fn yielded(&mut self, took: Duration) {
        self.shortest = self.shortest.min(took);
        if took > CROWDED.max(self.shortest.saturating_mul(SLOWER)) {
            self.empty = YIELD;
            self.avoid = self.avoided;
            self.avoided = (self.avoided * 2).min(AVOIDED_MOST);
            self.spins = self.most.min(SPINS);
        } else {
            self.avoided = AVOIDED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 1 << 13;
    const SHORT: Duration = Duration::from_nanos(500);

    /// Empty turns until a sleep.
    fn spins(rest: &mut Rest) -> u32 {
        let spins = (0..).find(|_| rest.next() == Step::Sleep).unwrap();
        rest.slept = true;
        spins
    }

    #[test]
    fn a_loop_spins_until_it_is_awake_when_work_comes() {
        let mut rest = Rest::new(MOST);
        for expected in [SPINS, SPINS * 4, SPINS * 16] {
            assert_eq!(spins(&mut rest), expected);
            rest.worked();
        }
        for _ in 0..100 {
            // Work that comes in time changes nothing.
            (0..SPINS * 20).for_each(|_| assert_ne!(rest.next(), Step::Sleep));
            rest.worked();
        }
        assert_eq!(spins(&mut rest), SPINS * 64);
        assert_eq!(rest.next(), Step::Sleep, "nothing has come");
        rest.worked();
        assert_eq!(spins(&mut rest), SPINS * 32, "a sleep in which nothing came halves it");
    }

    #[test]
    fn a_loop_that_work_finds_asleep_however_long_it_spins_does_not_spin_for_a_while() {
        let mut rest = Rest::new(MOST);
        while spins(&mut rest) < MOST {
            rest.worked();
        }
        for _ in 0..AVOIDED {
            rest.worked();
            assert_eq!(spins(&mut rest), YIELD - 1);
        }
        rest.worked();
        assert_eq!(spins(&mut rest), SPINS, "it tries again");
    }

    #[test]
    fn a_crowded_processor_ends_spins_for_a_while_and_for_longer_each_time() {
        let mut rest = Rest::new(MOST);
        rest.yielded(SHORT);
        (0..3).for_each(|_| {
            spins(&mut rest);
            rest.worked();
        });
        for avoided in [AVOIDED, AVOIDED * 2, AVOIDED * 4] {
            assert_eq!(rest.next(), Step::Yield);
            rest.yielded(CROWDED * 2);
            assert_eq!(spins(&mut rest), 0);
            for _ in 1..avoided {
                rest.worked();
                assert_eq!(spins(&mut rest), YIELD - 1);
            }
            rest.worked();
        }
        assert_eq!(rest.next(), Step::Yield);
        rest.yielded(SHORT);
        rest.worked();
        assert_eq!((rest.avoided, spins(&mut rest)), (AVOIDED, SPINS));
    }

    #[test]
    fn a_slow_machine_is_not_a_crowded_one() {
        let mut rest = Rest::new(MOST);
        rest.yielded(SHORT * 20);
        rest.yielded(CROWDED * 2);
        assert_eq!(rest.avoid, 0);
        rest.yielded(SHORT * 20 * SLOWER * 2);
        assert_eq!(rest.avoid, AVOIDED);
    }

    #[test]
    fn others_run_at_once_after_the_last_work() {
        let mut rest = Rest::new(MOST);
        rest.worked();
        assert_eq!(rest.next(), Step::Yield);
        assert_eq!((1..YIELD).filter(|_| rest.next() != Step::Spin).count(), 0);
        assert_eq!(rest.next(), Step::Yield);
    }
}
