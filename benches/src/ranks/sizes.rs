//! The sizes of messages: one, or several in a mix that follows from a seed.

use crate::meet::wire;
use crate::traffic::random::Random;

/// Sizes and how often each occurs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sizes {
    all: Vec<u32>,
    /// For each size, its weight and those before it, summed.
    until: Vec<u64>,
}

impl Sizes {
    /// Sizes with their weights; a size without one has the weight 1.
    pub(crate) fn new(all: &[u32], weights: &[u32]) -> Sizes {
        let weights = all.iter().enumerate().map(|(n, _)| weights.get(n).copied().unwrap_or(1));
        let mut sum = 0;
        let until = weights
            .map(|weight| {
                sum += u64::from(weight);
                sum
            })
            .collect();
        Sizes { all: all.to_vec(), until }
    }

    /// The largest, in bytes.
    pub(crate) fn most(&self) -> u32 {
        self.all.iter().copied().max().unwrap_or(0)
    }

    /// A payload of each size.
    pub(crate) fn payloads(&self) -> Vec<Vec<u8>> {
        self.all.iter().map(|size| wire::filled(*size as usize)).collect()
    }

    /// The sizes of one stream of messages. Both ends of a link draw the same ones.
    pub(crate) fn stream(&self, seed: u64) -> Stream {
        Stream { sizes: self.clone(), random: Random::new(seed, 11) }
    }
}

/// The sizes of the messages of a link, in order.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    sizes: Sizes,
    random: Random,
}

impl Stream {
    /// The size of the next message, in bytes.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> usize {
        let Sizes { all, until } = &self.sizes;
        if let [only] = all[..] {
            return only as usize;
        }
        let at = self.random.below(until.last().copied().unwrap_or(0));
        let found = until.iter().position(|end| at < *end).unwrap_or(0);
        all.get(found).map_or(0, |size| *size as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_has_its_weights_and_follows_from_its_seed() {
        let sizes = Sizes::new(&[8, 64, 4096], &[7, 2, 1]);
        assert_eq!(sizes.most(), 4096);
        let draw = |seed| {
            let mut stream = sizes.stream(seed);
            (0..10_000).map(|_| stream.next()).collect::<Vec<_>>()
        };
        let drawn = draw(1);
        for (size, part) in [(8, 0.7), (64, 0.2), (4096, 0.1)] {
            let found = drawn.iter().filter(|of| **of == size).count() as f64 / 10_000.0;
            assert!((found - part).abs() < 0.03, "{size}: {found}");
        }
        assert_eq!(drawn, draw(1));
        assert_ne!(drawn, draw(2));
        let mut only = Sizes::new(&[200], &[]).stream(1);
        assert_eq!((only.next(), only.next()), (200, 200));
    }
}
