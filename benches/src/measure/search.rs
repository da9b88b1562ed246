//! `--slo`: the search for the highest rate at which a percentile stays within a time. The rate
//! rises in large steps until the percentile is too high, and then halves the gap between the
//! highest rate that held and the lowest that did not. Another program may disturb a try, but none
//! makes one better: a rate that fails is tried again, and holds if two of three tries do; and the
//! lowest rate that failed is tried once more at the end, after which the climb may go on.

use crate::ask::values::RATES;

/// The search ends when the gap is this small.
pub(crate) const PRECISION: f64 = 1.03;

/// The first steps are this large.
const STRIDE: f64 = 4.0;

/// Steps are this large if the climb goes on after all.
const STRIDE_LATE: f64 = 1.2;

/// A search, between two tries.
#[derive(Debug)]
pub(crate) struct Search {
    /// The rate to try next, messages a second.
    rate: f64,
    /// The highest rate that held.
    held: Option<f64>,
    /// The lowest rate that did not.
    failed: Option<f64>,
    /// Tries of the current rate that held, and that failed.
    tries: (u32, u32),
    stride: f64,
    /// The gap is small, and the lowest rate that failed is being tried once more.
    is_last: bool,
    is_over: bool,
}

impl Search {
    /// A search that begins there.
    pub(crate) fn from(rate: f64) -> Search {
        let (held, failed, tries) = (None, None, (0, 0));
        Search { rate, held, failed, tries, stride: STRIDE, is_last: false, is_over: false }
    }

    /// The rate to try next; `None` at the end.
    pub(crate) fn next(&self) -> Option<f64> {
        (!self.is_over).then_some(self.rate)
    }

    /// Takes the outcome of a try.
    pub(crate) fn tell(&mut self, holds: bool) {
        match (holds, self.tries) {
            (true, (0, 0)) | (true, (1, 1)) => self.settle(true),
            (false, (_, 1)) => self.settle(false),
            (true, (held, failed)) => self.tries = (held + 1, failed),
            (false, (held, failed)) => self.tries = (held, failed + 1),
        }
    }

    /// The current rate holds or does not.
    fn settle(&mut self, holds: bool) {
        self.tries = (0, 0);
        match holds {
            true => self.held = Some(self.rate),
            false => self.failed = Some(self.rate),
        }
        if self.is_last {
            // It failed twice in a row, or the climb goes on.
            self.is_over = !holds;
            (self.is_last, self.failed, self.stride) = (false, None, STRIDE_LATE);
        }
        let next = match (self.held, self.failed) {
            (Some(held), Some(failed)) if failed <= held * PRECISION => {
                self.is_last = true;
                failed
            }
            (Some(held), Some(failed)) => (held * failed).sqrt(),
            (Some(held), None) => held * self.stride,
            (None, Some(failed)) => failed / self.stride,
            (None, None) => self.rate,
        };
        // Nothing is left to try beyond the bounds.
        self.is_over |= holds && self.rate >= *RATES.end() || !holds && self.rate <= *RATES.start();
        self.rate = next.clamp(*RATES.start(), *RATES.end());
    }

    /// The highest rate that held so far.
    pub(crate) fn best(&self) -> Option<f64> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::values::Arrivals;
    use crate::measure::arrivals::Dues;
    use crate::traffic::random::Random;

    /// The p99 of the time in a queue whose server takes 100 ticks a message, with Poisson
    /// arrivals; a tick is a nanosecond.
    fn p99(rate: f64) -> u64 {
        let mut dues = Dues::new(&Arrivals::Poisson, (1e9 / rate, 20_000_000), 5);
        let (mut free, mut times) = (0, Vec::new());
        loop {
            let due = dues.next();
            if due == u64::MAX {
                break;
            }
            free = free.max(due) + 100;
            times.push(free - due);
        }
        times.sort_unstable();
        times[times.len() * 99 / 100]
    }

    fn find(mut holds: impl FnMut(f64) -> bool, from: f64) -> (Option<f64>, u32) {
        let (mut search, mut tries) = (Search::from(from), 0);
        while let Some(rate) = search.next() {
            assert!(RATES.contains(&rate), "{rate}");
            search.tell(holds(rate));
            tries += 1;
            assert!(tries < 200, "it does not end: {search:?}");
        }
        (search.best(), tries)
    }

    #[test]
    fn the_search_finds_the_knee_of_a_sweep() {
        // A sweep in steps of a hundredth of the peak, which is 10 million.
        let rates = (1..=99).map(|part| f64::from(part) * 1e5);
        let knee = rates.filter(|rate| p99(*rate) <= 600).fold(0.0, f64::max);
        for from in [1e4, 5e6, 9.9e6] {
            let (found, tries) = find(|rate| p99(rate) <= 600, from);
            let found = found.unwrap();
            assert!((found / knee - 1.0).abs() < 0.05, "{found} {knee} from {from}");
            assert!(tries < 40, "{tries}");
        }
    }

    #[test]
    fn a_disturbed_try_does_not_end_the_climb() {
        // One try in ten fails for no reason of its own.
        let ends_near = |seed: &u64| {
            let random = &mut Random::new(*seed, 0);
            let (found, _) = find(|rate| rate <= 3e6 && random.below(10) > 0, 1e4);
            found.is_some_and(|found| (0.95..=1.0).contains(&(found / 3e6)))
        };
        let near = (0..100).filter(ends_near).count();
        assert!(near >= 90, "{near} of 100");
    }

    #[test]
    fn what_always_or_never_holds_ends_at_the_bounds() {
        assert_eq!(find(|_| true, 1e4).0, Some(*RATES.end()));
        assert_eq!(find(|_| false, 1e4).0, None);
    }
}
