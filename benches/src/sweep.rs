//! `sweep`: round trips a second with 1 to 512 messages in flight, and half a round trip of one
//! alone with batching and without. A worker that batches must not pay for it: the rate never
//! falls as load rises, and a lone message waits for nothing.

use std::time::{Duration, Instant};

use doorbell_cm::Fabric;

use crate::clock::Clock;
use crate::error::Failure;
use crate::latency;
use crate::measure::Outcome;
use crate::piece::{Piece, Pieces};
use crate::record::{Figures, round};
use crate::run::Step;
use crate::side::{Ping, Session};
use crate::wire;

/// Turns between two looks at the clock.
const LOOK_EVERY: u32 = 64;

/// Figures besides those of the depths: one in flight, with batching and without.
pub(crate) const LONE: u32 = 2;

/// Every depth in turn, then both ways of sending one alone, for as many rounds as are wanted.
pub(crate) fn measure<F: Fabric>(
    session: &mut Session<F>,
    step: &Step,
    clock: &Clock,
) -> Result<Vec<Outcome>, Failure> {
    let (size, time) = (step.request.size as usize, step.piece_time());
    let count = step.depths.len() + LONE as usize;
    let mut pieces: Vec<Pieces> = (0..count).map(|_| Pieces(Vec::new())).collect();
    for _ in 0..step.rounds {
        for (n, pieces) in pieces.iter_mut().enumerate() {
            pieces.0.push(match step.depths.get(n) {
                Some(&depth) => piece(session, size, depth, time)?,
                None => {
                    let batching = n > step.depths.len();
                    let mut ping = Ping { session, batching };
                    let piece = latency::measure(&mut ping, size, clock, time)?;
                    // Counted as those of the depths are: by round trips.
                    Piece { messages: piece.messages / 2, ..piece }
                }
            });
        }
    }
    let mut best = 0.0_f64;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (n, pieces) in pieces.into_iter().enumerate() {
        let mut figures = Figures { depth: Some(1), ..Figures::default() };
        if let (Some(depth), Some(rate)) = (step.depths.get(n), pieces.rate()) {
            figures.depth = Some(*depth);
            figures.times_best_below = (best > 0.0).then(|| round(rate / best, 3));
            best = best.max(rate);
        } else if let Some(without) = outcomes.get(step.depths.len()) {
            figures.batching = Some(true);
            figures.times_without_batching =
                pieces.cost_over(&without.pieces).map(|times| round(times, 3));
        } else {
            figures.batching = Some(false);
        }
        let memory = session.tally.clone();
        outcomes.push(Outcome { memory, figures, ..Outcome::of(pieces) });
    }
    Ok(outcomes)
}

/// Round trips with so many messages in flight.
fn piece<F: Fabric>(
    session: &mut Session<F>,
    size: usize,
    depth: u32,
    time: Duration,
) -> Result<Piece, Failure> {
    let mut payload = wire::filled(size);
    let wrong_before = session.worker.handler().wrong;
    circulate(session, &mut payload, depth, time / 5)?;
    session.settle(wire::MARK)?;
    session.mark();
    let start = Instant::now();
    let messages = circulate(session, &mut payload, depth, time)?;
    let passed = start.elapsed();
    let tally = session.tally();
    session.settle(wire::END)?;
    let lost = session.worker.handler().wrong - wrong_before;
    Ok(Piece { half_rtt_ns: None, passed: Some(passed), messages, lost, tally })
}

/// Keeps so many in flight for that long, and waits until all are back.
fn circulate<F: Fabric>(
    session: &mut Session<F>,
    payload: &mut [u8],
    depth: u32,
    time: Duration,
) -> Result<u64, Failure> {
    let before = session.worker.handler().echoes;
    let mut sent = before;
    let start = Instant::now();
    let mut turns = 0_u32;
    loop {
        let until = session.worker.handler().echoes + u64::from(depth);
        while sent < until {
            wire::stamp(payload, sent);
            if !session.try_send(payload, false)? {
                break;
            }
            sent += 1;
        }
        session.turn()?;
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(LOOK_EVERY) && start.elapsed() >= time {
            break;
        }
    }
    while session.worker.handler().echoes < sent {
        session.turn()?;
    }
    Ok(sent - before)
}
