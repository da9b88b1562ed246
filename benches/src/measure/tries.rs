//! The tries of rates that have to keep an objective: how many did, and which rate is the best.

use crate::measure::record::Record;

/// The tries of one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Messages due each second.
    pub(crate) per_second: f64,
    /// Tries that kept the objective.
    pub(crate) kept: u32,
    /// All tries.
    pub(crate) of: u32,
}

/// Whether a try kept its objective, and whether it does not count.
pub(crate) fn outcome(records: &[Record]) -> (bool, bool) {
    let kept = records.iter().all(|record| record.figures.keeps_objective());
    let slo = |record: &Record| record.figures.slo.as_ref().is_some_and(|slo| slo.disturbed);
    (kept, records.iter().any(slo))
}

/// True if a try counts.
pub(crate) fn counts(record: &Record) -> bool {
    record.figures.slo.as_ref().is_some_and(|slo| !slo.disturbed)
}

/// Says of each try whether it counts.
pub(crate) fn count_if(records: &mut [Record], counts: impl Fn(&Record) -> bool) {
    for record in records {
        let disturbed = !counts(record);
        if let Some(slo) = &mut record.figures.slo {
            slo.disturbed = disturbed;
        }
    }
}

/// The tries of each rate, the lowest rate first.
pub(crate) fn count<'a>(records: impl Iterator<Item = &'a Record>) -> Vec<Rate> {
    let mut rates: Vec<Rate> = Vec::new();
    for record in records {
        let (slo, offered) = (record.figures.slo.as_ref(), record.figures.offered_per_second);
        let Some((slo, per_second)) = slo.zip(offered).filter(|(slo, _)| !slo.disturbed) else {
            continue;
        };
        let place = rates.partition_point(|rate| rate.per_second < per_second);
        if rates.get(place).is_none_or(|rate| rate.per_second > per_second) {
            rates.insert(place, Rate { per_second, kept: 0, of: 0 });
        }
        rates[place].kept += u32::from(slo.kept);
        rates[place].of += 1;
    }
    rates
}

/// Marks the tries that kept the objective at the best rate.
pub(crate) fn mark<'a>(records: impl Iterator<Item = &'a mut Record>, best: Option<f64>) {
    for record in records {
        let is_best = record.figures.offered_per_second == best;
        if let Some(slo) = &mut record.figures.slo {
            slo.best = is_best && slo.kept && !slo.disturbed;
        }
    }
}

/// Of each size, marks the highest rate at which more than half of the tries kept the objective.
pub(crate) fn mark_best(records: &mut [Record]) {
    for records in records.chunk_by_mut(|one, two| one.size == two.size) {
        let rates = count(records.iter());
        let holds = |rate: &&Rate| 2 * rate.kept > rate.of;
        let best = rates.iter().rfind(holds).map(|rate| rate.per_second);
        mark(records.iter_mut(), best);
    }
}
