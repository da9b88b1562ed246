//! Datagrams: a queue pair of UD beside a worker's peers. What is sent goes by a way, which the
//! handler opens once for each destination; what comes is lent out for one call, and says who sent
//! it.
//!
//! Datagrams have receives of their own, so that they never use one that is promised to a peer; and
//! no credits: who sends faster than they are taken loses some, and nobody is told.
#![expect(unsafe_code, reason = "posts buffers it owns")]

use core::slice;

use std_alloc::boxed::Box;
use std_alloc::format;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::config::Config;
use super::core::Core;
use super::number::{self, INDEX_MASK};
use super::outbox::SendError;
use super::peers::NO_BLOCK;
use crate::error::{Code, SetupError};
use crate::provider::{AddressHandle, AddressVector, GRH_BYTES, Provider, Qp, Region};
use crate::room::Room;
use crate::wc::{Wc, WcFlags};
use crate::wr::{Destination, PostCause, RecvWr, SendFlags, SendOp, SendWr, Sge};

/// In the numbers of requests: the first receive of datagrams, behind all that are shared; and the
/// slot of their queue pair, which is no peer's.
pub(super) const RECEIVES: u32 = 1 << 24;
pub(super) const SLOT: u32 = (1 << 20) - 1;

/// A way that datagrams take, see [`super::Outbox::open_way`]. One that was closed names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WayId {
    index: u32,
    generation: u32,
}

/// A datagram, lent to the handler for one call.
pub struct Datagram<'a> {
    pub(super) wc: &'a Wc,
    /// With the header in front.
    pub(super) bytes: &'a [u8],
}

impl Datagram<'_> {
    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(GRH_BYTES..).unwrap_or_default()
    }

    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    /// True for an empty datagram.
    pub fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// Immediate data, if the sender gave some.
    pub fn imm(&self) -> Option<u32> {
        self.wc.flags.contains(WcFlags::WITH_IMM).then_some(self.wc.imm)
    }

    /// The sender's queue pair. Where that is, [`super::Outbox::sender_of`] says.
    pub fn source_qp(&self) -> u32 {
        self.wc.src_qp
    }
}

/// A way that is open, or waits for the last of what was sent by it.
struct Way<A> {
    ah: A,
    qp: u32,
    qkey: u32,
    flying: u32,
    closing: bool,
}

/// A place for one.
struct Place<A> {
    generation: u32,
    way: Option<Way<A>>,
}

/// What a worker has for datagrams.
pub(super) struct Datagrams<P: Provider> {
    // Before the ways, which it uses.
    qp: Option<P::Qp>,
    ways: Vec<Place<P::Ah>>,
    free: Vec<u32>,
    nic: P,
    /// Which queue pair this is, for what comes late of one before.
    generation: u16,
    num: u32,
    /// Sends posted, and over; they wrap.
    pushed: u32,
    retired: u32,
    /// The block and the way of each send in flight, by its index.
    held: Box<[(u32, u32)]>,
    /// Receives that are to be posted again.
    refill: Vec<RecvWr>,
    /// Where the receives begin in the worker's region.
    start: usize,
}

impl<P: Provider> Datagrams<P> {
    pub(super) fn new(nic: &P, config: &Config) -> Self {
        let (receives, ways, queue) = match config.datagrams {
            0 => (0, 0, 1),
            receives => (receives, config.ways, config.send_queue),
        };
        Datagrams {
            qp: None,
            ways: (0..ways).map(|_| Place { generation: 0, way: None }).collect(),
            free: (0..ways).rev().collect(),
            nic: nic.clone(),
            generation: 0,
            num: 0,
            pushed: 0,
            retired: 0,
            held: vec![(NO_BLOCK, 0); queue as usize].into_boxed_slice(),
            refill: Vec::with_capacity(receives as usize),
            start: config.send_blocks as usize * config.stride(),
        }
    }

    fn way(&mut self, id: WayId) -> Option<&mut Way<P::Ah>> {
        let place = self.ways.get_mut(id.index as usize)?;
        let way = place.way.as_mut().filter(|way| !way.closing);
        way.filter(|_| place.generation == id.generation)
    }

    /// Frees a way if nothing needs it.
    fn tidy(&mut self, index: u32) {
        if let Some(place) = self.ways.get_mut(index as usize)
            && place.way.as_ref().is_some_and(|way| way.closing && way.flying == 0)
        {
            place.way = None;
            place.generation = place.generation.wrapping_add(1);
            self.free.put(index);
        }
    }

    /// Notes what a send holds, or takes it back.
    fn hold(&mut self, index: u32, what: (u32, u32)) -> (u32, u32) {
        let at = index as usize & (self.held.len() - 1);
        self.held.get_mut(at).map_or(what, |place| core::mem::replace(place, what))
    }
}

impl<P: Provider> Core<P> {
    /// Takes the queue pair for datagrams in, and posts all its receives; one more is not taken.
    #[cold]
    pub(super) fn open_datagrams(&mut self, qp: P::Qp) {
        if self.datagrams.qp.is_some() {
            drop(qp);
            return;
        }
        self.datagrams.num = qp.num();
        self.datagrams.qp = Some(qp);
        for number in 0..self.config.datagrams {
            self.give_back_receive(number);
        }
        self.post_receives(1);
    }

    /// The control plane wants that queue pair for datagrams to go.
    #[cold]
    pub(super) fn close_datagrams(&mut self, num: u32) {
        if self.datagrams.num == num {
            self.end_datagrams();
        }
    }

    /// The queue pair for datagrams is over: it goes, and everything comes home. Another may
    /// take its place.
    #[cold]
    pub(super) fn end_datagrams(&mut self) {
        drop(self.datagrams.qp.take());
        let Datagrams { generation, pushed, .. } = self.datagrams;
        self.retire_datagrams((SLOT, generation, pushed.wrapping_sub(1)));
        self.datagrams.generation = generation.wrapping_add(1);
        self.datagrams.refill.clear();
    }

    fn give_back_receive(&mut self, number: u32) {
        let config = &self.config;
        let offset = self.datagrams.start + number as usize * config.datagram_stride();
        let addr = (self.region.as_ptr() as u64).wrapping_add(offset as u64);
        let length = GRH_BYTES as u32 + config.datagram_bytes;
        let sge = Sge { addr, length, lkey: self.region.lkey() };
        self.datagrams.refill.put(RecvWr { wr_id: number::recv(RECEIVES + number), sge });
    }

    /// Posts the receives that are free, if there are so many.
    fn post_receives(&mut self, least: usize) {
        let Datagrams { qp: Some(qp), refill, .. } = &mut self.datagrams else { return };
        if refill.len() < least {
            return;
        }
        // SAFETY: the blocks lie in the worker's region, which is dropped after the queue pair;
        // each is in this list only while nobody has it. The worker's thread is the one that polls.
        match unsafe { qp.post_recv(refill) } {
            Ok(()) => refill.clear(),
            Err(error) => refill.drop_first(error.accepted),
        }
    }

    /// The datagram in a receive that has completed. Its bytes are nobody else's until
    /// [`Core::datagram_done`].
    pub(super) fn datagram<'a>(&self, wc: &'a Wc, number: u32) -> Option<Datagram<'a>> {
        if number >= self.config.datagrams || !self.is_datagrams(wc.qp_num) {
            return None;
        }
        let most = GRH_BYTES + self.config.datagram_bytes as usize;
        let length = (wc.byte_len as usize).min(most);
        let offset = self.datagrams.start + number as usize * self.config.datagram_stride();
        // SAFETY: the number is one of the receives, which lie in the region; this one has
        // completed, so the device is done with it, and it is posted again after the call.
        let bytes = unsafe { slice::from_raw_parts(self.region.as_ptr().add(offset), length) };
        Some(Datagram { wc, bytes })
    }

    /// True if that is of the queue pair for datagrams there is now.
    pub(super) fn is_datagrams(&self, num: u32) -> bool {
        self.datagrams.qp.is_some() && self.datagrams.num == num
    }

    /// The receive of a datagram is free. A part of them goes back with one post.
    pub(super) fn datagram_done(&mut self, number: u32) {
        self.give_back_receive(number);
        self.post_receives((self.config.datagrams as usize / 4).max(1));
    }

    /// Opens a way, see [`super::Outbox::open_way`].
    #[cold]
    pub(super) fn open_way(
        &mut self,
        to: &AddressVector,
        (qp, qkey): (u32, u32),
    ) -> Result<WayId, SetupError> {
        let ways = self.datagrams.ways.len();
        let Some(index) = self.datagrams.free.last().copied() else {
            let answer = format!("all {ways} are open");
            let error = SetupError::new(Code::NoMemory, "one more way for datagrams", answer);
            return Err(error.cure("close some, or raise Config::ways, with Config::datagrams"));
        };
        let ah = self.datagrams.nic.create_ah(to)?;
        self.datagrams.free.pop();
        let place = self.datagrams.ways.get_mut(index as usize);
        let generation = place.map_or(0, |place| {
            place.way = Some(Way { ah, qp, qkey, flying: 0, closing: false });
            place.generation
        });
        Ok(WayId { index, generation })
    }

    /// Closes a way: it goes when what was sent by it is over.
    #[cold]
    pub(super) fn close_way(&mut self, id: WayId) -> bool {
        let Some(way) = self.datagrams.way(id) else { return false };
        way.closing = true;
        self.datagrams.tidy(id.index);
        true
    }

    /// Where a datagram came from.
    #[cold]
    pub(super) fn sender_of(&self, datagram: &Datagram<'_>) -> Result<AddressVector, SetupError> {
        let header = datagram.bytes.first_chunk().ok_or_else(|| {
            SetupError::new(Code::Invalid, "the sender of a datagram", "it is too short")
        })?;
        self.datagrams.nic.sender_of(datagram.wc, header)
    }

    /// Sends a copy of `bytes`.
    pub(super) fn send_to(
        &mut self,
        id: WayId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        if bytes.len() > self.config.datagram_bytes as usize {
            return Err(SendError::TooLong);
        }
        let waiting = self.datagrams.pushed.wrapping_sub(self.datagrams.retired);
        let full = waiting >= self.config.send_queue || self.flying >= self.config.sends;
        let there = self.datagrams.qp.is_some();
        let way = self.datagrams.way(id).filter(|_| there).ok_or(SendError::NotConnected)?;
        if full {
            return Err(SendError::Full);
        }
        let to = Destination { ah: way.ah.name(), qpn: way.qp, qkey: way.qkey };
        way.flying += 1;
        let sent = self.post_datagram(to, imm, (id.index, bytes));
        if sent.is_err()
            && let Some(way) = self.datagrams.way(id)
        {
            way.flying -= 1;
        }
        sent
    }

    fn post_datagram(
        &mut self,
        to: Destination,
        imm: Option<u32>,
        (way, bytes): (u32, &[u8]),
    ) -> Result<(), SendError> {
        let (flags, block, sge) = match bytes.len() <= self.inline_max as usize {
            true => (SendFlags::SIGNALED | SendFlags::INLINE, NO_BLOCK, Sge::inline(bytes)),
            false => {
                let (block, sge) = self.copy_to_block(bytes)?;
                (SendFlags::SIGNALED, block, sge)
            }
        };
        let index = self.datagrams.pushed;
        let wr_id = number::send(SLOT, self.datagrams.generation, index);
        let op = match imm {
            None => SendOp::SendTo(to),
            Some(imm) => SendOp::SendToWithImm(to, imm),
        };
        let Some(qp) = &mut self.datagrams.qp else { return Err(SendError::NotConnected) };
        // SAFETY: the payload is inline, or in a block of ours that is released when this send is
        // over; so long the way is kept, too. The worker's thread is the one that polls.
        let posted = unsafe { qp.post(&[SendWr { wr_id, op, flags, sge, more: &[] }]) };
        if let Err(error) = posted {
            self.release(block);
            let full = error.cause == PostCause::Full;
            return Err(if full { SendError::Full } else { SendError::Malformed });
        }
        self.datagrams.hold(index, (block, way));
        self.datagrams.pushed = index.wrapping_add(1);
        self.flying += 1;
        self.stats.datagrams_sent += 1;
        Ok(())
    }

    /// A send of the queue pair for datagrams, and all before it, are over.
    #[cold]
    #[inline(never)]
    pub(super) fn retire_datagrams(&mut self, (slot, generation, low): (u32, u16, u32)) {
        let Datagrams { pushed, retired, generation: present, .. } = self.datagrams;
        let index = retired.wrapping_add(low.wrapping_sub(retired) & INDEX_MASK);
        let known = slot == SLOT && generation == present;
        if !known || index.wrapping_sub(retired) >= pushed.wrapping_sub(retired) {
            return;
        }
        while self.datagrams.retired != index.wrapping_add(1) {
            let at = self.datagrams.retired;
            self.datagrams.retired = at.wrapping_add(1);
            self.flying -= 1;
            let (block, way) = self.datagrams.hold(at, (NO_BLOCK, 0));
            self.release(block);
            if let Some(Place { way: Some(open), .. }) = self.datagrams.ways.get_mut(way as usize) {
                open.flying -= 1;
            }
            self.datagrams.tidy(way);
        }
    }

    /// A datagram could not be sent: the queue pair, which is in SQE by that, goes on.
    #[cold]
    pub(super) fn recover_datagrams(&mut self) {
        if let Some(qp) = &mut self.datagrams.qp {
            qp.recover();
        }
    }

    /// Receives of datagrams that are not with the device.
    pub(super) fn datagrams_home(&self) -> usize {
        self.datagrams.refill.len()
    }
}
