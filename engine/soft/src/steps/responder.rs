//! One-sided requests of a peer: the poll of the memory's owner carries them out.
//!
//! The checks come in this order: the rights of the queue pair, then key, bounds and rights of the
//! memory. A refused request touches nothing and consumes no receive.

use crate::model::atomic::Step;
use crate::model::buffers::Target;
use crate::model::cq::Sink;
use crate::model::limits::{MESSAGE_MAX, fragment_fits};
use crate::model::memory::Lent;
use crate::provider::Access;
use crate::shm::layout::{
    Header, KIND_NOTICE, KIND_READ, KIND_SWAP, KIND_WRITE, RecordFlags, WRITE_OPERANDS,
};
use crate::state::completion::recv_wc;
use crate::state::link::Link;
use crate::state::qp::QpContext;
use crate::state::resources::{Outcome, Resources};
use crate::state::responses::{Response, Unsent};
use crate::wc::{Status, WcOpcode};

impl Resources {
    /// Handles a record that names memory here. It is the next in order, and its queue pair is in
    /// RTS. The [`Outcome`] says whether the record was consumed.
    pub(crate) fn receive_one_sided<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        match header.kind() {
            KIND_WRITE => self.take_write(link, header, qp, sink),
            KIND_NOTICE => {
                let Some([size]) = link.rx.operands::<1>(header) else {
                    return Outcome::Hostile;
                };
                let size = u32::try_from(size).unwrap_or(u32::MAX);
                self.take_notice(link, header, qp, size, sink)
            }
            KIND_READ => self.take_read(link, header, qp, sink),
            _ => self.take_atomic(link, header, qp, sink),
        }
    }

    /// A WRITE or a fragment of one. All of it must be allowed before the first byte is written;
    /// immediate data needs a receive before the last is (RC-4).
    fn take_write<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let Some([addr, rest]) = link.rx.operands::<2>(header) else {
            return Outcome::Hostile;
        };
        let (rkey, size) = (rest as u32, (rest >> 32) as u32);
        let flags = header.flags();
        let length = header.length() - WRITE_OPERANDS;
        let written = qp.writing.unwrap_or(0);
        let is_last = flags.contains(RecordFlags::LAST);
        let fits = fragment_fits(size, (written, length), is_last);
        // The peer's device writes nothing, nowhere, where it needs only the acknowledgement.
        let asks_only = (addr, rest, length) == (0, 0, 0) && !flags.contains(RecordFlags::IMM);
        if !fits || !(asks_only || qp.rights.contains(Access::REMOTE_WRITE)) {
            return self.refuse(link, header, qp, (None, Status::RemoteInvalidRequest), sink);
        }
        // Check the whole range with the first fragment, and each later fragment's own range: the
        // region may have gone meanwhile, and a hostile peer may name another one.
        let range = if qp.writing.is_none() { size } else { length };
        let nic = self.nic.clone();
        let lent = nic.memory.check_remote_key(qp.who(), rkey, addr, range, Access::REMOTE_WRITE);
        if range > 0 && lent.is_none() {
            return self.refuse(link, header, qp, (None, Status::RemoteAccess), sink);
        }
        let notifies = flags.contains(RecordFlags::IMM | RecordFlags::LAST) && !qp.kind.is_xrc();
        if notifies && !self.receives.has_receive(qp) {
            return self.wait_for_receive(link, header, qp, sink);
        }
        if let Some(to) = lent.as_ref().and_then(Lent::target) {
            link.rx.fetch(header, WRITE_OPERANDS, to.part(0, length));
        }
        drop(lent);
        qp.writing = (!flags.contains(RecordFlags::LAST)).then_some(written + length);
        if notifies {
            self.notify(link, header, qp, size, sink);
        }
        link.consume(header);
        Outcome::Done
    }

    /// Handles the immediate data of an earlier WRITE of `size` bytes, or of one that the peer has
    /// carried out itself.
    pub(crate) fn take_notice<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        size: u32,
        sink: &mut S,
    ) -> Outcome {
        let allowed = qp.rights.contains(Access::REMOTE_WRITE) && size <= MESSAGE_MAX;
        if !allowed || !header.flags().contains(RecordFlags::IMM) {
            return self.refuse(link, header, qp, (None, Status::RemoteInvalidRequest), sink);
        }
        if !self.receives.has_receive(qp) {
            return self.wait_for_receive(link, header, qp, sink);
        }
        self.notify(link, header, qp, size, sink);
        link.consume(header);
        Outcome::Done
    }

    /// A receive completes with the immediate data of a WRITE of `size` bytes.
    pub(crate) fn notify<S: Sink>(
        &mut self,
        link: &Link,
        header: Header,
        qp: &QpContext,
        size: u32,
        sink: &mut S,
    ) {
        let imm = link.rx.immediate(header);
        if let Some(wr) = self.receives.take(qp) {
            let mut wc = recv_wc(wr.wr_id, qp.num, size, header.flags(), imm);
            wc.opcode = WcOpcode::RecvWriteWithImm;
            self.completions.receive(qp.recv_cq, wc, header.flags().is_solicited(), sink);
        }
    }

    /// A READ: notes the response, which is written later.
    fn take_read<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let Some([addr, rest]) = link.rx.operands::<2>(header) else {
            return Outcome::Hostile;
        };
        let (rkey, length) = (rest as u32, (rest >> 32) as u32);
        let allowed = qp.rights.contains(Access::REMOTE_READ) && length <= MESSAGE_MAX;
        if !allowed || qp.pending_reads >= qp.responder_depth {
            return self.refuse(link, header, qp, (None, Status::RemoteInvalidRequest), sink);
        }
        let allowed = || {
            let memory = &self.nic.memory;
            memory.check_remote_key(qp.who(), rkey, addr, length, Access::REMOTE_READ).is_some()
        };
        if length > 0 && !allowed() {
            return self.refuse(link, header, qp, (None, Status::RemoteAccess), sink);
        }
        qp.queue_response(link, header, Unsent::Bytes { addr, rkey, left: length });
        Outcome::Done
    }

    /// An atomic: carries it out now. The response brings the old value.
    fn take_atomic<S: Sink>(
        &mut self,
        link: &mut Link,
        header: Header,
        qp: &mut QpContext,
        sink: &mut S,
    ) -> Outcome {
        let request = match header.kind() {
            KIND_SWAP => link.rx.operands::<4>(header).map(|[addr, rkey, compare, swap]| {
                (addr, rkey as u32, Step::Swap { compare, swap })
            }),
            _ => link
                .rx
                .operands::<3>(header)
                .map(|[addr, rkey, value]| (addr, rkey as u32, Step::Add(value))),
        };
        let Some((addr, rkey, step)) = request else {
            return Outcome::Hostile;
        };
        let allowed = qp.rights.contains(Access::REMOTE_ATOMIC) && addr.is_multiple_of(8);
        if !allowed || qp.pending_reads >= qp.responder_depth {
            return self.refuse(link, header, qp, (None, Status::RemoteInvalidRequest), sink);
        }
        let nic = self.nic.clone();
        let lent = nic.memory.check_remote_key(qp.who(), rkey, addr, 8, Access::REMOTE_ATOMIC);
        let Some(word) = lent.as_ref().and_then(Lent::target).and_then(Target::word) else {
            return self.refuse(link, header, qp, (None, Status::RemoteAccess), sink);
        };
        let before = step.apply(word);
        drop(lent);
        qp.queue_response(link, header, Unsent::Value(before));
        Outcome::Done
    }
}

impl QpContext {
    /// Moves past the record. Its response goes out when there is space.
    fn queue_response(&mut self, link: &mut Link, header: Header, unsent: Unsent) {
        link.queue_response(Response { who: self.who(), peer: self.peer, unsent });
        self.pending_reads += 1;
        link.consume(header);
    }
}
