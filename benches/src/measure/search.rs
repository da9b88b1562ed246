//! `--slo`: the search for the highest rate at which a percentile stays within a time. Other
//! programs and the hypervisor disturb a try, and near the best rate some tries hold by luck. So
//! there are two parts. The climb rises in large steps until a rate fails twice, and halves the gap
//! until it is small; here one try is enough to hold. Then the best rate is confirmed: a rate holds
//! if more than half of its tries do, and the search goes up while rates hold, or down until one
//! does, in steps of 2 %. It ends at a rate that holds, below one that does not.

use crate::ask::values::RATES;

/// The climb ends when the gap is this small.
const GAP: f64 = 1.06;

/// The first steps are this large.
const STRIDE: f64 = 4.0;

/// The steps between rates that are confirmed.
pub(crate) const STEP: f64 = 1.02;

/// After this many steps one way the climb was wrong, and begins again from there, with a stride of
/// [`STRIDE_LATE`].
const STEPS_MOST: u32 = 4;
const STRIDE_LATE: f64 = 1.2;

/// The climb begins again at most this many times: a machine that changes must not keep the search
/// alive.
const CLIMBS_MOST: u32 = 3;

/// What the search does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Climb,
    /// And how many steps went one way so far.
    Confirm(u32),
}

/// A search, between two tries.
#[derive(Debug)]
pub(crate) struct Search {
    /// The rate to try next, messages a second.
    rate: f64,
    /// The highest rate that held, of this part.
    held: Option<f64>,
    /// The lowest rate that did not, of this part.
    failed: Option<f64>,
    /// Tries of the current rate that held, and that failed.
    tries: (u32, u32),
    /// Tries of a rate that is confirmed.
    of: u32,
    part: Part,
    stride: f64,
    climbs: u32,
    is_over: bool,
}

impl Search {
    /// A search that begins there, and confirms with `of` tries of a rate.
    pub(crate) fn from(rate: f64, of: u32) -> Search {
        Search {
            rate,
            held: None,
            failed: None,
            tries: (0, 0),
            of,
            part: Part::Climb,
            stride: STRIDE,
            climbs: 1,
            is_over: false,
        }
    }

    /// The rate to try next; `None` at the end.
    pub(crate) fn next(&self) -> Option<f64> {
        (!self.is_over).then_some(self.rate)
    }

    /// Takes the outcome of a try.
    pub(crate) fn tell(&mut self, holds: bool) {
        if holds {
            self.tries.0 += 1
        } else {
            self.tries.1 += 1
        }
        let (held, failed) = self.tries;
        let verdict = match self.part {
            Part::Climb => (held > 0).then_some(true).or((failed > 1).then_some(false)),
            Part::Confirm(_) => majority(held, failed, self.of),
        };
        let Some(holds) = verdict else { return };
        self.tries = (0, 0);
        match holds {
            true => self.held = Some(self.rate),
            false => self.failed = Some(self.rate),
        }
        // Nothing is left to try beyond the bounds.
        let (lowest, highest) = (*RATES.start(), *RATES.end());
        match self.part {
            _ if !holds && self.rate <= lowest => self.is_over = true,
            Part::Climb => self.climb(),
            Part::Confirm(_) if holds && self.rate >= highest => self.is_over = true,
            Part::Confirm(steps) => self.confirm(holds, steps),
        }
        self.rate = self.rate.clamp(lowest, highest);
    }

    /// The next step of the climb, or the end of it.
    fn climb(&mut self) {
        self.rate = match (self.held, self.failed) {
            (Some(held), Some(failed)) if failed <= held * GAP => {
                (self.part, self.held, self.failed) = (Part::Confirm(0), None, None);
                held
            }
            (Some(held), None) if held >= *RATES.end() => {
                (self.part, self.held) = (Part::Confirm(0), None);
                held
            }
            (Some(held), Some(failed)) => (held * failed).sqrt(),
            (Some(held), None) => held * self.stride,
            (None, Some(failed)) => failed / self.stride,
            (None, None) => self.rate,
        };
    }

    /// The next rate to confirm, beside the one that holds or does not.
    fn confirm(&mut self, holds: bool, steps: u32) {
        if self.held.is_some() && self.failed.is_some() {
            self.is_over = true;
        } else if steps == STEPS_MOST && self.climbs < CLIMBS_MOST {
            self.climbs += 1;
            (self.part, self.stride) = (Part::Climb, STRIDE_LATE);
            self.climb();
        } else {
            self.part = Part::Confirm(steps + 1);
            self.rate = if holds { self.rate * STEP } else { self.rate / STEP };
        }
    }

    /// The highest rate that held so far.
    pub(crate) fn best(&self) -> Option<f64> {
        self.held
    }
}

/// Whether more than half of `of` tries hold, or cannot any more; `None` while that is open.
pub(crate) fn majority(held: u32, failed: u32, of: u32) -> Option<bool> {
    match (2 * held > of, 2 * failed >= of) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
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
        let (mut search, mut tries) = (Search::from(from, 5), 0);
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
            assert!((found / knee - 1.0).abs() < 0.03, "{found} {knee} from {from}");
            assert!(tries < 50, "{tries}");
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
        assert!(near >= 97, "{near} of 100");
    }

    #[test]
    fn a_lucky_try_near_the_knee_does_not_raise_it() {
        // From 9 % below the knee to 9 % above it the chance to hold falls from one to none.
        let found_at = |seed: u64| {
            let random = &mut Random::new(seed, 0);
            let chance = |rate: f64| ((1.09 - rate / 3e6) / 0.18).clamp(0.0, 1.0);
            let (found, tries) = find(|rate| random.below(1000) as f64 <= chance(rate) * 1e3, 1e4);
            assert!(tries < 120, "{tries}");
            found.unwrap() / 3e6
        };
        let found: Vec<f64> = (0..100).map(found_at).collect();
        let near = found.iter().filter(|found| (0.95..=1.05).contains(*found)).count();
        assert!(near >= 90, "{near} of 100: {found:?}");
    }

    #[test]
    fn more_than_half_of_the_tries_decide_as_soon_as_they_can() {
        assert_eq!(majority(3, 0, 5), Some(true));
        assert_eq!(majority(0, 3, 5), Some(false));
        assert_eq!([majority(2, 2, 5), majority(0, 0, 1)], [None, None]);
        assert_eq!([majority(1, 0, 1), majority(0, 1, 1)], [Some(true), Some(false)]);
        assert_eq!(majority(2, 2, 4), Some(false), "half is not more than half");
    }

    #[test]
    fn what_always_or_never_holds_ends_at_the_bounds() {
        assert_eq!(find(|_| true, 1e4).0, Some(*RATES.end()));
        assert_eq!(find(|_| false, 1e4).0, None);
    }
}
