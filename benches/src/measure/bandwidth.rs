//! `bandwidth`: bytes a second one way between two queue pairs without workers, with a window of
//! requests outstanding; and memcpy between two buffers of the same kind and size, on the same
//! core. The two take turns, a piece each, so that both figures are of one state of the machine.
//!
//! A piece is the word MARK with its number (the serving side fills what will be read), the
//! requests, and the word END with their number (the serving side checks what was written or
//! received).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell::Fabric;
use doorbell::worker::SEND_BATCH;
use doorbell::wr::{Remote, SendOp};

use crate::ask::request::{Op, Request};
use crate::bare::device::{Bare, Slot, Verdict, remote};
use crate::bare::memory::{self, Memory, Slots};
use crate::bare::open;
use crate::bare::target::{shape, slots};
use crate::error::Failure;
use crate::machine::interrupt;
use crate::measure::piece::{Piece, Pieces, median};
use crate::meet::wire;

/// The least bytes that memcpy copies between two looks at the clock.
const LOOK_BYTES: usize = 64 << 10;

/// The figures.
pub(crate) struct Measured {
    pub(crate) pieces: Pieces,
    /// Bytes a second of memcpy: the median of the pieces.
    pub(crate) memcpy: Option<f64>,
    /// The device's bytes a second as a part of memcpy's: the median of the pieces.
    pub(crate) ratio: Option<f64>,
    /// The most requests that were outstanding.
    pub(crate) window: u32,
}

/// The connecting side: connects, and measures each piece for `time`, once with the device and once
/// with memcpy.
pub(crate) fn measure<F: Fabric>(
    fabric: &F,
    request: &Request,
    addr: SocketAddr,
    time: Duration,
) -> Result<Measured, Failure> {
    let slots = slots(request);
    let mut bare = open::dial(fabric, addr, &shape(request, true))?;
    let at = remote(bare.ask((0, 0), wire::HELLO)?);
    let (from, to) = (Memory::new(fabric, slots.bytes())?, Memory::new(fabric, slots.bytes())?);
    memory::fill(&from, &slots, 0)?;
    let mut stream = Stream { bare, slots, op: request.op, at, sent: 0 };
    let (mut pieces, mut copied, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..request.pieces.into() {
        let piece = stream.piece(round, time)?;
        let bytes = memcpy(&from, &to, &slots, time / 10, time);
        let rate = piece.rate().unwrap_or_default() * slots.size as f64;
        ratios.push(rate / bytes);
        copied.push(bytes);
        pieces.push(piece);
    }
    Ok(Measured {
        pieces: Pieces(pieces),
        memcpy: median(copied.into_iter()),
        ratio: median(ratios.into_iter()),
        window: slots.count as u32,
    })
}

/// Requests to a doorbell: half of the window, so that the other half is under way meanwhile.
fn batch(slots: &Slots) -> usize {
    (slots.count / 2).clamp(1, SEND_BATCH)
}

/// Bytes a second that memcpy copies from slot to slot.
fn memcpy<F: Fabric>(
    from: &Memory<F>,
    to: &Memory<F>,
    slots: &Slots,
    warm: Duration,
    time: Duration,
) -> f64 {
    let each = (LOOK_BYTES / slots.size).clamp(1, batch(slots)) as u64;
    let copy_for = |time: Duration| {
        let (start, mut number) = (Instant::now(), 0);
        loop {
            for _ in 0..each {
                from.copy(to, slots.offset(number), slots.size);
                number += 1;
            }
            let passed = start.elapsed();
            if passed >= time || interrupt::is_asked() {
                return number as f64 * slots.size as f64 / passed.as_secs_f64();
            }
        }
    };
    copy_for(warm);
    copy_for(time)
}

/// The requests of the connecting side.
struct Stream<F: Fabric> {
    bare: Bare<F>,
    slots: Slots,
    op: Op,
    /// The memory that the other side exposes; SEND does not use it.
    at: Remote,
    /// Requests posted since the piece began.
    sent: u64,
}

impl<F: Fabric> Stream<F> {
    fn piece(&mut self, round: u64, time: Duration) -> Result<Piece, Failure> {
        // The bytes that travel have the pattern of this round. READs replace another round's.
        let local = if self.op == Op::Read { !round } else { round };
        memory::fill(&self.bare.out, &self.slots, local)?;
        self.bare.ask((round, 0), wire::MARK)?;
        self.sent = 0;
        self.post_for(time / 10)?;
        let warm = self.sent;
        self.bare.mark();
        let start = Instant::now();
        self.post_for(time)?;
        let passed = start.elapsed();
        let tally = self.bare.tally();
        let (received, mut wrong) = self.bare.ask((self.sent, round), wire::END)?;
        match self.op {
            Op::Write => {}
            Op::Read => wrong += memory::wrong(&self.bare.out, &self.slots, round, self.sent)?,
            Op::Send => wrong += self.sent.abs_diff(received),
        }
        let messages = self.sent - warm;
        Ok(Piece {
            half_rtt_ns: None,
            passed: Some(passed),
            messages,
            lost: wrong,
            tally,
            parts: Vec::new(),
        })
    }

    /// Posts for that long, and waits until all requests are over.
    fn post_for(&mut self, time: Duration) -> Result<(), Failure> {
        let (batch, slots, at, op) = (batch(&self.slots), self.slots, self.at, self.op);
        let mut list = [Slot::default(); SEND_BATCH];
        let start = Instant::now();
        while start.elapsed() < time && !interrupt::is_asked() {
            while self.bare.outstanding() + batch as u64 > slots.count as u64 {
                self.poll()?;
            }
            for slot in &mut list[..batch] {
                *slot = Slot { offset: slots.offset(self.sent), length: slots.size as u32 };
                self.sent += 1;
            }
            self.bare.post_slots(&list[..batch], |offset| match op {
                Op::Write => SendOp::Write(at.offset(offset as u64)),
                Op::Read => SendOp::Read(at.offset(offset as u64)),
                Op::Send => SendOp::Send,
            })?;
        }
        while self.bare.outstanding() > 0 {
            self.poll()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        self.bare.poll(|_| Verdict::Done).map(drop)
    }
}
