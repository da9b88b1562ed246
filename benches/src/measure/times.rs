//! Times of round trips, part by part.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::measure::live;
use crate::measure::record::{HalfRtt, Part};

/// The longest round trip that is told apart. Slower ones count as this.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);

/// The most parts that a time is cut into.
const PARTS_MAX: u32 = 20;

/// The shortest part. Shorter ones would be too few messages for a percentile.
const PART_MIN: Duration = Duration::from_millis(20);

/// How many parts a time is cut into, at least 1.
pub(crate) fn parts(time: Duration) -> u32 {
    let most = time.as_nanos() / PART_MIN.as_nanos();
    u32::try_from(most).unwrap_or(PARTS_MAX).clamp(1, PARTS_MAX)
}

/// Times of round trips, in ticks.
pub(crate) struct Times {
    /// Those of the current part.
    histogram: Histogram<u64>,
    /// Those of earlier parts, in order.
    done: Vec<Histogram<u64>>,
    /// Empty ones for the parts to come.
    spare: Vec<Histogram<u64>>,
    tick_ns: f64,
}

impl Times {
    /// For times in one part.
    pub(crate) fn new(clock: &Clock) -> Result<Times, Failure> {
        Times::in_parts(clock, 1)
    }

    /// For times in that many parts. Later parts need no more memory.
    pub(crate) fn in_parts(clock: &Clock, parts: u32) -> Result<Times, Failure> {
        let max = clock.ticks_in(ROUND_TRIP_MAX).max(2);
        let mut histogram = Histogram::new_with_bounds(1, max, 3)
            .map_err(|error| Failure::new(format!("a histogram up to {max} ticks: {error}")))?;
        // Writes every page, so that no message waits for one.
        histogram.clear();
        let spare: Vec<Histogram<u64>> = (1..parts).map(|_| histogram.clone()).collect();
        let done = Vec::with_capacity(parts as usize);
        Ok(Times { histogram, done, spare, tick_ns: clock.tick_ns })
    }

    /// Enters a round trip, in ticks.
    #[inline(always)]
    pub(crate) fn enter(&mut self, ticks: u64) {
        self.histogram.saturating_record(ticks);
    }

    /// The next part begins. The last one takes all that is left.
    pub(crate) fn next_part(&mut self) {
        if live::is_seen() && !self.histogram.is_empty() {
            // On a terminal. A search from the shortest time on, so it takes a microsecond or two.
            live::times(self.ns_at(0.5) / 2.0, self.ns_at(0.99) / 2.0);
        }
        if let Some(empty) = self.spare.pop() {
            self.done.push(std::mem::replace(&mut self.histogram, empty));
        }
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.histogram.clear();
    }

    /// The time that this part of the round trips took at most, in nanoseconds. Of the current part
    /// only.
    pub(crate) fn ns_at(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 * self.tick_ns
    }

    /// Each time, in tenths of a nanosecond, with how many took that long; of the current part
    /// only.
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let tenths = |ticks: u64| (ticks as f64 * self.tick_ns * 10.0).round() as u64;
        let recorded = self.histogram.iter_recorded();
        recorded.map(|of| (tenths(of.value_iterated_to()), of.count_at_value())).collect()
    }

    /// The times that [`Times::counts`] gave, of several threads.
    pub(crate) fn merged<'a>(all: impl Iterator<Item = &'a (u64, u64)>) -> Result<Times, Failure> {
        let mut times = Times::new(&Clock { tick_ns: 0.1, step_ns: 0.1 })?;
        for (tenths, count) in all {
            times.histogram.saturating_record_n(*tenths, *count);
        }
        Ok(times)
    }

    /// Half of each, over all parts, as percentiles, maximum and mean.
    pub(crate) fn half(&self) -> HalfRtt {
        let mut all = self.histogram.clone();
        for part in &self.done {
            // All have the same bounds, so this cannot fail.
            let _ = all.add(part);
        }
        let half = |ticks: f64| ticks * self.tick_ns / 2.0;
        let at = |quantile| half(all.value_at_quantile(quantile) as f64);
        HalfRtt {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: half(all.max() as f64),
            mean: half(all.mean()),
        }
    }

    /// Half of each, part by part. Parts without a round trip are left out.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let parts = self.done.iter().chain([&self.histogram]).filter(|part| !part.is_empty());
        let half = |ticks: f64| Some(ticks * self.tick_ns / 2.0);
        let of = |part: &Histogram<u64>| Part {
            p50_ns: half(part.value_at_quantile(0.5) as f64),
            p99_ns: half(part.value_at_quantile(0.99) as f64),
            max_ns: half(part.max() as f64),
            mean_ns: half(part.mean()),
            messages_per_second: None,
        };
        parts.map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_parts_and_of_each() {
        let clock = Clock { tick_ns: 0.5, step_ns: 10.0 };
        let mut times = Times::in_parts(&clock, 3).unwrap();
        for ticks in [400, 800, 1200, 1600] {
            (0..100).for_each(|_| times.enter(ticks));
            times.next_part();
        }
        // There are three parts only: the last one has what came later, too.
        let parts = times.parts();
        let p50 = |n: usize| parts[n].p50_ns.unwrap().round();
        assert_eq!((parts.len(), p50(0), p50(1), p50(2)), (3, 100.0, 200.0, 300.0));
        assert_eq!(parts[2].max_ns.unwrap().round(), 400.0);
        assert_eq!((times.half().p50.round(), times.half().max.round()), (200.0, 400.0));
    }

    #[test]
    fn times_of_several_threads_are_merged() {
        // Their clocks differ.
        let times = |tick_ns, ticks: u64, count: u64| {
            let mut times = Times::new(&Clock { tick_ns, step_ns: 10.0 }).unwrap();
            (0..count).for_each(|_| times.enter(ticks));
            times.counts()
        };
        let all = [times(0.5, 2000, 900), times(0.25, 40_000, 100)].concat();
        let merged = Times::merged(all.iter()).unwrap().half();
        let near = |found: f64, wanted: f64| (found / wanted - 1.0).abs() < 0.002;
        assert!(near(merged.p50, 500.0) && near(merged.p90, 500.0), "{merged:?}");
        assert!(near(merged.p99, 5000.0) && near(merged.max, 5000.0), "{merged:?}");
        assert!(near(merged.mean, 0.9 * 500.0 + 0.1 * 5000.0), "{merged:?}");
    }

    #[test]
    fn a_short_time_is_one_part() {
        assert_eq!(parts(Duration::from_millis(1)), 1);
        assert_eq!(parts(Duration::from_millis(300)), 15);
        assert_eq!(parts(Duration::from_secs(3600)), 20);
    }
}
