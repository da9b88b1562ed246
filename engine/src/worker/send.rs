//! Sends of the handler: copies, one or a list, at once or with the others.

use super::batch::message;
use super::held::Held;
use super::message::PeerId;
use super::post::Admission;
use super::send_error::{ListError, SendError};
use super::sender::Sender;
use crate::provider::{Doorbell, Provider, Qp};
use crate::wc::Status;
use crate::wr::{SendFlags, Sge};

impl<P: Provider> Sender<P> {
    /// Sends a copy: inline if the device takes it now; staged in a batch if it is short enough for
    /// that; else in a block of the worker.
    #[inline(always)]
    pub(super) fn send_copy(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE && imm.is_none() && self.post_reserved_copy(id, bytes) {
            return Ok(());
        }
        self.send_unreserved(id, imm, bytes)
    }

    /// Sends copies of a list of messages: inline, as many at a time as can be reserved, and the
    /// others one by one.
    #[inline(always)]
    pub(super) fn send_list(&mut self, id: PeerId, list: &[&[u8]]) -> Result<(), ListError> {
        let mut accepted = 0;
        while let Some((first, _)) = list.get(accepted..).and_then(<[_]>::split_first) {
            let run = match P::Qp::POSTS_INLINE && !self.doorbells.is_first() {
                true => self.post_inline_list(id, list.get(accepted..).unwrap_or_default()),
                false => 0,
            };
            accepted += run;
            if run == 0 {
                let one = self.send_unreserved(id, None, first);
                one.map_err(|cause| ListError { accepted, cause })?;
                accepted += 1;
                if P::Qp::POSTS_INLINE
                    && let Some(next) = list.get(accepted)
                    && next.len() > self.inline_max as usize
                {
                    self.accounts.send.expect(next.len());
                }
            }
        }
        Ok(())
    }

    /// Sends a copy without a reservation.
    #[inline(never)]
    fn send_unreserved(
        &mut self,
        id: PeerId,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE {
            if self.accounts.in_flight.is_at_watermark() && !self.pending.is_empty() {
                // Reservations of other peers may be in the way.
                self.ring_pending();
            }
            self.end_reservation(id.slot);
            let at_once = self.doorbells.next_send() == Doorbell::Now
                && (self.post_inline_copy(id, imm, bytes, Doorbell::Now)
                    || self.open_budget(id.slot)
                        && self.post_inline_copy(id, imm, bytes, Doorbell::Now));
            if at_once || self.post_inline_copy(id, imm, bytes, Doorbell::Later) {
                return Ok(());
            }
        }
        self.send_staged(id, imm, bytes)
    }

    #[inline(never)]
    fn send_staged(&mut self, id: PeerId, imm: Option<u32>, bytes: &[u8]) -> Result<(), SendError> {
        if P::Qp::POSTS_INLINE
            && self.open_budget(id.slot)
            && self.post_inline_copy(id, imm, bytes, Doorbell::Later)
        {
            return Ok(());
        }
        match self.peers.get(id) {
            None => return Err(SendError::NotConnected),
            // Replies wait for room: this message would overtake them.
            Some(peer) if peer.deferred > 0 => {
                return Err(peer.accepts().err().unwrap_or(SendError::Full));
            }
            Some(_) => {}
        }
        let inline = bytes.len() <= self.inline_max as usize;
        let (peer, batch) = match self.admission::<true>(id.slot) {
            Admission::Open(peer, batch) => (peer, batch),
            Admission::Full(why) => return Err(why),
            Admission::Closed => return Err(SendError::NotConnected),
        };
        if !inline {
            return self.send_block(id.slot, imm, bytes);
        }
        let sge = batch.stage(bytes).ok_or(SendError::TooLong)?;
        if batch.add(peer, message(imm, SendFlags::INLINE, sge), Held::NOTHING) {
            self.post_batch_of(id.slot);
        }
        Ok(())
    }

    /// Sends a copy in a block of the worker.
    fn send_block(&mut self, slot: u32, imm: Option<u32>, bytes: &[u8]) -> Result<(), SendError> {
        self.peers.check_length(slot, bytes.len() as u64)?;
        let (held, sge) = self.accounts.send.copy(bytes)?;
        let Admission::Open(peer, batch) = self.open_batch(slot) else {
            self.accounts.release(held, Status::Flushed);
            return Err(SendError::Full);
        };
        if batch.add(peer, message(imm, SendFlags::empty(), sge), held) {
            self.post_batch_of(slot);
        }
        Ok(())
    }

    /// Sends at once, and rings for all that wait for that peer's doorbell. What fits inline goes
    /// straight from `bytes`. [`Doorbell::Later`]: it was taken, and has to be flushed.
    #[inline(always)]
    pub(super) fn send_now(&mut self, id: PeerId, bytes: &[u8]) -> Result<Doorbell, SendError> {
        if P::Qp::POSTS_INLINE && self.post_inline_copy(id, None, bytes, Doorbell::Now) {
            return Ok(Doorbell::Now);
        }
        self.send_now_checked(id, bytes)
    }

    #[inline(never)]
    fn send_now_checked(&mut self, id: PeerId, bytes: &[u8]) -> Result<Doorbell, SendError> {
        if P::Qp::POSTS_INLINE
            && (self.post_and_ring(id, bytes)
                || self.open_budget(id.slot)
                    && self.post_inline_copy(id, None, bytes, Doorbell::Now))
        {
            return Ok(Doorbell::Now);
        }
        if self.goes_inline(id.slot, bytes.len())
            && self.peers.get(id).is_some_and(|peer| peer.deferred == 0)
        {
            let wr = message(None, SendFlags::INLINE, Sge::inline(bytes));
            if self.post_message::<true>(id.slot, wr, Held::NOTHING) {
                return Ok(Doorbell::Now);
            }
        }
        self.send_copy(id, None, bytes)?;
        Ok(Doorbell::Later)
    }
}
