//! Requests without a doorbell of their own: written one by one, published together later.
#![expect(unsafe_code, reason = "reads the poster's buffers, writes the ring")]

use super::copy;
use super::layout::{Header, record_bytes};
use super::link::{Link, LinkPlace};
use super::qp::{QpContext, Reserved, State};
use super::requester::{fast_path_ok, has_slot, plain, write};
use super::ring::CLAIM_MIN;
use super::send_queue::{Sent, SqEntry};
use super::state::DomainState;
use super::sync::wrote;
use crate::wr::{SendWr, Sge};

impl DomainState {
    /// Writes one request to the ring, unpublished, if nothing is in its way. At most half a
    /// segment stays unpublished. The next messages may go by [`hold_more`].
    #[inline(never)]
    pub(super) fn hold(&mut self, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
        self.links.activate(qp.link);
        let Some(Some(link)) = self.links.table.get_mut(qp.link) else { return false };
        if qp.state != State::Rts || !fast_path_ok(link, qp) {
            return false;
        }
        let Some(plain) = plain(&self.transport.res.nic.memory, qp, wr) else { return false };
        if !link.tx.may_hold(plain.record) && !make_room(link, plain.record) {
            return false;
        }
        let goes = has_slot(link, qp, &plain);
        if goes {
            write(link, qp, wr, &plain);
            reserve(link, qp);
        }
        goes
    }

    /// The same with a list of unsignalled messages, whose `wr_id`s count up from the first: how
    /// many were written.
    #[inline(never)]
    pub(super) fn hold_list(&mut self, qp: &mut QpContext, first: u64, list: &[&[u8]]) -> usize {
        self.links.activate(qp.link);
        let Some(Some(link)) = self.links.table.get_mut(qp.link) else { return 0 };
        if qp.state != State::Rts || qp.signal_all || !fast_path_ok(link, qp) {
            return 0;
        }
        let mut done = 0;
        loop {
            done += put_list(link, qp, first + done as u64, list.get(done..).unwrap_or_default());
            // Something else than the end of the list stopped it: perhaps space can be made.
            let Some(next) = list.get(done) else { break };
            let fits = next.len() <= qp.sq.inline_max() as usize && qp.sq.room() > 0;
            if !fits || !make_room(link, record_bytes(next.len() as u64) as u32) {
                break;
            }
        }
        done
    }

    /// Posts and publishes one request alone. The next may go by [`post_next`].
    #[inline(never)]
    pub(super) fn post_first(&mut self, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
        let goes = self.post_lone(qp, wr);
        if goes && let Some(Some(link)) = self.links.table.get_mut(qp.link) {
            link.tx.begin_hold();
            reserve(link, qp);
        }
        goes
    }

    /// Publishes everything unpublished on its link.
    #[inline(always)]
    pub(super) fn ring(&mut self, qp: &mut QpContext) {
        if let Some(Some(link)) = self.links.table.get_mut(qp.link)
            && link.tx.unpublished() > 0
        {
            publish_held(link);
        }
    }
}

/// Reserves for the messages behind the one just written. A record is at least 8 bytes, so free
/// send slots bound the ring bytes.
#[inline(always)]
fn reserve(link: &LinkPlace, qp: &mut QpContext) {
    if !qp.signal_all {
        let slots = link.tx.at + u64::from(qp.sq.room()) * record_bytes(0);
        qp.reserved =
            Reserved { link: Some(link.pointer()), until: slots.min(link.tx.hold_until()) };
    }
}

/// Writes one more message, unpublished, behind one that [`DomainState::hold`] has written. False:
/// nothing was done; the message needs the general function.
///
/// # Safety
/// The caller is inside the queue pair's domain, the only one there, and vouches for the piece.
#[inline(always)]
pub(super) unsafe fn hold_more(qp: &mut QpContext, wr_id: u64, sge: Sge) -> bool {
    let Reserved { link: Some(mut link), until } = qp.reserved else { return false };
    // SAFETY: while the lane is open the queue pair uses the link, which stays so long. By this
    // function's contract nobody else refers to it.
    let link = unsafe { link.as_mut() };
    let end = link.tx.at + record_bytes(sge.length.into());
    if end > until {
        return false;
    }
    // SAFETY: there is space up to `until`; the caller vouches for the piece.
    unsafe { put(qp, link, wr_id, (sge.addr as *const u8, sge.length), end) };
    qp.sq.sent = qp.sq.posted;
    true
}

/// Posts and publishes one more message behind one that [`DomainState::post_first`] has posted.
/// False: nothing was done; the message needs the general function.
///
/// # Safety
/// As for [`hold_more`].
#[inline(always)]
pub(super) unsafe fn post_next(qp: &mut QpContext, wr_id: u64, sge: Sge) -> bool {
    let Reserved { link: Some(mut link), until } = qp.reserved else { return false };
    // SAFETY: as in `hold_more`.
    let link = unsafe { link.as_mut() };
    let record = record_bytes(sge.length.into());
    if link.tx.at + record > until || link.tx.unpublished() > 0 {
        return false;
    }
    if !link.uses_slot(record as u32) {
        // SAFETY: there is space up to `until`; the caller vouches for the piece.
        return unsafe { next_silent(qp, wr_id, sge.addr as *const u8, sge.length) };
    }
    let (header, ack) = (Header(qp.common | u64::from(sge.length)), link.ack());
    // SAFETY: as above, and the record fits the bell.
    unsafe { link.tx.publish_in_slot(header, record as u32, sge.addr as *const u8, ack) };
    let end = link.tx.at;
    qp.sq.push(SqEntry { wr_id, end, sent: Sent::ON_WIRE, length: sge.length });
    qp.sq.sent = qp.sq.posted;
    true
}

/// The same by the ring alone. A function of its own, so that it costs a reply nothing.
///
/// # Safety
/// As for [`put`]; nothing is unpublished.
#[cold]
#[inline(never)]
unsafe fn next_silent(qp: &mut QpContext, wr_id: u64, from: *const u8, length: u32) -> bool {
    let Some(mut link) = qp.reserved.link else { return false };
    // SAFETY: as in `hold_more`.
    let link = unsafe { link.as_mut() };
    let end = link.tx.at + record_bytes(length.into());
    // SAFETY: as the caller vouches.
    unsafe { put(qp, link, wr_id, (from, length), end) };
    qp.sq.sent = qp.sq.posted;
    let ack = link.ack();
    link.tx.publish(ack);
    true
}

/// Writes plain messages from the front of a list, unpublished, as long as there are slots and
/// space and none is longer than the inline limit: how many. A function of its own, so that
/// everything it uses stays in registers.
#[inline(never)]
fn put_list(link: &mut Link, qp: &mut QpContext, first: u64, list: &[&[u8]]) -> usize {
    let (until, longest) = (link.tx.hold_until(), qp.sq.inline_max() as usize);
    let mut wr_id = first;
    for bytes in list.iter().take(qp.sq.room() as usize) {
        let end = link.tx.at + record_bytes(bytes.len() as u64);
        if end > until || bytes.len() > longest {
            break;
        }
        // SAFETY: there is space up to `until`, and a slot; the piece is a slice.
        unsafe { put(qp, link, wr_id, (bytes.as_ptr(), bytes.len() as u32), end) };
        wr_id += 1;
    }
    qp.sq.sent = qp.sq.posted;
    (wr_id - first) as usize
}

/// Writes a plain message to the ring, where its record will end at `end`, and enters it in the
/// send queue.
///
/// # Safety
/// There is space up to `end`, and a slot; the payload is readable, and short enough for a record.
#[inline(always)]
unsafe fn put(
    qp: &mut QpContext,
    link: &mut Link,
    wr_id: u64,
    (from, length): (*const u8, u32),
    end: u64,
) {
    let at = link.tx.place(link.tx.at);
    wrote(at, (end - link.tx.at) as usize);
    // SAFETY: there is space for header and payload, padded to words; the receiver does not read
    // there before it is published.
    unsafe {
        at.cast::<u64>().write(qp.common | u64::from(length));
        copy::copy_recent(at.add(8), from, length as usize);
    }
    link.tx.at = end;
    qp.sq.push(SqEntry { wr_id, end, sent: Sent::ON_WIRE, length });
}

/// Looks for space, or publishes what is unpublished. True if the record may be deferred now.
#[cold]
#[inline(never)]
fn make_room(link: &mut Link, record: u32) -> bool {
    let mut space = link.makes_space(record);
    link.tx.begin_hold();
    if !link.tx.may_hold(record) && link.tx.unpublished() > 0 {
        publish_held(link);
        space = link.makes_space(record);
        link.tx.begin_hold();
    }
    space && link.tx.may_hold(record)
}

/// Publishes what was written: in the slot, if it is one message and that helps.
#[inline(never)]
fn publish_held(link: &mut Link) {
    let held = link.tx.unpublished();
    if !(link.uses_slot(held) && publish_deferred_in_slot(link)) {
        let ack = link.ack();
        link.tx.publish(ack);
        if held >= CLAIM_MIN {
            // The next are likely to be as many.
            link.tx.claim(held);
        }
    }
    link.tx.begin_hold();
}

/// Publishes what was written in the slot, if it is one message.
#[inline(never)]
fn publish_deferred_in_slot(link: &mut Link) -> bool {
    let Some((header, payload)) = link.tx.first_unpublished() else { return false };
    let alone = header.record() == link.tx.unpublished() && header.is_plain_send();
    if alone {
        let ack = link.ack();
        // SAFETY: the record is in the ring, its payload behind the header; it is the only one that
        // is not published, and short enough.
        unsafe { link.tx.publish_copy_in_slot(header, payload, ack) };
    }
    alone
}
