//! `latency`: half a round trip of one message, which the other side sends back in place: a worker
//! to a worker, or the device alone. One message in flight.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::clock::{self, Clock};
use crate::error::Failure;
use crate::piece::Piece;
use crate::record::HalfRtt;
use crate::wire::{self, Tally};

/// Longest round trip told apart; slower ones count as this.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);

/// Round trips between two looks at the clock where they are not timed one by one.
const UNTIMED: u64 = 256;

/// A side whose messages come back.
pub(crate) trait Echoes {
    /// Echoes that came; the next one has this number.
    fn echoes(&mut self) -> u64;

    /// Echoes that were not what was sent.
    fn wrong(&mut self) -> u64;

    /// Sends the message of that number, and waits until it is back.
    fn round(&mut self, payload: &[u8], number: u64) -> Result<(), Failure>;

    /// Measuring begins, or ends, on both sides. At the end what was done here since the begin.
    fn begin(&mut self) -> Result<(), Failure>;
    fn end(&mut self) -> Result<Tally, Failure>;
}

/// Measures for `time`: half of it with every round trip timed, for the percentiles, half of it
/// without, for the mean, which the clock's own cost would spoil.
pub(crate) fn measure(
    side: &mut impl Echoes,
    size: usize,
    clock: &Clock,
    time: Duration,
) -> Result<Piece, Failure> {
    let mut times = Times::new(clock)?;
    let mut payload = wire::filled(size);
    let wrong_before = side.wrong();
    untimed(side, &mut payload, time / 5)?;
    side.begin()?;
    let before = side.echoes();
    timed(side, &mut payload, clock.ticks_in(time / 2), &mut times)?;
    let (rounds, passed) = untimed(side, &mut payload, time / 2)?;
    let (all, wrong) = (side.echoes() - before, side.wrong() - wrong_before);
    let tally = side.end()?;
    let mean = passed.as_nanos() as f64 / (2 * rounds) as f64;
    Ok(Piece {
        half_rtt_ns: Some(HalfRtt { mean, ..times.half() }),
        passed: None,
        // One there and one back.
        messages: all * 2,
        lost: wrong,
        tally,
    })
}

/// Times of round trips, and what a tick of them is worth.
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

    /// Halves of them.
    pub(crate) fn half(&self) -> HalfRtt {
        let half = |ticks: f64| ticks * self.tick_ns / 2.0;
        let at = |quantile| half(self.histogram.value_at_quantile(quantile) as f64);
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

/// Round trips for that many ticks, each timed.
fn timed(
    side: &mut impl Echoes,
    payload: &mut [u8],
    ticks: u64,
    times: &mut Times,
) -> Result<(), Failure> {
    let first = clock::ticks();
    loop {
        let number = side.echoes();
        wire::stamp(payload, number);
        let start = clock::ticks();
        side.round(payload, number)?;
        let end = clock::ticks();
        times.enter(end.saturating_sub(start));
        if end.saturating_sub(first) >= ticks {
            return Ok(());
        }
    }
}

/// Round trips for that long, timed as a whole: how many, and how long it was.
fn untimed(
    side: &mut impl Echoes,
    payload: &mut [u8],
    time: Duration,
) -> Result<(u64, Duration), Failure> {
    let start = Instant::now();
    let mut rounds = 0;
    loop {
        for _ in 0..UNTIMED {
            let number = side.echoes();
            wire::stamp(payload, number);
            side.round(payload, number)?;
        }
        rounds += UNTIMED;
        let passed = start.elapsed();
        if passed >= time {
            return Ok((rounds, passed));
        }
    }
}
