//! `crowd`: thousands of connections on one shared receive queue. A few are busy, each with many
//! messages in flight; the others are idle. It takes turns with the busy ones alone. Each busy
//! connection must get its share, and none may wait for long.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell::Fabric;
use doorbell::worker::PeerId;

use crate::ask::plan::Step;
use crate::ask::request::Request;
use crate::error::Failure;
use crate::machine::clock::{self, Clock};
use crate::machine::{interrupt, limits};
use crate::measure::outcome::Outcome;
use crate::measure::piece::{Piece, Pieces};
use crate::measure::record::Figures;
use crate::measure::times::Times;
use crate::meet::wire;
use crate::side::caller::Order;
use crate::side::session::Session;

/// Turns between two looks at the clock.
const LOOK_EVERY: u32 = 64;

/// The messages of one busy connection.
struct Stream {
    /// The connection's number. Each of its messages carries it.
    number: u64,
    sent: u64,
    back: u64,
    /// When the messages in flight were sent, in ticks.
    since: Box<[u64]>,
}

impl Stream {
    /// The stamp of one of its messages.
    fn stamp(&self, message: u64) -> u64 {
        self.number << 48 | message
    }

    fn since(&mut self, message: u64) -> &mut u64 {
        let slot = message as usize % self.since.len();
        &mut self.since[slot]
    }
}

/// The busy connections, by the peer's index.
pub(crate) struct Busy {
    streams: Vec<Stream>,
    times: Times,
}

impl Order for Busy {
    #[inline(always)]
    fn is_next(&mut self, peer: PeerId, bytes: &[u8], size: usize, _echoes: u64) -> bool {
        let Some(stream) = self.streams.get_mut(peer.index()) else { return false };
        let is_next = wire::is_stamped(bytes, size, stream.stamp(stream.back));
        let since = *stream.since(stream.back);
        stream.back += 1;
        self.times.enter(clock::ticks().saturating_sub(since));
        is_next
    }
}

/// A worker of the connecting side with its busy connections.
struct Crowd<F: Fabric> {
    session: Session<F, Busy>,
    busy: Vec<PeerId>,
    /// The most messages in flight of each.
    depth: u64,
    /// Messages of each that came back while it was measured.
    each: Vec<u64>,
    pieces: Pieces,
}

/// The busy connections alone and among all, in turn, for all rounds.
pub(crate) fn measure<F: Fabric>(
    fabric: &F,
    step: &Step,
    addrs: &[SocketAddr],
    clock: &Clock,
) -> Result<Vec<Outcome>, Failure> {
    let request = &step.request;
    let depth = step.depths.first().copied().unwrap_or(1);
    let mut crowds = Vec::new();
    for (peers, addr) in request.lots().into_iter().zip(addrs) {
        crowds.push(Crowd::connect(fabric, request, (peers, depth), *addr, clock)?);
    }
    for _ in 0..step.rounds {
        for crowd in &mut crowds {
            crowd.piece(request.size as usize, clock, step.piece_time())?;
        }
    }
    let here = limits::resident();
    let outcome = |crowd: Crowd<F>| {
        let figures = Figures {
            depth: Some(depth),
            least_messages: crowd.each.iter().min().copied(),
            most_messages: crowd.each.iter().max().copied(),
            resident_bytes: Some(here),
            ..Figures::default()
        };
        Outcome { memory: crowd.session.tally, figures, ..Outcome::of(crowd.pieces) }
    };
    Ok(crowds.into_iter().map(outcome).collect())
}

impl<F: Fabric> Crowd<F> {
    fn connect(
        fabric: &F,
        request: &Request,
        (peers, depth): (u32, u32),
        addr: SocketAddr,
        clock: &Clock,
    ) -> Result<Crowd<F>, Failure> {
        let order = Busy { streams: Vec::new(), times: Times::new(clock)? };
        let mut session = Session::join(fabric, request, peers, addr, order)?;
        let caller = session.worker.handler_mut();
        let busy = caller.peers[..request.qps as usize].to_vec();
        let slots = busy.iter().map(|peer| peer.index() + 1).max().unwrap_or_default();
        let stream = |number| Stream {
            number: number as u64,
            sent: 0,
            back: 0,
            since: vec![0; depth as usize].into(),
        };
        caller.order.streams = (0..slots).map(stream).collect();
        let each = vec![0; busy.len()];
        Ok(Crowd { session, busy, depth: depth.into(), each, pieces: Pieces(Vec::new()) })
    }

    fn piece(&mut self, size: usize, clock: &Clock, time: Duration) -> Result<(), Failure> {
        let mut payload = wire::filled(size);
        let wrong_before = self.session.worker.handler().wrong;
        self.stream(&mut payload, time / 5)?;
        self.session.settle(wire::MARK)?;
        self.session.worker.handler_mut().order.times = Times::new(clock)?;
        let before = self.back();
        self.session.mark();
        let start = Instant::now();
        self.stream(&mut payload, time)?;
        let passed = start.elapsed();
        let tally = self.session.tally();
        let after = self.back();
        let came: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        self.session.settle(wire::END)?;
        let caller = self.session.worker.handler();
        self.pieces.0.push(Piece {
            half_rtt_ns: Some(caller.order.times.half()),
            passed: Some(passed),
            messages: came.iter().sum(),
            lost: caller.wrong - wrong_before,
            tally,
            parts: Vec::new(),
        });
        self.each.iter_mut().zip(came).for_each(|(all, came)| *all += came);
        Ok(())
    }

    /// Messages of each busy connection that have come back.
    fn back(&mut self) -> Vec<u64> {
        let streams = &self.session.worker.handler().order.streams;
        self.busy.iter().map(|peer| streams[peer.index()].back).collect()
    }

    /// All busy connections send for that long, and everything comes back. A different one is first
    /// in each turn.
    fn stream(&mut self, payload: &mut [u8], time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        let (count, mut first, mut turns) = (self.busy.len(), 0, 0_u32);
        let is_on = || start.elapsed() < time && !interrupt::is_asked();
        while !turns.is_multiple_of(LOOK_EVERY) || turns == 0 || is_on() {
            for n in first..first + count {
                self.top_up(self.busy[n % count], payload)?;
            }
            first = (first + 1) % count;
            self.session.turn()?;
            turns = turns.wrapping_add(1);
        }
        let is_away = |stream: &Stream| stream.back < stream.sent;
        while self.session.worker.handler().order.streams.iter().any(is_away) {
            self.session.turn()?;
        }
        Ok(())
    }

    /// Sends on one connection until as many messages are in flight as may be, or there is no room.
    fn top_up(&mut self, peer: PeerId, payload: &mut [u8]) -> Result<(), Failure> {
        let stream = &self.session.worker.handler().order.streams[peer.index()];
        let (first, until) = (stream.sent, stream.back + self.depth);
        let stamps = stream.stamp(0);
        if first == until {
            return Ok(());
        }
        let now = clock::ticks();
        let mut sent = first;
        while sent < until {
            wire::stamp(payload, stamps | sent);
            if !self.session.try_send_to(peer, payload, false)? {
                break;
            }
            sent += 1;
        }
        let stream = &mut self.session.worker.handler_mut().order.streams[peer.index()];
        (first..sent).for_each(|message| *stream.since(message) = now);
        stream.sent = sent;
        Ok(())
    }
}
