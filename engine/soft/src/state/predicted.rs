//! The next message of a ping-pong, predicted while a poll waits for it.
//!
//! While a poll waits, it makes the checks that do not depend on the message's bytes: which queue
//! pair the message is probably for, and where that queue pair's next receive lies. When the
//! message comes, its header is compared with the prediction, and its length with the room in the
//! receive. Any other message is left to the full poll.
#![expect(unsafe_code, reason = "writes to posted receive buffers")]

use core::ptr;

use crate::model::memory::Memory;
use crate::model::recvq::Prefetch;
use crate::shm::layout::{Header, RecordFlags, SLOT_PAYLOAD_MAX};
use crate::state::completion::recv_wc;
use crate::state::link::Link;
use crate::state::transport::Transport;
use crate::wc::Wc;

/// The next message, as far as it is known before it arrives. It must still hold when it is used:
/// every other function that serves the link, and every command, first calls `drop_prediction` of
/// `steps::poll`.
pub(crate) struct PredictedReceive {
    /// Its header, without the length.
    like: Header,
    /// Where its bytes go.
    pub(crate) to: u64,
    /// How many fit there, and in the slot.
    room: u32,
    wr_id: u64,
    /// The prefetch of which that receive is the first.
    prefetch: *mut Prefetch,
    /// [`Memory::removals`] when the key of the receive was looked up; [`NOTHING`] if no message is
    /// predicted. (No header can express that, because a peer may write any.)
    pub(crate) removals: u64,
}

/// More than the number of regions that can ever be removed.
pub(crate) const NOTHING: u64 = u64::MAX;

impl PredictedReceive {
    pub(crate) const fn nothing() -> PredictedReceive {
        let (like, prefetch) = (Header(0), ptr::null_mut());
        PredictedReceive { like, to: 0, room: 0, wr_id: 0, prefetch, removals: NOTHING }
    }
}

impl PredictedReceive {
    /// Runs in the first empty poll, and in every `LOOK_IDLE`-th.
    #[inline(never)]
    pub(crate) fn prepare(&mut self, link: &mut Link, transport: &mut Transport) {
        self.removals = NOTHING;
        transport.look_around(link);
        self.predict(link, transport);
    }

    /// True if a message is predicted.
    #[cfg(test)]
    pub(crate) fn is_known(&self) -> bool {
        self.removals != NOTHING
    }

    /// Looks up what the next message for the last queue pair will need.
    fn predict(&mut self, link: &Link, transport: &mut Transport) {
        let Transport { qps, res } = transport;
        let Some(rq) = res.rqs.get_mut(link.rq) else { return };
        let Some((wr, mr_cache)) = rq.prefetch.ready_first() else { return };
        let memory = &res.nic.memory;
        mr_cache.renew(memory);
        let open = qps.open_on(link.last_qp, link.index).is_some();
        // A buffer that is only partly writable needs all checks for each message.
        if open && mr_cache.writable(memory, wr.sge, wr.sge.length) {
            let (like, removals) = (Header::plain_for(link.last_qp), mr_cache.removals());
            let (to, room, wr_id) = (wr.sge.addr, wr.sge.length.min(SLOT_PAYLOAD_MAX), wr.wr_id);
            let prefetch = &raw mut rq.prefetch;
            *self = PredictedReceive { like, to, room, wr_id, prefetch, removals };
        }
    }

    /// Takes the message in the slot, which begins with `word`, if it is the predicted one and its
    /// peer has read everything. `None`: nothing was done.
    #[inline(always)]
    pub(crate) fn receive(&mut self, link: &mut Link, word: u64, memory: &Memory) -> Option<Wc> {
        // Reads each field where it is used: there are more fields than registers.
        let record = link.rx.predicted_in_slot(word, self.like, link.tx.published())?;
        let length = record.header.length();
        if length > self.room || self.removals != memory.removals() {
            return None;
        }
        // SAFETY: the poster of the receive vouches for the buffer. Key, bounds and right were
        // checked by `predict`, for `room` bytes, and no region has gone since. `room` is no more
        // than the slot holds.
        if !unsafe { link.rx.take_from_slot(record, self.to as *mut u8) } {
            return None;
        }
        // SAFETY: only commands add, remove or move receive queues, and none has run since
        // `predict`.
        unsafe { (*self.prefetch).advance(1) };
        self.removals = NOTHING;
        link.empty_polls = 0;
        link.ping_pong = true;
        Some(recv_wc(self.wr_id, self.like.qp(), length, RecordFlags::empty(), 0))
    }
}
