//! Measures one step. Its figures take turns.

use std::net::SocketAddr;

use doorbell::Fabric;

use crate::ask::plan::Step;
use crate::ask::request::Test;
use crate::bare::echo;
use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::measure::outcome::Outcome;
use crate::measure::piece::{Piece, Pieces};
use crate::measure::record::{Figures, round};
use crate::measure::{bandwidth, crowd, latency, load, rate, sweep};
use crate::meet::echoes::Echoes;
use crate::meet::tally::Tally;
use crate::side::session::{Ping, Session};

/// All figures of a step.
pub(crate) fn measure<F: Fabric>(
    fabric: &F,
    step: &Step,
    addrs: &[SocketAddr],
    clock: &Clock,
) -> Result<Vec<Outcome>, Failure> {
    let request = &step.request;
    let addr = |n: usize| {
        addrs.get(n).copied().ok_or_else(|| Failure::new("the other side sent no address"))
    };
    let time = step.piece_time();
    match request.test {
        Test::Bandwidth => {
            let measured = bandwidth::measure(fabric, request, addr(0)?, time)?;
            let figures = Figures {
                memcpy_bytes_per_second: measured.memcpy.map(|bytes| round(bytes, 0)),
                times_memcpy: measured.ratio.map(|ratio| round(ratio, 6)),
                ..Figures::default()
            };
            let batch = Some(measured.window);
            return Ok(vec![Outcome { batch, figures, ..Outcome::of(measured.pieces) }]);
        }
        Test::Latency if request.bare => {
            let to = addr(0)?;
            let pieces = match request.is_other() {
                true => {
                    let mut caller = echo::Caller::<F, true>::dial(fabric, request, to)?;
                    echoes(&mut caller, step, clock)
                }
                false => {
                    let mut caller = echo::Caller::<F>::dial(fabric, request, to)?;
                    echoes(&mut caller, step, clock)
                }
            };
            return Ok(vec![Outcome::of(pieces?)]);
        }
        Test::Load => {
            let mut session = Session::connect(fabric, request, request.qps, addr(0)?)?;
            let measured = load::measure(&mut session, step, clock)?;
            let figures = Figures {
                offered_per_second: Some(round(step.rate, 0)),
                arrivals: Some(step.arrivals.name().to_owned()),
                unsent: Some(measured.unsent),
                times_offered: Some(round(measured.times_offered, 4)),
                ..Figures::default()
            };
            let pieces = Pieces(vec![measured.piece]);
            return Ok(vec![Outcome { memory: session.tally, figures, ..Outcome::of(pieces) }]);
        }
        Test::Sweep => {
            let mut session = Session::connect(fabric, request, request.qps, addr(0)?)?;
            return sweep::measure(&mut session, step, clock);
        }
        Test::Crowd => return crowd::measure(fabric, step, addrs, clock),
        // The commands `overhead` and `traffic` have no steps.
        Test::Latency | Test::Rate | Test::Overhead | Test::Traffic => {}
    }
    let mut sessions = Vec::new();
    for (n, peers) in request.lots().into_iter().enumerate() {
        sessions.push(Session::connect(fabric, request, peers, addr(n)?)?);
    }
    let mut pieces: Vec<Pieces> = sessions.iter().map(|_| Pieces(Vec::new())).collect();
    for _ in 0..step.rounds {
        for (session, pieces) in sessions.iter_mut().zip(&mut pieces) {
            pieces.0.push(piece(session, step, clock)?);
        }
    }
    let each = sessions
        .iter()
        .zip(pieces)
        .map(|(session, pieces)| Outcome { memory: session.tally.clone(), ..Outcome::of(pieces) });
    Ok(each.collect())
}

/// The pieces of a device alone.
fn echoes(caller: &mut impl Echoes, step: &Step, clock: &Clock) -> Result<Pieces, Failure> {
    let (size, time) = (step.request.size as usize, step.piece_time());
    let pieces = (0..step.rounds).map(|_| latency::measure(caller, size, clock, time));
    pieces.collect::<Result<_, _>>().map(Pieces)
}

/// One piece of a worker's messages.
fn piece<F: Fabric>(
    session: &mut Session<F>,
    step: &Step,
    clock: &Clock,
) -> Result<Piece, Failure> {
    let (size, time) = (step.request.size as usize, step.piece_time());
    if step.request.test == Test::Rate {
        let streams = (step.request.qps as usize, step.batch);
        return rate::measure(session, size, streams, time);
    }
    latency::measure(&mut Ping { session, batching: false }, size, clock, time)
}

/// If there are idle connections, what they cost: compares the second figure with the first.
pub(crate) fn compare(
    step: &Step,
    is_one_process: bool,
    outcomes: &mut [Outcome],
    theirs: &[Tally],
) {
    let idle = step.request.idle_qps;
    let ([without, with], [theirs_without, theirs_with]) = (outcomes, theirs) else { return };
    if idle == 0 {
        return;
    }
    let each = |with: u64, without: u64| {
        Some(round(with.saturating_sub(without) as f64 / f64::from(idle), 0))
    };
    with.idle_qps = idle;
    with.figures.times_without_idle =
        with.pieces.cost_over(&without.pieces).map(|times| round(times, 3));
    with.figures.bytes_per_idle_connection = each(with.memory.resident, without.memory.resident);
    // In one process the memory of both sides is one figure.
    if !is_one_process {
        with.figures.bytes_per_idle_connection_serving =
            each(theirs_with.resident, theirs_without.resident);
    }
}
