//! The poll of a conversation: on the one link there is, nothing is to be done but to wait for the
//! next message, and it comes alone.
//!
//! What of the checks of a message does not depend on its bytes is done while waiting for it: which
//! queue pair it is likely to be for, and where its receive lies. When it comes, its header is
//! compared with what was expected, and its length with the room there is. All else is for the poll
//! for a list.
#![expect(unsafe_code, reason = "writes to posted receive buffers")]

use core::ptr;

use super::domain::{DomainState, Transport};
use super::layout::{Header, LINE, RecordFlags, SLOT_PAYLOAD_MAX, SLOT_RECORD_MAX};
use super::link::Link;
use super::memory::Memory;
use super::receive::recv_wc;
use super::recvq::Prefetch;
use super::ring::claim_line;
use super::sync::{Ordering, fence};
use crate::provider::Polled;
use crate::wc::Wc;

/// Of polls in which nothing came in, the first and every such-and-such after it look at the peer's
/// own line where no completion is waited for.
const LOOK_IDLE: u32 = 64;

/// The next message, as far as it is known before it arrives. What it says must still hold: every
/// other function that serves the link, and every command, first calls
/// [`DomainState::drop_prediction`].
pub(super) struct PredictedReceive {
    /// Its header, but for its length.
    like: Header,
    /// Where its bytes go.
    to: u64,
    /// How many fit there, and in the bell.
    room: u32,
    wr_id: u64,
    /// Where that receive is the first.
    prefetch: *mut Prefetch,
    /// [`Memory::removals`] when the key of the receive was looked up; [`NOTHING`]
    /// if no message is expected. (No header can say that: a peer may write any.)
    removals: u64,
}

/// More regions than ever go.
const NOTHING: u64 = u64::MAX;

impl PredictedReceive {
    pub(super) const fn nothing() -> PredictedReceive {
        let (like, prefetch) = (Header(0), ptr::null_mut());
        PredictedReceive { like, to: 0, room: 0, wr_id: 0, prefetch, removals: NOTHING }
    }
}

impl DomainState {
    /// One poll of a domain whose poller is its thread, for at most one completion.
    #[inline(always)]
    pub(super) fn poll_one(&mut self) -> Polled {
        let Some(link) = self.links.only() else { return Polled::More };
        if !self.transport.res.service_queue.is_empty() || link.is_busy() {
            return Polled::More;
        }
        if link.ping_pong {
            self.spin_after_reply();
        }
        let Some(link) = self.links.only() else { return Polled::More };
        if !link.rx.has_seen_written() {
            return Polled::More;
        }
        let word = link.rx.peek();
        if link.rx.has_seen(word) {
            return self.wait();
        }
        match self.predicted.receive(link, word, &self.transport.res.nic.memory) {
            Some(wc) => Polled::One(wc),
            None => Polled::More,
        }
    }

    /// The first poll after a predicted message: gives the peer time to answer the reply.
    ///
    /// If the message was replied to, the peer owns the slot's lines now and will write to them. A
    /// look would take the lines away from it, which costs two transfers where a message costs one.
    /// So this side first prepares what the next message and its reply need, and then spins for as
    /// long as [`SpinPolicy`](super::policy::spin::SpinPolicy) says.
    ///
    /// The spin begins when the reply is visible, hence the fence. A reply that is late because the
    /// peer just looked at the line in vain would otherwise shorten it, and this side's look
    /// would be in vain in turn.
    #[inline(never)]
    fn spin_after_reply(&mut self) {
        if self.links.has_background() {
            self.look_at_background();
        }
        let Some(link) = self.links.only() else { return };
        link.ping_pong = false;
        // A message that was not predicted has noted this before; twice does no harm.
        link.contention.note_followed();
        if !link.rx.has_acked() {
            return;
        }
        if !link.spin.may_spin() {
            return;
        }
        // The last receive may just have been taken. Not for a queue pair that is gone: nobody
        // would give the prefetched receives back.
        if self.transport.qps.open_on(link.last_qp, link.index).is_some() {
            self.transport.res.prefetch_ahead(link.rq);
        }
        self.predicted.prepare(link, &mut self.transport);
        // A ping-pong goes through the whole ring, which is more than the nearest cache holds.
        link.tx.claim(SLOT_RECORD_MAX);
        // So do its receives, and a reply waits until the message it replies to is written there.
        for line in 0..=link.rx.slot_lines {
            claim_line((self.predicted.to as *const u8).wrapping_add(line * LINE));
        }
        link.empty_polls = 1;
        fence(Ordering::SeqCst);
        for _ in 0..link.spin.steps() {
            core::hint::black_box(());
        }
        link.rx.is_near = link.spin.note_look(link.rx.has_news());
    }

    /// Nothing has come: prepares for the next message.
    #[inline(always)]
    fn wait(&mut self) -> Polled {
        let Some(link) = self.links.only() else { return Polled::More };
        link.empty_polls = link.empty_polls.wrapping_add(1);
        if link.empty_polls % LOOK_IDLE == 1 {
            self.predicted.prepare(link, &mut self.transport);
        }
        let came = self.links.has_background() && self.look_at_background();
        let nothing = self.transport.res.service_queue.is_empty() && !came;
        if nothing { Polled::Nothing } else { Polled::More }
    }

    /// Looks at the next idle link and at the next inbox. True if something has come: then a full
    /// poll is due.
    #[cold]
    #[inline(never)]
    fn look_at_background(&mut self) -> bool {
        let came = self.links.check_idle().is_some();
        self.transport.check_inbox() || came
    }

    /// From here on nothing is known of the next message.
    #[inline(always)]
    pub(super) fn drop_prediction(&mut self) {
        self.predicted.removals = NOTHING;
    }
}

impl PredictedReceive {
    /// The first poll in which nothing came, and one in [`LOOK_IDLE`].
    #[inline(never)]
    fn prepare(&mut self, link: &mut Link, transport: &mut Transport) {
        self.removals = NOTHING;
        transport.look_around(link);
        self.predict(link, transport);
    }

    /// True if the next message is known as far as it can be.
    #[cfg(test)]
    pub(super) fn is_known(&self) -> bool {
        self.removals != NOTHING
    }

    /// Looks up what a message for the queue pair of the last one will need.
    fn predict(&mut self, link: &Link, transport: &mut Transport) {
        let Transport { qps, res } = transport;
        let Some(rq) = res.rqs.get_mut(link.rq) else { return };
        let Some((wr, mr_cache)) = rq.prefetch.ready_first() else { return };
        let memory = &res.nic.memory;
        mr_cache.renew(memory);
        let open = qps.open_on(link.last_qp, link.index).is_some();
        // A buffer that may only be written in part needs all checks, for each message.
        if open && mr_cache.writable(memory, wr.sge, wr.sge.length) {
            let (like, removals) = (Header::plain_for(link.last_qp), mr_cache.removals());
            let (to, room, wr_id) = (wr.sge.addr, wr.sge.length.min(SLOT_PAYLOAD_MAX), wr.wr_id);
            let prefetch = &raw mut rq.prefetch;
            *self = PredictedReceive { like, to, room, wr_id, prefetch, removals };
        }
    }

    /// Takes the message in the slot, whose first word that is, if it is the predicted one, from a
    /// peer that has read everything. `None`: nothing was done.
    #[inline(always)]
    fn receive(&mut self, link: &mut Link, word: u64, memory: &Memory) -> Option<Wc> {
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
        // SAFETY: receive queues come, go and move by commands, and there was none since `predict`.
        unsafe { (*self.prefetch).advance(1) };
        self.removals = NOTHING;
        link.empty_polls = 0;
        link.ping_pong = true;
        Some(recv_wc(self.wr_id, self.like.qp(), length, RecordFlags::empty(), 0))
    }
}
