//! How many times as long one run took as another, and how sure that is. The estimate is the median
//! of all ratios between a part of one run and a part of the other (Hodges and Lehmann); the
//! interval is that of the rank-sum test (Hollander and Wolfe, Nonparametric Statistical Methods,
//! section 4.3). Neither assumes a distribution, and a few disturbed parts move neither.

/// Standard deviations on each side of the interval: it misses the true ratio once in a thousand
/// comparisons, because a run has dozens of figures.
const DEVIATIONS: f64 = 3.29;

/// How often the interval of rounds misses the true ratio.
const MISSED: f64 = 0.001;

/// A ratio, and the interval that it is sure to be in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) ratio: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// How many times as much `after` is as `before`. All figures must be above 0. `None` if there
    /// are too few for an interval: fewer than nine on each side.
    pub(crate) fn of(before: &[f64], after: &[f64]) -> Option<Interval> {
        let ratio = |(&before, &after): (&f64, &f64)| (before > 0.0).then(|| after / before);
        let pairs = before.iter().flat_map(|before| after.iter().map(move |after| (before, after)));
        let mut ratios: Vec<f64> = pairs.filter_map(ratio).filter(|of| *of > 0.0).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let (m, n) = (before.len() as f64, after.len() as f64);
        let outside = m * n / 2.0 - DEVIATIONS * (m * n * (m + n + 1.0) / 12.0).sqrt();
        if ratios.len() < before.len() * after.len() || outside < 1.0 {
            return None;
        }
        let first = outside as usize - 1;
        let last = ratios.len() - 1;
        let middle = (ratios[last / 2] + ratios[ratios.len() / 2]) / 2.0;
        Some(Interval { low: ratios[first], ratio: middle, high: ratios[last - first] })
    }

    /// The same for runs in turn: `ratios` has one for each round. The interval is that of the
    /// signed-rank test on their logarithms (Hollander and Wolfe, section 3.3). `None` if there are
    /// too few for an interval: fewer than eleven.
    pub(crate) fn of_rounds(ratios: &[f64]) -> Option<Interval> {
        if ratios.iter().any(|ratio| !(ratio.is_finite() && *ratio > 0.0)) {
            return None;
        }
        let outside = outside(ratios.len())?;
        let mut means: Vec<f64> = Vec::with_capacity(ratios.len() * (ratios.len() + 1) / 2);
        for (n, one) in ratios.iter().enumerate() {
            means.extend(ratios[n..].iter().map(|two| (one * two).sqrt()));
        }
        means.sort_unstable_by(f64::total_cmp);
        let last = means.len() - 1;
        let middle = (means[last / 2] * means[means.len() / 2]).sqrt();
        Some(Interval { low: means[outside], ratio: middle, high: means[last - outside] })
    }
}

/// How many of the sorted means of two rounds lie below the interval, and as many above it: the
/// largest number that the signed-rank sum of that many rounds stays below in less than
/// [`MISSED`] of all cases, if nothing differs.
fn outside(rounds: usize) -> Option<usize> {
    // The chance of each sum of ranks, where each rank counts or not with the same chance.
    let mut chances = vec![1.0];
    for rank in 1..=rounds {
        let mut next = vec![0.0; chances.len() + rank];
        for (sum, chance) in chances.iter().enumerate() {
            next[sum] += chance / 2.0;
            next[sum + rank] += chance / 2.0;
        }
        chances = next;
    }
    let (mut sum, mut outside) = (0.0, None);
    for (n, chance) in chances.iter().enumerate() {
        sum += chance;
        if sum > MISSED / 2.0 {
            break;
        }
        outside = Some(n);
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::random::Random;

    /// Figures around `mean` with a standard deviation of `noise` of it, and now and then one that
    /// another program disturbed.
    fn figures(random: &mut Random, count: usize, (mean, noise): (f64, f64)) -> Vec<f64> {
        let mut figure = || {
            let part = |random: &mut Random| random.below(1 << 32) as f64 / (1_u64 << 32) as f64;
            // The sum of twelve has a deviation of 1.
            let normal: f64 = (0..12).map(|_| part(random)).sum::<f64>() - 6.0;
            let disturbed = if random.below(20) == 0 { 3.0 } else { 1.0 };
            mean * (1.0 + noise * normal).max(0.01) * disturbed
        };
        (0..count).map(|_| figure()).collect()
    }

    #[test]
    fn the_interval_has_the_true_ratio_nearly_always() {
        let random = &mut Random::new(1, 0);
        let mut missed = 0;
        for _ in 0..2000 {
            let one = figures(random, 15, (50.0, 0.05));
            let two = figures(random, 20, (60.0, 0.05));
            let found = Interval::of(&one, &two).unwrap();
            assert!(found.low <= found.ratio && found.ratio <= found.high, "{found:?}");
            missed += u32::from(!(found.low..=found.high).contains(&1.2));
        }
        // Two are to be expected.
        assert!(missed <= 8, "{missed} of 2000");
    }

    #[test]
    fn a_run_beside_itself_is_in_the_middle() {
        let one = figures(&mut Random::new(2, 0), 20, (50.0, 0.2));
        let found = Interval::of(&one, &one).unwrap();
        assert!((found.ratio - 1.0).abs() < 1e-9 && found.low < 1.0 && 1.0 < found.high);
    }

    #[test]
    fn the_interval_of_rounds_has_the_true_ratio_nearly_always() {
        let random = &mut Random::new(4, 0);
        let mut missed = 0;
        for _ in 0..2000 {
            // What disturbs a round disturbs both runs of it, and each has noise of its own.
            let (one, two) = (figures(random, 16, (50.0, 0.02)), figures(random, 16, (55.0, 0.02)));
            let ratios: Vec<f64> = one.iter().zip(&two).map(|(one, two)| two / one).collect();
            let found = Interval::of_rounds(&ratios).unwrap();
            assert!(found.low <= found.ratio && found.ratio <= found.high, "{found:?}");
            missed += u32::from(!(found.low..=found.high).contains(&1.1));
        }
        assert!(missed <= 8, "{missed} of 2000");
    }

    #[test]
    fn the_signed_rank_sum_has_its_known_limits() {
        // With eleven rounds only a sum of 0 is rare enough: 1 of 2048 on each side.
        assert_eq!([10, 11, 12].map(outside), [None, Some(0), Some(1)]);
        // Tables have 2 for 13, and 8 for 16, at 0.0005 on one side.
        assert_eq!([13, 16].map(outside), [Some(2), Some(8)]);
        assert_eq!(Interval::of_rounds(&[1.0; 10]), None);
        assert_eq!(Interval::of_rounds(&[f64::NAN; 20]), None);
        let same = Some(Interval { low: 1.0, ratio: 1.0, high: 1.0 });
        assert_eq!(Interval::of_rounds(&[1.0; 20]), same);
    }

    #[test]
    fn few_figures_say_nothing() {
        let one = figures(&mut Random::new(3, 0), 8, (50.0, 0.0));
        assert_eq!(Interval::of(&one, &one), None);
        assert_eq!(Interval::of(&[], &one), None);
        let zero = [0.0; 20];
        assert_eq!(Interval::of(&zero, &zero), None);
        let same = [2.0; 9];
        assert_eq!(Interval::of(&same, &same), Some(Interval { low: 1.0, ratio: 1.0, high: 1.0 }));
    }
}
