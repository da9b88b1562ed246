//! `latency`: half a round trip of one message that the other side sends back in place, with
//! workers on both sides or with the device alone. One message is in flight.

use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::machine::clock::{self, Clock};
use crate::machine::interrupt;
use crate::measure::piece::Piece;
use crate::measure::record::HalfRtt;
use crate::measure::times::{self, Times};
use crate::meet::echoes::Echoes;
use crate::meet::wire;

/// Round trips between two looks at the clock, if they are not timed one by one.
const UNTIMED: u64 = 256;

/// Measures for `time`, in parts. In one half of each every round trip is timed, for the
/// percentiles; in the other half none is, for the mean, which the cost of reading the clock would
/// spoil.
pub(crate) fn measure(
    side: &mut impl Echoes,
    size: usize,
    clock: &Clock,
    time: Duration,
) -> Result<Piece, Failure> {
    let count = times::parts(time);
    let mut times = Times::in_parts(clock, count)?;
    let mut means = Vec::with_capacity(count as usize);
    let mut payload = wire::filled(size);
    let wrong_before = side.wrong();
    untimed(side, &mut payload, time / 5)?;
    side.begin()?;
    let before = side.echoes();
    let half = time / (2 * count);
    let (mut rounds, mut passed) = (0, Duration::ZERO);
    for part in 0..count {
        if part > 0 {
            times.next_part();
        }
        if interrupt::is_asked() {
            break;
        }
        timed(side, &mut payload, clock.ticks_in(half), &mut times)?;
        let (more, longer) = untimed(side, &mut payload, half)?;
        means.push(half_ns(more, longer));
        (rounds, passed) = (rounds + more, passed + longer);
    }
    let (all, wrong) = (side.echoes() - before, side.wrong() - wrong_before);
    let tally = side.end()?;
    let mean = if rounds == 0 { 0.0 } else { half_ns(rounds, passed) };
    let mut parts = times.parts();
    parts.iter_mut().zip(means).for_each(|(part, mean)| part.mean_ns = Some(mean));
    Ok(Piece {
        half_rtt_ns: Some(HalfRtt { mean, ..times.half() }),
        passed: None,
        // One each way.
        messages: all * 2,
        lost: wrong,
        tally,
        parts,
    })
}

/// Half a round trip, if that many took so long.
fn half_ns(rounds: u64, passed: Duration) -> f64 {
    passed.as_nanos() as f64 / (2 * rounds) as f64
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
        if end.saturating_sub(first) >= ticks || interrupt::is_asked() {
            return Ok(());
        }
    }
}

/// Round trips for that long, timed as a whole. Returns how many there were and how long they took.
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
        if passed >= time || interrupt::is_asked() {
            return Ok((rounds, passed));
        }
    }
}
