//! The sender's side of a long message that is copied once: the record names bytes in the sender's
//! memory, and the receiver's poll copies them from there ([`crate::steps::borrow`]).
//!
//! The bytes belong to the device until the send completes, and it completes when the receiver has
//! taken the record. So nobody changes them before they are copied. A send that fails completes
//! earlier; then the receiver finds the queue pair's word gone, and drops what it has copied.

use crate::model::memory::Memory;
use crate::model::send_queue::Pending;
use crate::shm::head::Head;
use crate::shm::layout::{Header, KIND_SHOW, RecordFlags, SLOT_PAYLOAD_MAX};
use crate::shm::offer::{OFFER_MAX, Offer};
use crate::state::link::Link;
use crate::state::qp::QpContext;
use crate::steps::admission::readable;
use crate::wr::{SendFlags, SendOp, SendWr, Sge};

/// Shorter messages are copied: the slot holds them, if they are alone and have no immediate data.
/// Half a round trip of 1032 bytes, near cores, takes 185 ns by the slot and 310 lent. One of 1536
/// bytes takes 376 by the ring and 328 lent.
pub(crate) const LEND_MIN: u32 = SLOT_PAYLOAD_MAX + 1;

/// In a list, messages up to this length are copied too. One way in lists of 16, 1280 bytes go by
/// the ring at 7.2 M/s and lent at 5.0 between near cores, and at 3.0 and 1.2 between far ones;
/// 1536 bytes at 5.7 and 4.5, and at 2.3 and 1.2; 1792 bytes at 4.8 both ways near, and at 1.5 and
/// 1.1 far. 2 KiB go at 3.2 and 4.2 near.
pub(crate) const LIST_COPY_MAX: u32 = 1792;

/// The head and the operands of a whole message, if its bytes can be lent. Inlined: operands that
/// are returned in memory would be loaded by pairs, and wait for the stores of the payload.
#[inline(always)]
pub(crate) fn whole(
    link: &mut Link,
    memory: &Memory,
    qp: &QpContext,
    wr: &SendWr<'_>,
) -> Option<(Head, [u64; 3])> {
    let length = wr.sge.length;
    let odd = SendFlags::INLINE | SendFlags::FENCE;
    let fits = (LEND_MIN..=OFFER_MAX).contains(&length);
    if !fits || !wr.more.is_empty() || wr.flags.intersects(odd) {
        return None;
    }
    if !lends(link, qp, wr.sge.lkey) || !readable(memory, qp.pd, wr.sge) {
        return None;
    }
    let head = match wr.op {
        SendOp::Send => Head::of_lent(qp.common, wr.flags, None),
        SendOp::SendWithImm(imm) => Head::of_lent(qp.common, wr.flags, Some(imm)),
        _ => return None,
    };
    Some((head, offer(qp, wr.sge, 0, length).words()))
}

/// The next piece of a message that waits, from `sent` on, if its bytes can be lent.
pub(crate) fn piece(
    link: &mut Link,
    qp: &QpContext,
    pending: &Pending,
    sent: u32,
) -> Option<Offer> {
    let [sge] = pending.pieces[..] else { return None };
    let rest = pending.length - sent;
    if pending.inline || rest < LEND_MIN || !lends(link, qp, sge.lkey) {
        return None;
    }
    Some(offer(qp, sge, sent, rest.min(OFFER_MAX)))
}

/// True if the peer reads the region of that key, and the queue pair is one that lends. Those of UC
/// have no word and do not lend: their sends complete before the peer has taken them.
fn lends(link: &mut Link, qp: &QpContext, key: u32) -> bool {
    let allowed = qp.word != 0 && link.lending.allows(key);
    link.lending.lent |= allowed;
    allowed
}

fn offer(qp: &QpContext, sge: Sge, from: u32, length: u32) -> Offer {
    Offer { addr: sge.addr + u64::from(from), key: sge.lkey, length, word: qp.word }
}

/// Asks the peer to map the region of a long message, if it has not been asked: the next messages
/// from there are lent. Without space for the record it is asked another time.
#[cold]
#[inline(never)]
pub(crate) fn ask(link: &mut Link, memory: &Memory, qp: &QpContext, key: u32) {
    let lends = qp.word != 0 && link.remote_map.is_some();
    if !lends || link.lending.allows(key) || !link.lending.may_ask(key) || !memory.is_named(key) {
        return;
    }
    let flags = RecordFlags::FIRST | RecordFlags::LAST;
    let header = Header::new(KIND_SHOW, flags, 8, qp.peer);
    if link.has_space(header.record()) {
        link.tx.put_words(header, 0, &[key.into()]);
        link.lending.note_asked(key);
    }
}
