//! When messages are due, and how large they are.

use crate::traffic::random::Random;

/// The sizes of a row's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// All the same.
    Fixed(u32),
    /// Orders and ticks: mostly 40 to 200 bytes, in bursts.
    Trade,
    /// Blocks of 4 and 64 KiB beside commands of 64 bytes.
    Storage,
}

impl Trace {
    /// The largest message, in bytes.
    pub(crate) fn size_max(self) -> u32 {
        match self {
            Trace::Fixed(size) => size,
            Trace::Trade => 1024,
            Trace::Storage => 64 << 10,
        }
    }

    /// The size of the next message, in bytes.
    pub(crate) fn size(self, random: &mut Random) -> u32 {
        match self {
            Trace::Fixed(size) => size,
            Trace::Trade => match random.below(20) {
                0 => random.within(201, 1024),
                _ => random.within(40, 200),
            },
            Trace::Storage => match random.below(20) {
                0..10 => 64,
                10..17 => 4 << 10,
                _ => 64 << 10,
            },
        }
    }

    /// How many messages are due at the same time, at least 1.
    fn burst(self, random: &mut Random) -> u64 {
        match self {
            Trace::Fixed(_) | Trace::Storage => 1,
            Trace::Trade => match random.below(4) {
                0 => 1 + random.below(BURST_MOST),
                _ => 1,
            },
        }
    }

    /// The mean of [`Trace::burst`].
    fn burst_mean(self) -> f64 {
        match self {
            Trace::Fixed(_) | Trace::Storage => 1.0,
            Trace::Trade => 0.75 + 0.25 * (BURST_MOST + 1) as f64 / 2.0,
        }
    }
}

/// The most messages of a burst.
const BURST_MOST: u64 = 31;

/// A message to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// When it should go out, in ticks from the first one.
    pub(crate) at: u64,
    pub(crate) size: u32,
}

/// Messages that are due within `time` ticks, `mean` ticks apart on average. Arrivals are
/// independent of each other (Poisson); those of a burst are due at the same time.
pub(crate) fn arrivals(trace: Trace, mean: f64, time: u64, random: &mut Random) -> Vec<Due> {
    let between = mean * trace.burst_mean();
    let mut dues = Vec::with_capacity((time as f64 / mean * 1.2) as usize + 64);
    let mut at = 0.0;
    while (at as u64) < time {
        for _ in 0..trace.burst(random) {
            dues.push(Due { at: at as u64, size: trace.size(random) });
        }
        at += random.exponential(between);
    }
    dues
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and standard deviation.
    fn spread(numbers: &[f64]) -> (f64, f64) {
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let square = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
        (mean, square.sqrt())
    }

    #[test]
    fn arrivals_have_the_mean_and_the_spread_of_poisson() {
        for seed in 1..5 {
            let random = &mut Random::new(seed, 0);
            let dues = arrivals(Trace::Fixed(64), 1000.0, 100_000_000, random);
            let gaps: Vec<f64> =
                dues.windows(2).map(|pair| (pair[1].at - pair[0].at) as f64).collect();
            let (mean, deviation) = spread(&gaps);
            // 100 000 gaps: the mean is off by 0.3 % on average, the deviation by 0.5 %.
            assert!((mean / 1000.0 - 1.0).abs() < 0.015, "{mean}");
            assert!((deviation / mean - 1.0).abs() < 0.02, "{deviation} {mean}");
            // Of an exponential distribution, the part below the mean is 1 - 1/e.
            let below = gaps.iter().filter(|gap| **gap < 1000.0).count() as f64;
            assert!((below / gaps.len() as f64 - 0.632).abs() < 0.01, "{below}");
            // The count of messages in a window has a variance equal to its mean.
            let mut counts = vec![0.0; 10_000];
            dues.iter().for_each(|due| counts[(due.at / 10_000) as usize] += 1.0);
            let (mean, deviation) = spread(&counts);
            assert!((deviation.powi(2) / mean - 1.0).abs() < 0.1, "{deviation} {mean}");
        }
    }

    #[test]
    fn bursts_keep_the_mean_rate() {
        let random = &mut Random::new(9, 0);
        let dues = arrivals(Trace::Trade, 1000.0, 200_000_000, random);
        let rate = dues.len() as f64 / 200_000.0;
        assert!((rate - 1.0).abs() < 0.03, "{rate}");
        let together = dues.windows(2).filter(|pair| pair[0].at == pair[1].at).count();
        assert!(together * 2 > dues.len(), "{together} of {}", dues.len());
    }

    #[test]
    fn traces_have_the_sizes_that_they_promise() {
        let random = &mut Random::new(3, 0);
        let sizes: Vec<u32> = (0..10_000).map(|_| Trace::Trade.size(random)).collect();
        assert!(sizes.iter().all(|size| (40..=Trace::Trade.size_max()).contains(size)));
        let usual = sizes.iter().filter(|size| **size <= 200).count();
        assert!((9300..9700).contains(&usual), "{usual}");
        let sizes: Vec<u32> = (0..10_000).map(|_| Trace::Storage.size(random)).collect();
        for (size, part) in [(64, 5000), (4096, 3500), (65_536, 1500)] {
            let count = sizes.iter().filter(|found| **found == size).count();
            assert!(count.abs_diff(part) < 200, "{size}: {count}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_messages() {
        let of = |seed| arrivals(Trace::Trade, 50.0, 5000, &mut Random::new(seed, 1));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
