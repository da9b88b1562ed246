//! A link: both directions between two domains, for one receive queue on each side. Many queue
//! pairs share it; each record has the number of the queue pair it is for.

use core::mem::offset_of;

use arrayvec::ArrayVec;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;

use crate::prefetch;
use crate::room::{FixedCapacity, TryGrow};
use crate::shm::layout::{
    Header, RecordFlags, SLOT_FIRST_RECORD, SLOT_RECORD_MAX, SLOT_SHORT, SLOT_SHORT_RECORD,
};
use crate::shm::peer_waker::PeerWaker;
use crate::shm::reader::Rx;
use crate::shm::refusals::Refusal;
use crate::shm::remote_map::RemoteMap;
use crate::shm::ring::{CLAIM_MIN, OWN_BATCH_MAX, Space, Traffic, Tx};
use crate::state::lending::Lending;
use crate::state::link_shared::LinkShared;
use crate::state::policy::contention::Contention;
use crate::state::policy::reply::ReplyPolicy;
use crate::state::policy::share::Share;
use crate::state::policy::spin::SpinPolicy;
use crate::state::responses::{Response, Responses};
use crate::state::signaled::SignaledQueue;
use crate::wc::Status;

/// The most refusals that wait for the peer to settle them.
const REFUSALS_MAX: usize = 64;

/// Looks for an acknowledgement in one poll, some 50 ns.
const AWAIT_ACK: u32 = 64;

/// No link.
pub(crate) const CLOSED: usize = usize::MAX;

/// One side of a link, inside its domain.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C, align(64))]
pub(crate) struct Link {
    pub(crate) rx: Rx,
    /// The peer has taken every record up to here, as last read.
    acked: u64,
    /// The acknowledgement last taken from the slot.
    last_ack: u32,
    /// The queue pair of the last message that came whole, in the slot or with others.
    pub(crate) last_qp: u32,
    /// Polls since something came.
    pub(crate) empty_polls: u32,
    /// Whether messages of both sides cross.
    pub(crate) contention: Contention,
    /// The last message came alone, from a peer that had read everything sent to it.
    pub(crate) ping_pong: bool,
    /// There is a backlog or a refusal, or the link is broken or idle: posts and polls need more
    /// than the fast path.
    pub(crate) slow_path: bool,
    /// Polls need more than the fast path: the link is on the slow path, or responses are due.
    pub(crate) slow_poll: bool,
    /// Polls do not serve it, see [`crate::state::link_scheduler`]. Then it is on the slow path.
    idle: bool,
    /// It always takes the slow path: its queue pair sends no plain message.
    always_slow: bool,
    /// See [`Link::break_off`].
    broken: bool,
    /// The index of its queue pairs' receive queue. A queue pair with another receive queue takes
    /// the slow path.
    pub(crate) rq: usize,
    /// Its slot in the table of its domain.
    pub(crate) index: usize,
    pub(crate) signaled: SignaledQueue,
    /// How long to spin after a reply.
    pub(crate) spin: SpinPolicy,
    /// Whether acknowledgements come with replies, in the shared domain.
    pub(crate) reply: ReplyPolicy,
    pub(crate) tx: Tx,
    /// How much of the traffic comes from the peer.
    share: Share,
    /// The number of queue pairs in SQD, which begin no sends.
    pauses: u32,
    /// The key of the queue pairs that it was made for, see [`crate::state::qp::QpContext::key`].
    pub(crate) key: u32,
    /// Queue pairs with requests that did not fit, in order.
    backlog: VecDeque<u32>,
    /// Responses to READs and atomics, both ways.
    pub(crate) responses: Responses,
    /// A refusal that waits for responses on their way: requests before it are not done.
    pub(crate) deferred_refusal: Option<Refusal>,
    /// Refusals the peer has not settled, oldest first. The first is in this side's line, under
    /// `refusal_number`. Nothing behind it is acknowledged until it is settled, so a failed send
    /// never looks as if it had succeeded.
    refusals: ArrayVec<Refusal, REFUSALS_MAX>,
    refusal_number: u32,
    /// The queue pairs that were refused lately.
    refused: ArrayVec<u32, REFUSALS_MAX>,
    /// The peer's memory, if any of it can be mapped here.
    pub(crate) remote_map: Option<Arc<RemoteMap>>,
    /// The regions from which both sides lend.
    pub(crate) lending: Lending,
    /// Bytes that this poll has copied from the peer's memory.
    pub(crate) pulled: u32,
    /// After a message whose bytes were lent: how many lines behind the first of the next receive
    /// to get while this side waits.
    pub(crate) lent_lines: usize,
    pub(crate) users: u32,
    pub(crate) shared: Arc<LinkShared>,
}

impl Link {
    pub(crate) fn new(shared: Arc<LinkShared>) -> Link {
        let peer_waker =
            || PeerWaker::new(&shared.header, shared.side.peer(), shared.notifier.clone());
        let (out, input) = shared.responses.clone();
        Link {
            index: 0,
            rq: CLOSED,
            last_qp: 0,
            empty_polls: 0,
            tx: Tx::new(shared.out.clone(), peer_waker()),
            rx: Rx::new(shared.input.clone(), peer_waker()),
            signaled: SignaledQueue::new(),
            acked: 0,
            last_ack: 0,
            ping_pong: false,
            spin: SpinPolicy::new(),
            contention: Contention::new(),
            reply: ReplyPolicy::new(),
            slow_path: false,
            slow_poll: false,
            idle: false,
            always_slow: false,
            share: Share::new(),
            pauses: 0,
            key: 0,
            backlog: VecDeque::new(),
            responses: Responses::new(Tx::new(out, peer_waker()), Rx::new(input, peer_waker())),
            deferred_refusal: None,
            refusals: ArrayVec::new(),
            refusal_number: 0,
            refused: ArrayVec::new(),
            broken: false,
            users: 0,
            remote_map: shared.remote_map.clone(),
            lending: Lending::new(shared.header.clone(), shared.side),
            pulled: 0,
            lent_lines: 0,
            shared,
        }
    }

    /// Prefetches what the next message needs, either way.
    pub(crate) fn fetch_ahead(&self) {
        prefetch::fetch(core::ptr::from_ref(self).cast(), offset_of!(Link, backlog));
        self.tx.fetch_ahead();
        self.tx.claim(SLOT_SHORT as u32);
    }

    /// The position up to which this side has taken every record.
    #[inline(always)]
    fn ack_position(&self) -> u64 {
        match self.refusals.first() {
            None => self.rx.at,
            Some(refusal) => refusal.at,
        }
    }

    /// The acknowledgement that goes along with a publication.
    #[inline(always)]
    pub(crate) fn ack(&mut self) -> u64 {
        if self.slow_path {
            return self.slow_path_ack();
        }
        self.rx.note_ack_sent();
        self.rx.at
    }

    #[cold]
    fn slow_path_ack(&mut self) -> u64 {
        if self.refusals.is_empty() {
            self.rx.note_ack_sent();
        }
        self.ack_position()
    }

    /// The position up to which the peer has taken every record, by the slot as last read. Read
    /// only where it matters, and at least once in every segment ([`Link::has_space`]), so that the
    /// low half the peer sends is enough.
    #[inline(always)]
    pub(crate) fn acked(&mut self) -> u64 {
        // Take a new one only: after 4 GiB an old one looks new.
        let peer_ack = self.rx.peer_ack();
        if peer_ack != self.last_ack {
            self.last_ack = peer_ack;
            self.note_ack(peer_ack);
        }
        self.acked
    }

    /// Records the position up to which the peer has taken every record: a step forward, up to what
    /// was published. The space up to there is free as well.
    #[inline(always)]
    pub(crate) fn note_ack(&mut self, upto: u32) {
        let step = u64::from(upto.wrapping_sub(self.acked as u32));
        if step <= self.tx.published() - self.acked {
            // Without news, store nothing.
            if step > 0 {
                self.acked += step;
            }
            self.tx.note_freed(upto);
        }
    }

    /// True if some record on the wire is not acknowledged.
    #[inline(always)]
    pub(crate) fn has_unacked(&mut self) -> bool {
        let published = self.tx.published();
        // Usually the last acknowledgement is new and covers everything.
        let peer_ack = self.rx.peer_ack();
        (peer_ack != published as u32 || peer_ack == self.last_ack) && self.acked() != published
    }

    /// True if a record of that size, published alone, uses the slot: not while messages cross
    /// ([`crate::state::policy::contention`]). A record uses the slot's further lines only if the
    /// peer has read everything. In a stream it is read from the ring anyway, and writing those
    /// lines would cost.
    #[inline(always)]
    pub(crate) fn uses_slot(&mut self, record: u32) -> bool {
        self.contention.allows_slot()
            && (record <= SLOT_FIRST_RECORD || record <= SLOT_SHORT_RECORD && !self.has_unacked())
    }

    /// As [`Link::uses_slot`], for a record of any size that is in the ring already.
    pub(crate) fn uses_long_slot(&mut self, record: u32) -> bool {
        match record <= SLOT_SHORT_RECORD {
            true => self.uses_slot(record),
            false => {
                self.contention.allows_slot() && record <= SLOT_RECORD_MAX && !self.has_unacked()
            }
        }
    }

    /// Nothing has come. While messages cross, the next message will be in the ring alone. This
    /// fetches its lines, so that they come together with the tail. With Poisson arrivals a round
    /// trip of 64 bytes takes 0.92 of the time with the first line alone, and with both 0.94 of
    /// that far, and about as much near. While the peer alone sends, it does nothing: each fetch
    /// would take the line from the peer, which is filling it, and a stream would take 1.3 times as
    /// long.
    #[inline(always)]
    pub(crate) fn fetch_next(&self) {
        if !self.contention.allows_slot() && self.rx.peer_ack() != self.tx.published() as u32 {
            self.rx.fetch_next();
        }
    }

    /// Publishes all that is unpublished in the ring, with an acknowledgement.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        let ack = self.ack();
        self.tx.publish(ack);
    }

    /// Publishes all that is unpublished: in the slot, if it is one message and that helps.
    #[inline(never)]
    pub(crate) fn publish_deferred(&mut self) {
        let pending = self.tx.unpublished();
        if !(self.uses_long_slot(pending) && self.publish_alone()) {
            self.publish();
            // The next doorbell is likely to publish as much.
            match pending {
                ..CLAIM_MIN => {}
                CLAIM_MIN..OWN_BATCH_MAX => self.tx.own(pending),
                _ => self.tx.claim(pending),
            }
        }
        self.tx.renew_defer_limit();
    }

    /// Publishes what is unpublished in the slot, if it is one message.
    #[inline(never)]
    fn publish_alone(&mut self) -> bool {
        let Some(alone) = self.tx.alone_unpublished() else { return false };
        let ack = self.ack();
        self.tx.publish_alone_in_slot(alone, ack);
        true
    }

    /// Notes whether messages that came at once crossed with others: they did, unless it was one
    /// message from a peer that had read everything. True if it was.
    pub(crate) fn note_arrivals(&mut self, messages: usize) -> bool {
        let follows = messages == 1 && self.rx.peer_ack() == self.tx.published() as u32;
        if follows {
            self.contention.note_followed();
        } else if messages > 0 {
            self.contention.note_crossed();
        }
        follows
    }

    /// Reads the peer's own line, if some record is not acknowledged. Returns a refusal found
    /// there: the caller fails the queue pair and then calls `settle_refusal`.
    #[inline(always)]
    pub(crate) fn look_at_taken(&mut self) -> Option<Refusal> {
        if !self.has_unacked() {
            return None;
        }
        self.note_taken();
        self.tx.refusals.read(self.acked)
    }

    /// Reads the peer's own line: how far it has taken records.
    #[inline(always)]
    pub(crate) fn note_taken(&mut self) {
        if let Some(acked) = self.tx.read_taken() {
            self.note_ack(acked);
        }
    }

    /// Reads what the peer has acknowledged by now, in its own line and with messages that are not
    /// read yet.
    pub(crate) fn read_acks(&mut self) {
        self.note_taken();
        let peer_ack = self.rx.peer_ack_now();
        // As in `acked`.
        if peer_ack != self.last_ack {
            self.note_ack(peer_ack);
        }
    }

    /// Nothing more is read or written: the peer broke the rules, or has nobody here to talk to.
    pub(crate) fn break_off(&mut self) {
        self.broken = true;
        self.take_slow_path();
        // No new connection over it.
        self.shared.peer_gone();
    }

    /// True if the link has more work than waiting for the next message.
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        self.needs_service() || !self.signaled.is_empty()
    }

    /// True if the link has more work than waiting for the next message or acknowledgement.
    #[inline(always)]
    pub(crate) fn needs_service(&self) -> bool {
        self.slow_poll || self.rx.ack_is_due() || !self.rx.caught_up()
    }

    /// True if a completion is due, by the slot as last read.
    #[inline(always)]
    pub(crate) fn is_acked(&mut self) -> bool {
        self.signaled.first().is_some_and(|first| self.acked() >= first.end)
    }

    /// As [`Link::is_acked`], as a call: for places where a send seldom waits.
    #[inline(never)]
    pub(crate) fn has_completed(&mut self) -> bool {
        self.is_acked()
    }

    /// True if a completion is due, by the slot as last read or by the peer's own line. While a
    /// completion is awaited, this waits for the latter a little. The peer writes the slot next,
    /// and a look there would take its lines away. If the slot is to bring the acknowledgement as
    /// well, one look is enough.
    #[inline(always)]
    pub(crate) fn await_ack(&mut self) -> bool {
        let Some(first) = self.signaled.first() else { return false };
        let looks = if self.reply.peer_replies { 1 } else { AWAIT_ACK };
        // A post may have read the acknowledgement, and has completed nothing.
        if self.acked() >= first.end {
            return true;
        }
        if (0..looks).any(|_| self.tx.has_new_taken()) {
            // The slot may have told this before.
            self.note_taken();
        }
        self.acked >= first.end
    }

    /// True if a record, a refusal or a response has come. (An idle link waits for no completion
    /// and no space, so acknowledgements do not matter.)
    pub(crate) fn has_news(&self) -> bool {
        self.rx.has_news() || self.has_answers()
    }

    /// True if a refusal or a response has come.
    pub(crate) fn has_answers(&self) -> bool {
        self.tx.refusals.has_new() || self.responses.have_news()
    }

    /// True if only an arrival can make it need service.
    pub(crate) fn may_idle(&self) -> bool {
        !self.is_busy() && self.deferred_refusal.is_none()
    }

    /// True if polls do not serve it.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.slow_path && self.idle
    }

    pub(crate) fn set_idle(&mut self, idle: bool) {
        (self.idle, self.empty_polls) = (idle, 0);
        self.update_slow_path();
    }

    #[inline(always)]
    pub(crate) fn is_broken(&self) -> bool {
        self.slow_path && self.broken
    }

    /// The first queue pair in the backlog.
    #[inline(always)]
    pub(crate) fn first_waiting(&self) -> Option<u32> {
        if self.slow_path { self.backlog.front().copied() } else { None }
    }

    /// Puts a queue pair at the end of the backlog.
    pub(crate) fn let_wait(&mut self, qp: u32) {
        self.backlog.put(qp);
        self.take_slow_path();
    }

    /// The first queue pair leaves the backlog.
    pub(crate) fn first_waits_no_more(&mut self) {
        self.backlog.pop_front();
        self.update_slow_path();
    }

    /// Takes a queue pair out of the backlog, wherever it is.
    pub(crate) fn waits_no_more(&mut self, qp: u32) {
        for _ in 0..self.backlog.len() {
            if let Some(num) = self.backlog.pop_front().filter(|num| *num != qp) {
                self.backlog.put(num);
            }
        }
        self.update_slow_path();
    }

    /// Makes room for every queue pair at once, so that the data plane never grows the backlog.
    /// False: there is no memory for it.
    #[must_use]
    pub(crate) fn reserve_waiting(&mut self) -> bool {
        self.backlog.make_room(self.users as usize)
    }

    /// Queues a response for the peer.
    pub(crate) fn queue_response(&mut self, response: Response) {
        self.responses.put(response);
        self.slow_poll = true;
    }

    /// Takes out the oldest response, which is written whole, or which nobody reads.
    pub(crate) fn pop_response(&mut self) -> Option<Response> {
        let response = self.responses.pop();
        self.update_slow_path();
        response
    }

    /// A READ or an atomic of this side goes out: polls look for its response.
    pub(crate) fn await_response(&mut self) {
        self.responses.note_asked();
        self.slow_poll = true;
    }

    /// That many requests of this side have their response, or nobody waits for it any more.
    pub(crate) fn await_less(&mut self, requests: u32) {
        self.responses.note_over(requests);
        self.update_slow_path();
    }

    /// From now on nothing that is posted here takes the fast path.
    pub(crate) fn always_slow(&mut self) {
        self.always_slow = true;
        self.take_slow_path();
    }

    /// One queue pair enters SQD, or leaves it.
    pub(crate) fn pause(&mut self, on: bool) {
        self.pauses = if on { self.pauses + 1 } else { self.pauses.saturating_sub(1) };
        self.update_slow_path();
    }

    /// A queue pair is reset: its requests on the wire and its responses belong to nobody now.
    pub(crate) fn forget(&mut self, qp: u32) {
        self.signaled.forget(qp);
        self.responses.forget(qp);
    }

    fn take_slow_path(&mut self) {
        (self.slow_path, self.slow_poll) = (true, true);
    }

    /// Recomputes whether posts and polls take the slow path.
    pub(crate) fn update_slow_path(&mut self) {
        self.slow_path = self.broken
            || self.idle
            || self.always_slow
            || self.pauses > 0
            || !self.backlog.is_empty()
            || !self.refusals.is_empty();
        self.slow_poll = self.slow_path || self.responses.are_due();
    }

    /// True if there is space for `bytes`. Reads shared memory only if needed; may write a jump.
    #[inline(always)]
    pub(crate) fn has_space(&mut self, bytes: u32) -> bool {
        self.tx.fits(bytes) || self.find_space(bytes, false)
    }

    /// The space that [`Link::has_space`] has found.
    #[inline(always)]
    pub(crate) fn space(&mut self, bytes: u32) -> Option<Space> {
        if self.has_space(bytes) { self.tx.space(bytes) } else { None }
    }

    /// The same for records that are published together with many others: the ring may grow for
    /// them, if the peer sends as well.
    #[inline(always)]
    pub(crate) fn makes_space(&mut self, bytes: u32) -> bool {
        self.tx.fits(bytes) || self.find_space(bytes, true)
    }

    #[cold]
    #[inline(never)]
    fn find_space(&mut self, bytes: u32, many: bool) -> bool {
        // Reads everything the peer may have acknowledged, once in every segment at least, so that
        // an acknowledgement is never mistaken for one 4 GiB older.
        self.acked();
        if let Some(acked) = self.tx.read_taken() {
            self.note_ack(acked);
        }
        if self.tx.widen(bytes) {
            return true;
        }
        let acked = self.rx.peer_ack_now();
        if acked != self.last_ack {
            self.tx.note_freed(acked);
        }
        let traffic = match many {
            false => Traffic::Alone,
            true if self.share.both_send(self.tx.at, self.rx.at) => Traffic::BothWays,
            true => Traffic::OneWay,
        };
        self.tx.find(bytes, traffic)
    }

    /// Refuses the record in front. A queue pair is refused once. False: the list is full, and the
    /// record stays until the peer has settled a refusal.
    #[cold]
    pub(crate) fn refuse(&mut self, qp: u32, status: Status) -> bool {
        if self.refused.contains(&qp) {
            return true;
        }
        if self.refusals.is_full() {
            return false;
        }
        if self.refused.is_full() {
            self.refused.drop_first(1);
        }
        self.refused.put(qp);
        self.refusals.put(Refusal { at: self.rx.at, qp, status });
        self.take_slow_path();
        if self.refusals.len() == 1 {
            self.show_refusal();
        }
        true
    }

    fn show_refusal(&mut self) {
        if let Some(refusal) = self.refusals.first() {
            self.refusal_number = self.refusal_number.wrapping_add(1);
            self.rx.write_refusal(self.refusal_number, *refusal);
        }
    }

    /// Tells the peer that the refusal just read is settled.
    pub(crate) fn settle_refusal(&mut self) {
        self.rx.settle_refusal(self.tx.refusals.seen());
    }

    /// Shows the next refusal once the peer has settled the one in the line.
    pub(crate) fn attend_refusals(&mut self) {
        if self.refusals.is_empty() {
            return;
        }
        if self.tx.refusals.settled() == self.refusal_number {
            self.refusals.drop_first(1);
            self.show_refusal();
            self.rx.ask();
            self.update_slow_path();
        }
        self.ack_now();
    }

    /// Moves past the record whose header was read, and acknowledges it if that is due.
    pub(crate) fn consume(&mut self, header: Header) {
        self.rx.consume(header);
        if self.rx.ack_is_due() {
            self.ack_now();
        }
        if header.flags().contains(RecordFlags::ACK_REQ) {
            self.rx.ask();
        }
    }

    /// Follows the jump whose header was read. False: no honest peer writes such a jump.
    #[must_use]
    pub(crate) fn jump(&mut self) -> bool {
        let follows = self.rx.jump();
        if self.rx.ack_is_due() {
            self.ack_now();
        }
        follows
    }

    /// Acknowledges in this side's own line, if there is anything new to tell.
    pub(crate) fn ack_now(&mut self) {
        if !self.rx.has_acked() {
            let acked = self.ack_position();
            self.rx.write_ack(acked);
        }
    }
}
