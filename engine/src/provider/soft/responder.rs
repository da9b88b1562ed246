//! The receiving side of the device: what a poll does with the records of a link.
//!
//! The checks come in the order of section 2.5. A record is consumed only when everything about
//! it is decided; without a receive it stays where it is, unacknowledged (RNR). The fast path is
//! a whole message for a queue pair that has a receive for it; everything else is slow.
#![expect(unsafe_code, reason = "writes to posted receive buffers")]

use core::sync::atomic::Ordering;

use super::cq::{Retire, Sink};
use super::domain::{Inside, qp_in};
use super::layout::{
    Header, KIND_ADD, KIND_ANSWER, KIND_NOTICE, KIND_READ, KIND_SEND, KIND_SWAP, KIND_WRITE,
    RecordFlags,
};
use super::link::Link;
use super::nic::QPS;
use super::qp::{Assembly, CLOSED, QpContext, Sent, State};
use super::requester::error_wc;
use super::ring::{Burst, Refusal};
use crate::provider::{Access, Sharing};
use crate::wc::{Status, Wc, WcFlags, WcOpcode};
use crate::wr::RecvWr;

/// Of polls in which nothing came in, the first and every such-and-such after it look at the
/// peer's own line for acknowledgements: usually they come with its records. In the shared domain
/// every poll looks.
const LOOK_EVERY: u32 = 4;

/// Records of one link and poll that take the slow way at most: fragments and refusals give no
/// completion, and a poll is one bounded step.
const SLOW_MAX: u32 = 64;

impl Inside {
    /// One pass over everything there is to do, until the sink is full. Links are served in
    /// turn, so that a busy one cannot starve the others.
    #[inline(always)]
    pub(super) fn progress<S: Sink>(&mut self, sink: &mut S) {
        let room = sink.room();
        if !self.todo.is_empty() {
            self.attend_todo(sink);
        }
        let links = self.links.len();
        if links == 1 {
            self.serve(0, sink);
        } else {
            let first = self.turn;
            for step in 0..links {
                let index = if first + step < links { first + step } else { first + step - links };
                self.serve(index, sink);
            }
            self.turn = if first + 1 < links { first + 1 } else { 0 };
        }
        if sink.room() == room {
            self.give_back();
        }
    }

    /// Gives back what was fetched ahead and another domain waits for.
    #[inline(always)]
    fn give_back(&mut self) {
        for rq in &mut self.rqs {
            if rq.queue.is_wanted() && rq.stash.len() > 0 {
                rq.queue.give_back(&mut rq.stash);
            }
        }
    }

    /// Serves one link. It is taken out of its place meanwhile, so that it can be used beside
    /// everything else of the domain.
    #[inline(always)]
    fn serve<S: Sink>(&mut self, index: usize, sink: &mut S) {
        let Some(place) = self.links.get_mut(index) else { return };
        let Some(mut link) = place.take() else { return };
        self.serve_link(&mut link, sink);
        self.links[index] = Some(link);
    }

    /// Completions out, records in, acknowledgements both ways.
    #[inline(always)]
    fn serve_link<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        // An acknowledgement waits one poll, so that a reply can carry it.
        let asked_before = link.asked;
        self.complete(link, sink);
        let room = sink.room();
        self.receive_all(link, sink);
        link.quiet = if sink.room() == room { link.quiet.wrapping_add(1) } else { 0 };
        if (link.quiet % LOOK_EVERY == 1 || self.sharing == Sharing::Shared)
            && link.tx.waits(link.safe)
            && let Some(refusal) = link.unheard.take().or_else(|| link.look_at_taken())
        {
            self.take_refusal(link, refusal);
        }
        if link.asked && (asked_before || self.sharing == Sharing::Shared) || link.rx.owes() {
            link.tell_now();
        }
        if !link.refusals.is_empty() {
            link.attend_refusals();
        }
        if !link.answers.is_empty() {
            self.advance_answers(link);
        }
        if !link.backlog.is_empty() {
            self.advance_link(link);
        }
    }

    /// Takes records until there are none, the sink is full, or one must wait.
    #[inline(always)]
    fn receive_all<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        let mut slow = 0;
        while sink.room() > 0 && !link.broken && slow < SLOW_MAX {
            if link.rx.caught_up() {
                let Some(word) = link.rx.look() else { return };
                link.note_ack((word >> 32) as u32);
                if !link.rx.advance(word as u32) {
                    return self.cut_off(link);
                }
                if link.rx.caught_up() {
                    return;
                }
            }
            if let Some(burst) = link.rx.burst() {
                self.receive_burst(link, burst, sink);
                if link.rx.caught_up() || sink.room() == 0 {
                    continue;
                }
            }
            let Some(header) = link.rx.header() else { return self.cut_off(link) };
            if self.receive(link, header, sink) {
                continue;
            }
            slow += 1;
            if !self.receive_slow(link, header, sink) {
                return;
            }
        }
    }

    /// The fast path for several records in the ring: plain messages for queue pairs that have
    /// receives. Stops before the first record that is anything else.
    #[inline(always)]
    fn receive_burst<S: Sink>(&mut self, link: &mut Link, mut burst: Burst, sink: &mut S) {
        let Some(rq) = self.rqs.get_mut(link.rq) else { return };
        // The last queue pair found: a batch is usually for one.
        let mut known: Option<(u32, usize)> = None;
        let mut asked = false;
        while sink.room() > 0
            && let Some((header, record)) = burst.next()
            && header.is_plain_send()
        {
            let Some(wr) = rq.stash.first() else { break };
            let (sge, wr_id, length) = (wr.sge, wr.wr_id, header.length());
            let recv_cq = match known {
                Some((num, recv_cq)) if num == header.qp() => recv_cq,
                _ => {
                    let Some(qp) = self.qps[header.qp() as usize % QPS] else { break };
                    // SAFETY: a box this domain owns; nobody else holds a reference during a poll.
                    let qp = unsafe { qp.as_ref() };
                    if qp.num != header.qp() || qp.open_on != link.index {
                        break;
                    }
                    known = Some((qp.num, qp.recv_cq));
                    qp.recv_cq
                }
            };
            let allows = || self.nic.memory.allows(sge.lkey, sge.addr, length, Access::LOCAL_WRITE);
            if length > sge.length || (length > 0 && !allows()) {
                break;
            }
            // SAFETY: the poster of the receive vouches for the buffer; key, bounds and right
            // were just checked.
            unsafe { burst.fetch(header, sge.addr as *mut u8) };
            asked |= header.flags().contains(RecordFlags::ASK);
            burst.consume(record);
            rq.stash.advance();
            let wc = recv_wc(wr_id, header.qp(), length, header.flags(), 0);
            sink.put(&mut self.cqs, recv_cq, wc, Retire::default());
        }
        link.asked |= asked;
        link.rx.end_burst(&burst);
    }

    /// The fast path for one record. False: nothing was done, look closer.
    #[inline(always)]
    fn receive<S: Sink>(&mut self, link: &mut Link, header: Header, sink: &mut S) -> bool {
        // What does not depend on the header comes first: it is ready when the header arrives.
        let Some(rq) = self.rqs.get_mut(link.rq) else { return false };
        let Some(wr) = rq.stash.first() else { return false };
        let (sge, wr_id) = (wr.sge, wr.wr_id);
        if !header.is_whole_send() {
            return false;
        }
        let Some(qp) = self.qps[header.qp() as usize % QPS] else { return false };
        // SAFETY: a box this domain owns; nobody else holds a reference during a poll.
        let qp = unsafe { &mut *qp.as_ptr() };
        if qp.num != header.qp() || qp.open_on != link.index {
            return false;
        }
        let length = header.length();
        let allows = || self.nic.memory.allows(sge.lkey, sge.addr, length, Access::LOCAL_WRITE);
        if length > sge.length || (length > 0 && !allows()) {
            return false;
        }
        // SAFETY: the poster of the receive vouches for the buffer; key, bounds and right were
        // just checked.
        if !unsafe { link.rx.fetch(header, sge.addr as *mut u8) } {
            // The bell changed while it was read; the ring is read next.
            return true;
        }
        let imm = link.rx.immediate(header);
        link.asked |= header.flags().contains(RecordFlags::ASK);
        link.rx.consume(header);
        rq.stash.advance();
        let wc = recv_wc(wr_id, qp.num, length, header.flags(), imm);
        sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        true
    }

    /// Everything else. Decided only on what the ring says, never on a bell that may be half
    /// rewritten. False: the record stays, and the link stands still.
    #[cold]
    #[inline(never)]
    fn receive_slow<S: Sink>(&mut self, link: &mut Link, header: Header, sink: &mut S) -> bool {
        if link.rx.leave_bell() {
            return true;
        }
        match header.kind() {
            KIND_ANSWER => return self.take_answer(link, header),
            KIND_SEND | KIND_WRITE | KIND_READ | KIND_SWAP | KIND_ADD | KIND_NOTICE => {}
            _ => {
                self.cut_off(link);
                return false;
            }
        }
        let Some(qp) = qp_in(&self.qps, header.qp()) else {
            return self.receive_for_nobody(link, header, None);
        };
        // SAFETY: as in `receive`.
        let qp = unsafe { &mut *qp.as_ptr() };
        if qp.link != link.index || qp.state != State::Rts {
            return self.receive_for_nobody(link, header, Some(qp.state));
        }
        let writes = header.kind() == KIND_WRITE;
        let first = header.flags().contains(RecordFlags::FIRST);
        let in_order = match (qp.assembly, qp.writing) {
            (Some(_), _) => header.kind() == KIND_SEND && !first,
            (None, Some(_)) => writes && !first,
            (None, None) => first,
        };
        if !in_order {
            return self.refuse_invalid(link, header, qp, sink);
        }
        if header.kind() != KIND_SEND {
            return self.receive_one_sided(link, header, qp, sink);
        }
        if qp.assembly.is_none() && !self.has_receive(qp) {
            return self.wait_for_receive(link, header, qp, sink);
        }
        self.receive_fragment(link, header, qp, sink)
    }

    /// True if there is a receive for the queue pair's next message.
    pub(super) fn has_receive(&mut self, qp: &mut QpContext) -> bool {
        let exact = self.sharing == Sharing::Shared;
        let rq = &mut self.rqs[qp.rq];
        if rq.stash.len() == 0 {
            rq.queue.fetch(&mut rq.stash, exact);
        }
        let found = rq.stash.len() > 0;
        if found {
            qp.rnr_since_ns = None;
        }
        found
    }

    /// One fragment of a message, or a whole one: the first takes a receive, the last completes
    /// it.
    fn receive_fragment<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> bool {
        let Assembly { wr, received } = match qp.assembly {
            Some(assembly) => assembly,
            None => {
                let Some(wr) = self.take_receive(qp) else { return false };
                qp.open_on = CLOSED;
                *qp.assembly.insert(Assembly { wr, received: 0 })
            }
        };
        let length = header.length();
        if length > wr.sge.length - received {
            let statuses = (Some(Status::LocalLength), Status::RemoteInvalidRequest);
            return self.refuse(link, header, qp, statuses, sink);
        }
        let to = wr.sge.addr + u64::from(received);
        if length > 0 && !self.nic.memory.allows(wr.sge.lkey, to, length, Access::LOCAL_WRITE) {
            let statuses = (Some(Status::LocalProtection), Status::RemoteOperation);
            return self.refuse(link, header, qp, statuses, sink);
        }
        // SAFETY: as in `receive`.
        if !unsafe { link.rx.fetch(header, to as *mut u8) } {
            return true;
        }
        let flags = header.flags();
        let imm = link.rx.immediate(header);
        link.asked |= flags.contains(RecordFlags::ASK);
        link.rx.consume(header);
        if link.rx.owes() {
            link.tell_now();
        }
        if !flags.contains(RecordFlags::LAST) {
            qp.assembly = Some(Assembly { wr, received: received + length });
            return true;
        }
        qp.assembly = None;
        qp.open_on = if link.rq == qp.rq { link.index } else { CLOSED };
        let wc = recv_wc(wr.wr_id, qp.num, received + length, flags, imm);
        sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        true
    }

    /// A record for a queue pair that is not there, not on this link, not ready, or dead.
    fn receive_for_nobody(
        &mut self,
        link: &mut Link,
        header: Header,
        state: Option<State>,
    ) -> bool {
        if state == Some(State::Init) || self.attention.load(Ordering::Acquire) {
            // Being connected, or the command that does it is still to be read: it stays.
            return false;
        }
        let noted = link.refuse(header.qp(), Status::RetryExceeded);
        if noted {
            link.rx.consume(header);
        }
        noted
    }

    /// RNR: the record stays, unless the peer's patience has a limit and it is reached (RC-1).
    pub(super) fn wait_for_receive<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> bool {
        if qp.rnr_retry == 7 {
            return false;
        }
        // The fast path is closed meanwhile, so that the wait is forgotten with the next message.
        qp.open_on = CLOSED;
        let now = (self.nic.host.clock)();
        let since = *qp.rnr_since_ns.get_or_insert(now);
        let patience = qp.rnr_timer_ns.saturating_mul(u64::from(qp.rnr_retry) + 1);
        if now.saturating_sub(since) < patience {
            return false;
        }
        let statuses = (None, Status::RnrRetryExceeded);
        self.refuse(link, header, qp, statuses, sink)
    }

    /// Refuses a record that no honest sender writes there.
    fn refuse_invalid<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> bool {
        let status = Status::RemoteInvalidRequest;
        let here = (header.kind() == KIND_SEND).then_some(status);
        self.refuse(link, header, qp, (here, status), sink)
    }

    /// Refuses a record: the receive it would have used, if it is of that kind, completes with the
    /// first status, the peer hears the second, and this queue pair is in error (SM-3). False: it
    /// has to wait.
    pub(super) fn refuse<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        (here, there): (Option<Status>, Status),
        sink: &mut S,
    ) -> bool {
        // What it asked for before comes first: of requests done, none may look as if it had
        // failed.
        if qp.owed > 0 || !link.refuse(header.qp(), there) {
            return false;
        }
        let taken = match (qp.assembly.take(), here) {
            (Some(assembly), _) => Some(assembly.wr),
            (None, Some(_)) => self.take_receive(qp),
            (None, None) => None,
        };
        if let Some(RecvWr { wr_id, .. }) = taken {
            let wc = error_wc(wr_id, qp.num, here.unwrap_or(Status::Flushed));
            sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        }
        link.rx.consume(header);
        self.fail_qp(qp, link.safe, None);
        true
    }

    pub(super) fn take_receive(&mut self, qp: &QpContext) -> Option<RecvWr> {
        let rq = &mut self.rqs[qp.rq];
        let wr = rq.stash.first().copied()?;
        rq.stash.advance();
        Some(wr)
    }

    /// The peer refuses what one of its queue pairs was sent: ours, which sent it, fails there.
    #[cold]
    #[inline(never)]
    fn take_refusal(&mut self, link: &mut Link, refusal: Refusal) {
        let slot = self.qps.iter().flatten().find(|qp| {
            // SAFETY: boxes this domain owns.
            let qp = unsafe { qp.as_ref() };
            qp.link == link.index && qp.peer == refusal.qp && qp.state == State::Rts
        });
        if let Some(slot) = slot.copied() {
            // SAFETY: as in `receive`.
            let qp = unsafe { &mut *slot.as_ptr() };
            if let Some(ask) = qp.oldest_ask()
                && qp.entry(ask).end <= refusal.at
            {
                // Its answer comes first.
                link.unheard = Some(refusal);
                return;
            }
            if refusal.status != Status::Success && names_our_request(qp, refusal.at) {
                self.fail_qp(qp, refusal.at, Some(refusal.status));
            }
        }
        link.settle_refusal();
    }

    /// The peer wrote what no honest peer writes: its connections end, nothing else does.
    #[cold]
    pub(super) fn cut_off(&mut self, link: &mut Link) {
        link.broken = true;
        // No new connection over it.
        link.shared.peer_gone();
        for slot in 0..self.qps.len() {
            let Some(qp) = self.qps[slot] else { continue };
            // SAFETY: as in `receive`.
            let qp = unsafe { &mut *qp.as_ptr() };
            if qp.link == link.index {
                self.fail_qp(qp, link.safe, Some(Status::RetryExceeded));
            }
        }
    }
}

/// True if the position is where a request of this queue pair that is not yet done begins.
fn names_our_request(qp: &mut QpContext, position: u64) -> bool {
    let mut index = qp.completed;
    while index != qp.posted {
        let entry = *qp.entry(index);
        if !entry.sent.contains(Sent::ON_WIRE) {
            // Cut in fragments, the first of them on the wire already.
            return qp.sent_bytes > 0 && index == qp.sent;
        }
        if position < entry.end {
            return true;
        }
        index = index.wrapping_add(1);
    }
    false
}

#[inline(always)]
pub(super) fn recv_wc(wr_id: u64, qp_num: u32, byte_len: u32, record: RecordFlags, imm: u32) -> Wc {
    let imm_flag = record.contains(RecordFlags::IMM);
    Wc {
        wr_id,
        qp_num,
        byte_len,
        imm,
        vendor_err: 0,
        status: Status::Success,
        opcode: WcOpcode::Recv,
        flags: if imm_flag { WcFlags::WITH_IMM } else { WcFlags::empty() },
    }
}
