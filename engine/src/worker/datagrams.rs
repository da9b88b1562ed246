//! Datagrams: one UD queue pair besides a worker's peers. The handler resolves each destination
//! once and sends to it by name. An incoming datagram is lent to the handler for one call.
//!
//! Datagrams have receives of their own, so they never take one that is promised to a peer. They
//! have no credits: a sender that is too fast loses some, and is not told.
#![expect(unsafe_code, reason = "posts buffers it owns")]

use core::slice;

use std_alloc::boxed::Box;
use std_alloc::format;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::accounts::Accounts;
use super::config::Config;
use super::held::Held;
use super::send_error::SendError;
use super::wr_id::{self, INDEX_MASK};
use crate::error::{Code, SetupError};
use crate::provider::{AddressHandle, AddressVector, GRH_BYTES, Provider, Qp, Region};
use crate::room::FixedCapacity;
use crate::wc::{Status, Wc, WcFlags};
use crate::wr::{Destination, PostCause, RecvWr, SendFlags, SendOp, SendWr, Sge};

/// In request numbers: the first receive of datagrams, behind all shared ones; and the slot of
/// their queue pair, which is no peer's.
pub(super) const RECEIVES: u32 = 1 << 24;
pub(super) const SLOT: u32 = (1 << 20) - 1;

/// A destination of datagrams that [`super::Outbox::resolve`] has found. One that was released
/// names nothing. Valid only in the worker that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DestinationId {
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

    /// The sender's queue pair. [`super::Outbox::sender_of`] returns its address.
    pub fn source_qp(&self) -> u32 {
        self.wc.src_qp
    }
}

/// A resolved destination, or a released one to which datagrams are in flight.
struct Target<A> {
    ah: A,
    qp: u32,
    qkey: u32,
    in_flight: u32,
    closing: bool,
}

/// A place for a destination.
struct Place<A> {
    generation: u32,
    target: Option<Target<A>>,
}

/// A worker's datagrams.
pub(super) struct Datagrams<P: Provider> {
    // Dropped before the address handles that its requests use.
    qp: Option<P::Qp>,
    destinations: Vec<Place<P::Ah>>,
    free: Vec<u32>,
    nic: P,
    /// Counts the queue pairs, so that late completions of an earlier one are recognised.
    generation: u16,
    num: u32,
    /// Sends posted; wraps.
    pushed: u32,
    /// Sends that are over; wraps.
    retired: u32,
    /// The block and the destination of each send in flight, by its index.
    held: Box<[(Held, u32)]>,
    /// Free receives, to be posted again.
    refill: Vec<RecvWr>,
    /// Where the receives begin in the worker's region.
    start: usize,
    /// The number of receives.
    receives: u32,
    /// Bytes from one receive to the next.
    stride: usize,
    /// Bytes of the longest datagram.
    bytes_max: u32,
    /// Bytes of the longest datagram that goes inline.
    inline_max: u32,
    /// Sends that may be outstanding.
    send_queue: u32,
}

impl<P: Provider> Datagrams<P> {
    pub(super) fn new(nic: &P, config: &Config) -> Self {
        let (receives, destinations, queue) = match config.datagrams {
            0 => (0, 0, 1),
            receives => (receives, config.destinations, config.send_queue),
        };
        Datagrams {
            qp: None,
            destinations: (0..destinations)
                .map(|_| Place { generation: 0, target: None })
                .collect(),
            free: (0..destinations).rev().collect(),
            nic: nic.clone(),
            generation: 0,
            num: 0,
            pushed: 0,
            retired: 0,
            held: vec![(Held::NOTHING, 0); queue as usize].into_boxed_slice(),
            refill: Vec::with_capacity(receives as usize),
            start: config.send_blocks as usize * config.stride(),
            receives,
            stride: config.datagram_stride(),
            bytes_max: config.datagram_bytes,
            inline_max: config.inline_bytes,
            send_queue: config.send_queue,
        }
    }

    fn target(&mut self, id: DestinationId) -> Option<&mut Target<P::Ah>> {
        let place = self.destinations.get_mut(id.index as usize)?;
        let target = place.target.as_mut().filter(|target| !target.closing);
        target.filter(|_| place.generation == id.generation)
    }

    /// Frees a released destination if nothing is in flight to it.
    fn free_if_unused(&mut self, index: u32) {
        if let Some(place) = self.destinations.get_mut(index as usize)
            && place.target.as_ref().is_some_and(|target| target.closing && target.in_flight == 0)
        {
            place.target = None;
            place.generation = place.generation.wrapping_add(1);
            self.free.put(index);
        }
    }

    /// Notes what a send holds, or takes it back.
    fn hold(&mut self, index: u32, what: (Held, u32)) -> (Held, u32) {
        let at = index as usize & (self.held.len() - 1);
        self.held.get_mut(at).map_or(what, |place| core::mem::replace(place, what))
    }

    /// Takes over the queue pair for datagrams and posts all its receives; drops a second queue
    /// pair.
    #[cold]
    pub(super) fn open(&mut self, qp: P::Qp, accounts: &Accounts<P>) {
        if self.qp.is_some() {
            drop(qp);
            return;
        }
        self.num = qp.num();
        self.qp = Some(qp);
        for number in 0..self.receives {
            self.free_receive(number, accounts);
        }
        self.post_receives(1);
    }

    /// The control plane wants the queue pair with that number to go.
    #[cold]
    pub(super) fn close(&mut self, num: u32, accounts: &mut Accounts<P>) {
        if self.num == num {
            self.end(accounts);
        }
    }

    /// Ends the queue pair: it is dropped, and everything comes home. Another may take its place.
    #[cold]
    pub(super) fn end(&mut self, accounts: &mut Accounts<P>) {
        drop(self.qp.take());
        let generation = self.generation;
        self.retire(generation, self.pushed.wrapping_sub(1), accounts);
        self.generation = generation.wrapping_add(1);
        self.refill.clear();
    }

    fn free_receive(&mut self, number: u32, accounts: &Accounts<P>) {
        let region = &accounts.send.region;
        let offset = self.start + number as usize * self.stride;
        let addr = (region.as_ptr() as u64).wrapping_add(offset as u64);
        let length = GRH_BYTES as u32 + self.bytes_max;
        let sge = Sge { addr, length, lkey: region.lkey() };
        self.refill.put(RecvWr { wr_id: wr_id::recv(RECEIVES + number), sge });
    }

    /// Posts the free receives, if there are at least `least`.
    fn post_receives(&mut self, least: usize) {
        let Datagrams { qp: Some(qp), refill, .. } = self else { return };
        if refill.len() < least {
            return;
        }
        // SAFETY: the blocks lie in the worker's region, which is dropped after the queue pair. A
        // block is in this list only while nobody uses it. The worker's thread is the one that
        // polls.
        match unsafe { qp.post_recv(refill) } {
            Ok(()) => refill.clear(),
            Err(error) => refill.drop_first(error.accepted),
        }
    }

    /// The datagram in a completed receive. Nobody else uses its bytes until [`Datagrams::done`].
    pub(super) fn datagram<'a>(
        &self,
        wc: &'a Wc,
        number: u32,
        accounts: &Accounts<P>,
    ) -> Option<Datagram<'a>> {
        if number >= self.receives || !self.is_of(wc.qp_num) {
            return None;
        }
        let length = (wc.byte_len as usize).min(GRH_BYTES + self.bytes_max as usize);
        let offset = self.start + number as usize * self.stride;
        // SAFETY: the number is one of the receives, which lie in the region. This one has
        // completed, so the device is done with it, and it is posted again only after the call.
        let bytes =
            unsafe { slice::from_raw_parts(accounts.send.region.as_ptr().add(offset), length) };
        Some(Datagram { wc, bytes })
    }

    /// True if that is the number of the present queue pair for datagrams.
    pub(super) fn is_of(&self, num: u32) -> bool {
        self.qp.is_some() && self.num == num
    }

    /// Frees the receive of a datagram. A quarter of the receives goes back with one post.
    pub(super) fn done(&mut self, number: u32, accounts: &Accounts<P>) {
        self.free_receive(number, accounts);
        self.post_receives((self.receives as usize / 4).max(1));
    }

    /// Resolves a destination, see [`super::Outbox::resolve`].
    #[cold]
    pub(super) fn resolve(
        &mut self,
        to: &AddressVector,
        qp: u32,
        qkey: u32,
    ) -> Result<DestinationId, SetupError> {
        let destinations = self.destinations.len();
        let Some(index) = self.free.last().copied() else {
            let answer = format!("all {destinations} are in use");
            let error = SetupError::new(Code::NoMemory, "one more destination", answer);
            return Err(
                error.cure("release some, or raise Config::destinations, with Config::datagrams")
            );
        };
        let ah = self.nic.create_ah(to)?;
        self.free.pop();
        let place = self.destinations.get_mut(index as usize);
        let generation = place.map_or(0, |place| {
            place.target = Some(Target { ah, qp, qkey, in_flight: 0, closing: false });
            place.generation
        });
        Ok(DestinationId { index, generation })
    }

    /// Releases a destination. It is freed when no datagram to it is in flight.
    #[cold]
    pub(super) fn release(&mut self, id: DestinationId) -> bool {
        let Some(target) = self.target(id) else { return false };
        target.closing = true;
        self.free_if_unused(id.index);
        true
    }

    /// Where a datagram came from.
    #[cold]
    pub(super) fn sender_of(&self, datagram: &Datagram<'_>) -> Result<AddressVector, SetupError> {
        let header = datagram.bytes.first_chunk().ok_or_else(|| {
            SetupError::new(Code::Invalid, "the sender of a datagram", "it is too short")
        })?;
        self.nic.sender_of(datagram.wc, header)
    }

    /// Sends a copy of `bytes`.
    pub(super) fn send(
        &mut self,
        id: DestinationId,
        imm: Option<u32>,
        bytes: &[u8],
        accounts: &mut Accounts<P>,
    ) -> Result<(), SendError> {
        if bytes.len() > self.bytes_max as usize {
            return Err(SendError::TooLong);
        }
        let waiting = self.pushed.wrapping_sub(self.retired);
        let full = waiting >= self.send_queue || accounts.in_flight.exceeds_limit(1);
        let there = self.qp.is_some();
        let target = self.target(id).filter(|_| there).ok_or(SendError::NotConnected)?;
        if full {
            return Err(SendError::Full);
        }
        let to = Destination { ah: target.ah.name(), qpn: target.qp, qkey: target.qkey };
        let op = match imm {
            None => SendOp::SendTo(to),
            Some(imm) => SendOp::SendToWithImm(to, imm),
        };
        target.in_flight += 1;
        let posted = self.post(op, bytes, id.index, accounts);
        if posted.is_err()
            && let Some(target) = self.target(id)
        {
            target.in_flight -= 1;
        }
        posted
    }

    pub(super) fn post(
        &mut self,
        op: SendOp,
        bytes: &[u8],
        destination: u32,
        accounts: &mut Accounts<P>,
    ) -> Result<(), SendError> {
        let (flags, held, sge) = match bytes.len() <= self.inline_max as usize {
            true => (SendFlags::SIGNALED | SendFlags::INLINE, Held::NOTHING, Sge::inline(bytes)),
            false => {
                let (held, sge) = accounts.send.copy(bytes)?;
                (SendFlags::SIGNALED, held, sge)
            }
        };
        let index = self.pushed;
        let wr_id = wr_id::send(SLOT, self.generation, index);
        let Some(qp) = &mut self.qp else { return Err(SendError::NotConnected) };
        // SAFETY: the payload is inline, or in a block of ours that is freed when this send is
        // over; the address handle stays until then, too. The worker's thread is the one that
        // polls.
        let posted = unsafe { qp.post(&[SendWr { wr_id, op, flags, sge, more: &[] }]) };
        if let Err(error) = posted {
            accounts.release(held, Status::Flushed);
            return Err(match error.cause {
                PostCause::Full => SendError::Full,
                PostCause::Malformed => SendError::Malformed,
                _ => SendError::NotConnected,
            });
        }
        self.hold(index, (held, destination));
        self.pushed = index.wrapping_add(1);
        accounts.in_flight.count += 1;
        accounts.stats.datagrams_sent += 1;
        Ok(())
    }

    /// Send `index` of the queue pair of that generation, and all before it, are over.
    #[cold]
    #[inline(never)]
    pub(super) fn retire(&mut self, generation: u16, low: u32, accounts: &mut Accounts<P>) {
        let (pushed, retired) = (self.pushed, self.retired);
        let index = retired.wrapping_add(low.wrapping_sub(retired) & INDEX_MASK);
        let outstanding = index.wrapping_sub(retired) < pushed.wrapping_sub(retired);
        if generation != self.generation || !outstanding {
            return;
        }
        while self.retired != index.wrapping_add(1) {
            let at = self.retired;
            self.retired = at.wrapping_add(1);
            accounts.in_flight.count -= 1;
            let (held, destination) = self.hold(at, (Held::NOTHING, 0));
            accounts.release(held, Status::Flushed);
            let place = self.destinations.get_mut(destination as usize);
            if let Some(Place { target: Some(target), .. }) = place {
                target.in_flight -= 1;
            }
            self.free_if_unused(destination);
        }
    }

    /// A datagram could not be sent, which moves the queue pair to SQE: brings it back to RTS.
    #[cold]
    pub(super) fn recover(&mut self) {
        if let Some(qp) = &mut self.qp {
            qp.recover();
        }
    }

    /// Receives that are not posted.
    pub(super) fn home(&self) -> usize {
        self.refill.len()
    }
}
