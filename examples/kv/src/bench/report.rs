//! What a benchmark has found.

use std::fmt;

use doorbell::latency::Latency;

use super::driver::{Driver, Shared};
use super::plan::Bench;
use crate::client::{Counts, How};
use crate::place::Failure;

/// One way to get.
#[derive(Clone, Debug)]
pub struct Way {
    /// The way.
    pub how: How,
    /// Operations in a second, in each round.
    pub rates: Vec<f64>,
    /// Latency in nanoseconds, with the wait among the operations of the same client.
    pub latency: Latency,
    /// What the clients have done.
    pub counts: Counts,
}

impl Way {
    /// The median of the rates, in operations per second.
    pub fn rate(&self) -> f64 {
        median(&self.rates)
    }
}

/// All ways.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which they were asked for.
    pub ways: Vec<Way>,
    /// Operations of all rounds, for each way.
    pub operations: u64,
    /// Gets that found nothing.
    pub missing: u64,
    /// Operations that failed.
    pub failed: u64,
    title: String,
}

fn median(list: &[f64]) -> f64 {
    let mut sorted = list.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

impl Report {
    pub(super) fn new<'a>(
        bench: &Bench,
        shared: &Shared,
        drivers: impl Iterator<Item = (&'a Driver, Counts)>,
    ) -> Report {
        let count = bench.hows.len();
        let way = |(n, how): (usize, &How)| {
            let stages = (1..=bench.rounds as usize).map(|round| 1 + round * count + n);
            let rate = |ns: u64| bench.operations as f64 * 1e9 / ns.max(1) as f64;
            let rates = stages.filter_map(|stage| shared.took(stage)).map(rate).collect();
            Way { how: *how, rates, latency: Latency::new(), counts: Counts::default() }
        };
        let mut ways: Vec<Way> = bench.hows.iter().enumerate().map(way).collect();
        let (mut missing, mut failed) = (0, 0);
        for (driver, _) in drivers {
            for (way, (latency, done)) in
                ways.iter_mut().zip(driver.latency.iter().zip(&driver.done))
            {
                way.latency.merge(latency);
                way.counts.reads += done.reads;
                way.counts.torn += done.torn;
                way.counts.calls += done.calls;
            }
            missing += driver.missing;
            failed += driver.failed;
        }
        let Bench { workload, records, value_bytes, clients, depth, servers, .. } = bench;
        let title = format!(
            "YCSB {workload:?}: {records} records of {value_bytes} bytes, {clients} clients with \
             {depth} operations at a time, {servers} workers"
        );
        let operations = bench.operations * u64::from(bench.rounds);
        Report { ways, operations, missing, failed, title }
    }

    /// Whether each get has found its record, and each operation has been done: all records are
    /// stored before the first get, and nobody deletes one.
    ///
    /// # Errors
    /// The numbers of those that have not.
    pub fn check(&self) -> Result<(), Failure> {
        match (self.missing, self.failed) {
            (0, 0) => Ok(()),
            (missing, failed) => {
                Err(format!("{missing} gets found nothing, {failed} operations failed").into())
            }
        }
    }

    /// How many times the rate of the last way the first one has: the median over the rounds.
    pub fn ratio(&self) -> Option<f64> {
        let (first, last) = (self.ways.first()?, self.ways.last()?);
        let pairs = first.rates.iter().zip(&last.rates);
        (self.ways.len() > 1)
            .then(|| median(&pairs.map(|(one, two)| one / two).collect::<Vec<_>>()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        writeln!(
            f,
            "{:<8} {:>12} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10}",
            "get by",
            "operations/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "READs/op",
            "calls/op",
            "torn"
        )?;
        for Way { how, latency, counts, .. } in &self.ways {
            let us = |share: f64| latency.quantile(share) as f64 / 1000.0;
            let each = |count: u64| count as f64 / self.operations.max(1) as f64;
            let rate = self.ways.iter().find(|way| way.how == *how).map_or(0.0, Way::rate);
            writeln!(
                f,
                "{:<8} {:>12.0} {:>9.2} {:>9.2} {:>9.2} {:>9.3} {:>10.3} {:>10}",
                format!("{how:?}").to_uppercase(),
                rate,
                us(0.5),
                us(0.99),
                us(0.999),
                each(counts.reads),
                each(counts.calls),
                counts.torn
            )?;
        }
        if let Some(ratio) = self.ratio() {
            writeln!(f, "the first has {ratio:.2} times the rate of the last (median of rounds)")?;
        }
        write!(f, "{} gets found nothing, {} operations failed", self.missing, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_without_a_record_is_a_failure() {
        let report = |missing, failed| Report {
            ways: Vec::new(),
            operations: 10,
            missing,
            failed,
            title: String::new(),
        };
        assert!(report(0, 0).check().is_ok());
        assert!(report(1, 0).check().is_err() && report(0, 1).check().is_err());
    }
}
