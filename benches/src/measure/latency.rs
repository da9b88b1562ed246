//! `latency`: half a round trip of one message that the other side sends back in place, with
//! workers on both sides or with the device alone. One message is in flight.

use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::machine::clock::{self, Clock};
use crate::measure::piece::Piece;
use crate::measure::record::HalfRtt;
use crate::measure::times::Times;
use crate::meet::echoes::Echoes;
use crate::meet::wire;

/// Round trips between two looks at the clock, if they are not timed one by one.
const UNTIMED: u64 = 256;

/// Measures for `time`. In one half of it every round trip is timed, for the percentiles; in the
/// other half none is, for the mean, which the cost of reading the clock would spoil.
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
        // One each way.
        messages: all * 2,
        lost: wrong,
        tally,
    })
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
        if passed >= time {
            return Ok((rounds, passed));
        }
    }
}
