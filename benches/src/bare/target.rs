//! The serving side of `bandwidth`: exposes memory or posts receives, and checks what arrived.

use std::net::IpAddr;

use doorbell::provider::Access;
use doorbell::wr::SendOp;
use doorbell::{Exposed, Fabric};

use crate::ask::request::{Op, Request};
use crate::bare::device::{Bare, Message, Shape, Verdict, remote_words};
use crate::bare::memory::{self, Slots};
use crate::bare::open::Door;
use crate::error::Failure;
use crate::meet::line::{Answer, Line};
use crate::meet::tally::Tally;
use crate::meet::wire;

/// Receives for words, besides those of the window.
const BLOCKS_MORE: u32 = 4;

/// The slots of a run. Both sides have the same.
pub(crate) fn slots(request: &Request) -> Slots {
    Slots::new(request.size, request.window)
}

/// The queues and the memory of one side.
pub(crate) fn shape(request: &Request, connecting: bool) -> Shape {
    let slots = slots(request);
    let (words, window) = (wire::WORD_BYTES as u32, slots.count as u32);
    let receives = request.op == Op::Send && !connecting;
    Shape {
        block_bytes: if receives { request.size.max(words) } else { words }.next_multiple_of(64),
        blocks: BLOCKS_MORE + if receives { window } else { 0 },
        out_bytes: if connecting { slots.bytes() } else { wire::WORD_BYTES },
        // Only words go inline, and each waits until nothing else is outstanding.
        signal_every: 1,
        transport: request.transport,
        srq: request.srq,
    }
}

/// Serves one run.
pub(crate) fn serve<F: Fabric>(
    fabric: &F,
    ip: IpAddr,
    request: &Request,
    line: &mut Line,
) -> Result<Vec<Tally>, Failure> {
    let slots = slots(request);
    let bytes = if request.op == Op::Send { 1 } else { slots.bytes() };
    let exposed = Exposed::new(fabric, bytes, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let door = Door::open(fabric, ip, request.transport)?;
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

/// The state of the serving side.
struct Target<F: Fabric> {
    bare: Bare<F>,
    exposed: Exposed<F>,
    slots: Slots,
    op: Op,
    /// Messages received since the piece began.
    received: u64,
    /// Which of them each block holds.
    blocks: Vec<Option<u64>>,
}

impl<F: Fabric> Target<F> {
    /// Polls once. Returns a word, if one came.
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
            // A WRITE must replace the pattern of another round.
            let round = if self.op == Op::Read { round } else { !round };
            memory::fill(&self.exposed, &self.slots, round)?;
        }
        self.received = 0;
        self.blocks.fill(None);
        Ok(())
    }

    /// A piece ends. Returns the messages received and the number of wrong slots.
    fn end(&self, messages: u64, round: u64) -> Result<(u64, u64), Failure> {
        let slots = &self.slots;
        let wrong = match self.op {
            Op::Write => memory::wrong(&self.exposed, slots, round, messages)?,
            // A READ changes nothing here.
            Op::Read => memory::wrong(&self.exposed, slots, round, u64::MAX)?,
            Op::Send => {
                let mut wrong = 0;
                for (block, number) in self.blocks.iter().enumerate() {
                    let Some(number) = number else { continue };
                    let start = self.bare.block_at(block as u32);
                    let slot = slots.offset(*number) / slots.stride();
                    let blocks = &self.bare.blocks;
                    let right = memory::is_filled(blocks, start, slots, (round, slot))?;
                    wrong += u64::from(!right);
                }
                wrong
            }
        };
        Ok((self.received, wrong))
    }
}
