//! Answers to READs and atomics: written by the side whose memory they come from, in the order they
//! were asked for, and taken by the side that asked.
#![expect(unsafe_code, reason = "reads and writes registered memory")]

use super::copy;
use super::domain::{Inside, qp_in};
use super::layout::{ANSWER_OPERANDS, FRAGMENT, Header, KIND_ANSWER, RECORD_MAX, RecordFlags};
use super::link::Link;
use super::memory::Who;
use super::qp::{QpContext, State};
use crate::provider::Access;
use crate::wc::Status;
use crate::wr::Sge;

/// An answer that is owed to a peer.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// Our queue pair that was asked, and the peer's that did.
    pub(super) who: Who,
    pub(super) peer: u32,
    pub(super) owed: Owed,
}

/// What is still to be sent.
#[derive(Clone, Copy)]
pub(super) enum Owed {
    /// Bytes of a region, from `addr` on.
    Bytes { addr: u64, rkey: u32, left: u32 },
    /// What was there before an atomic.
    Value(u64),
}

impl Inside {
    /// Writes what is owed on a link, as far as there is space.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_answers(&mut self, link: &mut Link) {
        while let Some(answer) = link.first_owed().copied()
            && !link.is_broken()
        {
            let Some(left) = self.write_answer(link, answer) else { break };
            match (left, link.first_owed()) {
                (Some(owed), Some(first)) => first.owed = owed,
                _ => self.settle_answer(link),
            }
            if link.tx.unpublished() >= RECORD_MAX {
                let ack = link.ack();
                link.tx.publish(ack);
            }
        }
        if link.tx.unpublished() > 0 {
            let ack = link.ack();
            link.tx.publish(ack);
        }
    }

    /// The answer in front is written whole.
    fn settle_answer(&mut self, link: &mut Link) {
        let Some(answer) = link.settle_first_owed() else { return };
        if let Some(mut qp) = self.qp(answer.who.qp) {
            // SAFETY: a box this domain owns; nobody else holds a reference during a poll.
            let qp = unsafe { qp.as_mut() };
            qp.owed = qp.owed.saturating_sub(1);
        }
    }

    /// Writes one record of an answer. `None`: no space. What is left then, if anything.
    fn write_answer(&mut self, link: &mut Link, answer: Answer) -> Option<Option<Owed>> {
        let mut flags = RecordFlags::LAST;
        let nic = self.nic.clone();
        let lent = match answer.owed {
            Owed::Bytes { addr, rkey, left } => {
                nic.memory.lend(answer.who, rkey, addr, left, Access::REMOTE_READ)
            }
            Owed::Value(_) => None,
        };
        let status = self.answer_status(link, answer, lent.is_some());
        let length = match answer.owed {
            _ if status != Status::Success => 0,
            Owed::Bytes { left, .. } => left.min(FRAGMENT - ANSWER_OPERANDS),
            Owed::Value(_) => 8,
        };
        let left = match answer.owed {
            Owed::Bytes { addr, rkey, left } if status.is_ok() && left > length => {
                flags = RecordFlags::empty();
                Some(Owed::Bytes { addr: addr + u64::from(length), rkey, left: left - length })
            }
            _ => None,
        };
        let header = Header::new(KIND_ANSWER, flags, ANSWER_OPERANDS + length, answer.peer);
        if !link.has_space(header.record()) {
            return None;
        }
        let to = link.tx.begin(header, 0);
        // SAFETY: `begin` gives space for the record, 8-byte aligned; key, bounds and right of
        // the bytes were checked, their owner lets peers read them, and they stay while they are
        // lent.
        unsafe {
            to.cast::<u64>().write(status as u64);
            let to = to.add(ANSWER_OPERANDS as usize);
            match answer.owed {
                Owed::Bytes { addr, .. } => {
                    copy::untrusted(to, addr as *const u8, length as usize);
                }
                Owed::Value(value) if length == 8 => to.cast::<u64>().write(value),
                Owed::Value(_) => {}
            }
        }
        link.tx.end(header);
        Some(left)
    }

    /// How an answer begins: the queue pair may have failed since it was asked, or the memory
    /// may have gone (then the queue pair fails, SM-3).
    fn answer_status(&mut self, link: &mut Link, answer: Answer, lent: bool) -> Status {
        let qp = qp_in(&self.qps, answer.who.qp).filter(|qp| {
            // SAFETY: as in `settle_answer`.
            unsafe { qp.as_ref() }.state == State::Rts
        });
        let Some(qp) = qp else { return Status::RetryExceeded };
        if lent || !matches!(answer.owed, Owed::Bytes { left: 1.., .. }) {
            return Status::Success;
        }
        // SAFETY: as in `settle_answer`.
        let qp = unsafe { &mut *qp.as_ptr() };
        self.fail_qp(qp, link.safe(), None);
        Status::RemoteAccess
    }

    /// An answer, or a piece of one, has come. False: the link is no more.
    pub(super) fn take_answer(&mut self, link: &mut Link, header: Header) -> bool {
        let asked = self.asker(link, header.qp());
        let (Some([status]), Some((qp, index))) = (link.rx.operands::<1>(header), asked) else {
            // Too short for any answer; or nobody asked, unless whoever did has failed since.
            if header.length() < ANSWER_OPERANDS || self.asks_nothing(link, header.qp()) {
                self.cut_off(link);
                return false;
            }
            link.rx.consume(header);
            return true;
        };
        // SAFETY: a box this domain owns; nobody else holds a reference during a poll.
        let qp = unsafe { &mut *qp };
        let status = match Status::from_raw(status as u32) {
            Status::Success => self.place_answer(link, header, qp, index),
            status => status,
        };
        let last = header.flags().contains(RecordFlags::LAST);
        link.consume(header);
        if status != Status::Success {
            // Those before it are done: their answers have come.
            let good_until = qp.entry(index).end - 1;
            self.fail_qp(qp, good_until, Some(status));
        } else if last {
            self.answered(link, qp);
        }
        true
    }

    /// The queue pair that waits for an answer over this link, and its oldest request that does.
    fn asker(&mut self, link: &Link, num: u32) -> Option<(*mut QpContext, u32)> {
        let qp = qp_in(&self.qps, num)?.as_ptr();
        // SAFETY: as in `take_answer`.
        let context = unsafe { &*qp };
        if context.link != link.index || context.state != State::Rts {
            return None;
        }
        context.oldest_ask().map(|index| (qp, index))
    }

    /// True if that queue pair is well and has not asked for anything.
    fn asks_nothing(&self, link: &Link, num: u32) -> bool {
        qp_in(&self.qps, num).is_some_and(|qp| {
            // SAFETY: as in `take_answer`.
            let qp = unsafe { qp.as_ref() };
            qp.link == link.index && qp.state == State::Rts && qp.asking() == 0
        })
    }

    /// Puts the bytes of an answer where the request wants them; how that went.
    fn place_answer(
        &mut self,
        link: &Link,
        header: Header,
        qp: &mut QpContext,
        index: u32,
    ) -> Status {
        let pending = qp.kept(index);
        let length = header.length() - ANSWER_OPERANDS;
        let rest = pending.length - qp.answer_bytes;
        if length > rest || (length == rest) != header.flags().contains(RecordFlags::LAST) {
            return Status::BadResponse;
        }
        let (mut skip, mut from, mut left) = (qp.answer_bytes, ANSWER_OPERANDS, length);
        for Sge { addr, length, lkey } in pending.pieces {
            if skip >= length {
                skip -= length;
                continue;
            }
            let (to, some) = (addr + u64::from(skip), (length - skip).min(left));
            let right = (Access::LOCAL_WRITE, qp.pd);
            if some > 0 && !self.nic.memory.allows(lkey, to, some, right) {
                return Status::LocalProtection;
            }
            // SAFETY: `from + some` lies inside the payload; the poster vouches for the piece,
            // whose key, bounds and right were just checked.
            unsafe { link.rx.fetch_part(header, from, some, to as *mut u8) };
            (skip, from, left) = (0, from + some, left - some);
        }
        qp.answer_bytes += length;
        Status::Success
    }

    /// The oldest request in flight has its answer: what waited for that goes on.
    fn answered(&mut self, link: &mut Link, qp: &mut QpContext) {
        qp.answered = qp.answered.wrapping_add(1);
        qp.answer_bytes = 0;
        if qp.held {
            qp.held = false;
            qp.in_backlog = true;
            link.let_wait(qp.num);
        }
        if qp.parked.is_some() || qp.poison.is_some() {
            self.worry(qp);
        }
    }
}
