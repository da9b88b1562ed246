//! The sending side of the device: post, the backlog, completions, failure.
#![expect(unsafe_code, reason = "reads the poster's buffers, writes the ring")]

use core::sync::atomic::Ordering;

use super::backlog;
use super::bound_kind;
use super::copy;
use super::cq::{CompletionQueue, Retire, Sink};
use super::domain::{DomainState, Resources, Transport};
use super::layout::{FRAGMENT, Header, KIND_WRITE, RECORD_MAX, RecordFlags, WRITE_OPERANDS};
use super::link::{Link, Signaled};
use super::link_scheduler::Links;
use super::local_rdma;
use super::memory::Memory;
use super::nic::QPS;
use super::qp::{CLOSED, QpContext, Reserved, SEND_SGE_MAX, Sent, SqEntry, State};
use super::ring::CLAIM_MIN;
use crate::event::{AsyncKind, Object};
use crate::provider::QpType;
use crate::room::Take;
use crate::wc::{Status, Wc, WcFlags, WcOpcode};
use crate::wr::{PostCause, PostError, SendFlags, SendOp, SendWr};

impl DomainState {
    /// Posts a list: each request goes to the ring if it fits, else to the backlog; the bell
    /// rings once at the end (and on the way for every quarter segment of a long list).
    #[inline(never)]
    pub(super) fn post(
        &mut self,
        qp: &mut QpContext,
        list: &[SendWr<'_>],
    ) -> Result<(), PostError> {
        if let [wr] = list
            && self.post_lone(qp, wr)
        {
            return Ok(());
        }
        self.post_list(qp, list)
    }

    /// Posts one request alone, with the bell where it helps. False: nothing was done.
    #[inline(always)]
    pub(super) fn post_lone(&mut self, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
        qp.state == State::Rts
            && match self.links.get_mut(qp.link) {
                Some(link) => post_lone(link, &self.transport.res.nic.memory, qp, wr),
                None => false,
            }
    }

    #[inline(never)]
    fn post_list(&mut self, qp: &mut QpContext, list: &[SendWr<'_>]) -> Result<(), PostError> {
        qp.reserved = Reserved::NONE;
        if qp.state != State::Rts {
            return self.post_idle(qp, list);
        }
        let Some(link) = self.links.get_mut(qp.link) else {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        };
        let done = match list {
            // It was tried alone.
            [_] => 0,
            _ => post_batch(link, &self.transport.res.nic.memory, qp, list),
        };
        if done == list.len() { Ok(()) } else { self.post_slow(qp, list, done) }
    }

    /// The general post, request by request, of `list[done..]`; what came before is written, and
    /// published here.
    #[inline(never)]
    pub(super) fn post_slow(
        &mut self,
        qp: &mut QpContext,
        list: &[SendWr<'_>],
        done: usize,
    ) -> Result<(), PostError> {
        self.links.activate(qp.link);
        let Some(link) = self.links.get_mut(qp.link) else {
            return Err(PostError { accepted: done, cause: PostCause::State });
        };
        let memory = &self.transport.res.nic.memory;
        let mut result = Ok(());
        for (accepted, wr) in list.iter().enumerate().skip(done) {
            if let Err(cause) = admissible(qp, wr) {
                result = Err(PostError { accepted, cause });
                break;
            }
            let written = fast_path_ok(link, qp) && write_whole(link, memory, qp, wr);
            let done =
                written || (qp.state == State::Rts && local_rdma::carry_out(link, memory, qp, wr));
            if !done {
                backlog::keep(link, qp, wr);
            } else if link.tx.unpublished() >= RECORD_MAX {
                let ack = link.ack();
                link.tx.publish(ack);
            }
        }
        if link.first_waiting() == Some(qp.num) {
            backlog::advance(link, memory, qp);
        }
        if link.tx.unpublished() > 0 {
            let ack = link.ack();
            link.tx.publish(ack);
        }
        if qp.poison.is_some() {
            self.transport.res.schedule(qp);
        }
        result
    }

    /// A post outside RTS: refused before (section 2.1), taken and flushed in ERR.
    #[cold]
    fn post_idle(&mut self, qp: &mut QpContext, list: &[SendWr<'_>]) -> Result<(), PostError> {
        if qp.state.is_unreliable() {
            return self.post_unreliable(qp, list);
        }
        if qp.state != State::Err {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        self.transport.res.schedule(qp);
        for (accepted, wr) in list.iter().enumerate() {
            admissible(qp, wr).map_err(|cause| PostError { accepted, cause })?;
            push(qp, wr, 0, Sent::empty());
        }
        Ok(())
    }
}

impl Transport {
    /// Makes completions for what the peer has taken.
    #[inline(never)]
    pub(super) fn complete<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        let acked = link.acked();
        while let Some(first) = link.signaled.first() {
            if acked < first.end || sink.room() == 0 {
                return;
            }
            link.signaled.pop();
            let Some(qp) = self.qps.get_mut(first.qp) else { continue };
            if qp.state != State::Rts {
                continue;
            }
            if qp.parked.is_some() || qp.awaits_response(first.index) {
                self.res.park(qp, first.index);
            } else {
                self.res.succeed(qp, first.index, sink);
            }
        }
    }

    /// Writes what waits on this link, as far as there is space.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_link(&mut self, link: &mut Link) {
        while let Some(first) = link.first_waiting() {
            let waits = |qp: &&mut QpContext| qp.state.sends() && qp.in_backlog;
            let Some(qp) = self.qps.get_mut(first).filter(waits) else {
                link.first_waits_no_more();
                continue;
            };
            let wrote = backlog::advance(link, &self.res.nic.memory, qp);
            if link.tx.unpublished() > 0 {
                let ack = link.ack();
                link.tx.publish(ack);
            }
            if qp.poison.is_some() || qp.state.is_unreliable() {
                self.res.schedule(qp);
            }
            if !wrote {
                return;
            }
        }
    }
}

impl Resources {
    /// A request is taken, but answers to it or to some before it have not come: the completion
    /// waits in its queue pair, and those of others go on.
    #[cold]
    fn park(&mut self, qp: &mut QpContext, index: u32) {
        qp.parked = Some(index.wrapping_add(1));
        if !qp.awaits_response(index) {
            self.schedule(qp);
        }
    }

    /// Makes the completions that waited for answers, as far as those have come. False: there is
    /// no room for more now.
    fn release_parked<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        let Some(upto) = qp.parked else { return true };
        while qp.completed != upto {
            let index = qp.completed;
            if qp.awaits_response(index) {
                return true;
            }
            if !qp.entry(index).sent.contains(Sent::SIGNALED) {
                qp.completed = index.wrapping_add(1);
                continue;
            }
            if sink.room() == 0 {
                return false;
            }
            self.succeed(qp, index, sink);
        }
        qp.parked = None;
        true
    }

    #[inline(always)]
    pub(super) fn succeed<S: Sink>(&mut self, qp: &mut QpContext, index: u32, sink: &mut S) {
        let entry = *qp.entry(index);
        let opcode = entry.sent.opcode();
        let wc = Wc {
            wr_id: entry.wr_id,
            qp_num: qp.num,
            byte_len: entry.length,
            imm: 0,
            vendor_err: 0,
            status: Status::Success,
            opcode,
            flags: WcFlags::empty(),
            src_qp: 0,
        };
        self.put_send(qp, index, wc, sink);
    }

    #[inline(always)]
    pub(super) fn put_send<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        index: u32,
        wc: Wc,
        sink: &mut S,
    ) {
        qp.completed = index.wrapping_add(1);
        let retire = Retire { qp: qp.num, upto: qp.completed, solicited: false };
        if sink.put(&mut self.cqs, qp.send_cq, wc, retire) {
            qp.retired = qp.completed;
        }
    }

    /// Moves a queue pair to ERR (SM-2, SM-3). Requests up to ring position `good_until`
    /// succeeded; the next one gets `cause` if there is one, the others are flushed.
    pub(super) fn fail_qp(&mut self, qp: &mut QpContext, good_until: u64, cause: Option<Status>) {
        if qp.state == State::Err {
            return;
        }
        // Its place in the backlog is skipped when its turn comes.
        qp.in_backlog = false;
        qp.waits_for_response = false;
        qp.parked = None;
        (qp.open_on, qp.reserved) = (CLOSED, Reserved::NONE);
        qp.state = State::Err;
        self.nic.memory.table().qps[qp.num as usize % QPS].store(0, Ordering::Release);
        qp.good_until = good_until;
        qp.cause = cause;
        (qp.poison, qp.urged) = (None, false);
        self.schedule(qp);
    }
}

impl DomainState {
    /// Queue pairs of a completion queue that was overrun go to ERR (CP-5).
    pub(super) fn attend_overruns(&mut self) {
        let Transport { qps, res } = &mut self.transport;
        for cq in 0..res.cqs.len() {
            if !res.cqs.get_mut(cq).is_some_and(CompletionQueue::take_overrun) {
                continue;
            }
            let id = u64::from(res.id) << 32 | cq as u64;
            res.nic.raise(AsyncKind::CqError, Object::Cq(id));
            for qp in qps.iter_mut().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq) {
                res.nic.raise(AsyncKind::QpFatal, Object::Qp(qp.num));
                let acked = self.links.acked_position(qp);
                res.fail_qp(qp, acked, None);
            }
        }
    }

    /// Does the work of the service queue, as far as there is room for completions.
    #[cold]
    #[inline(never)]
    pub(super) fn run_service_queue<S: Sink>(&mut self, sink: &mut S) {
        let (links, Transport { qps, res }) = (&mut self.links, &mut self.transport);
        let mut at = 0;
        while let Some(num) = res.service_queue.get(at).copied()
            && sink.room() > 0
        {
            let Some(qp) = qps.get_mut(num) else {
                res.service_queue.take_at(at);
                continue;
            };
            if res.service(links, qp, sink) {
                qp.is_scheduled = false;
                res.service_queue.take_at(at);
            } else {
                at += 1;
            }
        }
    }
}

impl Resources {
    /// Work on a queue pair that needs some without a message. True if there is none left.
    fn service<S: Sink>(&mut self, links: &mut Links, qp: &mut QpContext, sink: &mut S) -> bool {
        let mut done = match qp.kind.is_unreliable() {
            true => self.complete_unreliable(qp, sink),
            false => self.release_parked(qp, sink) && qp.poison.is_none(),
        };
        self.fail_poisoned(links, qp);
        done &= self.has_drained(links, qp);
        if qp.state == State::Err {
            done = self.flush_assembly(qp, sink)
                && self.flush_sends(qp, sink)
                && self.flush_receives(qp, sink);
        }
        let is_over = qp.state == State::Err;
        if !done || self.receive_datagrams(qp, sink) || (qp.state == State::Err) != is_over {
            return false;
        }
        let raised = qp.last_wqe_raised || qp.kind == QpType::XrcRecv;
        if qp.state == State::Err && qp.rq_shared && !raised {
            qp.last_wqe_raised = true;
            self.nic.raise(AsyncKind::LastWqeReached, Object::Qp(qp.num));
        }
        true
    }

    /// A request that could not run fails its queue pair once all before it are done: one of those
    /// may be refused, and that error comes first (SQ-3).
    fn fail_poisoned(&mut self, links: &mut Links, qp: &mut QpContext) {
        let Some((index, status)) = qp.poison else { return };
        if qp.reads_in_flight() > 0 || qp.parked.is_some() {
            return;
        }
        let mut good_until = 0;
        let mut before = qp.completed;
        while before != index {
            good_until = qp.entry(before).end;
            before = before.wrapping_add(1);
        }
        // The rest of a message that had begun never comes, and nothing else may come behind it.
        if qp.sent_bytes > 0 || links.acked_position(qp) >= good_until {
            self.fail_qp(qp, good_until, Some(status));
        } else if !qp.urged {
            qp.urged = urge(links, qp);
        }
    }

    /// True when every send has its completion.
    fn flush_sends<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        while qp.completed != qp.posted {
            let index = qp.completed;
            let good_until = qp.good_until;
            let entry = *qp.entry(index);
            if entry.sent.contains(Sent::ON_WIRE)
                && qp.cause != Some(Status::Flushed)
                && good_until >= entry.end
                && !qp.awaits_response(index)
            {
                if !entry.sent.contains(Sent::SIGNALED) {
                    qp.completed = index.wrapping_add(1);
                    continue;
                }
                if sink.room() == 0 {
                    return false;
                }
                self.succeed(qp, index, sink);
                continue;
            }
            if sink.room() == 0 {
                return false;
            }
            let status = qp.cause.unwrap_or(Status::Flushed);
            // From here on nothing succeeds any more.
            qp.cause = Some(Status::Flushed);
            self.put_send(qp, index, error_wc(entry.wr_id, qp.num, status), sink);
        }
        true
    }

    /// True when the receive that a broken message had taken has its completion. Before the sends:
    /// who has heard of all of those may let the queue pair go.
    fn flush_assembly<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        if qp.assembly.is_some() && sink.room() == 0 {
            return false;
        }
        if let Some(assembly) = qp.assembly.take() {
            let wc = error_wc(assembly.wr.wr_id, qp.num, Status::Flushed);
            sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        }
        true
    }

    /// True when every receive of a queue pair's own queue has its completion. Those of a shared
    /// queue stay for others.
    fn flush_receives<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        loop {
            if sink.room() == 0 {
                return false;
            }
            let wr_id = if qp.rq_shared {
                return true;
            } else {
                let Some(rq) = self.rqs.get_mut(qp.rq) else { return true };
                match rq.prefetch.first().map(|wr| wr.wr_id) {
                    Some(wr_id) => {
                        rq.prefetch.advance(1);
                        wr_id
                    }
                    None => match rq.queue.pop() {
                        Some(wr) => wr.wr_id,
                        None => return true,
                    },
                }
            };
            let wc = error_wc(wr_id, qp.num, Status::Flushed);
            sink.put(&mut self.cqs, qp.recv_cq, wc, Retire::default());
        }
    }
}

/// Makes the peer say how far it has read: of what completes in silence it may not by itself.
/// False if there is no space.
fn urge(links: &mut Links, qp: &QpContext) -> bool {
    let Some(link) = links.get_mut(qp.link) else { return true };
    let flags = RecordFlags::FIRST | RecordFlags::LAST | RecordFlags::ACK_REQ;
    let header = Header::new(KIND_WRITE, flags, WRITE_OPERANDS, qp.peer);
    if link.is_broken() || !link.has_space(header.record()) {
        return link.is_broken();
    }
    let to = link.tx.begin(header, 0).cast::<u64>();
    // SAFETY: `begin` gives space for the record, 8-byte aligned. A WRITE of nothing has no
    // address and no key.
    unsafe {
        to.write(0);
        to.add(1).write(0);
    }
    link.tx.end(header);
    let ack = link.ack();
    link.tx.publish(ack);
    true
}

/// An error completion: only number, status and queue pair mean anything (CP-1), the rest is
/// garbage so that who reads it notices.
pub(super) fn error_wc(wr_id: u64, qp_num: u32, status: Status) -> Wc {
    Wc {
        wr_id,
        qp_num,
        byte_len: 0xdead_beef,
        imm: 0xdead_beef,
        vendor_err: status as u32,
        status,
        opcode: WcOpcode::Other,
        flags: WcFlags::all(),
        src_qp: 0xdead_beef,
    }
}

/// The checks of a post, in the order hardware makes them.
#[inline(always)]
pub(super) fn admissible(qp: &QpContext, wr: &SendWr<'_>) -> Result<(), PostCause> {
    if qp.room() == 0 {
        return Err(PostCause::Full);
    }
    if wr.more.len() >= SEND_SGE_MAX {
        return Err(PostCause::TooManyPieces);
    }
    if wr.flags.contains(SendFlags::INLINE) && wr.length() > u64::from(qp.inline_max()) {
        return Err(PostCause::InlineTooLong);
    }
    let bindable = match wr.op {
        SendOp::Bind(binding) => bound_kind(binding.window).is_some(),
        _ => true,
    };
    if wr.op.fits(qp.kind) && bindable && wr.is_well_formed() {
        Ok(())
    } else {
        Err(PostCause::Malformed)
    }
}

#[inline(always)]
pub(super) fn push(qp: &mut QpContext, wr: &SendWr<'_>, end: u64, on_wire: Sent) {
    let signaled = qp.signal_all || wr.flags.contains(SendFlags::SIGNALED);
    let mut sent = on_wire | Sent::of(wr.op);
    sent.set(Sent::SIGNALED, signaled);
    let length = match wr.op {
        op if op.is_send() => wr.sge.length,
        _ => wr.length() as u32,
    };
    qp.push(SqEntry { wr_id: wr.wr_id, end, sent, length });
}

/// See [`DomainState::post_lone`].
#[inline(always)]
fn post_lone(link: &mut Link, memory: &Memory, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
    if !fast_path_ok(link, qp) || wr.op != SendOp::Send || link.tx.unpublished() > 0 {
        return false;
    }
    let Some(plain) = plain(memory, qp, wr) else { return false };
    if !has_slot(link, qp, &plain) || !link.has_space(plain.record) {
        return false;
    }
    let (header, payload) = (plain.header, wr.sge.addr as *const u8);
    let ack = link.ack();
    // SAFETY: the poster vouches for the piece, whose key was checked unless it is inline; there is
    // space, and what goes by the bell fits there.
    unsafe {
        match link.uses_slot(plain.record) {
            true => link.tx.publish_in_slot(header, plain.record, payload, ack),
            false => link.tx.publish_in_ring(header, plain.record, payload, ack),
        }
    }
    enter(link, qp, wr, header, link.tx.at);
    true
}

/// Posts the plain requests at the front of a list; how many. If those are all, they are
/// published.
#[inline(always)]
fn post_batch(link: &mut Link, memory: &Memory, qp: &mut QpContext, list: &[SendWr<'_>]) -> usize {
    if !fast_path_ok(link, qp) {
        return 0;
    }
    if let Some(first) = list.first() {
        // A guess from the first request; the list is usually of one kind.
        let bytes = (list.len() as u32).saturating_mul(first.sge.length.min(FRAGMENT) + 8);
        if bytes >= CLAIM_MIN {
            link.tx.claim(bytes);
        }
    }
    let mut writer = link.tx.writer();
    let mut done = 0;
    for wr in list.iter().take(qp.room() as usize) {
        let Some(Plain { header, imm, record }) = plain(memory, qp, wr) else { break };
        if !writer.fits(record) {
            link.tx.end_writer(&writer);
            if !link.makes_space(record) {
                break;
            }
            writer = link.tx.writer();
        }
        if header.flags().contains(RecordFlags::ACK_REQ) && !link.signaled.has_room() {
            break;
        }
        let to = writer.begin(header, imm);
        // SAFETY: `begin` gives space for the record; the poster vouches for the piece, whose key
        // was checked unless it is inline.
        unsafe { copy::copy_recent(to, wr.sge.addr as *const u8, header.length() as usize) };
        writer.end(record);
        enter(link, qp, wr, header, writer.at);
        done += 1;
        if writer.at - link.tx.published() >= u64::from(RECORD_MAX) {
            link.tx.end_writer(&writer);
            let ack = link.ack();
            link.tx.publish(ack);
        }
    }
    link.tx.end_writer(&writer);
    // If not all of it could be written, the slow way publishes what was along with its own: each
    // ring of the bell costs the receiver a look.
    if done == list.len() && link.tx.unpublished() > 0 {
        let ack = link.ack();
        link.tx.publish(ack);
    }
    done
}

/// True if nothing of the queue pair or its link waits: what is posted may go to the ring.
#[inline(always)]
pub(super) fn fast_path_ok(link: &Link, qp: &QpContext) -> bool {
    qp.sent == qp.posted && !link.slow_path
}

/// A request that is one record of one piece, and needs no more than a slot and space.
pub(super) struct Plain {
    header: Header,
    imm: u32,
    /// Bytes of the record.
    pub(super) record: u32,
}

/// The record of a request, if it is that plain. Everything else is slow.
#[inline(always)]
pub(super) fn plain(memory: &Memory, qp: &QpContext, wr: &SendWr<'_>) -> Option<Plain> {
    let length = wr.sge.length;
    let inline = wr.flags.contains(SendFlags::INLINE);
    let limit = if inline { qp.inline_max() } else { FRAGMENT };
    if length > limit || !wr.more.is_empty() || wr.flags.contains(SendFlags::FENCE) {
        return None;
    }
    if !inline && !backlog::readable(memory, qp.pd, wr.sge) {
        return None;
    }
    let imm = match wr.op {
        SendOp::Send => None,
        SendOp::SendWithImm(imm) => Some(imm),
        _ => return None,
    };
    let header = Header::of_request(qp.common, wr.flags, imm.is_some(), length);
    // What the header says, without asking it.
    let record = 8 + if imm.is_some() { 8 } else { 0 } + ((length + 7) & !7);
    Some(Plain { header, imm: imm.unwrap_or(0), record })
}

/// True if there is a slot for it.
#[inline(always)]
pub(super) fn has_slot(link: &Link, qp: &QpContext, plain: &Plain) -> bool {
    let asks = plain.header.flags().contains(RecordFlags::ACK_REQ);
    qp.room() > 0 && (!asks || link.signaled.has_room())
}

/// Writes a plain request to the ring of a calm link, unpublished. False: it is not plain, nothing
/// was done.
fn write_whole(link: &mut Link, memory: &Memory, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
    let Some(plain) = plain(memory, qp, wr) else { return false };
    let goes = has_slot(link, qp, &plain) && link.has_space(plain.record);
    if goes {
        write(link, qp, wr, &plain);
    }
    goes
}

/// Writes a plain request for which there is a slot and space.
#[inline(always)]
pub(super) fn write(link: &mut Link, qp: &mut QpContext, wr: &SendWr<'_>, plain: &Plain) {
    let mut writer = link.tx.writer();
    let to = writer.begin(plain.header, plain.imm);
    // SAFETY: as in `post_batch`.
    unsafe { copy::copy_recent(to, wr.sge.addr as *const u8, wr.sge.length as usize) };
    writer.end(plain.record);
    link.tx.end_writer(&writer);
    enter(link, qp, wr, plain.header, writer.at);
}

/// Enters a request that is on the wire, up to ring position `end`, in the send queue.
#[inline(always)]
fn enter(link: &mut Link, qp: &mut QpContext, wr: &SendWr<'_>, header: Header, end: u64) {
    let mut sent = Sent::ON_WIRE;
    if header.flags().contains(RecordFlags::ACK_REQ) {
        sent |= Sent::SIGNALED;
        link.signaled.push(Signaled { end, qp: qp.num, index: qp.posted });
        link.contention.note_signaled();
    }
    qp.push(SqEntry { wr_id: wr.wr_id, end, sent, length: header.length() });
    qp.sent = qp.posted;
}
