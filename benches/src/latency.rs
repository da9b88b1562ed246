//! `latency`: half a round trip of one message, which the other side's worker sends back in
//! place. One message in flight.

use std::time::{Duration, Instant};

use doorbell_cm::Fabric;
use hdrhistogram::Histogram;

use crate::clock::{self, Clock};
use crate::error::Failure;
use crate::record::HalfRtt;
use crate::side::Session;
use crate::wire::{self, Tally};

/// Longest round trip told apart; slower ones count as this.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(60);

/// Round trips between two looks at the clock where they are not timed one by one.
const UNTIMED: u64 = 256;

/// What came out, on this side.
pub(crate) struct Measured {
    pub(crate) half_rtt_ns: HalfRtt,
    /// Round trips.
    pub(crate) rounds: u64,
    /// Echoes that were not what was sent.
    pub(crate) wrong: u64,
    pub(crate) tally: Tally,
}

/// Measures for `time`: half of it with every round trip timed, for the percentiles, half of it
/// without, for the mean, which the clock's own cost would spoil.
pub(crate) fn measure<F: Fabric>(
    session: &mut Session<F>,
    size: usize,
    clock: &Clock,
    time: Duration,
) -> Result<Measured, Failure> {
    let max = clock.ticks_in(ROUND_TRIP_MAX).max(2);
    let mut times = Histogram::<u64>::new_with_bounds(1, max, 3)
        .map_err(|error| Failure::new(format!("a histogram up to {max} ticks: {error}")))?;
    let mut payload = wire::filled(size);
    untimed(session, &mut payload, time / 5)?;
    session.settle(wire::MARK)?;
    let since = session.since();
    let before = session.worker.handler().echoes;
    timed(session, &mut payload, clock.ticks_in(time / 2), &mut times)?;
    let (rounds, passed) = untimed(session, &mut payload, time / 2)?;
    let tally = session.tally(&since);
    let caller = session.worker.handler();
    let (wrong, all) = (caller.wrong, caller.echoes - before);
    session.settle(wire::END)?;
    let half = |ticks: u64| ticks as f64 * clock.tick_ns / 2.0;
    let at = |quantile| half(times.value_at_quantile(quantile));
    let half_rtt_ns = HalfRtt {
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p99_9: at(0.999),
        p99_99: at(0.9999),
        max: half(times.max()),
        mean: passed.as_nanos() as f64 / (2 * rounds) as f64,
    };
    Ok(Measured { half_rtt_ns, rounds: all, wrong, tally })
}

/// One round trip.
#[inline(always)]
fn round<F: Fabric>(session: &mut Session<F>, payload: &[u8], number: u64) -> Result<(), Failure> {
    let peer = session.worker.handler().peers[0];
    session.send_now(peer, payload)?;
    while session.worker.handler().echoes == number {
        session.turn()?;
    }
    Ok(())
}

/// Round trips for that many ticks, each timed.
fn timed<F: Fabric>(
    session: &mut Session<F>,
    payload: &mut [u8],
    ticks: u64,
    times: &mut Histogram<u64>,
) -> Result<(), Failure> {
    let first = clock::ticks();
    loop {
        let number = session.worker.handler().echoes;
        wire::stamp(payload, number);
        let start = clock::ticks();
        round(session, payload, number)?;
        let end = clock::ticks();
        times.saturating_record(end.saturating_sub(start));
        if end.saturating_sub(first) >= ticks {
            return Ok(());
        }
    }
}

/// Round trips for that long, timed as a whole: how many, and how long it was.
fn untimed<F: Fabric>(
    session: &mut Session<F>,
    payload: &mut [u8],
    time: Duration,
) -> Result<(u64, Duration), Failure> {
    let start = Instant::now();
    let mut rounds = 0;
    loop {
        for _ in 0..UNTIMED {
            let number = session.worker.handler().echoes;
            wire::stamp(payload, number);
            round(session, payload, number)?;
        }
        rounds += UNTIMED;
        let passed = start.elapsed();
        if passed >= time {
            return Ok((rounds, passed));
        }
    }
}
