//! Responses to READs and atomics. The side that owns the memory writes them in the order of the
//! requests; the side that asked takes them. They pass the messages of their direction.

use crate::model::cq::Sink;
use crate::model::memory::Memory;
use crate::provider::Access;
use crate::shm::layout::{
    FRAGMENT, Header, KIND_RESPONSE, PUBLISH_EVERY, RESPONSE_OPERANDS, RecordFlags,
};
use crate::shm::reader::Rx;
use crate::state::link::Link;
use crate::state::qp::{QpContext, State};
use crate::state::resources::Outcome;
use crate::state::responses::{Response, Unsent};
use crate::state::transport::Transport;
use crate::wc::Status;
use crate::wr::Sge;

/// The most records of one link's responses that are taken in one poll.
const RESPONSES_MAX: u32 = 64;

impl Transport {
    /// Writes the responses of a link, as far as there is space.
    #[cold]
    #[inline(never)]
    pub(crate) fn advance_responses(&mut self, link: &mut Link) {
        if link.responses.first().is_none() {
            return;
        }
        // The peer then learns with the response that the request was taken.
        link.ack_now();
        while let Some(response) = link.responses.first().copied()
            && !link.is_broken()
        {
            if self.qps.get_mut(response.who.qp).is_some_and(|qp| qp.asker_gone) {
                self.finish_response(link);
                continue;
            }
            let Some(left) = self.write_response(link, response) else { break };
            match (left, link.responses.first()) {
                (Some(unsent), Some(first)) => first.unsent = unsent,
                _ => self.finish_response(link),
            }
            if link.responses.tx.unpublished() >= PUBLISH_EVERY {
                link.responses.publish();
            }
        }
        link.responses.publish();
    }

    /// The oldest response has been written whole, or nobody reads it.
    fn finish_response(&mut self, link: &mut Link) {
        let Some(response) = link.pop_response() else { return };
        if let Some(qp) = self.qps.get_mut(response.who.qp) {
            qp.pending_reads = qp.pending_reads.saturating_sub(1);
        }
    }

    /// Writes one record of a response, and returns what is left to write, if anything. `None`: no
    /// space.
    fn write_response(&mut self, link: &mut Link, response: Response) -> Option<Option<Unsent>> {
        let mut flags = RecordFlags::LAST;
        let nic = self.res.nic.clone();
        let lent = match response.unsent {
            Unsent::Bytes { addr, rkey, left } => {
                nic.memory.check_remote_key(response.who, rkey, addr, left, Access::REMOTE_READ)
            }
            Unsent::Value(_) => None,
        };
        let status = self.response_status(link, response, lent.is_some());
        let length = match response.unsent {
            _ if status != Status::Success => 0,
            Unsent::Bytes { left, .. } => left.min(FRAGMENT - RESPONSE_OPERANDS),
            Unsent::Value(_) => 8,
        };
        let left = match response.unsent {
            Unsent::Bytes { addr, rkey, left } if status.is_ok() && left > length => {
                flags = RecordFlags::empty();
                Some(Unsent::Bytes { addr: addr + u64::from(length), rkey, left: left - length })
            }
            _ => None,
        };
        let header = Header::new(KIND_RESPONSE, flags, RESPONSE_OPERANDS + length, response.peer);
        let responses = &mut link.responses;
        if !responses.has_space(header.record()) {
            return None;
        }
        let status = status as u64;
        match (response.unsent, &lent) {
            (Unsent::Value(value), _) if length == 8 => {
                responses.tx.put_words(header, 0, &[status, value]);
            }
            (Unsent::Bytes { .. }, Some(lent)) if length > 0 => {
                responses.tx.put_after_words(header, &[status], lent.source());
            }
            _ => responses.tx.put_words(header, 0, &[status]),
        }
        Some(left)
    }

    /// The status of a response. The queue pair may have failed since the request, or the memory
    /// may be gone (then the queue pair fails, SM-3).
    fn response_status(&mut self, link: &mut Link, response: Response, lent: bool) -> Status {
        let qp = self.qps.get_mut(response.who.qp).filter(|qp| qp.state == State::Rts);
        let Some(qp) = qp else { return Status::RetryExceeded };
        if lent || !matches!(response.unsent, Unsent::Bytes { left: 1.., .. }) {
            return Status::Success;
        }
        self.res.fail_qp(qp, link.acked(), None);
        Status::RemoteAccess
    }

    /// Takes the responses that have come. True if there were any.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_responses<S: Sink>(&mut self, link: &mut Link, sink: &mut S) -> bool {
        let mut came = false;
        for _ in 0..RESPONSES_MAX {
            if link.is_broken() {
                return false;
            }
            let rx = &mut link.responses.rx;
            if rx.caught_up() && !rx.look() {
                break;
            }
            let outcome = match (!rx.caught_up() || rx.advance()).then(|| rx.header()).flatten() {
                Some(Header::JUMP) if rx.jump() => Outcome::Done,
                Some(header) if header.kind() == KIND_RESPONSE => {
                    self.take_response(link, header, sink)
                }
                _ => Outcome::Hostile,
            };
            if outcome == Outcome::Hostile {
                self.cut_off(link);
                return false;
            }
            came = true;
        }
        link.responses.give_back();
        came
    }

    /// Takes a response or a piece of one.
    fn take_response<S: Sink>(&mut self, link: &mut Link, header: Header, sink: &mut S) -> Outcome {
        let res = &mut self.res;
        let on_link = |qp: &&mut QpContext| qp.link == link.index && qp.state == State::Rts;
        let asker = self.qps.get_mut(header.qp()).filter(on_link);
        let rx = &mut link.responses.rx;
        let Some([status]) = rx.operands::<1>(header) else { return Outcome::Hostile };
        let Some(qp) = asker else {
            // It has failed since, or never existed: ignore the record.
            rx.consume(header);
            return Outcome::Done;
        };
        // It has asked for nothing.
        let Some(index) = qp.reads.oldest() else { return Outcome::Hostile };
        let status = match Status::from_raw(status as u32) {
            Status::Success => qp.place_response(&res.nic.memory, rx, header, index),
            status => status,
        };
        let last = header.flags().contains(RecordFlags::LAST);
        rx.consume(header);
        if status != Status::Success {
            // Earlier requests are done: their responses have come.
            let good_until = qp.sq.entry(index).end - 1;
            res.fail_qp(qp, good_until, Some(status));
        } else if last {
            qp.finish_read(link);
            if !res.completions.release_parked(qp, sink) || qp.failure.poison.is_some() {
                res.service_queue.schedule(qp);
            }
        }
        Outcome::Done
    }
}

impl QpContext {
    /// Copies the bytes of a response to where the request wants them, and returns the status.
    fn place_response(&mut self, memory: &Memory, rx: &Rx, header: Header, index: u32) -> Status {
        let pending = self.sq.kept(index);
        let length = header.length() - RESPONSE_OPERANDS;
        let rest = pending.length - self.reads.response_bytes;
        if length > rest || (length == rest) != header.flags().contains(RecordFlags::LAST) {
            return Status::BadResponse;
        }
        let (mut skip, mut from, mut left) = (self.reads.response_bytes, RESPONSE_OPERANDS, length);
        for Sge { addr, length, lkey } in pending.pieces.iter().copied() {
            if skip >= length {
                skip -= length;
                continue;
            }
            let (to, some) = (addr + u64::from(skip), (length - skip).min(left));
            let piece = Sge { addr: to, length: some, lkey };
            let Some(to) = memory.target(piece, self.pd) else {
                return Status::LocalProtection;
            };
            rx.fetch(header, from, to);
            (skip, from, left) = (0, from + some, left - some);
        }
        self.reads.response_bytes += length;
        Status::Success
    }

    /// The oldest request in flight has its response: continues what waited for it.
    fn finish_read(&mut self, link: &mut Link) {
        self.reads.note_done();
        link.await_less(1);
        if self.reads.waits {
            self.reads.waits = false;
            self.in_backlog = true;
            link.let_wait(self.num);
        }
    }
}
