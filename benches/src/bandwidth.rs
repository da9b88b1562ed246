//! `bandwidth`: bytes a second one way, with a window of requests outstanding, between queue
//! pairs without workers; beside it memcpy between two buffers of the same kind and size, on the
//! same core. The two take turns, a piece each, so that the figures are of one state of the
//! machine.
//!
//! A piece: the word MARK with its number (the serving side fills what will be read), the requests,
//! the word END with how many there were (it checks what was written, or what it received).

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell::provider::Access;
use doorbell::worker::SEND_BATCH;
use doorbell::wr::{Remote, SendOp};
use doorbell::{Exposed, Fabric};

use crate::bare::{Bare, Door, Message, Shape, Slot, Verdict, remote, remote_words};
use crate::error::Failure;
use crate::piece::{Piece, Pieces, median};
use crate::window::{self, Memory, Slots};
use crate::wire::{self, Answer, Line, Op, Request, Tally};

/// Receives beyond those of the window: for words.
const BLOCKS_MORE: u32 = 4;

/// Least bytes between two looks at the clock where the processor copies.
const LOOK_BYTES: usize = 64 << 10;

/// What came out.
pub(crate) struct Measured {
    pub(crate) pieces: Pieces,
    /// Medians over the pieces: bytes a second of memcpy, and the device's as a part of that.
    pub(crate) memcpy: Option<f64>,
    pub(crate) ratio: Option<f64>,
    /// Requests that are outstanding at most.
    pub(crate) window: u32,
}

/// The slots of a run, the same on both sides.
fn slots(request: &Request) -> Slots {
    Slots::new(request.size, request.window)
}

fn shape(request: &Request, connecting: bool) -> Shape {
    let slots = slots(request);
    let (words, window) = (wire::WORD_BYTES as u32, slots.count as u32);
    let receives = request.op == Op::Send && !connecting;
    Shape {
        block_bytes: if receives { request.size.max(words) } else { words }.next_multiple_of(64),
        blocks: BLOCKS_MORE + if receives { window } else { 0 },
        out_bytes: if connecting { slots.bytes() } else { wire::WORD_BYTES },
        // Of words: each goes when nothing else is outstanding.
        signal_every: 1,
    }
}

/// The connecting side: connects, and measures each piece for `time`, on both ways of copying.
pub(crate) fn measure<F: Fabric>(
    fabric: &F,
    request: &Request,
    addr: SocketAddr,
    time: Duration,
) -> Result<Measured, Failure> {
    let slots = slots(request);
    let mut bare = Bare::dial(fabric, addr, &shape(request, true))?;
    let at = remote(bare.ask((0, 0), wire::HELLO)?);
    let (from, to) = (Memory::new(fabric, slots.bytes())?, Memory::new(fabric, slots.bytes())?);
    window::fill(&from, &slots, 0)?;
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

/// Requests that go out with one doorbell: half of what may be outstanding, so that the other half
/// is on its way meanwhile.
fn batch(slots: &Slots) -> usize {
    (slots.count / 2).clamp(1, SEND_BATCH)
}

/// Bytes a second that the processor copies from slot to slot.
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
            if passed >= time {
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
    /// What the other side exposes; of a SEND nothing.
    at: Remote,
    /// Requests posted since the begin of the piece.
    sent: u64,
}

impl<F: Fabric> Stream<F> {
    fn piece(&mut self, round: u64, time: Duration) -> Result<Piece, Failure> {
        // What is to arrive is of this round; where READs put it there is another one's.
        let local = if self.op == Op::Read { !round } else { round };
        window::fill(&self.bare.out, &self.slots, local)?;
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
            Op::Read => wrong += window::wrong(&self.bare.out, &self.slots, round, self.sent)?,
            Op::Send => wrong += self.sent.abs_diff(received),
        }
        let messages = self.sent - warm;
        Ok(Piece { half_rtt_ns: None, passed: Some(passed), messages, lost: wrong, tally })
    }

    /// Posts for that long, and waits until all is over.
    fn post_for(&mut self, time: Duration) -> Result<(), Failure> {
        let (batch, slots, at, op) = (batch(&self.slots), self.slots, self.at, self.op);
        let mut list = [Slot::default(); SEND_BATCH];
        let start = Instant::now();
        while start.elapsed() < time {
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

/// The serving side: exposes memory or posts receives, and checks what has come.
pub(crate) fn serve<F: Fabric>(
    fabric: &F,
    ip: IpAddr,
    request: &Request,
    line: &mut Line,
) -> Result<Vec<Tally>, Failure> {
    let slots = slots(request);
    let bytes = if request.op == Op::Send { 1 } else { slots.bytes() };
    let exposed = Exposed::new(fabric, bytes, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let door = Door::open(fabric, ip)?;
    line.say(&Answer::Ready(vec![door.addr()?]));
    let shape = shape(request, false);
    let bare = door.take(fabric, &shape)?;
    let blocks = vec![None; shape.blocks as usize];
    let mut target = Target { bare, exposed, slots, op: request.op, received: 0, blocks };
    let mut tallies = Vec::new();
    while tallies.len() < request.pieces as usize {
        let Some((imm, one, two)) = target.poll()? else { continue };
        let (mut answer, mut is_end) = ((0, 0), false);
        match imm {
            wire::HELLO => answer = remote_words(target.exposed.remote(0)),
            wire::MARK => target.begin(one)?,
            _ => {
                (answer, is_end) = (target.end(one, two)?, true);
                tallies.push(target.bare.tally());
            }
        }
        let words = wire::words(answer.0, answer.1);
        target.bare.send(&words, SendOp::SendWithImm(wire::ACK))?;
        if !is_end {
            target.bare.mark();
        }
    }
    target.bare.part();
    Ok(tallies)
}

/// What the serving side has.
struct Target<F: Fabric> {
    bare: Bare<F>,
    exposed: Exposed<F>,
    slots: Slots,
    op: Op,
    /// Messages received since the begin of the piece, and which of them each block holds.
    received: u64,
    blocks: Vec<Option<u64>>,
}

impl<F: Fabric> Target<F> {
    /// Polls once; a word, if one has come.
    #[inline(always)]
    fn poll(&mut self) -> Result<Option<(u32, u64, u64)>, Failure> {
        let Target { bare, received, blocks, .. } = self;
        let mut word = None;
        bare.poll(|Message { block, bytes, imm }| {
            blocks[block as usize] = match imm {
                Some(imm) => {
                    let (one, two) = wire::read_words(bytes);
                    word = Some((imm, one, two));
                    None
                }
                None => {
                    *received += 1;
                    Some(*received - 1)
                }
            };
            Verdict::Done
        })?;
        Ok(word)
    }

    /// A piece begins.
    fn begin(&mut self, round: u64) -> Result<(), Failure> {
        if self.op != Op::Send {
            // What a WRITE must change is another round's.
            let round = if self.op == Op::Read { round } else { !round };
            window::fill(&self.exposed, &self.slots, round)?;
        }
        self.received = 0;
        self.blocks.fill(None);
        Ok(())
    }

    /// A piece ends: messages received since its begin, and places where what should be there is
    /// not.
    fn end(&self, messages: u64, round: u64) -> Result<(u64, u64), Failure> {
        let slots = &self.slots;
        let wrong = match self.op {
            Op::Write => window::wrong(&self.exposed, slots, round, messages)?,
            // What is read stays as it is.
            Op::Read => window::wrong(&self.exposed, slots, round, u64::MAX)?,
            Op::Send => {
                let mut wrong = 0;
                for (block, number) in self.blocks.iter().enumerate() {
                    let Some(number) = number else { continue };
                    let start = self.bare.block_at(block as u32);
                    let slot = slots.offset(*number) / slots.stride();
                    let memory = &self.bare.blocks;
                    let right = window::is_filled(memory, start, slots, (round, slot))?;
                    wrong += u64::from(!right);
                }
                wrong
            }
        };
        Ok((self.received, wrong))
    }
}
