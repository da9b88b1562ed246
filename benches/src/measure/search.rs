//! `--slo`: the search for the highest rate at which a percentile stays within a time. Other
//! programs and the hypervisor disturb a try, and near the best rate some tries hold by luck. So
//! there are two parts. The climb rises in large steps until a rate fails twice, and halves the gap
//! until it is small; here one try is enough to hold. Then the search walks up and down: a try that
//! holds raises the rate by 2 %, one that fails lowers it (Dixon and Mood). So it stays around the
//! rate at which half of the tries hold. The mean of the walk tells that rate, and the best rate is
//! the one below it.

use crate::ask::values::RATES;

/// The climb ends when the gap is this small.
const GAP: f64 = 1.06;

/// The first steps are this large.
const STRIDE: f64 = 4.0;

/// The steps of the walk.
const STEP: f64 = 1.02;

/// Steps of the walk for each of the tries that are asked for.
const STEPS_A_TRY: u32 = 4;

/// If the walk goes this many steps up or down, the climb was wrong. It begins again from there,
/// with a stride of [`STRIDE_LATE`].
const STEPS_AWAY: u32 = 6;
const STRIDE_LATE: f64 = 1.2;

/// The climb begins again at most this many times: a machine that changes must not keep the search
/// alive.
const CLIMBS_MOST: u32 = 3;

/// A search, between two tries.
#[derive(Debug)]
pub(crate) struct Search {
    /// The rate to try next, messages a second.
    rate: f64,
    stride: f64,
    climbs: u32,
    /// The highest rate of this climb that held.
    held: Option<f64>,
    /// The lowest one that failed twice.
    failed: Option<f64>,
    /// The current rate of the climb has failed once.
    has_failed: bool,
    /// Where the climb ended, if it has.
    walk: Option<Walk>,
    /// Steps of the walk.
    steps: usize,
    is_over: bool,
}

/// The walk around the best rate.
#[derive(Debug)]
struct Walk {
    /// The rate at which it began.
    from: f64,
    /// How many steps above that rate the next try is.
    level: i32,
    /// The level of each try, and whether it held. Those on the way there are left out.
    tries: Vec<(i32, bool)>,
}

impl Search {
    /// A search that begins there. Its walk has steps for that many tries.
    pub(crate) fn from(rate: f64, tries: u32) -> Search {
        Search {
            rate,
            stride: STRIDE,
            climbs: 1,
            held: None,
            failed: None,
            has_failed: false,
            walk: None,
            steps: tries.saturating_mul(STEPS_A_TRY) as usize,
            is_over: false,
        }
    }

    /// The rate to try next; `None` at the end.
    pub(crate) fn next(&self) -> Option<f64> {
        (!self.is_over).then_some(self.rate)
    }

    /// Takes the outcome of a try.
    pub(crate) fn tell(&mut self, holds: bool) {
        match &mut self.walk {
            Some(walk) => {
                walk.step(holds);
                self.walked(holds);
            }
            // A disturbance must not end the climb: a rate has to fail twice.
            None if !holds && !self.has_failed => self.has_failed = true,
            None => {
                let told = if holds { &mut self.held } else { &mut self.failed };
                (*told, self.has_failed) = (Some(self.rate), false);
                self.climb(holds);
            }
        }
        self.rate = self.rate.clamp(*RATES.start(), *RATES.end());
    }

    /// The next step of the climb, or the end of it.
    fn climb(&mut self, holds: bool) {
        let (lowest, highest) = (*RATES.start(), *RATES.end());
        self.is_over = !holds && self.rate <= lowest;
        self.rate = match (self.held, self.failed) {
            (Some(held), Some(failed)) if failed <= held * GAP => self.walk_from(held),
            (Some(held), None) if held >= highest => self.walk_from(held),
            (Some(held), Some(failed)) => (held * failed).sqrt(),
            (Some(held), None) => held * self.stride,
            (None, Some(failed)) => failed / self.stride,
            (None, None) => self.rate,
        };
    }

    fn walk_from(&mut self, rate: f64) -> f64 {
        self.walk = Some(Walk { from: rate, level: 0, tries: Vec::new() });
        rate
    }

    /// The next rate of the walk, which made a step.
    fn walked(&mut self, held: bool) {
        let (lowest, highest) = (*RATES.start(), *RATES.end());
        let Some(walk) = &self.walk else { return };
        if walk.tries.len() >= self.steps
            || !held && self.rate <= lowest
            || held && self.rate >= highest
        {
            self.is_over = true;
        } else if walk.level.unsigned_abs() >= STEPS_AWAY && self.climbs < CLIMBS_MOST {
            let last = Some(self.rate);
            (self.held, self.failed) = if held { (last, None) } else { (None, last) };
            (self.walk, self.stride) = (None, STRIDE_LATE);
            self.climbs += 1;
            self.climb(held);
        } else {
            self.rate = walk.rate(walk.level);
        }
    }

    /// The highest rate that holds, as far as is known.
    pub(crate) fn best(&self) -> Option<f64> {
        self.walk.as_ref().map_or(self.held, Walk::best)
    }
}

impl Walk {
    fn rate(&self, level: i32) -> f64 {
        self.from * STEP.powi(level)
    }

    /// Notes the outcome of a try, and goes up or down.
    fn step(&mut self, holds: bool) {
        // It has not turned yet.
        if matches!(self.tries[..], [(_, held)] if held == holds) {
            self.tries.clear();
        }
        self.tries.push((self.level, holds));
        self.level += if holds { 1 } else { -1 };
    }

    /// The level half a step below the mean one is the highest that holds, if all tries of it hold
    /// and none of the next. A rate of which no try held is not the best.
    fn best(&self) -> Option<f64> {
        let sum: i32 = self.tries.iter().map(|(level, _)| level).sum();
        let mean = f64::from(sum) / self.tries.len() as f64;
        let held = self.tries.iter().filter(|(_, held)| *held).map(|(level, _)| *level);
        let best = held.min_by_key(|level| ((f64::from(*level) - mean + 0.5).abs() * 1e6) as u64);
        best.map(|level| self.rate(level))
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
        assert!(near >= 95, "{near} of 100: {found:?}");
    }

    #[test]
    fn what_always_or_never_holds_ends_at_the_bounds() {
        assert_eq!(find(|_| true, 1e4).0, Some(*RATES.end()));
        assert_eq!(find(|_| false, 1e4).0, None);
    }
}
