//! Deferred posts: requests are written one by one, and published together by a later doorbell.
#![expect(unsafe_code, reason = "uses an object of the domain by its pointer")]

use crate::model::buffers::{Posted, Source};
use crate::model::send_queue::{Sent, SqEntry};
use crate::shm::head::Head;
use crate::shm::layout::{SLOT_SHORT_RECORD, record_bytes};
use crate::shm::ring::Space;
use crate::state::domain_state::DomainState;
use crate::state::link::Link;
use crate::state::place::{Inside, Place};
use crate::state::qp::{QpContext, Reserved, State};
use crate::steps::requester::{fast_path_ok, has_slot, plain, write};

impl DomainState {
    /// Writes one request to the ring, unpublished, if nothing is in its way. At most half a
    /// segment stays unpublished. The next messages may go by [`post_deferred_next`].
    #[inline(never)]
    pub(crate) fn post_deferred(&mut self, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
        self.links.activate(qp.link);
        let Some(Some(link)) = self.links.table.get_mut(qp.link) else { return false };
        if qp.state != State::Rts || !fast_path_ok(link, qp) {
            return false;
        }
        let Some(plain) = plain(&self.transport.res.nic.memory, qp, wr) else { return false };
        if !link.tx.may_defer(plain.record()) && !make_room(link, plain.record()) {
            return false;
        }
        if !has_slot(link, qp, &plain) {
            return false;
        }
        let Some(space) = link.tx.space(plain.record()) else { return false };
        write(link, qp, wr, (plain, space));
        reserve(link, qp);
        true
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

    /// Posts and publishes one request alone. The next may go by [`post_at_once_next`], also on a
    /// quiet link.
    #[inline(never)]
    pub(crate) fn post_at_once_first(&mut self, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
        self.links.activate(qp.link);
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
            link.publish_deferred();
        }
    }
}

/// Reserves for the messages behind the one just written. A record is at least 8 bytes, so free
/// send slots bound the ring bytes.
#[inline(always)]
fn reserve(link: &Place<Link>, qp: &mut QpContext) {
    if !qp.signal_all {
        let slots = link.tx.at + u64::from(qp.sq.room()) * record_bytes(0);
        let until = link.tx.defer_limit().at_most(slots);
        qp.reserved = Reserved { link: Some(link.pointer()), until };
    }
}

/// Writes one more message, unpublished, behind one that [`DomainState::post_deferred`] has
/// written. False: nothing was done; the message needs the general function.
#[inline(always)]
pub(crate) fn post_deferred_next(
    inside: &mut Inside,
    qp: &mut QpContext,
    wr_id: u64,
    payload: Source<'_>,
) -> bool {
    let Reserved { link: Some(link), until } = qp.reserved else { return false };
    // SAFETY: the queue pair is a user of the link, which stays until its last user is gone. The
    // creator of `inside` vouched that nobody has a reference to a link.
    let link = unsafe { link.get(inside) };
    let Some(space) = link.tx.space_until(until, payload) else { return false };
    put(qp, link, wr_id, (payload, space));
    qp.sq.sent = qp.sq.posted;
    true
}

/// Posts and publishes one more message behind one that [`DomainState::post_at_once_first`] has
/// posted. False: nothing was done; the message needs the general function.
#[inline(always)]
pub(crate) fn post_at_once_next(
    inside: &mut Inside,
    qp: &mut QpContext,
    wr_id: u64,
    payload: Source<'_>,
) -> bool {
    let Reserved { link: Some(link), until } = qp.reserved else { return false };
    // SAFETY: the queue pair is a user of the link, which stays until its last user is gone. The
    // creator of `inside` vouched that nobody has a reference to a link.
    let link = unsafe { link.get(inside) };
    let Some(space) = link.tx.space_until(until, payload) else { return false };
    if link.tx.unpublished() > 0 {
        return false;
    }
    if !link.uses_slot(record_bytes(payload.length().into()) as u32) {
        return post_in_ring_next(inside, qp, wr_id, payload);
    }
    let (head, ack) = (Head::plain(qp.common, payload.length()), link.ack());
    link.tx.publish_in_slot(head, payload, space, ack);
    let end = link.tx.at;
    qp.sq.push(SqEntry { wr_id, end, sent: Sent::ON_WIRE, length: payload.length() });
    qp.sq.sent = qp.sq.posted;
    true
}

/// The same in the ring alone. It is a function of its own so that it costs a reply nothing.
#[cold]
#[inline(never)]
fn post_in_ring_next(
    inside: &mut Inside,
    qp: &mut QpContext,
    wr_id: u64,
    payload: Source<'_>,
) -> bool {
    let Reserved { link: Some(link), .. } = qp.reserved else { return false };
    if !post_deferred_next(inside, qp, wr_id, payload) {
        return false;
    }
    // SAFETY: the queue pair is a user of the link, which stays until its last user is gone. The
    // creator of `inside` vouched that nobody has a reference to a link.
    let link = unsafe { link.get(inside) };
    if link.tx.unpublished() > SLOT_SHORT_RECORD {
        link.publish_deferred();
    } else {
        link.publish();
    }
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
        if bytes.len() > longest {
            break;
        }
        let payload = Source::of(bytes);
        let Some(space) = link.tx.space_until(until, payload) else { break };
        link.tx.claim_behind(payload.length());
        put(qp, link, wr_id, (payload, space));
        wr_id += 1;
    }
    qp.sq.sent = qp.sq.posted;
    (wr_id - first) as usize
}

/// Writes a plain message to the ring, and enters it in the send queue, which has a slot.
#[inline(always)]
fn put(qp: &mut QpContext, link: &mut Link, wr_id: u64, (payload, space): (Source<'_>, Space)) {
    let end = link.tx.put_plain(qp.common, payload, space);
    qp.sq.push(SqEntry { wr_id, end, sent: Sent::ON_WIRE, length: payload.length() });
}

/// Looks for space, or publishes what is unpublished. True if the record may be deferred now.
#[cold]
#[inline(never)]
fn make_room(link: &mut Link, record: u32) -> bool {
    let mut space = link.makes_space(record);
    link.tx.renew_defer_limit();
    if !link.tx.may_defer(record) && link.tx.unpublished() > 0 {
        link.publish_deferred();
        space = link.makes_space(record);
        link.tx.renew_defer_limit();
    }
    space && link.tx.may_defer(record)
}
