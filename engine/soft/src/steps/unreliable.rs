//! Unreliable queue pairs (UC-1). UC uses the link as RC does. It drops messages that it cannot
//! take, instead of refusing them or making them wait, so it never stalls the link. A send of UC or
//! UD is done when it is on its way; one that fails here leaves the queue pair in SQE.

use crate::model::buffers::Posted;
use crate::model::cq::Sink;
use crate::model::limits::fragment_fits;
use crate::model::memory::Lent;
use crate::model::send_queue::Sent;
use crate::provider::{Access, QpType};
use crate::shm::layout::{Header, KIND_SEND, KIND_WRITE, RecordFlags, WRITE_OPERANDS};
use crate::state::completion::recv_wc;
use crate::state::completions::Completions;
use crate::state::domain_state::DomainState;
use crate::state::link::{CLOSED, Link};
use crate::state::qp::{Assembly, Incoming, QpContext, State};
use crate::state::resources::{Outcome, Resources};
use crate::steps::admission::{admissible, push};
use crate::wc::Status;
use crate::wr::PostError;

impl QpContext {
    /// Moves the queue pair from SQE back to RTS.
    pub(crate) fn recover(&mut self) {
        if self.state == State::Sqe {
            self.state = State::Unreliable;
        }
    }

    /// The peer of a UC queue pair is gone: sends go nowhere, and the sender is not told.
    pub(crate) fn lose_peer(&mut self) {
        self.peer_lost = true;
        self.end_unsent(Sent::ON_WIRE, Sent::ON_WIRE);
    }

    /// Stops writing requests of this queue pair. Its unsent requests end with `sent`, the first of
    /// them with `first`.
    fn end_unsent(&mut self, first: Sent, sent: Sent) {
        let from = self.sq.sent;
        while self.sq.sent != self.sq.posted {
            let how = if self.sq.sent == from { first } else { sent };
            self.sq.entry(self.sq.sent).sent |= how;
            self.sq.sent = self.sq.sent.wrapping_add(1);
        }
        self.sq.sent_bytes = 0;
        self.in_backlog = false;
    }
}

impl DomainState {
    /// A post on an unreliable queue pair.
    pub(crate) fn post_unreliable(
        &mut self,
        qp: &mut QpContext,
        list: &[Posted<'_>],
    ) -> Result<(), PostError> {
        self.transport.res.service_queue.schedule(qp);
        if matches!(qp.kind, QpType::Ud | QpType::RawPacket) {
            return qp.post_datagrams(&self.transport.res.nic, list);
        }
        if qp.state == State::Unreliable && !qp.peer_lost {
            return self.post_slow(qp, list, 0);
        }
        let how = if qp.peer_lost { Sent::ON_WIRE } else { Sent::failed(Status::Flushed) };
        for (accepted, wr) in list.iter().enumerate() {
            admissible(qp, wr).map_err(|cause| PostError { accepted, cause })?;
            push(qp, wr, 0, how);
            qp.sq.sent = qp.sq.posted;
        }
        Ok(())
    }
}

impl Completions {
    /// Makes the completions of sends that are on their way or have failed. Returns false if there
    /// is no room for more now.
    pub(crate) fn complete_unreliable<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> bool {
        if let Some((_, status)) = qp.failure.poison.take() {
            qp.end_unsent(Sent::failed(status), Sent::failed(Status::Flushed));
            if qp.state == State::Unreliable {
                qp.state = State::Sqe;
            }
        }
        // Requests beyond `sent` were flushed in ERR.
        while qp.sq.sent.wrapping_sub(qp.sq.completed).cast_signed() > 0 {
            let index = qp.sq.completed;
            let entry = *qp.sq.entry(index);
            let status = entry.sent.status();
            if status.is_ok() && !entry.sent.contains(Sent::SIGNALED) {
                qp.sq.completed = index.wrapping_add(1);
                continue;
            }
            if sink.room() == 0 {
                return false;
            }
            match status {
                Status::Success => self.send(qp, index, sink),
                _ => self.send_failed(qp, index, status, sink),
            }
        }
        true
    }
}

impl Resources {
    /// Takes a record for a UC queue pair, or drops it with the rest of its message. Returns false
    /// if the link is gone.
    pub(crate) fn receive_unreliable<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let flags = header.flags();
        if flags.contains(RecordFlags::FIRST) {
            // The message before this one will not be finished; its receive takes this message.
            qp.incoming = Incoming::Nothing;
            if let Some(assembly) = &mut qp.assembly {
                assembly.received = 0;
            }
        }
        qp.incoming = match header.kind() {
            KIND_SEND => self.take_unreliable_send(link, header, qp, sink),
            KIND_WRITE => match link.rx.operands::<2>(header) {
                Some(operands) => self.take_unreliable_write(link, header, qp, operands, sink),
                None => return Outcome::Hostile,
            },
            _ => Incoming::Nothing,
        };
        link.consume(header);
        Outcome::Done
    }

    /// Takes a SEND or a fragment of one, and returns what is expected next. A receive that has
    /// begun to be filled stays with the queue pair until a message completes it.
    fn take_unreliable_send<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Incoming {
        let flags = header.flags();
        if !flags.contains(RecordFlags::FIRST) && qp.incoming != Incoming::Send {
            return Incoming::Nothing;
        }
        let Some(Assembly { wr, received }) = self.receives.begun(qp) else {
            return Incoming::Nothing;
        };
        (qp.assembly, qp.open_on) = (Some(Assembly { wr, received }), CLOSED);
        let length = header.length();
        if length > wr.sge.length - received {
            return Incoming::Nothing;
        }
        let Some(to) = self.receives.buffer(qp, &wr, (received, length)) else {
            // The receive itself is invalid and would fail for every message.
            qp.assembly = None;
            self.completions.receive_failed(qp, wr.wr_id, Status::LocalProtection, sink);
            self.fail_qp(qp, link.acked(), None);
            return Incoming::Nothing;
        };
        link.rx.fetch(header, 0, to);
        let received = received + length;
        if !flags.contains(RecordFlags::LAST) {
            qp.assembly = Some(Assembly { wr, received });
            return Incoming::Send;
        }
        qp.assembly = None;
        qp.open_on = if link.rq == qp.rq { link.index } else { CLOSED };
        let wc = recv_wc(wr.wr_id, qp.num, received, flags, link.rx.immediate(header));
        self.completions.receive(qp.recv_cq, wc, flags.is_solicited(), sink);
        Incoming::Nothing
    }

    /// Takes a WRITE or a fragment of one, and returns what is expected next. Bytes written before
    /// a dropped fragment stay written.
    fn take_unreliable_write<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        [addr, rest]: [u64; 2],
        sink: &mut S,
    ) -> Incoming {
        let (rkey, size) = (rest as u32, (rest >> 32) as u32);
        let flags = header.flags();
        let length = header.length() - WRITE_OPERANDS;
        let written = match qp.incoming {
            Incoming::Write(written) => written,
            _ if flags.contains(RecordFlags::FIRST) => 0,
            _ => return Incoming::Nothing,
        };
        let is_last = flags.contains(RecordFlags::LAST);
        let fits = fragment_fits(size, (written, length), is_last);
        if !fits || !qp.rights.contains(Access::REMOTE_WRITE) {
            return Incoming::Nothing;
        }
        // The first fragment checks the whole range, as on RC.
        let range = if written == 0 { size } else { length };
        let nic = self.nic.clone();
        let lent = nic.memory.check_remote_key(qp.who(), rkey, addr, range, Access::REMOTE_WRITE);
        if range > 0 && lent.is_none() {
            return Incoming::Nothing;
        }
        if let Some(to) = lent.as_ref().and_then(Lent::target) {
            link.rx.fetch(header, WRITE_OPERANDS, to.part(0, length));
        }
        if !flags.contains(RecordFlags::LAST) {
            return Incoming::Write(written + length);
        }
        if flags.contains(RecordFlags::IMM) && self.receives.has_receive(qp) {
            self.notify(link, header, qp, size, sink);
        }
        Incoming::Nothing
    }
}
