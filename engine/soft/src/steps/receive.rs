//! The receiving side of the device: what a poll does with the records of a link.
//!
//! The checks come in the order of CK-1. A record is consumed only when everything about it
//! is decided. Without a receive it stays in the ring, unacknowledged (RNR). The fast path takes
//! whole messages for queue pairs that have receives; every other record takes the slow path.

use core::sync::atomic::Ordering;

use crate::event::{AsyncKind, Object};
use crate::model::cq::Sink;
use crate::model::memory::MrCache;
use crate::model::send_queue::Sent;
use crate::shm::burst::Burst;
use crate::shm::layout::{
    Header, KIND_ADD, KIND_JUMP, KIND_LENT, KIND_NOTICE, KIND_READ, KIND_SEND, KIND_SHOW,
    KIND_SRQ_NOTICE, KIND_SWAP, KIND_TO_SRQ, KIND_WRITE, RecordFlags, SLOT_SHORT,
};
use crate::shm::reader::SlotRecord;
use crate::shm::refusals::Refusal;
use crate::shm::remote_map::NotLent;
use crate::state::completion::recv_wc;
use crate::state::link::{CLOSED, Link};
use crate::state::policy::copying;
use crate::state::qp::{Assembly, QpContext, Refusing, State};
use crate::state::resources::{Outcome, Resources};
use crate::state::transport::Transport;
use crate::steps::borrow::{self, PULL_MAX, Payload};
use crate::wc::{Status, Wc};
use crate::wr::RecvWr;

/// While nothing comes, a poll reads the peer's own line for acknowledgements in the first empty
/// poll and in every `LOOK_EVERY`-th after it, because acknowledgements usually come with records.
/// A short poll does so if a send waits for one. In the shared domain every poll reads it.
pub(crate) const LOOK_EVERY: u32 = 4;

/// The most records of one link that take the slow path in one poll. Fragments and refusals give no
/// completion, so the sink does not bound them.
const SLOW_MAX: u32 = 64;

/// A message that was taken from the slot, without what its header says. Its completion is made
/// where it is delivered: loads of a completion that a function returns in memory are wider than
/// the stores that wrote it. They wait until those stores leave the store buffer, where they queue
/// behind the payload.
struct Taken {
    wr_id: u64,
    length: u32,
    recv_cq: usize,
}

impl Transport {
    /// Completions out, records in, acknowledgements both ways.
    #[inline(always)]
    pub(crate) fn serve_link<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        // An acknowledgement waits one poll, so that a reply can carry it.
        if link.rx.ack_is_due() {
            link.ack_now();
            if S::THOROUGH {
                link.reply.note_vain();
            } else {
                // A peer that sends without a pause leaves no empty poll to look in.
                self.look_around(link);
            }
        }
        let due = if S::THOROUGH { link.is_acked() } else { !link.signaled.is_empty() };
        if due {
            self.complete(link, sink);
        }
        let came = self.receive_all(link, sink);
        link.empty_polls = if came { 0 } else { link.empty_polls.wrapping_add(1) };
        if link.empty_polls == 1 {
            // This side writes its next message there. By then polls of many other links may have
            // driven the lines out of the nearest cache.
            link.tx.claim(SLOT_SHORT as u32);
        }
        if S::THOROUGH || link.empty_polls % LOOK_EVERY == 1 {
            self.look_around(link);
            if link.responses.may_come() {
                self.take_responses(link, sink);
            }
        }
        if S::THOROUGH {
            self.end_thorough(link, came, sink.may_wait());
        }
        if link.slow_poll {
            self.serve_slow_path(link, sink);
        }
    }

    /// What each poll of the shared domain does at its end: the next may be long in coming. An
    /// acknowledgement may wait for a reply only in a poll of the program.
    #[inline(always)]
    pub(crate) fn end_thorough(&mut self, link: &mut Link, came: bool, may_wait: bool) {
        if came && self.res.receives.is_dry(link.rq) {
            // A message in the slot needs one.
            self.res.receives.prefetch_ahead(link.rq);
        }
        let follows = came && link.reply.note_arrival(link.tx.published());
        let waits = follows && self.res.attended && may_wait;
        if !waits && link.rx.ack_is_due() {
            link.ack_now();
        }
    }

    /// Takes an acknowledgement that has come alone, and nothing else.
    #[inline(never)]
    pub(crate) fn take_ack<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        link.reply.note_ack_alone();
        self.complete(link, sink);
    }

    /// The parts of a link beside its fast path: refusals, responses, the backlog.
    #[cold]
    #[inline(never)]
    fn serve_slow_path<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        link.attend_refusals();
        if self.take_responses(link, sink) {
            // What was acknowledged before the response is known now.
            self.look_around(link);
            self.complete(link, sink);
        }
        self.advance_responses(link);
        self.advance_link(link);
        link.update_slow_path();
    }

    /// Reads what is read only now and then: the peer's own line, for acknowledgements without a
    /// record and for refusals; whether there are responses for which nobody waits; and whether
    /// another domain waits for receives that are prefetched here. True if it has given some back.
    #[inline(never)]
    pub(crate) fn look_around(&mut self, link: &mut Link) -> bool {
        if link.has_unacked()
            && let Some(refusal) = link.deferred_refusal.take().or_else(|| link.look_at_taken())
        {
            self.take_refusal(link, refusal);
        }
        if link.responses.have_news() {
            // Their queue pair has failed. The peer writes the rest only when there is space.
            link.slow_poll = true;
        }
        self.res.receives.give_back()
    }

    /// Prefetches receives for the next message if none are left here, and only for a queue pair
    /// that exists: nobody would give the receives of a removed one back.
    #[inline(always)]
    pub(crate) fn prefetch_receives(&mut self, link: &Link) {
        if self.res.receives.is_dry(link.rq) && self.qps.open_on(link.last_qp, link.index).is_some()
        {
            self.res.receives.prefetch_ahead(link.rq);
        }
    }

    /// Looks at a link without work, in the domain of one poller. Takes a message that has come
    /// alone, and returns its completion. Anything else is left to the full poll.
    #[inline(always)]
    pub(crate) fn receive_alone(&mut self, link: &mut Link) -> Option<Wc> {
        if !link.rx.caught_up() || !link.rx.look() {
            return None;
        }
        self.prefetch_receives(link);
        let Some((wc, ..)) = self.receive_whole_from_slot(link) else {
            if !link.rx.advance() {
                self.cut_off(link);
            }
            return None;
        };
        link.empty_polls = 0;
        // The reply goes there, and may be longer.
        link.tx.claim(SLOT_SHORT as u32);
        Some(wc)
    }

    /// Takes the records left from the last look, looks once more and takes what is new, as far as
    /// the sink has room and nothing must wait. True if that gave completions.
    #[inline(always)]
    fn receive_all<S: Sink>(&mut self, link: &mut Link, sink: &mut S) -> bool {
        if link.is_broken() {
            return false;
        }
        let mut came = false;
        if !link.rx.caught_up() {
            came = self.receive_ring(link, sink);
            if !link.rx.caught_up() {
                return came;
            }
        }
        if !link.rx.look() {
            link.fetch_next();
            return came;
        }
        if S::THOROUGH && link.is_acked() {
            // The new message acknowledges sends. A NIC completes them before it completes the
            // receive of that message.
            self.complete(link, sink);
            link.reply.peer_replies = true;
        }
        if sink.room() > 0
            && let Some((wc, recv_cq, solicited)) = self.receive_whole_from_slot(link)
        {
            self.res.completions.receive(recv_cq, wc, solicited, sink);
            return true;
        }
        if !link.rx.advance() {
            self.cut_off(link);
            return came;
        }
        self.receive_ring(link, sink) || came
    }

    /// Takes records from the ring up to the tail. True if that gave completions.
    #[inline(always)]
    fn receive_ring<S: Sink>(&mut self, link: &mut Link, sink: &mut S) -> bool {
        let room = sink.room();
        if !self.res.receives.is_dry(link.rq) {
            self.receive_burst(link, sink);
        }
        if !link.rx.caught_up() {
            self.receive_rest(link, sink);
        }
        sink.room() != room
    }

    /// Goes on where a burst ended: at a record that is not plain, or has no receive.
    #[cold]
    #[inline(never)]
    fn receive_rest<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        link.pulled = 0;
        for _ in 0..SLOW_MAX {
            if link.pulled >= PULL_MAX {
                return;
            }
            if sink.room() == 0 || !(self.restock(link) || self.receive_slow(link, sink)) {
                return;
            }
            self.receive_burst(link, sink);
            if link.rx.caught_up() {
                return;
            }
        }
    }

    /// Prefetches receives, if that is all the next record lacks. True if there are some now.
    fn restock(&mut self, link: &Link) -> bool {
        let Some(header) = link.rx.header().filter(|header| header.is_whole_send()) else {
            return false;
        };
        let dry = self.res.receives.is_dry(link.rq);
        dry && self.qps.open_on(header.qp(), link.index).is_some()
            && self.res.receives.has_receives(link.rq)
    }

    /// Takes the new record if it is the only one, a whole message in the slot. Returns its
    /// completion, for which queue, and whether its sender wants an event.
    #[inline(always)]
    fn receive_whole_from_slot(&mut self, link: &mut Link) -> Option<(Wc, usize, bool)> {
        let lone = link.rx.slot_record(link.tx.last_in_slot())?;
        let Taken { wr_id, length, recv_cq } = match lone.header.is_plain_send() {
            true => self.receive_from_slot(link, lone),
            false => self.receive_lent_from_slot(link, lone),
        }?;
        let (num, flags) = (lone.header.qp(), lone.header.flags());
        Some((recv_wc(wr_id, num, length, flags, 0), recv_cq, flags.is_solicited()))
    }

    /// The fast path for a record in the slot: a plain message for a queue pair that has a receive.
    /// `None`: nothing was done; the record is in the ring as well.
    #[inline(always)]
    fn receive_from_slot(&mut self, link: &mut Link, lone: SlotRecord) -> Option<Taken> {
        let header = lone.header;
        let rq = self.res.receives.get_mut(link.rq)?;
        let (wr, mr_cache) = rq.prefetch.ready_first()?;
        mr_cache.renew(&self.res.nic.memory);
        let (length, wr_id) = (header.length(), wr.wr_id);
        if length > wr.sge.length {
            return None;
        }
        let to = mr_cache.target(&self.res.nic.memory, wr.sge, length)?;
        let recv_cq = self.qps.open_on(header.qp(), link.index)?;
        if !link.rx.take_from_slot(lone, to) {
            return None;
        }
        if header.flags().contains(RecordFlags::ACK_REQ) {
            link.rx.ask();
        }
        rq.prefetch.advance(1);
        link.last_qp = header.qp();
        link.ping_pong = link.note_arrivals(1);
        Some(Taken { wr_id, length, recv_cq })
    }

    /// The same for a message whose bytes the sender lends. `None`: nothing was consumed; bytes may
    /// have been written to the next receive.
    #[cold]
    #[inline(never)]
    fn receive_lent_from_slot(&mut self, link: &mut Link, lone: SlotRecord) -> Option<Taken> {
        let offer = link.rx.offer_in_slot(lone)?;
        let (header, length) = (lone.header, offer.length);
        let rq = self.res.receives.get_mut(link.rq)?;
        let (wr, mr_cache) = rq.prefetch.ready_first()?;
        mr_cache.renew(&self.res.nic.memory);
        if length > wr.sge.length {
            return None;
        }
        let (wr_id, to) = (wr.wr_id, mr_cache.target(&self.res.nic.memory, wr.sge, length)?);
        let recv_cq = self.qps.open_on(header.qp(), link.index)?;
        let peer = self.qps.get_mut(header.qp())?.peer;
        borrow::pull(link, peer, offer, to).ok()?;
        link.lent_lines = copying::lines_to_own(length);
        link.rx.take_lone(lone);
        if header.flags().contains(RecordFlags::ACK_REQ) {
            link.rx.ask();
        }
        rq.prefetch.advance(1);
        link.last_qp = header.qp();
        link.ping_pong = link.note_arrivals(1);
        Some(Taken { wr_id, length, recv_cq })
    }

    /// The fast path for records in the ring: whole messages for queue pairs that have receives.
    /// Stops before the first record that is anything else.
    #[inline(never)]
    fn receive_burst<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        let Some(rq) = self.res.receives.get_mut(link.rq) else { return };
        let memory = &self.res.nic.memory;
        let (wrs, mr_cache) = rq.prefetch.ready();
        mr_cache.renew(memory);
        let mut burst = link.rx.burst();
        let from = burst.at();
        let (mut used, mut seen) = (0, 0);
        let mut last_qp = link.last_qp;
        while let Some(wr) = wrs.get(used)
            && sink.room() > 0
            && let Some((header, record)) = burst.next()
        {
            let (num, length) = (header.qp(), header.length());
            let Some(recv_cq) = self.qps.open_on(num, link.index) else { break };
            if header.is_like(Header::plain_for(num)) && burst.has_more(record) {
                let rest = wrs.get(used..).unwrap_or_default();
                let run = sink.fill(|places| receive_run(&mut burst, num, rest, mr_cache, places));
                used += run;
                if run > 0 {
                    last_qp = num;
                    continue;
                }
            }
            if !header.is_whole_send() || length > wr.sge.length {
                break;
            }
            let Some(to) = mr_cache.target(memory, wr.sge, length) else { break };
            burst.fetch(header, to);
            let wc = recv_wc(wr.wr_id, num, length, header.flags(), burst.immediate(header));
            burst.consume(record);
            seen |= header.flags().bits();
            (used, last_qp) = (used + 1, num);
            let solicited = header.flags().is_solicited();
            self.res.completions.receive(recv_cq, wc, solicited, sink);
        }
        rq.prefetch.advance(used as u32);
        link.last_qp = last_qp;
        if used > 1 {
            burst.own_since(from);
        }
        link.rx.end_burst(&burst);
        link.note_arrivals(used);
        if link.rx.ack_is_due() {
            link.ack_now();
        }
        if seen & RecordFlags::ACK_REQ.bits() != 0 {
            link.rx.ask();
        }
    }

    /// Takes one record of any other kind as the ring holds it: the slot may be half rewritten.
    /// False: the record stays, and the link stands still.
    #[cold]
    #[inline(never)]
    fn receive_slow<S: Sink>(&mut self, link: &mut Link, sink: &mut S) -> bool {
        let outcome = match link.rx.header() {
            Some(header) => self.receive_record(link, header, sink),
            None => Outcome::Hostile,
        };
        if outcome == Outcome::Hostile {
            self.cut_off(link);
        }
        outcome == Outcome::Done
    }

    /// The record of a request, of any kind.
    fn receive_record<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        sink: &mut S,
    ) -> Outcome {
        match header.kind() {
            KIND_SEND | KIND_WRITE | KIND_READ | KIND_SWAP | KIND_ADD | KIND_NOTICE => {}
            KIND_TO_SRQ | KIND_SRQ_NOTICE | KIND_LENT => {}
            KIND_SHOW if link.take_show(header) => return Outcome::Done,
            KIND_JUMP if header == Header::JUMP && link.jump() => return Outcome::Done,
            _ => return Outcome::Hostile,
        }
        let res = &mut self.res;
        let Some(qp) = self.qps.get_mut(header.qp()) else {
            return res.receive_for_nobody(link, header, None);
        };
        if qp.link == link.index && qp.state.is_unreliable() {
            return res.receive_unreliable(link, header, qp, sink);
        }
        if qp.link != link.index || qp.state != State::Rts {
            let ours = link.key == qp.key;
            return res.receive_for_nobody(link, header, ours.then_some(qp.state));
        }
        if qp.sender_gone {
            link.consume(header);
            return Outcome::Done;
        }
        if let Some(statuses) = qp.refusing {
            return res.refuse(link, header, qp, statuses, sink);
        }
        if qp.kind.is_xrc() || matches!(header.kind(), KIND_TO_SRQ | KIND_SRQ_NOTICE) {
            return res.receive_xrc(link, header, qp, sink);
        }
        if !qp.is_in_order(header, KIND_SEND) {
            return res.refuse_invalid(link, header, qp, sink);
        }
        if !header.is_send() {
            return res.receive_one_sided(link, header, qp, sink);
        }
        if qp.assembly.is_none() && !res.receives.has_receive(qp) {
            return res.wait_for_receive(link, header, qp, sink);
        }
        res.receive_fragment(link, header, qp, sink)
    }

    /// The peer refuses a record: our queue pair, which sent it, fails there.
    #[cold]
    #[inline(never)]
    fn take_refusal(&mut self, link: &mut Link, refusal: Refusal) {
        let sent_it = |qp: &&mut QpContext| {
            qp.link == link.index && qp.peer == refusal.qp && qp.state == State::Rts
        };
        if let Some(qp) = self.qps.iter_mut().find(sent_it) {
            if qp.awaits_response_before(refusal.at) {
                // Its response comes first.
                link.deferred_refusal = Some(refusal);
                return;
            }
            if refusal.status != Status::Success && names_our_request(qp, refusal.at) {
                self.res.fail_qp(qp, refusal.at, Some(refusal.status));
            }
        }
        link.settle_refusal();
    }

    /// The peer wrote what no honest peer writes: all its connections end, and no others.
    #[cold]
    pub(crate) fn cut_off(&mut self, link: &mut Link) {
        link.break_off();
        let acked = link.acked();
        for qp in self.qps.iter_mut().filter(|qp| qp.link == link.index) {
            self.res.fail_qp(qp, acked, Some(Status::RetryExceeded));
        }
    }
}

impl Resources {
    /// One fragment of a message, or a whole one. The first fragment takes a receive, the last
    /// completes it.
    pub(crate) fn receive_fragment<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let Assembly { wr, received } = match qp.assembly {
            Some(assembly) => assembly,
            None => {
                let Some(wr) = self.receives.take(qp) else { return Outcome::Waits };
                qp.open_on = CLOSED;
                *qp.assembly.insert(Assembly { wr, received: 0 })
            }
        };
        let Some(payload) = Payload::of(link, header) else { return Outcome::Hostile };
        let length = payload.length();
        if length > wr.sge.length - received {
            let statuses = (Some(Status::LocalLength), Status::RemoteInvalidRequest);
            return self.refuse(link, header, qp, statuses, sink);
        }
        if header.flags().contains(RecordFlags::INV)
            && !self.nic.memory.invalidate(link.rx.immediate(header), qp.num)
        {
            let statuses = (Some(Status::Flushed), Status::RemoteAccess);
            return self.refuse(link, header, qp, statuses, sink);
        }
        let Some(to) = self.receives.buffer(qp, &wr, (received, length)) else {
            let statuses = (Some(Status::LocalProtection), Status::RemoteOperation);
            return self.refuse(link, header, qp, statuses, sink);
        };
        match payload.fetch(link, (header, qp.peer), to) {
            Ok(()) => {}
            Err(NotLent::SenderGone) => {
                qp.sender_gone = true;
                link.consume(header);
                return Outcome::Done;
            }
            Err(NotLent::Nowhere) => {
                return self.refuse(link, header, qp, (None, Status::LocalProtection), sink);
            }
        }
        let flags = header.flags();
        let imm = link.rx.immediate(header);
        link.consume(header);
        if !flags.contains(RecordFlags::LAST) {
            qp.assembly = Some(Assembly { wr, received: received + length });
            return Outcome::Done;
        }
        qp.assembly = None;
        qp.open_on = CLOSED;
        if link.rq == qp.rq {
            // The next message is probably for it as well.
            (qp.open_on, link.last_qp) = (link.index, qp.num);
        }
        let wc = recv_wc(wr.wr_id, qp.num, received + length, flags, imm);
        self.completions.receive(qp.recv_cq, wc, flags.is_solicited(), sink);
        Outcome::Done
    }

    /// A record for a queue pair that does not exist, is not on this link, is not ready, or is
    /// dead.
    fn receive_for_nobody(
        &mut self,
        link: &mut Link,
        header: Header,
        state: Option<State>,
    ) -> Outcome {
        let waits = self.attention.load(Ordering::Acquire);
        if header.flags().contains(RecordFlags::UNRELIABLE) && !waits {
            link.consume(header);
            return Outcome::Done;
        }
        if state == Some(State::Init) || waits {
            // It is being connected, or the command that connects it waits to be carried out.
            return Outcome::Waits;
        }
        if !link.refuse(header.qp(), Status::RetryExceeded) {
            return Outcome::Waits;
        }
        link.consume(header);
        Outcome::Done
    }

    /// RNR: the record stays until the peer's retry limit is reached, if it has one (RC-1).
    pub(crate) fn wait_for_receive<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let retries = link.shared.peer_rnr_retry().unwrap_or(qp.rnr_retry);
        if retries == 7 {
            return Outcome::Waits;
        }
        // Closes the fast path meanwhile, so that the next message clears the wait.
        qp.open_on = CLOSED;
        let now = (self.nic.host.clock)();
        let since = *qp.rnr_since_ns.get_or_insert(now);
        let limit = qp.rnr_timer_ns.saturating_mul(u64::from(retries) + 1);
        let end = since.saturating_add(limit);
        if now < end {
            self.look_again_at(end, now);
            return Outcome::Waits;
        }
        let statuses = (None, Status::RnrRetryExceeded);
        self.refuse(link, header, qp, statuses, sink)
    }

    /// Refuses a record that no honest sender writes there.
    pub(crate) fn refuse_invalid<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let status = Status::RemoteInvalidRequest;
        let here = header.is_send().then_some(status);
        self.refuse(link, header, qp, (here, status), sink)
    }

    /// Refuses a record: the peer gets the second status, and this queue pair goes to ERR (SM-3).
    /// With a first status, the receive that the record would use completes with it. A receive that
    /// an unfinished message has taken completes in any case. [`Outcome::Waits`]: earlier responses
    /// go first, or the peer has not settled enough refusals.
    pub(crate) fn refuse<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        (here, there): Refusing,
        sink: &mut S,
    ) -> Outcome {
        // Earlier responses go first: a request that succeeded must not look as if it had failed.
        let (at, is_loop) = (link.rx.at, link.shared.is_loop());
        let waits = qp.pending_reads > 0 || is_loop && qp.awaits_response_before(at);
        if waits || !link.refuse(header.qp(), there) {
            // The record has left its mark here, such as a receive: do not judge it again.
            qp.refusing = Some((here, there));
            return Outcome::Waits;
        }
        let taken = match (qp.assembly.take(), here) {
            (Some(assembly), _) => Some(assembly.wr),
            (None, Some(_)) => self.receives.take(qp),
            (None, None) => None,
        };
        if let Some(RecvWr { wr_id, .. }) = taken {
            let status = here.unwrap_or(Status::Flushed);
            self.completions.receive_failed(qp, wr_id, status, sink);
        }
        link.consume(header);
        let kind = match there {
            Status::RemoteAccess => Some(AsyncKind::QpAccessError),
            Status::RemoteInvalidRequest if here.is_none() => Some(AsyncKind::QpRequestError),
            _ => None,
        };
        if let Some(kind) = kind {
            self.nic.raise(kind, Object::Qp(qp.num));
        }
        match is_loop {
            // It is the sender too, and reads no refusal once it has failed.
            true => self.fail_qp(qp, at, Some(there)),
            false => self.fail_qp(qp, link.acked(), None),
        }
        Outcome::Done
    }
}

/// Takes consecutive plain messages for one open queue pair into these receives, as long as the
/// receives have one length and lie in the region used last; returns how many. It is a function of
/// its own so that everything it uses stays in registers.
#[inline(never)]
fn receive_run(
    burst: &mut Burst,
    qp: u32,
    wrs: &[RecvWr],
    mr_cache: &MrCache,
    places: &mut [Wc],
) -> usize {
    let Some(first) = wrs.first().map(|wr| wr.sge) else { return 0 };
    let Some(starts) = mr_cache.starts(first) else { return 0 };
    let mut plain = burst.plain(Header::plain_for(qp));
    let blank = recv_wc(0, qp, 0, RecordFlags::empty(), 0);
    let room = places.len();
    let mut places = places.iter_mut();
    for wr in wrs {
        if !wr.sge.is_like(first) {
            break;
        }
        let Some(to) = starts.target(wr.sge.addr) else { break };
        let Some(next) = plain.next(to) else { break };
        let Some(place) = places.next() else { break };
        *place = Wc { wr_id: wr.wr_id, byte_len: next.length(), ..blank };
        plain.take(next);
    }
    burst.end_plain(&plain);
    room - places.len()
}

/// True if a request of this queue pair that is not yet done begins at that position.
fn names_our_request(qp: &mut QpContext, position: u64) -> bool {
    let mut index = qp.sq.completed;
    while index != qp.sq.posted {
        let entry = *qp.sq.entry(index);
        if !entry.sent.contains(Sent::ON_WIRE) {
            // It is cut into fragments, and the first of them is on the wire already.
            return qp.sq.sent_bytes > 0 && index == qp.sq.sent;
        }
        if position < entry.end {
            return true;
        }
        index = index.wrapping_add(1);
    }
    false
}
