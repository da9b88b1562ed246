//! The receiving side of the device: what a poll does with the records of a link.
//!
//! The checks come in the order of section 2.5. A record is consumed only when everything about
//! it is decided; without a receive it stays where it is, unacknowledged (RNR).
#![expect(unsafe_code, reason = "writes to posted receive buffers")]

use core::sync::atomic::Ordering;

use super::cq::{Retire, Sink};
use super::domain::{Inside, qp_in};
use super::layout::{Header, KIND_SEND, RecordFlags};
use super::link::reached;
use super::qp::{Assembly, QpContext, Sent, State};
use super::requester::error_wc;
use super::ring::{Peek, Refusal};
use crate::provider::{Access, Sharing};
use crate::wc::{Status, Wc, WcFlags, WcOpcode};
use crate::wr::RecvWr;

/// What became of the record in front.
enum Fate {
    /// Consumed; go on.
    Done,
    /// It must wait; the link stands still.
    Wait,
    /// Look at it again: it came from the bell and has to be read from the ring.
    Again,
    /// Handled somewhere off the fast path.
    Odd(Odd),
}

/// The uncommon things a record may be.
enum Odd {
    /// No queue pair takes it.
    Nobody,
    /// The queue pair that should take it has no receive.
    NotReady,
    /// It breaks a rule: status here, status there.
    Refused(Status, Status),
}

impl Inside {
    /// One pass over everything there is to do, until the sink is full. Links are served in
    /// turn, so that a busy one cannot starve the others.
    #[inline(always)]
    pub(super) fn progress<S: Sink>(&mut self, sink: &mut S) {
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
        for rq in &mut self.rqs {
            if rq.queue.is_wanted() && rq.stash.len() > 0 {
                rq.queue.give_back(&mut rq.stash);
            }
        }
    }

    /// Serves one link: records in, completions out, acknowledgements both ways.
    #[inline(always)]
    pub(super) fn serve<S: Sink>(&mut self, index: usize, sink: &mut S) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        // An acknowledgement waits one poll, so that a reply can carry it.
        let asked_before = link.asked;
        if let Some(refusal) = link.look_at_taken() {
            self.take_refusal(index, refusal);
        }
        self.complete(index, sink);
        while sink.room() > 0 && self.receive(index, sink) {}
        let shared = self.sharing == Sharing::Shared;
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        if link.asked && (asked_before || shared) || link.rx.owes() {
            link.tell_now();
        }
        if !link.refusals.is_empty() {
            link.attend_refusals();
        }
        if !link.backlog.is_empty() {
            self.advance_link(index);
        }
        self.complete(index, sink);
    }

    /// Handles the record in front. False: nothing more to do now.
    #[inline(always)]
    fn receive<S: Sink>(&mut self, index: usize, sink: &mut S) -> bool {
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        let mut freed = None;
        let header = match link.rx.peek(|upto| freed = Some(upto)) {
            Peek::Record(header) => header,
            Peek::Empty => {
                if let Some(upto) = freed {
                    link.note_ack(upto);
                }
                return false;
            }
            Peek::Broken => {
                self.cut_off(index);
                return false;
            }
        };
        if let Some(upto) = freed {
            link.note_ack(upto);
        }
        match self.take(index, header, sink) {
            Fate::Done | Fate::Again => true,
            Fate::Wait => false,
            Fate::Odd(odd) => self.take_odd(index, header, odd, sink),
        }
    }

    /// The fast path: a whole message for a queue pair that has a receive for it.
    #[inline(always)]
    fn take<S: Sink>(&mut self, index: usize, header: Header, sink: &mut S) -> Fate {
        let Some(qp) = qp_in(&self.qps, header.qp()) else { return Fate::Odd(Odd::Nobody) };
        // SAFETY: a box this domain owns; nobody else holds a reference during a poll.
        let qp = unsafe { &mut *qp.as_ptr() };
        let Some(Some(link)) = self.links.get_mut(index) else { return Fate::Wait };
        if header.kind() != KIND_SEND || qp.link != index || qp.state != State::Rts {
            return Fate::Odd(Odd::Nobody);
        }
        let flags = header.flags();
        let whole = flags.contains(RecordFlags::FIRST | RecordFlags::LAST);
        if !whole || qp.assembly.is_some() {
            return self.take_fragment(index, header, sink);
        }
        let rq = &mut self.rqs[qp.rq];
        let wr = match rq.stash.first() {
            Some(wr) => *wr,
            None => {
                rq.queue.fetch(&mut rq.stash, self.sharing == Sharing::Shared);
                match rq.stash.first() {
                    Some(wr) => *wr,
                    None => return Fate::Odd(Odd::NotReady),
                }
            }
        };
        let length = header.length();
        if length > wr.sge.length {
            return Fate::Odd(Odd::Refused(Status::LocalLength, Status::RemoteInvalidRequest));
        }
        let memory = &self.nic.memory;
        if length > 0 && !memory.allows(wr.sge.lkey, wr.sge.addr, length, Access::LOCAL_WRITE) {
            return Fate::Odd(Odd::Refused(Status::LocalProtection, Status::RemoteOperation));
        }
        // SAFETY: the poster of the receive vouches for the buffer; key, bounds and right were
        // just checked.
        if !unsafe { link.rx.fetch(header, wr.sge.addr as *mut u8) } {
            return Fate::Again;
        }
        let imm = if flags.contains(RecordFlags::IMM) { link.rx.immediate() } else { 0 };
        link.asked |= flags.contains(RecordFlags::ASK);
        link.rx.consume(header);
        rq.stash.advance();
        qp.rnr_since_ns = None;
        let wc = recv_wc(wr.wr_id, qp.num, length, flags, imm);
        sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        Fate::Done
    }

    /// One fragment of a longer message.
    #[cold]
    #[inline(never)]
    fn take_fragment<S: Sink>(&mut self, index: usize, header: Header, sink: &mut S) -> Fate {
        let Some(qp) = qp_in(&self.qps, header.qp()) else { return Fate::Odd(Odd::Nobody) };
        // SAFETY: as in `take`.
        let qp = unsafe { &mut *qp.as_ptr() };
        let Some(Some(link)) = self.links.get_mut(index) else { return Fate::Wait };
        let flags = header.flags();
        if flags.contains(RecordFlags::FIRST) != qp.assembly.is_none() {
            let status = Status::RemoteInvalidRequest;
            return Fate::Odd(Odd::Refused(status, status));
        }
        let rq = &mut self.rqs[qp.rq];
        let assembly = match qp.assembly {
            Some(assembly) => assembly,
            None => {
                if rq.stash.len() == 0 {
                    rq.queue.fetch(&mut rq.stash, self.sharing == Sharing::Shared);
                }
                let Some(wr) = rq.stash.first().copied() else {
                    return Fate::Odd(Odd::NotReady);
                };
                rq.stash.advance();
                qp.rnr_since_ns = None;
                *qp.assembly.insert(Assembly { wr, received: 0 })
            }
        };
        let Assembly { wr, received } = assembly;
        let length = header.length();
        if length > wr.sge.length - received {
            return Fate::Odd(Odd::Refused(Status::LocalLength, Status::RemoteInvalidRequest));
        }
        let to = wr.sge.addr + u64::from(received);
        if length > 0 && !self.nic.memory.allows(wr.sge.lkey, to, length, Access::LOCAL_WRITE) {
            return Fate::Odd(Odd::Refused(Status::LocalProtection, Status::RemoteOperation));
        }
        // SAFETY: as in `take`.
        if !unsafe { link.rx.fetch(header, to as *mut u8) } {
            return Fate::Again;
        }
        let imm = if flags.contains(RecordFlags::IMM) { link.rx.immediate() } else { 0 };
        link.asked |= flags.contains(RecordFlags::ASK);
        link.rx.consume(header);
        if link.rx.owes() {
            link.tell_now();
        }
        if !flags.contains(RecordFlags::LAST) {
            qp.assembly = Some(Assembly { wr, received: received + length });
            return Fate::Done;
        }
        qp.assembly = None;
        let wc = recv_wc(wr.wr_id, qp.num, received + length, flags, imm);
        sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        Fate::Done
    }

    /// Everything but a message that fits. Decided only on what the ring says, never on a bell
    /// that may be half rewritten.
    #[cold]
    #[inline(never)]
    fn take_odd<S: Sink>(&mut self, index: usize, header: Header, odd: Odd, sink: &mut S) -> bool {
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        if link.rx.leave_bell() {
            return true;
        }
        match (header.kind(), odd) {
            (KIND_SEND, Odd::Nobody) => self.take_nobody(index, header),
            (KIND_SEND, Odd::NotReady) => self.wait_for_receive(index, header, sink),
            (KIND_SEND, Odd::Refused(here, there)) => {
                let Some(qp) = qp_in(&self.qps, header.qp()) else { return false };
                // SAFETY: as in `take`.
                let qp = unsafe { &mut *qp.as_ptr() };
                self.refuse(index, header, qp, here, there, sink);
                true
            }
            _ => {
                self.cut_off(index);
                false
            }
        }
    }

    /// A record for a queue pair that is not there, not ours to give, not ready, or dead.
    fn take_nobody(&mut self, index: usize, header: Header) -> bool {
        let waits = self.qp(header.qp()).is_some_and(|qp| {
            // SAFETY: as in `take`.
            unsafe { qp.as_ref() }.state == State::Init
        });
        if waits || self.attention.load(Ordering::Acquire) {
            // Being connected, or the command that does it is still to be read: it stays.
            return false;
        }
        let Some(Some(link)) = self.links.get_mut(index) else { return false };
        link.refuse(header.qp(), Status::RetryExceeded);
        link.rx.consume(header);
        true
    }

    /// RNR: the record stays, unless the peer's patience has a limit and it is reached (RC-1).
    fn wait_for_receive<S: Sink>(&mut self, index: usize, header: Header, sink: &mut S) -> bool {
        let Some(qp) = qp_in(&self.qps, header.qp()) else { return false };
        // SAFETY: as in `take`.
        let qp = unsafe { &mut *qp.as_ptr() };
        if qp.rnr_retry == 7 {
            return false;
        }
        let now = (self.nic.clock)();
        let since = *qp.rnr_since_ns.get_or_insert(now);
        let patience = qp.rnr_timer_ns * (u64::from(qp.rnr_retry) + 1);
        if now.saturating_sub(since) < patience {
            return false;
        }
        self.refuse(index, header, qp, Status::Flushed, Status::RnrRetryExceeded, sink);
        true
    }

    /// Refuses a record: the peer hears `there`, a receive it would have used completes with
    /// `here`, and this queue pair is in error (SM-3).
    fn refuse<S: Sink>(
        &mut self,
        index: usize,
        header: Header,
        qp: &mut QpContext,
        here: Status,
        there: Status,
        sink: &mut S,
    ) {
        let taken = match qp.assembly.take() {
            Some(assembly) => Some(assembly.wr),
            None => self.take_receive(qp),
        };
        if let Some(RecvWr { wr_id, .. }) = taken {
            let wc = error_wc(wr_id, qp.num, here);
            sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        }
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.refuse(header.qp(), there);
            link.rx.consume(header);
        }
        let upto = self.safe_position(qp);
        self.fail_qp(qp, upto, None);
    }

    fn take_receive(&mut self, qp: &QpContext) -> Option<RecvWr> {
        let rq = &mut self.rqs[qp.rq];
        let wr = rq.stash.first().copied()?;
        rq.stash.advance();
        Some(wr)
    }

    /// The peer refuses what one of its queue pairs was sent: ours, which sent it, fails there.
    #[cold]
    #[inline(never)]
    fn take_refusal(&mut self, index: usize, refusal: Refusal) {
        self.fail_refused(index, refusal);
        if let Some(Some(link)) = self.links.get_mut(index) {
            link.settle_refusal();
        }
    }

    fn fail_refused(&mut self, index: usize, refusal: Refusal) {
        let Refusal { at: position, qp: peer, status } = refusal;
        let slot = self.qps.iter().flatten().find(|qp| {
            // SAFETY: boxes this domain owns.
            let qp = unsafe { qp.as_ref() };
            qp.link == index && qp.peer == peer && qp.state == State::Rts
        });
        let Some(slot) = slot.copied() else { return };
        // SAFETY: as in `take`.
        let qp = unsafe { &mut *slot.as_ptr() };
        if status == Status::Success || !names_our_request(qp, position) {
            return;
        }
        self.fail_qp(qp, position, Some(status));
    }

    /// The peer wrote what no honest peer writes, or earned too many refusals: its connections
    /// end, nothing else does.
    #[cold]
    fn cut_off(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        link.broken = true;
        let safe = link.safe;
        for slot in 0..self.qps.len() {
            let Some(qp) = self.qps[slot] else { continue };
            // SAFETY: as in `take`.
            let qp = unsafe { &mut *qp.as_ptr() };
            if qp.link == index {
                self.fail_qp(qp, safe, Some(Status::RetryExceeded));
            }
        }
    }
}

/// True if the position is where a request of this queue pair that is not yet done begins.
fn names_our_request(qp: &mut QpContext, position: u32) -> bool {
    let mut index = qp.completed;
    while index != qp.posted {
        let entry = *qp.entry(index);
        if !entry.sent.contains(Sent::ON_WIRE) {
            // Cut in fragments, the first of them on the wire already.
            return qp.sent_bytes > 0 && index == qp.sent;
        }
        if !reached(position, entry.end) {
            return true;
        }
        index = index.wrapping_add(1);
    }
    false
}

#[inline(always)]
fn recv_wc(wr_id: u64, qp_num: u32, byte_len: u32, record: RecordFlags, imm: u32) -> Wc {
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
