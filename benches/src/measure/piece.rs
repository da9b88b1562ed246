//! One piece of measuring, and the figures of several pieces: medians, because a hypervisor and
//! other programs disturb some of them.

use std::time::Duration;

use crate::measure::record::{HalfRtt, Part};
use crate::meet::tally::Tally;

/// What this side measured between one begin and end.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) half_rtt_ns: Option<HalfRtt>,
    /// From the first send to the last arrival, if a rate is measured.
    pub(crate) passed: Option<Duration>,
    pub(crate) messages: u64,
    /// Messages that did not arrive, or out of order, or with wrong bytes.
    pub(crate) lost: u64,
    pub(crate) tally: Tally,
    /// The figures of each part of the time; empty if the piece is one part.
    pub(crate) parts: Vec<Part>,
}

impl Piece {
    /// Messages a second.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.passed.map(|passed| self.messages as f64 / passed.as_secs_f64())
    }

    /// Time of a message, in any unit: the mean half round trip, else one over the rate.
    fn cost(&self) -> Option<f64> {
        let half = self.half_rtt_ns.map(|half| half.mean);
        half.or_else(|| self.rate().map(|rate| 1.0 / rate))
    }

    /// The figures of each part.
    fn parts(&self) -> Vec<Part> {
        if !self.parts.is_empty() {
            return self.parts.clone();
        }
        let half = self.half_rtt_ns;
        vec![Part {
            p50_ns: half.map(|half| half.p50),
            p99_ns: half.map(|half| half.p99),
            max_ns: half.map(|half| half.max),
            mean_ns: half.map(|half| half.mean),
            messages_per_second: self.rate(),
        }]
    }
}

/// The pieces of one figure.
pub(crate) struct Pieces(pub(crate) Vec<Piece>);

impl Pieces {
    /// Each percentile is the median over the pieces. The maximum is that of all pieces.
    pub(crate) fn half_rtt_ns(&self) -> Option<HalfRtt> {
        let halves: Vec<HalfRtt> = self.0.iter().filter_map(|piece| piece.half_rtt_ns).collect();
        let of = |pick: fn(&HalfRtt) -> f64| median(halves.iter().map(pick));
        Some(HalfRtt {
            p50: of(|half| half.p50)?,
            p90: of(|half| half.p90)?,
            p99: of(|half| half.p99)?,
            p99_9: of(|half| half.p99_9)?,
            p99_99: of(|half| half.p99_99)?,
            max: halves.iter().map(|half| half.max).fold(0.0, f64::max),
            mean: of(|half| half.mean)?,
        })
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        median(self.0.iter().filter_map(Piece::rate))
    }

    /// The time of a message here divided by that of `other`: the median over the rounds, in each
    /// of which one followed the other.
    pub(crate) fn cost_over(&self, other: &Pieces) -> Option<f64> {
        let rounds = self.0.iter().zip(&other.0);
        median(rounds.filter_map(|(here, there)| Some(here.cost()? / there.cost()?)))
    }

    /// The figures of each part of each piece, in order.
    pub(crate) fn parts(&self) -> Vec<Part> {
        self.0.iter().flat_map(Piece::parts).collect()
    }

    pub(crate) fn messages(&self) -> u64 {
        self.0.iter().map(|piece| piece.messages).sum()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.0.iter().map(|piece| piece.lost).sum()
    }

    /// What this side did, summed.
    pub(crate) fn tally(&self) -> Tally {
        Tally::sum(self.0.iter().map(|piece| &piece.tally))
    }
}

/// The middle figure; for an even count the mean of the middle two.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    match figures.len() {
        0 => None,
        even if even % 2 == 0 => Some((figures[half - 1] + figures[half]) / 2.0),
        _ => Some(figures[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(messages: &[u64]) -> Pieces {
        let piece = |&messages| Piece {
            half_rtt_ns: None,
            passed: Some(Duration::from_secs(1)),
            messages,
            lost: 1,
            tally: Tally::default(),
            parts: Vec::new(),
        };
        Pieces(messages.iter().map(piece).collect())
    }

    #[test]
    fn one_disturbed_piece_does_not_move_the_median() {
        let pieces = rates(&[100, 1, 102]);
        assert_eq!(pieces.rate(), Some(100.0));
        assert_eq!((pieces.messages(), pieces.lost()), (203, 3));
        assert!(pieces.half_rtt_ns().is_none());
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }

    #[test]
    fn costs_are_compared_round_by_round() {
        // The ratio of the medians would be 100 / 50. The rounds have 2, 2 and 1.
        let (one, many) = (rates(&[100, 10, 100]), rates(&[50, 5, 100]));
        assert_eq!(many.cost_over(&one), Some(2.0));
        assert_eq!(one.cost_over(&many), Some(0.5));
    }

    #[test]
    fn percentiles_are_medians_and_the_maximum_is_of_all() {
        let half =
            |p50, max| HalfRtt { p50, p90: p50, p99: p50, p99_9: p50, p99_99: p50, max, mean: p50 };
        let mut pieces = rates(&[1, 1, 1]);
        for (piece, half) in
            pieces.0.iter_mut().zip([half(1.0, 9.0), half(3.0, 3.0), half(2.0, 5.0)])
        {
            piece.half_rtt_ns = Some(half);
        }
        let both = pieces.half_rtt_ns().unwrap();
        assert_eq!((both.p50, both.max), (2.0, 9.0));
    }
}
