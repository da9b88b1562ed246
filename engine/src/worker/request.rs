//! Requests of the handler: with others that wait for the peer, or alone.

use super::batch::NO_BATCH;
use super::core::Core;
use super::held::Held;
use super::message::PeerId;
use super::post::Admission;
use super::requests::Request;
use super::send_error::SendError;
use super::sender::Sender;
use crate::provider::{Provider, QpType};
use crate::remote::RESERVED_IMM;
use crate::wr::{PostCause, SendFlags, SendOp, SendWr, Sge};

impl<P: Provider> Core<P> {
    /// Takes the whole request, or nothing of it. Its `flags` are those beside the fence.
    pub(super) fn request(
        &mut self,
        id: PeerId,
        request: &Request<'_>,
        mut flags: SendFlags,
    ) -> Result<(), SendError> {
        let sges = self.regions.sges(request.pieces)?;
        let (first, more) = match sges.split_first() {
            Some((first, more)) => (*first, more),
            None => (Sge::default(), &[][..]),
        };
        flags.set(SendFlags::FENCE, request.fence);
        let op = request.op.op();
        let wr = SendWr { wr_id: 0, op, flags, sge: first, more };
        if !wr.is_well_formed() || !op.fits(QpType::Rc) {
            return Err(SendError::Malformed);
        }
        if !request.op.is_for(wr.length()) {
            return Err(SendError::OtherLength);
        }
        if matches!(op, SendOp::WriteWithImm(_, imm) if imm >> 16 == u32::from(RESERVED_IMM)) {
            return Err(SendError::ReservedImm);
        }
        let send = op.is_send();
        let most = if send { self.config.block_bytes } else { self.message_max };
        if wr.length() > u64::from(most) {
            return Err(SendError::TooLong);
        }
        self.sender.may_post(id, request.is_message())?;
        if send {
            self.sender.peers.check_length(id.slot, wr.length())?;
        }
        let requests = &mut self.sender.accounts.requests;
        let index = requests.begin(id, request).ok_or(SendError::TooMany)?;
        let result = if more.is_empty() {
            let wr = super::batch::request(op, flags, first);
            self.sender.request_in_batch(id.slot, wr, Held::request(index))
        } else {
            self.sender.request_alone(id.slot, wr, Held::request(index))
        };
        match result {
            Err(_) => self.sender.accounts.requests.forget(index),
            Ok(()) if request.is_message() => {}
            Ok(()) => {
                if let Some(peer) = self.sender.peers.at(id.slot) {
                    peer.sq.count_non_message();
                }
            }
        }
        result
    }
}

impl<P: Provider> Sender<P> {
    /// Checks that the peer takes a request now. A request that is a message needs credit.
    fn may_post(&mut self, id: PeerId, message: bool) -> Result<(), SendError> {
        let peer = self.peers.get(id).ok_or(SendError::NotConnected)?;
        peer.accepts()?;
        // Replies wait for room: this request would overtake them.
        if peer.deferred > 0 || peer.sq.is_full() {
            return Err(SendError::Full);
        }
        match message && !peer.sq.has_room::<true>() {
            true => self.accounts.measure_again::<true>(id.slot, peer),
            false => Ok(()),
        }
    }

    /// A request with one piece goes out with what else waits for that peer. Inlined, so that the
    /// request is made in the batch, see [`super::batch::request`].
    #[inline(always)]
    fn request_in_batch(
        &mut self,
        slot: u32,
        wr: SendWr<'static>,
        held: Held,
    ) -> Result<(), SendError> {
        let (peer, batch) = match self.open_batch(slot) {
            Admission::Open(peer, batch) => (peer, batch),
            Admission::Full(why) => return Err(why),
            Admission::Closed => return Err(SendError::NotConnected),
        };
        // Its completion is its answer.
        peer.sq.want_signal();
        if batch.add(peer, wr, held) {
            self.post_batch_of(slot);
        }
        Ok(())
    }

    /// A request with more pieces goes alone, after the peer's batch. A peer whose queue pair
    /// refuses it for another reason than a full queue is closed at the next flush.
    fn request_alone(&mut self, slot: u32, wr: SendWr<'_>, held: Held) -> Result<(), SendError> {
        if self.peers.at(slot).is_some_and(|peer| peer.batch != NO_BATCH) {
            self.post_batch_of(slot);
        }
        self.post_one(slot, wr, held).map_err(|cause| match cause {
            PostCause::Full => SendError::Full,
            _ => {
                self.accounts.broken.add(slot);
                SendError::NotConnected
            }
        })
    }
}
