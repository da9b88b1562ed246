//! The next message, predicted while a poll waits for it.
//!
//! While a poll waits, it makes the checks that do not depend on the message's bytes: which queue
//! pair the message is probably for, and where that queue pair's next receive lies. When the
//! message comes, its header is compared with the prediction, and its length with the room in the
//! receive. Any other message is left to the full poll.
//!
//! A message on another link with the same receive queue takes the same receive. So if one comes
//! there, only the queue pair is looked up.
#![expect(unsafe_code, reason = "uses an object of the domain by its pointer")]

use crate::model::memory::Lasting;
use crate::model::recvq::Prefetch;
use crate::prefetch;
use crate::shm::layout::{Header, LINE, RecordFlags, SLOT_SHORT};
use crate::shm::reader::{RingRecord, SlotRecord};
use crate::state::completion::recv_wc;
use crate::state::completions::NO_QUEUE;
use crate::state::link::Link;
use crate::state::place::Pointer;
use crate::state::resources::Resources;
use crate::state::transport::Transport;
use crate::wc::Wc;

/// The next message, as far as it is known before it arrives. It must still hold when it is used:
/// every other function that serves a link or takes receives, and every command, first calls
/// `drop_prediction` of `steps::poll`.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct PredictedReceive {
    /// Its header, without the length.
    like: Header,
    /// Where its bytes go, as many as fit there; none if no message is predicted. (No header can
    /// express that, because a peer may write any.)
    pub(crate) to: Lasting,
    wr_id: u64,
    /// The completion queue of its queue pair for receives.
    pub(crate) recv_cq: usize,
    /// The prefetch that begins with that receive.
    prefetch: Option<Pointer<Prefetch>>,
    /// Its receive queue in the domain.
    rq: usize,
    /// The receive was used for a message on another link, and nothing was predicted since.
    pub(crate) used_elsewhere: bool,
    /// The completion queue to whose next poll a poll has left the message, which has come;
    /// [`NO_QUEUE`] if none is left. It is that of the receive.
    left_for: usize,
    /// That message.
    left: SlotRecord,
}

impl PredictedReceive {
    pub(crate) fn nothing() -> PredictedReceive {
        PredictedReceive {
            like: Header(0),
            to: Lasting::none(),
            wr_id: 0,
            rq: 0,
            recv_cq: 0,
            prefetch: None,
            left_for: NO_QUEUE,
            left: SlotRecord::default(),
            used_elsewhere: false,
        }
    }

    /// True once after a message on another link: then the next is to be predicted again.
    #[inline(always)]
    pub(crate) fn was_used_elsewhere(&mut self) -> bool {
        core::mem::take(&mut self.used_elsewhere) && !self.is_known()
    }

    /// A poll calls it while it waits: in the first or second empty poll, and now and then after
    /// that, as often as it looks for acknowledgements.
    ///
    /// It also prefetches the lines that will be written before the next message of this side is
    /// published. Stores become visible in their order, so one that misses the cache delays it.
    #[inline(never)]
    pub(crate) fn prepare(&mut self, link: &mut Link, transport: &mut Transport) {
        self.to.forget();
        if transport.look_around(link) {
            // Another domain lacks the receives that this one has just given back.
            return;
        }
        self.predict(link, transport);
        // The next record in the ring: all records together are more than the nearest cache holds.
        // It may be longer than the last. A constant number of lines costs the least instructions.
        link.tx.claim(SLOT_SHORT as u32);
        // The receive, for the message that comes before a reply.
        let lent = match self.is_known() {
            true => core::mem::take(&mut link.lent_lines).min(self.to.length() / LINE),
            false => 0,
        };
        match lent {
            0 => prefetch::claim(self.to.address(), (link.rx.slot_lines + 1) * LINE),
            _ => prefetch::own(self.to.address(), (lent + 1) * LINE),
        }
    }

    /// True if a message is predicted.
    #[inline(always)]
    pub(crate) fn is_known(&self) -> bool {
        !self.to.is_none()
    }

    /// Looks up what the next message for the last queue pair will need.
    #[inline(never)]
    pub(crate) fn predict(&mut self, link: &Link, transport: &mut Transport) {
        transport.prefetch_receives(link);
        let Transport { qps, res } = transport;
        let Some(rq) = res.receives.get_mut(link.rq) else { return };
        let Some((wr, mr_cache)) = rq.prefetch.ready_first() else { return };
        let memory = &res.nic.memory;
        mr_cache.renew(memory);
        // A buffer that is only partly writable needs all checks for each message.
        if let Some(recv_cq) = qps.open_on(link.last_qp, link.index)
            && let Some(to) = mr_cache.lasting(memory, wr.sge)
        {
            let (like, wr_id) = (Header::plain_for(link.last_qp), wr.wr_id);
            let prefetch = Some(Pointer::to(&mut rq.prefetch));
            (self.like, self.to, self.wr_id) = (like, to, wr_id);
            (self.rq, self.recv_cq, self.prefetch) = (link.rq, recv_cq, prefetch);
            (self.left_for, self.used_elsewhere) = (NO_QUEUE, false);
        }
    }

    /// Makes this the prediction for another link. If a message is predicted and both links have
    /// the same receive queue, only the queue pair changes. False: nothing is predicted.
    #[inline(always)]
    pub(crate) fn turn_to(&mut self, link: &Link, transport: &mut Transport) -> bool {
        if !self.is_known() || self.rq != link.rq {
            self.to.forget();
            self.predict(link, transport);
            return self.is_known();
        }
        let Some(recv_cq) = transport.qps.open_on(link.last_qp, link.index) else { return false };
        (self.like, self.recv_cq) = (Header::plain_for(link.last_qp), recv_cq);
        true
    }

    /// Leaves the message to the next poll. It counts only as long as it is predicted.
    #[inline(always)]
    pub(crate) fn leave(&mut self, record: SlotRecord) {
        (self.left_for, self.left) = (self.recv_cq, record);
    }

    /// The message that the last poll has left, if its receive ends in that queue; then it is left
    /// no longer.
    #[inline(always)]
    pub(crate) fn left_for(&mut self, cq: usize) -> Option<SlotRecord> {
        let is_left = self.left_for == cq;
        if is_left {
            self.left_for = NO_QUEUE;
        }
        is_left.then_some(self.left)
    }

    /// The queue for which a message is left, or [`NO_QUEUE`].
    #[inline(always)]
    pub(crate) fn left_queue(&self) -> usize {
        self.left_for
    }

    /// True if the message that was left is too long to be taken without a call.
    #[inline(always)]
    pub(crate) fn is_left_long(&self) -> bool {
        self.left.header.length() as usize > SLOT_SHORT
    }

    /// As [`PredictedReceive::receive`], for the message that the last poll has left for that
    /// queue. Unless it may be `LONG`, only for a short one, and without a call.
    #[inline(always)]
    pub(crate) fn receive_left<const LONG: bool>(
        &mut self,
        link: &mut Link,
        cq: usize,
        res: &mut Resources,
    ) -> Option<u32> {
        if self.left_for != cq {
            return None;
        }
        let to = self.to.get(&res.nic.memory)?;
        let taken = match LONG {
            true => link.rx.take_from_slot(self.left, to),
            false => link.rx.take_short_from_slot(&self.left, to),
        };
        if !taken {
            return None;
        }
        self.left_for = NO_QUEUE;
        let header = self.left.header;
        self.used(link, header, res);
        link.ping_pong = true;
        Some(header.length())
    }

    /// The message in the slot, which begins with `word`, if it is the predicted one and its peer
    /// has read everything.
    #[inline(always)]
    pub(crate) fn find(&self, link: &Link, word: u64) -> Option<SlotRecord> {
        link.rx.predicted_in_slot(word, self.like, link.tx.published())
    }

    /// The same after a look that has found something, in the slot or in the ring.
    #[inline(always)]
    pub(crate) fn find_news(&self, link: &Link) -> Option<SlotRecord> {
        let word = link.rx.new_in_slot()?;
        self.find(link, word)
    }

    /// The same for a look that has read these words.
    #[inline(always)]
    pub(crate) fn find_among(&self, link: &Link, words: [u64; 2]) -> Option<SlotRecord> {
        let word = link.rx.new_among(words)?;
        self.find(link, word)
    }

    /// Takes the message that [`PredictedReceive::find`] has found. Returns its length;
    /// [`PredictedReceive::wc`] makes its completion. `None`: nothing was done.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        link: &mut Link,
        record: SlotRecord,
        res: &mut Resources,
    ) -> Option<u32> {
        // Reads each field where it is used: there are more fields than registers.
        let length = record.header.length();
        if !link.rx.take_from_slot(record, self.to.get(&res.nic.memory)?) {
            return None;
        }
        self.used(link, record.header, res);
        link.ping_pong = true;
        Some(length)
    }

    /// The same for a message in the ring, if it is the predicted one. It may cross with others.
    #[inline(always)]
    pub(crate) fn receive_from_ring(
        &mut self,
        link: &mut Link,
        record: RingRecord,
        res: &mut Resources,
    ) -> Option<u32> {
        let header = record.header;
        if !link.rx.take_from_ring(record, self.like, self.to.get(&res.nic.memory)?) {
            return None;
        }
        self.used(link, header, res);
        link.note_arrivals(1);
        Some(header.length())
    }

    /// The message with that header has been taken.
    #[inline(always)]
    fn used(&mut self, link: &mut Link, header: Header, res: &mut Resources) {
        // Only commands add, remove or move receive queues, and none has run since `predict`.
        if let Some(prefetch) = self.prefetch {
            // SAFETY: so the queue is still where it was; it is one of `res.receives`, borrowed
            // here.
            unsafe { prefetch.get(&mut res.receives) }.advance(1);
        }
        if header.flags().contains(RecordFlags::ACK_REQ) {
            link.rx.ask();
        }
        self.to.forget();
        link.empty_polls = 0;
    }

    /// The completion of the message that was just taken, with that length.
    #[inline(always)]
    pub(crate) fn wc(&self, length: u32) -> Wc {
        recv_wc(self.wr_id, self.like.qp(), length, RecordFlags::empty(), 0)
    }
}
