//! Pseudo-random numbers: the same seed gives the same sequence.

/// SplitMix64: one word of state, integers only, the same on every machine.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// Starts the sequence of a seed.
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// An independent sequence for one part of a simulation: draws by other parts do not change it.
    #[must_use]
    pub fn fork(&mut self) -> Prng {
        Prng(self.word() ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a product: near enough to even for bounds far below 2^64.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included; `low` if `high` is less.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True `odds` times in 1024.
    pub fn chance(&mut self, odds: u32) -> bool {
        self.word() >> 54 < u64::from(odds)
    }

    /// One entry of a list; the default value if the list is empty.
    pub fn pick<T: Copy + Default>(&mut self, list: &[T]) -> T {
        list.get(self.below(list.len() as u64) as usize).copied().unwrap_or_default()
    }
}

/// Spreads the bits of a word over the whole word.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let (mut one, mut two, mut other) = (Prng::new(1), Prng::new(1), Prng::new(2));
        let same = (0..100).all(|_| one.word() == two.word());
        assert!(same && one.word() != other.word());
        // The published first output of SplitMix64 for seed 0.
        assert_eq!(Prng::new(0).word(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut prng = Prng::new(3);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            let n = prng.range(3, 7);
            assert!((3..=7).contains(&n));
            seen[n as usize - 3] = true;
            assert!(prng.chance(1024) && !prng.chance(0));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!((prng.below(0), prng.range(9, 9), prng.range(9, 3)), (0, 9, 9));
    }
}
