//! Whether a sweep holds: the rate never falls as load rises, and batching costs a lone message
//! nothing.

use crate::ask::plan::SWEEP_ROUNDS as ROUNDS;
use crate::ask::request::Test;
use crate::error::Failure;
use crate::measure::record::Record;
use crate::measure::sweep::ROUNDS_MAX;

/// The least rate, as a part of the best one with fewer in flight.
pub(crate) const LEAST: f64 = 0.9;

/// The most time of a lone message with batching, as a part of that without.
pub(crate) const BATCHING_MOST: f64 = 1.03;

/// What the records of one size show.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    size: u32,
    mode: &'static str,
    rounds: u32,
    left_out: u32,
    /// The least rate, as a part of the best one with fewer in flight.
    pub(crate) least: Option<f64>,
    /// The time of a lone message with batching, as a part of that without.
    pub(crate) batching: Option<f64>,
}

impl Verdict {
    /// One verdict for each size.
    pub(crate) fn all<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Verdict> {
        let records: Vec<&Record> = records.filter(|record| record.test == Test::Sweep).collect();
        records.chunk_by(|one, two| one.size == two.size).map(Verdict::of).collect()
    }

    fn of(records: &[&Record]) -> Verdict {
        let first = records.first();
        let figures = || records.iter().map(|record| &record.figures);
        let least = figures().filter_map(|of| of.times_best_below).min_by(f64::total_cmp);
        Verdict {
            size: first.map_or(0, |record| record.size),
            mode: first.and_then(|record| record.placement.mode).unwrap_or("not known"),
            rounds: first.and_then(|record| record.figures.rounds).unwrap_or(0),
            left_out: first.and_then(|record| record.figures.rounds_left_out).unwrap_or(0),
            least,
            batching: figures().find_map(|figures| figures.times_without_batching),
        }
    }

    /// One line to stand below the table.
    pub(crate) fn line(&self) -> String {
        let number = |figure: Option<f64>| figure.map_or("-".into(), |of| format!("{of:.3}"));
        format!(
            "  {} bytes, {} rounds in mode {}, {} left out: the least rate is {} times the best \
             with fewer in flight (>= {LEAST}); batching takes a lone message {} times as long \
             (<= {BATCHING_MOST})\n",
            self.size,
            self.rounds,
            self.mode,
            self.left_out,
            number(self.least),
            number(self.batching)
        )
    }

    /// True if enough rounds were in one mode of the cores.
    pub(crate) fn is_stable(&self) -> bool {
        self.rounds >= ROUNDS
    }

    /// True if both limits hold.
    pub(crate) fn holds(&self) -> bool {
        self.least.is_none_or(|least| least >= LEAST)
            && self.batching.is_some_and(|batching| batching <= BATCHING_MOST)
    }
}

/// Holds the records against the limits.
///
/// # Errors
/// A rate falls by more than a tenth as load rises, or batching costs a lone message more than 3 %;
/// or it is undecided, because the cores did not stay in one mode for long enough.
pub(crate) fn check(records: &[Record]) -> Result<(), Failure> {
    let verdicts = Verdict::all(records.iter());
    if let Some(verdict) = verdicts.iter().find(|verdict| verdict.is_stable() && !verdict.holds()) {
        return Err(Failure::new(format!("--check:{}", verdict.line())));
    }
    match verdicts.iter().find(|verdict| !verdict.is_stable()) {
        Some(verdict) => Err(Failure::undecided(format!(
            "--check: no mode of the cores lasted for {ROUNDS} rounds of {ROUNDS_MAX}, the most \
             frequent one for {}; run it again when the machine is idle",
            verdict.rounds
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_counts_and_a_few_rounds_decide_nothing() {
        let good = Verdict {
            size: 64,
            mode: "NEAR",
            rounds: ROUNDS,
            left_out: 3,
            least: Some(0.9),
            batching: Some(1.03),
        };
        assert!(good.holds() && good.is_stable(), "{good:?}");
        assert!(!Verdict { least: Some(0.899), ..good }.holds());
        let good = Verdict { least: None, ..good };
        assert!(good.holds(), "a single depth has no rate to fall below");
        assert!(!Verdict { batching: Some(1.031), ..good }.holds());
        assert!(!Verdict { batching: None, ..good }.holds());
        assert!(!Verdict { rounds: ROUNDS - 1, ..good }.is_stable());
    }
}
