//! Requests that `post` could not write to the ring at once: the ring was full, or the message is
//! longer than one record, or gathered, or one-sided. They wait in the queue pair, and are written
//! in order when there is space, cut into fragments.

use crate::model::buffers::Posted;
use crate::model::limits::MESSAGE_MAX;
use crate::model::memory::Memory;
use crate::model::pd::Who;
use crate::model::send_queue::{Pending, Sent};
use crate::model::slot::bound_kind;
use crate::provider::WindowKind;
use crate::shm::layout::{
    FRAGMENT, Header, KIND_ADD, KIND_LENT, KIND_READ, KIND_SEND, KIND_SRQ_NOTICE, KIND_SWAP,
    KIND_TO_SRQ, KIND_WRITE, LENT_OPERANDS, PUBLISH_EVERY, RecordFlags, SRQ_OPERANDS,
    WRITE_OPERANDS,
};
use crate::state::link::Link;
use crate::state::qp::QpContext;
use crate::state::signaled::Signaled;
use crate::steps::admission::{keep_for_later, readable, writable};
use crate::steps::{lend, local_rdma};
use crate::wc::Status;
use crate::wr::{Remote, SendOp, XrcOp};

/// Record flags of a request.
#[inline(always)]
pub(crate) fn record_flags(solicited: bool, signaled: bool) -> RecordFlags {
    let mut flags = RecordFlags::empty();
    if signaled {
        flags |= RecordFlags::ACK_REQ;
    }
    if solicited {
        flags |= RecordFlags::SOLICITED;
    }
    flags
}

/// Stores a request, and puts its queue pair into the link's backlog.
#[cold]
#[inline(never)]
pub(crate) fn keep(link: &mut Link, qp: &mut QpContext, wr: &Posted<'_>) {
    if matches!(wr.op, SendOp::Write(_) | SendOp::WriteWithImm(..)) {
        qp.reads.write_in_ring = Some(qp.sq.posted);
    }
    keep_for_later(qp, wr);
    if !qp.in_backlog && !qp.reads.waits && !qp.paused && qp.failure.poison.is_none() {
        qp.in_backlog = true;
        link.let_wait(qp.num);
    }
}

/// Writes the requests of the queue pair at the front of the link's backlog. True if it has left
/// the backlog: all is written, or the next waits for a response.
#[cold]
#[inline(never)]
pub(crate) fn advance(link: &mut Link, memory: &Memory, qp: &mut QpContext) -> bool {
    debug_assert_eq!(link.first_waiting(), Some(qp.num));
    while qp.sq.sent != qp.sq.posted {
        if qp.paused && qp.sq.sent_bytes == 0 {
            break;
        }
        let pending = qp.sq.kept(qp.sq.sent);
        if let Some(status) = impossible(memory, qp, &pending) {
            qp.failure.poison = Some((qp.sq.sent, status));
            break;
        }
        if waits_for_responses(link, qp, &pending) {
            qp.reads.waits = true;
            break;
        }
        match write_request(link, memory, qp, &pending) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(status) => {
                qp.failure.poison = Some((qp.sq.sent, status));
                break;
            }
        }
    }
    qp.in_backlog = false;
    link.first_waits_no_more();
    true
}

/// Why a request can never run: too long, or its key does not allow it. It is checked again between
/// fragments, to notice a region that went away.
fn impossible(memory: &Memory, qp: &QpContext, pending: &Pending) -> Option<Status> {
    if pending.length > MESSAGE_MAX {
        return Some(Status::LocalLength);
    }
    let outward = pending.op.is_outward();
    if !outward && qp.reads.depth == 0 {
        // Otherwise it could wait for ever.
        return Some(Status::LocalQpOperation);
    }
    if qp.kind.is_unreliable() && matches!(pending.op, SendOp::SendWithInv(_)) {
        return Some(Status::LocalQpOperation);
    }
    let mut pieces = pending.pieces.iter();
    let allowed = match outward {
        true => pending.inline || pieces.all(|sge| readable(memory, qp.pd, *sge)),
        false => pieces.all(|sge| writable(memory, qp.pd, *sge)),
    };
    if allowed { None } else { Some(Status::LocalProtection) }
}

/// True if the request waits for a response. Either it must not start before (SQ-5, SQ-7), or it is
/// a long READ that can be carried out here as soon as no other is in flight. Without this wait a
/// program that always has READs in flight would send all of them through the ring, where a long
/// one takes several times as long.
fn waits_for_responses(link: &Link, qp: &QpContext, pending: &Pending) -> bool {
    let in_flight = qp.reads.in_flight();
    let full = !pending.op.is_outward() && in_flight >= u32::from(qp.reads.depth);
    let waits = || pending.fence || local_rdma::map_for(link, qp, pending).is_some();
    full || (in_flight > 0 && waits())
}

/// Writes the rest of request `qp.sq.sent`. False: no space; it goes on from `qp.sq.sent_bytes`. An
/// error says why the request cannot run.
fn write_request(
    link: &mut Link,
    memory: &Memory,
    qp: &mut QpContext,
    pending: &Pending,
) -> Result<bool, Status> {
    let signaled = qp.sq.entry(qp.sq.sent).sent.contains(Sent::SIGNALED);
    if link.is_broken() || (signaled && !link.signaled.has_room()) {
        return Ok(false);
    }
    let size = u64::from(pending.length) << 32;
    let (op, srq) = match pending.op {
        SendOp::Xrc { srq, op } => (op.plain(), Some(srq)),
        op => (op, None),
    };
    let mut is_done = false;
    let written = match op {
        SendOp::Send => write_fragments(link, qp, pending, Onto::Receive(srq), (None, 0)),
        SendOp::SendWithImm(word) | SendOp::SendWithInv(word) => {
            write_fragments(link, qp, pending, Onto::Receive(srq), (Some(word), 0))
        }
        SendOp::LocalInv(key) => {
            let close = |qp: &QpContext| memory.invalidate(key, qp.num);
            write_local(link, qp, close, Status::LocalQpOperation)?
        }
        SendOp::Bind(binding) => {
            let everybody = bound_kind(binding.window) == Some(WindowKind::One);
            let open = |qp: &QpContext| {
                let only = Who { qp: if everybody { 0 } else { qp.num }, pd: qp.pd };
                memory.bind(binding.window as u32, &binding, only)
            };
            write_local(link, qp, open, Status::MwBind)?
        }
        SendOp::Write(to) => write_fragments(link, qp, pending, Onto::Memory(to, srq), (None, 0)),
        SendOp::WriteWithImm(to, imm) => match srq {
            Some(srq) => write_with_notice(link, qp, pending, to, (srq, imm)),
            None => write_fragments(link, qp, pending, Onto::Memory(to, None), (Some(imm), 0)),
        },
        // These never come here: `admissible` keeps them on UD and RAW_PACKET queue pairs. An XRC
        // operation never contains another.
        SendOp::SendTo(_) | SendOp::SendToWithImm(..) => true,
        SendOp::Tso(_) | SendOp::Xrc { .. } => true,
        SendOp::Read(Remote { addr, rkey }) => {
            if let Some((map, at)) = local_rdma::map_for(link, qp, pending)
                && local_rdma::read_now(link, memory, qp, pending, (&map, at))
            {
                is_done = true;
                write_local(link, qp, |_| true, Status::LocalQpOperation)?
            } else {
                write_read(link, qp, (KIND_READ, srq), &[addr, u64::from(rkey) | size])
            }
        }
        SendOp::CompareSwap { at, compare, swap } => {
            let operands = [at.addr, at.rkey.into(), compare, swap];
            write_read(link, qp, (KIND_SWAP, srq), &operands)
        }
        SendOp::FetchAdd { at, add } => {
            write_read(link, qp, (KIND_ADD, srq), &[at.addr, at.rkey.into(), add])
        }
    };
    if written {
        let (end, index) = (link.tx.at, qp.sq.sent);
        if signaled {
            link.signaled.push(Signaled { end, qp: qp.num, index });
        }
        let entry = qp.sq.entry(index);
        entry.end = end;
        entry.sent |= Sent::ON_WIRE;
        qp.sq.sent = index.wrapping_add(1);
        qp.sq.sent_bytes = 0;
        if is_done {
            qp.reads.local_until = qp.sq.sent;
        }
    }
    Ok(written)
}

/// Carries out, with `deed`, a request that concerns this side alone. If it asks for a completion,
/// an empty WRITE goes to the peer: its acknowledgement keeps the completions in order.
fn write_local(
    link: &mut Link,
    qp: &mut QpContext,
    deed: impl FnOnce(&QpContext) -> bool,
    otherwise: Status,
) -> Result<bool, Status> {
    let mut flags = RecordFlags::FIRST | RecordFlags::LAST | RecordFlags::ACK_REQ;
    flags.set(RecordFlags::UNRELIABLE, qp.kind.is_unreliable());
    let header = Header::new(KIND_WRITE, flags, WRITE_OPERANDS, qp.peer);
    let signaled = qp.sq.entry(qp.sq.sent).sent.contains(Sent::SIGNALED);
    if signaled && !link.has_space(header.record()) {
        return Ok(false);
    }
    if !deed(qp) {
        return Err(otherwise);
    }
    if signaled {
        link.tx.put_words(header, 0, &[0, 0]);
    }
    Ok(true)
}

/// Writes a request whose response brings bytes: one record of operands. The number of a shared
/// receive queue goes into the immediate word.
fn write_read(
    link: &mut Link,
    qp: &mut QpContext,
    (kind, srq): (u8, Option<u32>),
    operands: &[u64],
) -> bool {
    let signaled = qp.sq.entry(qp.sq.sent).sent.contains(Sent::SIGNALED);
    let mut flags = RecordFlags::FIRST | RecordFlags::LAST | record_flags(false, signaled);
    flags.set(RecordFlags::IMM, srq.is_some());
    let header = Header::new(kind, flags, operands.len() as u32 * 8, qp.peer);
    if !link.has_space(header.record()) {
        return false;
    }
    link.tx.put_words(header, srq.unwrap_or(0), operands);
    qp.reads.note_sent(qp.sq.sent);
    link.await_response();
    true
}

/// The address of a payload at the peer.
#[derive(Clone, Copy)]
enum Onto {
    /// The next receive; of the shared queue of that number if there is one.
    Receive(Option<u32>),
    /// The peer's memory; in the domain of that shared queue if there is one.
    Memory(Remote, Option<u32>),
}

impl Onto {
    /// The kind of the records, and the bytes of operands in each.
    fn kind(self) -> (u8, u32) {
        match self {
            Onto::Receive(None) => (KIND_SEND, 0),
            Onto::Receive(Some(_)) => (KIND_TO_SRQ, SRQ_OPERANDS),
            Onto::Memory(..) => (KIND_WRITE, WRITE_OPERANDS),
        }
    }
}

/// Writes the immediate data of a WRITE to the shared queue of that number: in a record of its own,
/// behind the WRITE.
fn write_with_notice(
    link: &mut Link,
    qp: &mut QpContext,
    pending: &Pending,
    to: Remote,
    (srq, imm): (u32, u32),
) -> bool {
    let signaled = qp.sq.entry(qp.sq.sent).sent.contains(Sent::SIGNALED);
    let whole = RecordFlags::FIRST | RecordFlags::LAST | RecordFlags::IMM;
    let flags = whole | record_flags(pending.solicited, signaled);
    let header = Header::new(KIND_SRQ_NOTICE, flags, SRQ_OPERANDS, qp.peer);
    let onto = Onto::Memory(to, Some(srq));
    if !write_fragments(link, qp, pending, onto, (None, header.record())) {
        return false;
    }
    link.tx.put_words(header, imm, &[u64::from(srq) | u64::from(pending.length) << 32]);
    true
}

/// Writes a request with a payload: a SEND, or a WRITE to the peer's memory. Immediate data goes
/// with the last fragment, which waits until there is space for `behind` more bytes behind it.
fn write_fragments(
    link: &mut Link,
    qp: &mut QpContext,
    pending: &Pending,
    onto: Onto,
    (imm, behind): (Option<u32>, u32),
) -> bool {
    let signaled = qp.sq.entry(qp.sq.sent).sent.contains(Sent::SIGNALED);
    let (kind, operands) = onto.kind();
    let named = match onto {
        Onto::Memory(_, srq) => srq,
        Onto::Receive(_) => None,
    };
    let closes = match pending.op {
        SendOp::SendWithInv(_) => true,
        SendOp::Xrc { op, .. } => matches!(op, XrcOp::SendWithInv(_)),
        _ => false,
    };
    loop {
        let rest = pending.length - qp.sq.sent_bytes;
        let lent = match onto {
            Onto::Receive(None) => lend::piece(link, qp, pending, qp.sq.sent_bytes),
            _ => None,
        };
        let length = lent.map_or(rest.min(FRAGMENT - operands), |offer| offer.length);
        let last = rest == length;
        let mut flags = record_flags(pending.solicited && last, signaled && last);
        flags.set(RecordFlags::FIRST, qp.sq.sent_bytes == 0);
        flags.set(RecordFlags::LAST, last);
        flags.set(RecordFlags::IMM, named.is_some() || (last && imm.is_some()));
        flags.set(RecordFlags::INV, last && closes);
        flags.set(RecordFlags::UNRELIABLE, qp.kind.is_unreliable());
        let header = match lent {
            Some(_) => Header::new(KIND_LENT, flags, LENT_OPERANDS, qp.peer),
            None => Header::new(kind, flags, operands + length, qp.peer),
        };
        let bytes = header.record() + if last { behind } else { 0 };
        // The ring may grow for a message of many records, if the peer sends as well.
        let long = pending.length > FRAGMENT;
        if !(if long { link.makes_space(bytes) } else { link.has_space(bytes) }) {
            return false;
        }
        if let Some(offer) = lent {
            link.tx.put_words(header, imm.filter(|_| last).unwrap_or(0), &offer.words());
            if last {
                return true;
            }
            qp.sq.sent_bytes += length;
            continue;
        }
        let words = match onto {
            Onto::Receive(number) => [number.unwrap_or(0).into(), 0],
            Onto::Memory(to, _) => {
                let size = u64::from(pending.length) << 32;
                [to.offset(qp.sq.sent_bytes.into()).addr, u64::from(to.rkey) | size]
            }
        };
        let words = words.get(..operands as usize / 8).unwrap_or_default();
        let bytes = (&pending.pieces, qp.sq.sent_bytes);
        link.tx.put_gathered((header, named.or(imm).unwrap_or(0)), words, bytes);
        if link.tx.unpublished() >= PUBLISH_EVERY {
            link.publish();
        }
        if last {
            return true;
        }
        qp.sq.sent_bytes += length;
    }
}
