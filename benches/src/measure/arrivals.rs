//! When the messages of an open loop are due.

use crate::ask::values::Arrivals;
use crate::traffic::random::Random;

/// The due times of an open loop, one after the other, in ticks after the first. Two of them with
/// the same settings give the same times, so none has to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Dues {
    arrivals: Arrivals,
    /// Mean time between two messages, in ticks.
    step: f64,
    random: Random,
    /// Messages that are due at all.
    count: u64,
    /// No message is due then or later, in ticks.
    end: u64,
    number: u64,
    at: f64,
}

impl Dues {
    /// Messages that are due within `time` ticks, `step` ticks apart on average: one at least.
    pub(crate) fn new(arrivals: &Arrivals, (step, time): (f64, u64), seed: u64) -> Dues {
        let count = match arrivals {
            Arrivals::Fixed => ((time as f64 / step).round() as u64).max(1),
            Arrivals::Poisson | Arrivals::Recorded(_) => u64::MAX,
        };
        // Recorded times are in nanoseconds at their own rate; this stretches them to ours.
        let step = match arrivals {
            Arrivals::Recorded(recorded) => step * recorded.rate() / 1e9,
            _ => step,
        };
        let (arrivals, random) = (arrivals.clone(), Random::new(seed, 3));
        Dues { arrivals, step, random, count, end: time.max(1), number: 0, at: 0.0 }
    }

    /// When the next message is due; `u64::MAX` if there is none.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> u64 {
        let number = self.number;
        self.number += 1;
        match &self.arrivals {
            // No sum, whose error would grow.
            Arrivals::Fixed => match number < self.count {
                true => (number as f64 * self.step) as u64,
                false => u64::MAX,
            },
            Arrivals::Poisson => {
                let due = self.at;
                self.at += self.random.exponential(self.step);
                self.within(due)
            }
            Arrivals::Recorded(recorded) => {
                let due = self.at;
                let gaps = &recorded.gaps;
                self.at += gaps[(number % gaps.len() as u64) as usize] * self.step;
                self.within(due)
            }
        }
    }

    #[inline(always)]
    fn within(&self, due: f64) -> u64 {
        let due = due as u64;
        if due < self.end { due } else { u64::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::values::arrivals;

    fn all(arrivals: &Arrivals, step: f64, time: u64) -> Vec<u64> {
        let mut dues = Dues::new(arrivals, (step, time), 1);
        std::iter::from_fn(|| Some(dues.next()).filter(|due| *due != u64::MAX)).collect()
    }

    #[test]
    fn fixed_arrivals_keep_the_rate_from_the_start() {
        assert_eq!(all(&Arrivals::Fixed, 100.0, 450), [0, 100, 200, 300, 400]);
        assert_eq!(all(&Arrivals::Fixed, 0.5, 2), [0, 0, 1, 1]);
        assert_eq!(all(&Arrivals::Fixed, 1e9, 2), [0], "one at least");
        let many = all(&Arrivals::Fixed, 1.0 / 3.0, 1_000_000);
        assert_eq!((many.len(), many.last()), (3_000_000, Some(&999_999)));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_its_spread() {
        let dues = all(&Arrivals::Poisson, 1000.0, 100_000_000);
        assert!((dues.len() as f64 / 100_000.0 - 1.0).abs() < 0.015, "{}", dues.len());
        let gaps = dues.windows(2).map(|pair| pair[1] - pair[0]);
        // Of an exponential distribution, the part below the mean is 1 - 1/e.
        let below = gaps.filter(|gap| *gap < 1000).count() as f64 / dues.len() as f64;
        assert!((below - 0.632).abs() < 0.01, "{below}");
        assert_eq!(dues, all(&Arrivals::Poisson, 1000.0, 100_000_000), "of one seed");
        assert_eq!(all(&Arrivals::Poisson, 1e9, 2), [0], "one at least");
    }

    #[test]
    fn recorded_arrivals_are_stretched_to_the_rate() {
        let file = std::env::temp_dir().join(format!("doorbell-dues-{}", std::process::id()));
        std::fs::write(&file, "0\n100\n400\n").unwrap();
        let recorded = arrivals(file.to_str().unwrap()).unwrap();
        std::fs::remove_file(&file).unwrap();
        // Gaps of 100, 300 and 200 ns at their own rate, 200 ns apart; here 1000 ticks apart.
        assert_eq!(all(&recorded, 1000.0, 6000), [0, 500, 2000, 3000, 3500, 5000]);
        let Arrivals::Recorded(own) = &recorded else { panic!("{recorded:?}") };
        // At their own rate, in ticks of a nanosecond.
        assert_eq!(all(&recorded, 1e9 / own.rate(), 600), [0, 100, 400]);
    }
}
