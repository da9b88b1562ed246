//! Deferred posts: requests are written one by one, and published together by a later doorbell.
#![expect(unsafe_code, reason = "reads the poster's buffers, writes the ring")]

use crate::model::send_queue::{Sent, SqEntry};
use crate::shm::layout::{Header, record_bytes};
use crate::shm::ring::CLAIM_MIN;
use crate::state::domain_state::DomainState;
use crate::state::link::{Link, LinkPlace};
use crate::state::qp::{QpContext, Reserved, State};
use crate::steps::requester::{fast_path_ok, has_slot, plain, write};
use crate::wr::{SendWr, Sge};

impl DomainState {
    /// Writes one request to the ring, unpublished, if nothing is in its way. At most half a
    /// segment stays unpublished. The next messages may go by [`post_deferred_next`].
    #[inline(never)]
    pub(crate) fn post_deferred(&mut self, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
        self.links.activate(qp.link);
        let Some(Some(link)) = self.links.table.get_mut(qp.link) else { return false };
        if qp.state != State::Rts || !fast_path_ok(link, qp) {
            return false;
        }
        let Some(plain) = plain(&self.transport.res.nic.memory, qp, wr) else { return false };
        if !link.tx.may_defer(plain.record) && !make_room(link, plain.record) {
            return false;
        }
        let goes = has_slot(link, qp, &plain);
        if goes {
            write(link, qp, wr, &plain);
            reserve(link, qp);
        }
        goes
    }

    /// Writes a list of unsignalled messages in the same way; their `wr_id`s count up from `first`.
    /// Returns how many were written.
    #[inline(never)]
    pub(crate) fn post_deferred_list(
        &mut self,
        qp: &mut QpContext,
        first: u64,
        list: &[&[u8]],
    ) -> usize {
        self.links.activate(qp.link);
        let Some(Some(link)) = self.links.table.get_mut(qp.link) else { return 0 };
        if qp.state != State::Rts || qp.signal_all || !fast_path_ok(link, qp) {
            return 0;
        }
        let mut done = 0;
        loop {
            done += put_list(link, qp, first + done as u64, list.get(done..).unwrap_or_default());
            // It stopped before the end of the list: perhaps space can be made.
            let Some(next) = list.get(done) else { break };
            let fits = next.len() <= qp.sq.inline_max() as usize && qp.sq.room() > 0;
            if !fits || !make_room(link, record_bytes(next.len() as u64) as u32) {
                break;
            }
        }
        done
    }

    /// Posts and publishes one request alone. The next may go by [`post_at_once_next`].
    #[inline(never)]
    pub(crate) fn post_at_once_first(&mut self, qp: &mut QpContext, wr: &SendWr<'_>) -> bool {
        let goes = self.post_at_once(qp, wr);
        if goes && let Some(Some(link)) = self.links.table.get_mut(qp.link) {
            link.tx.renew_defer_limit();
            reserve(link, qp);
        }
        goes
    }

    /// Publishes everything unpublished on its link.
    #[inline(always)]
    pub(crate) fn ring_doorbell(&mut self, qp: &mut QpContext) {
        if let Some(Some(link)) = self.links.table.get_mut(qp.link)
            && link.tx.unpublished() > 0
        {
            publish_deferred(link);
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
            Reserved { link: Some(link.pointer()), until: slots.min(link.tx.defer_limit()) };
    }
}

/// Writes one more message, unpublished, behind one that [`DomainState::post_deferred`] has
/// written. False: nothing was done; the message needs the general function.
///
/// # Safety
/// The caller is inside the queue pair's domain, the only one there, and vouches for the piece.
#[inline(always)]
pub(crate) unsafe fn post_deferred_next(qp: &mut QpContext, wr_id: u64, sge: Sge) -> bool {
    let Reserved { link: Some(mut link), until } = qp.reserved else { return false };
    // SAFETY: a queue pair with a reservation is a user of the link, and keeps it alive. By this
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

/// Posts and publishes one more message behind one that [`DomainState::post_at_once_first`] has
/// posted. False: nothing was done; the message needs the general function.
///
/// # Safety
/// As for [`post_deferred_next`].
#[inline(always)]
pub(crate) unsafe fn post_at_once_next(qp: &mut QpContext, wr_id: u64, sge: Sge) -> bool {
    let Reserved { link: Some(mut link), until } = qp.reserved else { return false };
    // SAFETY: as in `post_deferred_next`.
    let link = unsafe { link.as_mut() };
    let record = record_bytes(sge.length.into());
    if link.tx.at + record > until || link.tx.unpublished() > 0 {
        return false;
    }
    if !link.uses_slot(record as u32) {
        // SAFETY: there is space up to `until`; the caller vouches for the piece.
        return unsafe { post_in_ring_next(qp, wr_id, sge.addr as *const u8, sge.length) };
    }
    let (header, ack) = (Header(qp.common | u64::from(sge.length)), link.ack());
    // SAFETY: as above, and the record fits the slot.
    unsafe { link.tx.publish_in_slot(header, record as u32, sge.addr as *const u8, ack) };
    let end = link.tx.at;
    qp.sq.push(SqEntry { wr_id, end, sent: Sent::ON_WIRE, length: sge.length });
    qp.sq.sent = qp.sq.posted;
    true
}

/// The same in the ring alone. It is a function of its own so that it costs a reply nothing.
///
/// # Safety
/// As for [`put`]; nothing is unpublished.
#[cold]
#[inline(never)]
unsafe fn post_in_ring_next(qp: &mut QpContext, wr_id: u64, from: *const u8, length: u32) -> bool {
    let Some(mut link) = qp.reserved.link else { return false };
    // SAFETY: as in `post_deferred_next`.
    let link = unsafe { link.as_mut() };
    let end = link.tx.at + record_bytes(length.into());
    // SAFETY: as the caller vouches.
    unsafe { put(qp, link, wr_id, (from, length), end) };
    qp.sq.sent = qp.sq.posted;
    let ack = link.ack();
    link.tx.publish(ack);
    true
}

/// Writes plain messages from the front of a list, unpublished, until a slot or space is missing
/// or a message is longer than the inline limit; returns how many. It is a function of its own so
/// that everything it uses stays in registers.
#[inline(never)]
fn put_list(link: &mut Link, qp: &mut QpContext, first: u64, list: &[&[u8]]) -> usize {
    let (until, longest) = (link.tx.defer_limit(), qp.sq.inline_max() as usize);
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
    // SAFETY: as the caller vouches; a plain message has no immediate word.
    unsafe { link.tx.put_plain(Header(qp.common | u64::from(length)), (from, length), end) };
    qp.sq.push(SqEntry { wr_id, end, sent: Sent::ON_WIRE, length });
}

/// Looks for space, or publishes what is unpublished. True if the record may be deferred now.
#[cold]
#[inline(never)]
fn make_room(link: &mut Link, record: u32) -> bool {
    let mut space = link.makes_space(record);
    link.tx.renew_defer_limit();
    if !link.tx.may_defer(record) && link.tx.unpublished() > 0 {
        publish_deferred(link);
        space = link.makes_space(record);
        link.tx.renew_defer_limit();
    }
    space && link.tx.may_defer(record)
}

/// Publishes all deferred records: in the slot, if it is one message and that helps.
#[inline(never)]
fn publish_deferred(link: &mut Link) {
    let pending = link.tx.unpublished();
    if !(link.uses_slot(pending) && publish_deferred_in_slot(link)) {
        let ack = link.ack();
        link.tx.publish(ack);
        if pending >= CLAIM_MIN {
            // The next doorbell is likely to publish as much.
            link.tx.claim(pending);
        }
    }
    link.tx.renew_defer_limit();
}

/// Publishes the deferred records in the slot, if they are one message.
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
