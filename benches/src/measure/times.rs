//! Times of round trips.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::measure::record::HalfRtt;

/// The longest round trip that is told apart. Slower ones count as this.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);

/// Times of round trips, in ticks.
pub(crate) struct Times {
    histogram: Histogram<u64>,
    tick_ns: f64,
}

impl Times {
    pub(crate) fn new(clock: &Clock) -> Result<Times, Failure> {
        let max = clock.ticks_in(ROUND_TRIP_MAX).max(2);
        let histogram = Histogram::new_with_bounds(1, max, 3)
            .map_err(|error| Failure::new(format!("a histogram up to {max} ticks: {error}")))?;
        Ok(Times { histogram, tick_ns: clock.tick_ns })
    }

    /// Enters a round trip, in ticks.
    #[inline(always)]
    pub(crate) fn enter(&mut self, ticks: u64) {
        self.histogram.saturating_record(ticks);
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.histogram.clear();
    }

    /// The time that this part of the round trips took at most, in nanoseconds.
    pub(crate) fn ns_at(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 * self.tick_ns
    }

    /// Half of each, as percentiles, maximum and mean.
    pub(crate) fn half(&self) -> HalfRtt {
        let half = |ticks: f64| ticks * self.tick_ns / 2.0;
        let at = |quantile| self.ns_at(quantile) / 2.0;
        HalfRtt {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: half(self.histogram.max() as f64),
            mean: half(self.histogram.mean()),
        }
    }
}
