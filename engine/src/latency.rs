//! [`Latency`]: how long things took, as a histogram of fixed size.

use std_alloc::boxed::Box;
use std_alloc::vec;

/// Buckets for each power of two: a value is known to one part in eight.
const STEPS: usize = 8;

/// Buckets for all values of a `u64`: those below `2 * STEPS` have one each.
const BUCKETS: usize = (64 - STEPS.ilog2() as usize + 1) * STEPS;

/// Durations, in the unit of the caller's clock. There is a bucket for each eighth of a power of
/// two, so a value is off by at most 12.5 %, whatever its size. It takes 4 KiB, and recording
/// allocates nothing.
///
/// ```
/// use doorbell_engine::latency::Latency;
///
/// let mut latency = Latency::new();
/// for nanoseconds in 1..=1000 {
///     latency.record(nanoseconds);
/// }
/// let median = latency.quantile(0.5);
/// assert!((500..=563).contains(&median), "{median}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    counts: Box<[u64]>,
    count: u64,
    sum: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    /// An empty histogram.
    pub fn new() -> Latency {
        Latency { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum: 0 }
    }

    /// Records a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        if let Some(count) = self.counts.get_mut(bucket(value)) {
            *count += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Latency) {
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value of the bucket that holds that share of all values, 0 to 1: 0.99 for the
    /// 99th percentile. 0 if nothing was recorded.
    pub fn quantile(&self, share: f64) -> u64 {
        let exact = share.clamp(0.0, 1.0) * self.count as f64;
        let whole = exact as u64;
        let rank = (whole + u64::from((whole as f64) < exact)).clamp(1, self.count.max(1));
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return most(bucket);
            }
        }
        0
    }

    /// For each power of two: the largest value below it, and the number of values up to that. All
    /// powers, whatever was recorded: only histograms with the same limits can be added.
    pub(crate) fn powers(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.counts.chunks(STEPS).enumerate().map(move |(n, part)| {
            below += part.iter().sum::<u64>();
            (most(n * STEPS + STEPS - 1), below)
        })
    }
}

/// The bucket of a value.
#[inline]
fn bucket(value: u64) -> usize {
    let bits = STEPS.ilog2();
    // Above `STEPS`: the power of two, and the three bits below its highest.
    let power = (value | STEPS as u64).ilog2() - bits;
    power as usize * STEPS + (value >> power) as usize
}

/// The largest value of a bucket.
fn most(bucket: usize) -> u64 {
    if bucket < 2 * STEPS {
        return bucket as u64;
    }
    let power = bucket / STEPS - 1;
    let first = (STEPS + bucket % STEPS) as u64;
    (first << power) + ((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Every value is in the bucket whose limits hold it, and the last bucket holds the largest.
    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for value in (0..5000).chain((12..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit])) {
            let at = bucket(value);
            assert!(value <= most(at), "{value}");
            assert!(at == 0 || value > most(at - 1), "{value} in {at}");
            assert!(most(at) as f64 <= value as f64 * 1.125, "{value} in {at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(most(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn quantiles_and_sums_are_those_of_the_values() {
        let mut latency = Latency::new();
        assert_eq!((latency.quantile(0.5), latency.count()), (0, 0));
        let mut other = Latency::new();
        for value in 1..=100 {
            if value % 2 == 0 { latency.record(value) } else { other.record(value) }
        }
        latency.merge(&other);
        assert_eq!((latency.count(), latency.sum()), (100, 5050));
        let quantiles = [0.0, 0.25, 0.5, 0.981, 1.0].map(|share| latency.quantile(share));
        assert_eq!(quantiles, [1, 25, 51, 103, 103]);
        let powers: Vec<_> = latency.powers().collect();
        assert_eq!(powers[..5], [(7, 7), (15, 15), (31, 31), (63, 63), (127, 100)]);
        assert_eq!((powers.len(), powers.last()), (62, Some(&(u64::MAX, 100))));
    }
}
