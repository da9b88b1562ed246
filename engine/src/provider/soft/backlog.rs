//! Sends that could not go to the wire in their post: the ring was full, or the message is
//! longer than one record, or gathered. Kept in the queue pair, written in order when there is
//! space, cut into fragments.
#![expect(unsafe_code, reason = "reads the poster's buffers, writes the ring")]

use arrayvec::ArrayVec;

use super::copy;
use super::layout::{FRAGMENT, Header, KIND_SEND, RECORD_MAX, RecordFlags};
use super::link::{Link, Signaled};
use super::memory::Memory;
use super::qp::{Pending, QpContext, Sent};
use super::requester::push;
use crate::provider::Access;
use crate::wc::Status;
use crate::wr::{SendFlags, SendOp, SendWr, Sge};

/// Messages of this device at most, in bytes (SQ-10).
pub(super) const MESSAGE_MAX: u32 = 1 << 30;

/// Record flags of a request.
#[inline(always)]
pub(super) fn record_flags(solicited: bool, signaled: bool) -> RecordFlags {
    let mut flags = RecordFlags::empty();
    if signaled {
        flags |= RecordFlags::ASK;
    }
    if solicited {
        flags |= RecordFlags::SOLICITED;
    }
    flags
}

/// Header and immediate data of one record of a request. Immediate data goes with the last.
#[inline(always)]
pub(super) fn header(op: SendOp, mut flags: RecordFlags, length: u32, peer: u32) -> (Header, u32) {
    let imm = match op {
        SendOp::SendWithImm(imm) if flags.contains(RecordFlags::LAST) => {
            flags |= RecordFlags::IMM;
            imm
        }
        SendOp::SendWithImm(_) | SendOp::Send => 0,
    };
    (Header::new(KIND_SEND, flags, length, peer), imm)
}

/// True if the piece may be read under its key.
#[inline(always)]
pub(super) fn readable(memory: &Memory, sge: Sge) -> bool {
    sge.length == 0 || memory.allows(sge.lkey, sge.addr, sge.length, Access::empty())
}

/// Takes a request in and puts its queue pair in the link's backlog.
#[cold]
#[inline(never)]
pub(super) fn keep(link: &mut Link, qp: &mut QpContext, wr: &SendWr<'_>) {
    let mut pieces = ArrayVec::new();
    pieces.push(wr.sge);
    pieces.extend(wr.more.iter().copied());
    qp.keep(Pending {
        op: wr.op,
        inline: wr.flags.contains(SendFlags::INLINE),
        solicited: wr.flags.contains(SendFlags::SOLICITED),
        length: u32::try_from(wr.length()).unwrap_or(u32::MAX),
        pieces,
    });
    push(qp, wr, 0, Sent::empty());
    if !qp.in_backlog && qp.poison.is_none() {
        qp.in_backlog = true;
        link.backlog.push_back(qp.num);
    }
}

/// Writes what waits of the queue pair at the front of the link's backlog. True if it is done
/// and has left the backlog.
#[cold]
#[inline(never)]
pub(super) fn advance(link: &mut Link, memory: &Memory, qp: &mut QpContext) -> bool {
    debug_assert_eq!(link.backlog.front(), Some(&qp.num));
    while qp.sent != qp.posted {
        let pending = qp.kept(qp.sent);
        if let Some(status) = impossible(memory, &pending) {
            qp.poison = Some((qp.sent, status));
            break;
        }
        if !write_fragments(link, qp, &pending) {
            return false;
        }
    }
    qp.in_backlog = false;
    link.backlog.pop_front();
    true
}

/// Why a request can never run: too long, or a key that does not allow it (section 2.5). Also
/// asked again between fragments, so that a region that went away is noticed.
fn impossible(memory: &Memory, pending: &Pending) -> Option<Status> {
    if pending.length > MESSAGE_MAX {
        return Some(Status::LocalLength);
    }
    let allowed = pending.inline || pending.pieces.iter().all(|sge| readable(memory, *sge));
    if allowed { None } else { Some(Status::LocalProtection) }
}

/// Writes the rest of request `qp.sent`. False: no space; it goes on from `qp.sent_bytes`.
fn write_fragments(link: &mut Link, qp: &mut QpContext, pending: &Pending) -> bool {
    let signaled = qp.entry(qp.sent).sent.contains(Sent::SIGNALED);
    if link.broken || (signaled && !link.signaled.has_room()) {
        return false;
    }
    loop {
        let rest = pending.length - qp.sent_bytes;
        let length = rest.min(FRAGMENT);
        let last = rest == length;
        let mut flags = record_flags(pending.solicited && last, signaled && last);
        flags.set(RecordFlags::FIRST, qp.sent_bytes == 0);
        flags.set(RecordFlags::LAST, last);
        let (header, imm) = header(pending.op, flags, length, qp.peer);
        if !link.has_space(header.record()) {
            return false;
        }
        let to = link.tx.begin(header, imm);
        // SAFETY: `begin` gives space for the record; the poster vouches for the pieces, whose
        // keys were checked.
        unsafe { gather(to, &pending.pieces, qp.sent_bytes, length) };
        link.tx.end(header);
        if link.tx.unpublished() >= RECORD_MAX {
            let ack = link.ack();
            link.tx.publish(ack);
        }
        if !last {
            qp.sent_bytes += length;
            continue;
        }
        let (end, index) = (link.tx.at, qp.sent);
        if signaled {
            link.signaled.push(Signaled { end, qp: qp.num, index });
        }
        let entry = qp.entry(index);
        entry.end = end;
        entry.sent |= Sent::ON_WIRE;
        qp.sent = index.wrapping_add(1);
        qp.sent_bytes = 0;
        return true;
    }
}

/// Copies bytes `from .. from + length` of a gather list.
///
/// # Safety
/// The pieces are readable and hold that many bytes; `to` is writable for `length` bytes.
unsafe fn gather(mut to: *mut u8, pieces: &[Sge], mut from: u32, mut length: u32) {
    for piece in pieces {
        if from >= piece.length {
            from -= piece.length;
            continue;
        }
        let some = (piece.length - from).min(length);
        // SAFETY: inside the piece, and inside the `length` bytes of `to` still to be filled.
        unsafe {
            copy::exact(to, (piece.addr as *const u8).add(from as usize), some as usize);
            to = to.add(some as usize);
        }
        length -= some;
        from = 0;
    }
}
