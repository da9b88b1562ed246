//! Numbers that follow from a seed, so that both contestants and every run have the same traffic.

/// A stream of pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

/// The golden ratio as a fraction of 2^64: consecutive states are far apart.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// The stream number `stream` of a seed. Streams of one seed have nothing in common.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed);
        let first = random.next();
        Random(first ^ stream.wrapping_mul(STEP))
    }

    /// The next number.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or 0.
    #[inline]
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`.
    pub(crate) fn within(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(u64::from(high - low) + 1) as u32
    }

    /// A time until the next of events that happen independently of each other, with that mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        // 53 bits, above 0 and at most 1, so the logarithm is finite.
        let part = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -mean * part.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_streams_differ() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(take(1, 2), take(1, 2));
        assert_ne!(take(1, 2), take(1, 3));
        assert_ne!(take(1, 2), take(2, 2));
    }

    #[test]
    fn numbers_within_bounds_reach_both_and_pass_neither() {
        let mut random = Random::new(5, 0);
        let numbers: Vec<u32> = (0..10_000).map(|_| random.within(40, 200)).collect();
        assert_eq!((numbers.iter().min(), numbers.iter().max()), (Some(&40), Some(&200)));
        let mean = numbers.iter().sum::<u32>() as f64 / 10_000.0;
        assert!((mean - 120.0).abs() < 2.0, "{mean}");
        assert_eq!(random.below(0), 0);
    }
}
