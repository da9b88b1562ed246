//! The checks of a post, and how a request enters the send queue.

use crate::model::buffers::{Pieces, Posted};
use crate::model::limits::SEND_SGE_MAX;
use crate::model::memory::Memory;
use crate::model::pd::PdMark;
use crate::model::send_queue::{Pending, Sent, SqEntry};
use crate::model::slot::bound_kind;
use crate::provider::Access;
use crate::state::qp::QpContext;
use crate::wr::{PostCause, SendFlags, SendOp, SendWr, Sge};

/// The checks of a post, in the order hardware makes them.
#[inline(always)]
pub(crate) fn admissible(qp: &QpContext, wr: &SendWr<'_>) -> Result<(), PostCause> {
    if qp.sq.room() == 0 {
        return Err(PostCause::Full);
    }
    if wr.more.len() >= SEND_SGE_MAX {
        return Err(PostCause::TooManyPieces);
    }
    if wr.flags.contains(SendFlags::INLINE) && wr.length() > u64::from(qp.sq.inline_max()) {
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
pub(crate) fn push(qp: &mut QpContext, wr: &SendWr<'_>, end: u64, on_wire: Sent) {
    let signaled = qp.signal_all || wr.flags.contains(SendFlags::SIGNALED);
    let mut sent = on_wire | Sent::of(wr.op);
    sent.set(Sent::SIGNALED, signaled);
    let length = match wr.op {
        op if op.is_send() => wr.sge.length,
        _ => wr.length() as u32,
    };
    qp.sq.push(SqEntry { wr_id: wr.wr_id, end, sent, length });
}

/// True if the piece may be read under its key, which must belong to that domain.
#[inline(always)]
pub(crate) fn readable(memory: &Memory, pd: PdMark, sge: Sge) -> bool {
    sge.length == 0 || memory.check_local_key(sge.lkey, sge.addr, sge.length, (Access::empty(), pd))
}

/// True if the piece may be written under its key, which must belong to that domain.
pub(crate) fn writable(memory: &Memory, pd: PdMark, sge: Sge) -> bool {
    memory.target(sge, pd).is_some()
}

/// The pieces of a request that leaves at once; `None`: one of them may not be read.
pub(crate) fn leaving(memory: &Memory, qp: &QpContext, wr: &Posted<'_>) -> Option<Pieces> {
    let pieces = wr.gathered();
    let may_read = |sge: &Sge| readable(memory, qp.pd, *sge);
    let goes = wr.flags.contains(SendFlags::INLINE) || pieces.iter().all(may_read);
    goes.then_some(pieces)
}

/// Enters a request in the send queue and nowhere else.
pub(crate) fn keep_for_later(qp: &mut QpContext, wr: &Posted<'_>) {
    let pieces = wr.gathered();
    qp.sq.keep(Pending {
        op: wr.op,
        inline: wr.flags.contains(SendFlags::INLINE),
        solicited: wr.flags.contains(SendFlags::SOLICITED),
        fence: wr.flags.contains(SendFlags::FENCE),
        length: u32::try_from(wr.length()).unwrap_or(u32::MAX),
        pieces,
    });
    push(qp, wr, 0, Sent::empty());
}
