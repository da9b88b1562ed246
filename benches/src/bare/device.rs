//! The device alone: a queue pair on a shared receive queue, without worker and handler. A program
//! that uses the seam directly does this: poll, answer, post again.
#![expect(unsafe_code, reason = "posts memory that it owns, and reads what arrived there")]

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use doorbell::provider::{AddressHandle, AddressVector, GRH_BYTES, Poller, Qp, Srq};
use doorbell::wc::{Status, Wc, WcFlags};
use doorbell::worker::{Config, POLL_BATCH, SEND_BATCH};
use doorbell::wr::{Destination, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge};
use doorbell::{CmId, Fabric};

use crate::ask::request::{Request, Transport};
use crate::bare::memory::Memory;
use crate::error::Failure;
use crate::machine::allocations::allocations;
use crate::meet::patience::{COLD_TURNS, FAREWELL};
use crate::meet::tally::Tally;
use crate::meet::wire;

/// Marks the `wr_id` of a receive; the rest is its block.
const RECV: u64 = 1 << 63;

/// Marks the `wr_id` of a reply that leaves from its block. The block's number begins at bit
/// [`BLOCK_SHIFT`], the number of the send lies below it.
const HELD: u64 = 1 << 62;

/// Bit position of the block in the `wr_id` of a reply.
const BLOCK_SHIFT: u32 = 40;

/// The longest list of receives that is posted at once.
const REFILL: usize = Config::DEFAULT.refill as usize;

/// The sizes of a side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Longest message, in bytes.
    pub(crate) block_bytes: u32,
    /// How many receives there are.
    pub(crate) blocks: u32,
    /// Bytes of the memory that sends are posted from.
    pub(crate) out_bytes: usize,
    /// One inline send in this many asks for a completion.
    pub(crate) signal_every: u32,
    /// The type of the queue pair.
    pub(crate) transport: Transport,
    /// Whether its receives come from a shared receive queue.
    pub(crate) srq: bool,
}

impl Shape {
    /// For echoes of that size.
    pub(crate) fn echoes(request: &Request) -> Shape {
        const BLOCKS: u32 = 128;
        const BYTES: u32 = 64 << 20;
        let header = if request.transport == Transport::Ud { GRH_BYTES as u32 } else { 0 };
        let block_bytes = (request.size.max(wire::WORD_BYTES as u32) + header).next_multiple_of(64);
        Shape {
            block_bytes,
            blocks: BLOCKS.min(BYTES / block_bytes).max(4),
            out_bytes: block_bytes as usize,
            signal_every: request.signal_every,
            transport: request.transport,
            srq: request.srq,
        }
    }
}

/// What happens to a message.
pub(crate) enum Verdict {
    /// Its block is posted again.
    Done,
    /// It goes back unchanged, from its block.
    Back,
    /// Its block is posted again, and these words are sent with this immediate data.
    Say([u8; wire::WORD_BYTES], u32),
}

/// A message that has arrived.
pub(crate) struct Message<'a> {
    pub(crate) block: u32,
    pub(crate) bytes: &'a [u8],
    pub(crate) imm: Option<u32>,
}

/// A connected queue pair with everything it needs. With `OTHER` it is one of UD, or has receives
/// of its own; without, nothing in the way of a message asks whether it is.
pub(crate) struct Bare<F: Fabric, const OTHER: bool = false> {
    // Fields drop in this order: the queue pair before its queues, and those before their memory.
    qp: F::Qp,
    /// Not used if receives are the queue pair's own.
    srq: F::Srq,
    /// Of datagrams: where they go, once that is known.
    to: Option<Way<F>>,
    fabric: F,
    poller: F::Poller,
    /// Memory of receives.
    pub(crate) blocks: Memory<F>,
    /// Memory of sends.
    pub(crate) out: Memory<F>,
    id: F::Id,
    shape: Shape,
    inline: u32,
    wcs: [Wc; POLL_BATCH],
    refill: Vec<RecvWr>,
    refill_at: usize,
    /// Sends posted.
    posted: u64,
    /// Sends known to be over.
    done: u64,
    /// The memory of sends is free when this many sends are over.
    out_until: u64,
    idle: u32,
    /// Since when nothing has come.
    quiet: Instant,
    /// How long nothing may come.
    patience: Option<Duration>,
    counters: Counters,
    since: Counters,
}

/// Where datagrams go.
pub(crate) struct Way<F: Fabric> {
    to: Destination,
    /// It must live as long as requests name it.
    _ah: F::Ah,
}

impl<F: Fabric> Way<F> {
    /// The way to a queue pair with that number and key.
    pub(crate) fn new(
        fabric: &F,
        at: &AddressVector,
        (qpn, qkey): (u32, u32),
    ) -> Result<Way<F>, Failure> {
        let ah = fabric.create_ah(at)?;
        Ok(Way { to: Destination { ah: ah.name(), qpn, qkey }, _ah: ah })
    }
}

/// Stands for the sender's own key: both sides have the one of the connection manager.
const OWN_KEY: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    completions: u64,
    busy_turns: u64,
    doorbells: u64,
    allocations: u64,
}

/// Bytes from one block to the next: see [`Config::stride`].
pub(crate) fn stride(block_bytes: u32) -> usize {
    Config { block_bytes, ..Config::DEFAULT }.stride()
}

/// The parts that exist before the connection.
pub(crate) struct Parts<F: Fabric> {
    pub(crate) qp: F::Qp,
    pub(crate) srq: F::Srq,
    pub(crate) poller: F::Poller,
    pub(crate) blocks: Memory<F>,
    pub(crate) out: Memory<F>,
}

/// The receive of a block.
#[inline(always)]
fn receive<F: Fabric>(blocks: &Memory<F>, shape: &Shape, block: u32) -> RecvWr {
    let offset = block as usize * stride(shape.block_bytes);
    RecvWr { wr_id: RECV | u64::from(block), sge: blocks.sge(offset, shape.block_bytes) }
}

impl<F: Fabric> Parts<F> {
    /// Posts a receive for every block.
    pub(crate) fn post_blocks(&mut self, shape: &Shape) -> Result<(), Failure> {
        let all: Vec<RecvWr> =
            (0..shape.blocks).map(|block| receive(&self.blocks, shape, block)).collect();
        for list in all.chunks(256) {
            // SAFETY: the blocks lie in memory that outlives the queues, and nobody touches a block
            // before its completion was polled. This thread is the one that polls.
            let posted = unsafe {
                match shape.srq {
                    true => self.srq.post(list),
                    false => self.qp.post_recv(list),
                }
            };
            posted.map_err(refused)?;
        }
        Ok(())
    }
}

impl<F: Fabric, const OTHER: bool> Bare<F, OTHER> {
    /// Bytes in front of a message in its block.
    #[inline(always)]
    fn header(&self) -> u32 {
        if OTHER && self.is_datagram() { GRH_BYTES as u32 } else { 0 }
    }

    fn is_datagram(&self) -> bool {
        self.shape.transport == Transport::Ud
    }

    /// Puts a side together. `patience`: how long nothing may come. `to`: where datagrams go, if
    /// that is known; else to the sender of the first one.
    pub(crate) fn new(
        fabric: &F,
        parts: Parts<F>,
        (id, to): (F::Id, Option<Way<F>>),
        shape: &Shape,
        patience: Option<Duration>,
    ) -> Bare<F, OTHER> {
        let Parts { qp, srq, poller, blocks, out } = parts;
        let refill_at = REFILL.min(shape.blocks as usize / 4).max(1);
        Bare {
            inline: qp.caps().inline,
            qp,
            srq,
            to,
            fabric: fabric.clone(),
            poller,
            blocks,
            out,
            id,
            shape: *shape,
            wcs: [Wc::default(); POLL_BATCH],
            refill: Vec::with_capacity(POLL_BATCH + refill_at),
            refill_at,
            posted: 0,
            done: 0,
            out_until: 0,
            idle: 0,
            quiet: Instant::now(),
            patience,
            counters: Counters::default(),
            since: Counters::default(),
        }
    }

    /// Sends that may still be under way.
    #[inline(always)]
    pub(crate) fn outstanding(&self) -> u64 {
        self.posted - self.done
    }

    /// Where the message of a block begins in the memory of receives.
    pub(crate) fn block_at(&self, block: u32) -> usize {
        block as usize * stride(self.shape.block_bytes) + self.header() as usize
    }

    /// The operation, to the other side.
    #[inline(always)]
    fn toward(&self, op: SendOp) -> SendOp {
        if !OTHER {
            return op;
        }
        match (&self.to, op) {
            (Some(way), SendOp::Send) => SendOp::SendTo(way.to),
            (Some(way), SendOp::SendWithImm(imm)) => SendOp::SendToWithImm(way.to, imm),
            _ => op,
        }
    }

    /// The sender of a datagram is the other side from now on.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, wc: &Wc, block: u32) -> Result<(), Failure> {
        let start = block as usize * stride(self.shape.block_bytes);
        // SAFETY: the caller has checked that the block is one of this side's, and its receive has
        // completed, so that the device writes to it no more. Every block is longer than this.
        let header = unsafe { *self.blocks.as_ptr().add(start).cast::<[u8; GRH_BYTES]>() };
        let at = self.fabric.sender_of(wc, &header)?;
        self.to = Some(Way::new(&self.fabric, &at, (wc.src_qp, OWN_KEY))?);
        Ok(())
    }

    /// Polls once. `each` sees every message and says what happens to it. Returns the number of
    /// completions.
    #[inline(always)]
    pub(crate) fn poll(
        &mut self,
        mut each: impl FnMut(Message<'_>) -> Verdict,
    ) -> Result<usize, Failure> {
        let taken = self.poller.poll(&mut self.wcs).min(POLL_BATCH);
        if taken == 0 {
            self.idle += 1;
            if self.idle.is_multiple_of(COLD_TURNS) {
                self.look()?;
            }
            return Ok(0);
        }
        self.idle = 0;
        self.counters.completions += taken as u64;
        self.counters.busy_turns += 1;
        for n in 0..taken {
            // Word by word, as the device has just written it: a wider load would wait until those
            // words have reached the cache.
            let Wc { wr_id, status, byte_len, flags, imm, .. } = self.wcs[n];
            if !status.is_ok() {
                return Err(broken(&self.wcs[n], self.is_datagram()));
            }
            if wr_id & RECV == 0 {
                self.retire(wr_id);
                continue;
            }
            let block = wr_id as u32;
            let length = byte_len.min(self.shape.block_bytes).saturating_sub(self.header());
            if block >= self.shape.blocks {
                return Err(Failure::new("the device names a receive that was not posted"));
            }
            if OTHER && self.is_datagram() && self.to.is_none() {
                let wc = self.wcs[n];
                self.learn(&wc, block)?;
            }
            // SAFETY: `block` and `length` were checked, so the bytes lie in the memory of blocks.
            // The block's receive has completed, so the block belongs to this side until it is
            // posted again, below.
            let bytes = unsafe {
                let start = self.blocks.as_ptr().add(self.block_at(block));
                std::slice::from_raw_parts(start, length as usize)
            };
            let imm = flags.contains(WcFlags::WITH_IMM).then_some(imm);
            match each(Message { block, bytes, imm }) {
                Verdict::Done => self.refill.push(receive(&self.blocks, &self.shape, block)),
                Verdict::Back => self.reply(block, length)?,
                Verdict::Say(words, imm) => {
                    self.refill.push(receive(&self.blocks, &self.shape, block));
                    self.send(&words, SendOp::SendWithImm(imm))?;
                }
            }
        }
        if self.refill.len() >= self.refill_at {
            self.repost()?;
        }
        Ok(taken)
    }

    #[inline(always)]
    fn retire(&mut self, number: u64) {
        self.done = (number & ((1 << BLOCK_SHIFT) - 1)) + 1;
        if number & HELD != 0 {
            let block = (number & !HELD) >> BLOCK_SHIFT;
            self.refill.push(receive(&self.blocks, &self.shape, block as u32));
        }
    }

    #[inline(always)]
    fn repost(&mut self) -> Result<(), Failure> {
        // SAFETY: nobody reads these blocks any more; see `Parts::post_blocks` for the rest.
        let posted = unsafe {
            match OTHER && !self.shape.srq {
                true => self.qp.post_recv(&self.refill),
                false => self.srq.post(&self.refill),
            }
        };
        posted.map_err(refused)?;
        self.refill.clear();
        Ok(())
    }

    /// Sends a block's message back: inline, or from the block, which is posted again later.
    #[inline(always)]
    fn reply(&mut self, block: u32, length: u32) -> Result<(), Failure> {
        let sge = self.blocks.sge(self.block_at(block), length);
        if length <= self.inline {
            self.send_inline(sge, SendOp::Send)?;
            self.refill.push(receive(&self.blocks, &self.shape, block));
            return Ok(());
        }
        let wr_id = HELD | u64::from(block) << BLOCK_SHIFT | self.posted;
        let (op, flags) = (self.toward(SendOp::Send), SendFlags::SIGNALED);
        self.post(&[SendWr { wr_id, op, flags, sge, more: &[] }])
    }

    /// Sends a copy of `bytes`: inline, or from the memory of sends once that is free.
    #[inline(always)]
    pub(crate) fn send(&mut self, bytes: &[u8], op: SendOp) -> Result<(), Failure> {
        let length = bytes.len() as u32;
        if length <= self.inline {
            let sge = Sge { addr: bytes.as_ptr() as u64, length, lkey: 0 };
            return self.send_inline(sge, op);
        }
        while self.done < self.out_until {
            // No message is due before this one is sent.
            self.poll(|_| Verdict::Done)?;
        }
        let (wr_id, flags, sge) = (self.posted, SendFlags::SIGNALED, self.out.sge(0, length));
        // SAFETY: `sge` has checked that the memory is long enough. The last send from it is over,
        // so no device reads it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.out.as_ptr(), bytes.len()) };
        self.out_until = self.posted + 1;
        let op = self.toward(op);
        self.post(&[SendWr { wr_id, op, flags, sge, more: &[] }])
    }

    /// Sends payloads that follow each other in memory, inline, with one doorbell.
    #[inline(always)]
    pub(crate) fn send_batch(&mut self, payloads: &[u8], size: usize) -> Result<(), Failure> {
        let every = u64::from(self.shape.signal_every);
        let mut list = ArrayVec::<_, SEND_BATCH>::new();
        for (payload, wr_id) in payloads.chunks_exact(size).take(SEND_BATCH).zip(self.posted..) {
            let mut flags = SendFlags::INLINE;
            flags.set(SendFlags::SIGNALED, (wr_id + 1).is_multiple_of(every));
            let sge = Sge { addr: payload.as_ptr() as u64, length: size as u32, lkey: 0 };
            list.push(SendWr { wr_id, op: SendOp::Send, flags, sge, more: &[] });
        }
        self.post(&list)
    }

    #[inline(always)]
    fn send_inline(&mut self, sge: Sge, op: SendOp) -> Result<(), Failure> {
        let mut flags = SendFlags::INLINE;
        let every = u64::from(self.shape.signal_every);
        flags.set(SendFlags::SIGNALED, (self.posted + 1).is_multiple_of(every));
        let op = self.toward(op);
        self.post(&[SendWr { wr_id: self.posted, op, flags, sge, more: &[] }])
    }

    /// Posts a request for each slot of the memory of sends, with one doorbell. Only the last one
    /// is signalled. `op` makes the operation for the slot at an offset.
    #[inline(always)]
    pub(crate) fn post_slots(
        &mut self,
        slots: &[Slot],
        op: impl Fn(usize) -> SendOp,
    ) -> Result<(), Failure> {
        let wr = |(n, slot): (usize, &Slot)| {
            let flags = match n + 1 == slots.len() {
                true => SendFlags::SIGNALED,
                false => SendFlags::empty(),
            };
            let (wr_id, sge) = (self.posted + n as u64, self.out.sge(slot.offset, slot.length));
            SendWr { wr_id, op: op(slot.offset), flags, sge, more: &[] }
        };
        let list: ArrayVec<_, SEND_BATCH> =
            slots.iter().enumerate().take(SEND_BATCH).map(wr).collect();
        self.post(&list)
    }

    #[inline(always)]
    fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), Failure> {
        // SAFETY: a payload that is not inline lies in this side's memory, which outlives the queue
        // pair. Slots are used again, and blocks posted again, only when their sends are over. This
        // thread is the one that polls.
        unsafe { self.qp.post(list) }.map_err(refused)?;
        self.posted += list.len() as u64;
        self.counters.doorbells += 1;
        Ok(())
    }

    /// Sends words with immediate data, and waits for the answer and for every send before it.
    pub(crate) fn ask(&mut self, words: (u64, u64), imm: u32) -> Result<(u64, u64), Failure> {
        self.send(&wire::words(words.0, words.1), SendOp::SendWithImm(imm))?;
        let mut answer = None;
        while answer.is_none() {
            self.poll(|message| {
                if message.imm == Some(wire::ACK) {
                    answer = Some(wire::read_words(message.bytes));
                }
                Verdict::Done
            })?;
        }
        Ok(answer.unwrap_or_default())
    }

    /// Waits until the other side has taken the last send, or has gone.
    pub(crate) fn part(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.outstanding() > 0 && !self.id.peer_left() && Instant::now() < until {
            // A failure means that the other side has gone.
            if self.poll(|_| Verdict::Done).is_err() {
                return;
            }
        }
    }

    /// Counting begins here.
    pub(crate) fn mark(&mut self) {
        self.counters.allocations = allocations();
        self.since = self.counters;
    }

    /// What this side did since counting began.
    pub(crate) fn tally(&self) -> Tally {
        let (now, since) = (&self.counters, &self.since);
        Tally {
            completions: now.completions - since.completions,
            busy_turns: now.busy_turns - since.busy_turns,
            doorbells: now.doorbells - since.doorbells,
            allocations: allocations() - since.allocations,
            pages: "plain".to_owned(),
            ..Tally::default()
        }
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        if self.id.peer_left() {
            return Err(Failure::new(
                "the other side has ended the connection; see what it printed",
            ));
        }
        if self.idle == COLD_TURNS {
            self.quiet = Instant::now();
        }
        match self.patience {
            Some(patience) if self.quiet.elapsed() > patience => Err(Failure::new(format!(
                "nothing has come back for {} s; is the other side still running?{}",
                patience.as_secs(),
                match self.shape.transport {
                    Transport::Rc => "",
                    _ => " Or a message was lost: UC and UD do not send it again",
                }
            ))),
            _ => Ok(()),
        }
    }
}

/// A piece of the memory of sends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) offset: usize,
    pub(crate) length: u32,
}

/// The start of a peer's memory, as words.
pub(crate) fn remote_words(at: Remote) -> (u64, u64) {
    (at.addr, at.rkey.into())
}

/// Reads [`remote_words`].
pub(crate) fn remote((addr, rkey): (u64, u64)) -> Remote {
    Remote { addr, rkey: rkey as u32 }
}

#[cold]
fn refused(error: doorbell::wr::PostError) -> Failure {
    Failure::new(format!("post to {error}; the other side may have ended"))
}

#[cold]
fn broken(wc: &Wc, is_datagram: bool) -> Failure {
    if is_datagram && wc.status == Status::LocalLength {
        return Failure::new(
            "a datagram is one packet, and this one is longer than the path carries; ask for a \
             smaller --size, or for --transport rc or uc",
        );
    }
    Failure::new(format!(
        "the connection broke off ({:?}, vendor error {}); see what the other side printed",
        wc.status, wc.vendor_err
    ))
}
