//! What a step asks for, measured: who takes turns with whom, and what comes of it.

use std::net::SocketAddr;

use doorbell::Fabric;

use crate::clock::Clock;
use crate::error::Failure;
use crate::piece::{Piece, Pieces};
use crate::record::{Figures, round};
use crate::run::Step;
use crate::side::{Ping, Session};
use crate::wire::{Tally, Test};
use crate::{bandwidth, crowd, echo, latency, load, rate, sweep};

/// One figure of a step, as far as this side knows it. Those of a step were measured in turn.
pub(crate) struct Outcome {
    pub(crate) pieces: Pieces,
    pub(crate) idle_qps: u32,
    /// Of bandwidth the window that was used.
    pub(crate) batch: Option<u32>,
    /// What is known of this side's memory.
    pub(crate) memory: Tally,
    /// What the pieces do not say.
    pub(crate) figures: Figures,
}

impl Outcome {
    pub(crate) fn of(pieces: Pieces) -> Outcome {
        let (memory, figures) = (pieces.tally(), Figures::default());
        Outcome { pieces, idle_qps: 0, batch: None, memory, figures }
    }
}

/// Everything a step asks for.
pub(crate) fn all<F: Fabric>(
    fabric: &F,
    step: &Step,
    addrs: &[SocketAddr],
    clock: &Clock,
) -> Result<Vec<Outcome>, Failure> {
    let request = &step.request;
    let addr = |n: usize| {
        addrs.get(n).copied().ok_or_else(|| Failure::new("the other side names no address"))
    };
    let (size, time) = (request.size as usize, step.piece_time());
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
            let mut caller = echo::Caller::dial(fabric, request, addr(0)?)?;
            let pieces = (0..step.rounds).map(|_| latency::measure(&mut caller, size, clock, time));
            return Ok(vec![Outcome::of(Pieces(pieces.collect::<Result<_, _>>()?))]);
        }
        Test::Load => {
            let mut session = Session::connect(fabric, request, request.qps, addr(0)?)?;
            let measured = load::measure(&mut session, size, step.rate, clock, time)?;
            let figures = Figures {
                offered_per_second: Some(step.rate),
                unsent: Some(measured.unsent),
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
        // `overhead` counts, and measures nothing.
        Test::Latency | Test::Rate | Test::Overhead => {}
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

/// What idle connections cost, where there are some: the second figure beside the first.
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
    // In one process the two sides' memory is one.
    if !is_one_process {
        with.figures.bytes_per_idle_connection_serving =
            each(theirs_with.resident, theirs_without.resident);
    }
}
