//! Latencies in nanoseconds, as an HDR histogram of three digits.

use hdrhistogram::Histogram;

/// Longer times count as this: a minute.
const LONGEST: u64 = 60_000_000_000;

/// See the module.
#[derive(Clone, Debug)]
pub struct Latency(Option<Histogram<u64>>);

impl Default for Latency {
    fn default() -> Latency {
        Latency(Histogram::new_with_bounds(1, LONGEST, 3).ok())
    }
}

impl Latency {
    /// Records a time.
    pub fn record(&mut self, nanoseconds: u64) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(nanoseconds);
        }
    }

    /// Times that were recorded.
    pub fn count(&self) -> u64 {
        self.0.as_ref().map_or(0, Histogram::len)
    }

    /// The time that this share of all times does not exceed, 0 to 1, in microseconds.
    pub fn us(&self, share: f64) -> f64 {
        self.0.as_ref().map_or(0, |histogram| histogram.value_at_quantile(share)) as f64 / 1000.0
    }

    /// p50, p90, p99, p99.9 and the longest time, in microseconds.
    pub fn row(&self) -> [f64; 5] {
        [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| self.us(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_times() {
        let mut latency = Latency::default();
        (1..=1000).for_each(|n| latency.record(n * 1000));
        latency.record(u64::MAX);
        let near = |share: f64, us: f64| (latency.us(share) - us).abs() < us / 500.0;
        assert!(near(0.5, 501.0) && near(0.99, 991.0) && near(1.0, 60e6), "{:?}", latency.row());
        assert_eq!(latency.count(), 1001);
    }
}
