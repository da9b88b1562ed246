//! The sending side of the device: posts, and completions of the requests that the peer has taken.

use crate::model::buffers::{Posted, Source};
use crate::model::cq::Sink;
use crate::model::memory::Memory;
use crate::model::send_queue::{Sent, SqEntry};
use crate::shm::head::Head;
use crate::shm::layout::{
    FRAGMENT, Header, PUBLISH_EVERY, RecordFlags, SLOT_RECORD_MAX, SLOT_SHORT, SLOT_SHORT_RECORD,
};
use crate::shm::ring::{CLAIM_MIN, OWN_MESSAGE_MAX, Space};
use crate::state::completion::send_wc;
use crate::state::domain_state::DomainState;
use crate::state::link::Link;
use crate::state::place::Pointer;
use crate::state::qp::{QpContext, Reserved, State};
use crate::state::service_queue::ServiceQueue;
use crate::state::signaled::Signaled;
use crate::state::transport::Transport;
use crate::steps::admission::{admissible, push, readable};
use crate::steps::backlog;
use crate::steps::lend::{self, LEND_MIN, LIST_COPY_MAX};
use crate::steps::local_rdma;
use crate::wc::Wc;
use crate::wr::{PostCause, PostError, SendFlags, SendOp, SendWr};

impl DomainState {
    /// Posts a list. Each request goes to the ring if it fits, else to the backlog. The list is
    /// published once at the end, and a long one on the way too, at every quarter segment.
    #[inline(never)]
    pub(crate) fn post(
        &mut self,
        qp: &mut QpContext,
        list: &[Posted<'_>],
    ) -> Result<(), PostError> {
        if let [wr] = list
            && self.post_at_once(qp, wr)
        {
            return Ok(());
        }
        self.post_list(qp, list)
    }

    /// Makes the link of the queue pair busy. True: it was quiet, so no request could be posted at
    /// once.
    fn ends_quiet(&mut self, qp: &QpContext) -> bool {
        let link = self.links.table.get(qp.link).and_then(Option::as_ref);
        let is_quiet = link.is_some_and(|link| link.is_idle());
        self.links.activate(qp.link);
        is_quiet
    }

    /// Posts one request alone, in the slot where that helps. False: nothing was done.
    #[inline(always)]
    pub(crate) fn post_at_once(&mut self, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
        qp.state == State::Rts
            && match self.links.get_mut(qp.link) {
                Some(link) => post_at_once(link, &self.transport.res.nic.memory, qp, wr),
                None => false,
            }
    }

    /// As [`DomainState::post_at_once`], for a message that goes by the slot as a short one, on a
    /// queue pair whose link [`DomainState::remember_link`] has remembered.
    #[inline(always)]
    pub(crate) fn post_short(&mut self, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
        match self.links.reserved(qp) {
            Some(link) => post_short(link, &self.transport.res.nic.memory, qp, wr),
            None => false,
        }
    }

    /// After [`DomainState::post_at_once`], for the posts that follow. It reserves no space.
    #[inline(always)]
    pub(crate) fn remember_link(&mut self, qp: &mut QpContext) {
        if qp.reserved.link.is_none()
            && let Some(link) = self.links.get_mut(qp.link)
        {
            qp.reserved = Reserved { link: Some(Pointer::to(link)), ..Reserved::NONE };
        }
    }

    /// The rest of [`DomainState::post`], for a list of one that `post_at_once` has not taken, or
    /// any other.
    #[inline(never)]
    pub(crate) fn post_list(
        &mut self,
        qp: &mut QpContext,
        list: &[Posted<'_>],
    ) -> Result<(), PostError> {
        qp.reserved = Reserved::NONE;
        if qp.state != State::Rts {
            return self.post_idle(qp, list);
        }
        let Some(link) = self.links.get_mut(qp.link) else {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        };
        let memory = &self.transport.res.nic.memory;
        let done = match list {
            [wr] if !wr.more.is_empty() => usize::from(post_pieces_at_once(link, memory, qp, wr)),
            // `post_at_once` has tried it, unless it is long.
            [wr] if wr.sge.length < LEND_MIN => 0,
            [wr] => usize::from(post_lent_at_once(link, memory, qp, wr)),
            _ => post_batch(link, memory, qp, list),
        };
        if done == list.len() { Ok(()) } else { self.post_slow(qp, list, done) }
    }

    /// The general post, request by request, of `list[done..]`. The requests before are written;
    /// this publishes them too.
    #[inline(never)]
    pub(crate) fn post_slow(
        &mut self,
        qp: &mut QpContext,
        list: &[Posted<'_>],
        done: usize,
    ) -> Result<(), PostError> {
        if self.ends_quiet(qp)
            && let [wr] = list
            && self.post_at_once(qp, wr)
        {
            return Ok(());
        }
        let Some(link) = self.links.get_mut(qp.link) else {
            return Err(PostError { accepted: done, cause: PostCause::State });
        };
        link.spin.note_work();
        let memory = &self.transport.res.nic.memory;
        let (mut result, mut is_local) = (Ok(()), false);
        for (accepted, wr) in list.iter().enumerate().skip(done) {
            if let Err(cause) = admissible(qp, wr) {
                result = Err(PostError { accepted, cause });
                break;
            }
            let is_send = wr.op.is_send();
            if is_send && wr.sge.length >= LEND_MIN {
                lend::ask(link, memory, qp, wr.sge.lkey);
            }
            let written = is_send && fast_path_ok(link, qp) && write_whole(link, memory, qp, wr);
            let carried =
                !written && qp.state == State::Rts && local_rdma::carry_out(link, memory, qp, wr);
            is_local |= carried;
            if !written && !carried {
                backlog::keep(link, qp, wr);
            } else if link.tx.unpublished() >= PUBLISH_EVERY {
                link.publish();
            }
        }
        if link.first_waiting() == Some(qp.num) {
            backlog::advance(link, memory, qp);
            is_local = true;
        }
        if link.tx.unpublished() > 0 {
            link.publish();
        }
        if qp.failure.poison.is_some() {
            self.transport.res.service_queue.schedule(qp);
            is_local = true;
        }
        if is_local {
            // The next poll may make a completion that no peer announces (CP-6).
            self.transport.res.local_waker.wake_from_inside();
        }
        result
    }

    /// A post outside RTS: refused before RTS (SM-6), accepted and flushed in ERR. Its completions
    /// come without a peer, so it wakes the domain (CP-6).
    #[cold]
    fn post_idle(&mut self, qp: &mut QpContext, list: &[Posted<'_>]) -> Result<(), PostError> {
        self.transport.res.local_waker.wake_from_inside();
        if qp.state.is_unreliable() {
            return self.post_unreliable(qp, list);
        }
        if qp.state != State::Err {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        self.transport.res.service_queue.schedule(qp);
        for (accepted, wr) in list.iter().enumerate() {
            admissible(qp, wr).map_err(|cause| PostError { accepted, cause })?;
            push(qp, wr, 0, Sent::empty());
        }
        Ok(())
    }
}

impl Transport {
    /// Makes completions for the requests that the peer has taken.
    #[inline(never)]
    pub(crate) fn complete<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        self.complete_here(link, sink);
    }

    /// [`Transport::complete`] without a call, where each message completes a send.
    #[inline(always)]
    pub(crate) fn complete_here<S: Sink>(&mut self, link: &mut Link, sink: &mut S) {
        let acked = link.acked();
        while let Some(first) = link.signaled.first() {
            if acked < first.end || sink.room() == 0 {
                return;
            }
            link.signaled.pop();
            let Some(qp) = self.qps.get_mut(first.qp) else { continue };
            if qp.state != State::Rts {
                continue;
            }
            if qp.parked.is_some() || qp.awaits_response(first.index) {
                self.res.service_queue.park(qp, first.index);
            } else {
                self.res.completions.send(qp, first.index, sink);
            }
        }
    }

    /// The queue in which that send ends.
    #[inline(always)]
    pub(crate) fn send_cq_of(&mut self, send: Signaled) -> Option<usize> {
        self.qps.get_mut(send.qp).map(|qp| qp.send_cq)
    }

    /// Makes the completion of that send, the oldest on the link, which the peer has taken. No
    /// response is under way, or the link would need service. `None`, and nothing was done: other
    /// sends wait as well, its queue pair has failed, or its completion is for another queue.
    #[inline(always)]
    pub(crate) fn end_only_send(
        &mut self,
        link: &mut Link,
        send: Signaled,
        send_cq: usize,
    ) -> Option<Wc> {
        let qp = self.qps.get_mut(send.qp).filter(|_| link.signaled.has_one())?;
        if qp.state != State::Rts || qp.send_cq != send_cq {
            return None;
        }
        debug_assert!(!qp.awaits_response(send.index));
        link.signaled.pop();
        qp.sq.completed = send.index.wrapping_add(1);
        qp.sq.retired = qp.sq.completed;
        Some(send_wc(qp.num, *qp.sq.entry(send.index)))
    }

    /// Writes requests from the backlog of this link while there is space.
    #[cold]
    #[inline(never)]
    pub(crate) fn advance_link(&mut self, link: &mut Link) {
        while let Some(first) = link.first_waiting() {
            let waits = |qp: &&mut QpContext| qp.state.sends() && qp.in_backlog;
            let Some(qp) = self.qps.get_mut(first).filter(waits) else {
                link.first_waits_no_more();
                continue;
            };
            let wrote = backlog::advance(link, &self.res.nic.memory, qp);
            if link.tx.unpublished() > 0 {
                link.publish();
            }
            if qp.failure.poison.is_some() || qp.state.is_unreliable() {
                self.res.service_queue.schedule(qp);
            }
            if !wrote {
                return;
            }
        }
    }
}

impl ServiceQueue {
    /// A request was taken, but its response or an earlier one has not come. The completion waits
    /// in its queue pair; other queue pairs complete meanwhile.
    #[cold]
    fn park(&mut self, qp: &mut QpContext, index: u32) {
        qp.parked = Some(index.wrapping_add(1));
        if !qp.awaits_response(index) {
            self.schedule(qp);
        }
    }
}

/// See [`DomainState::post_at_once`].
#[inline(always)]
fn post_at_once(link: &mut Link, memory: &Memory, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
    if !fast_path_ok(link, qp) || wr.op != SendOp::Send || link.tx.unpublished() > 0 {
        return false;
    }
    let (Some(plain), payload) = (plain(memory, qp, wr), wr.first()) else { return false };
    if !has_slot(link, qp, &plain) {
        return false;
    }
    let Some(space) = link.space(plain.record()) else { return false };
    let ack = link.ack();
    match link.uses_slot(plain.record()) {
        true => link.tx.publish_in_slot(plain, payload, space, ack),
        false if plain.record() > SLOT_SHORT_RECORD => {
            publish_long(link, plain, payload, space);
        }
        false => link.tx.publish_in_ring(plain, payload, space, ack),
    }
    enter(link, qp, wr, (plain.header(), plain.header().length()), link.tx.at);
    true
}

/// As [`post_at_once`], for a message that goes by the slot as a short one, if there is space by
/// the limit as last read. No request of the queue pair waits. If the first line holds the message,
/// nothing is kept over a call before it is published.
#[inline(always)]
fn post_short(link: &mut Link, memory: &Memory, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
    debug_assert!(qp.state == State::Rts && qp.sq.sent == qp.sq.posted);
    if wr.op != SendOp::Send || link.slow_path || link.tx.unpublished() > 0 {
        return false;
    }
    let (Some(plain), payload) = (plain_again(memory, qp, wr), wr.first()) else { return false };
    if !has_slot(link, qp, &plain) {
        return false;
    }
    let Some(space) = link.tx.space(plain.record()) else { return false };
    if !link.uses_slot(plain.record()) {
        return false;
    }
    // On the fast path.
    let ack = link.rx.at;
    link.tx.publish_in_slot_only(plain, payload, space, ack);
    link.rx.note_ack_sent();
    enter(link, qp, wr, (plain.header(), plain.header().length()), link.tx.at);
    link.tx.wake_peer();
    true
}

/// As [`post_at_once`], for an inline message of several pieces that the slot holds.
#[inline(never)]
fn post_pieces_at_once(
    link: &mut Link,
    memory: &Memory,
    qp: &mut QpContext,
    wr: &Posted<'_>,
) -> bool {
    let may_go = wr.flags.contains(SendFlags::INLINE) && wr.op == SendOp::Send;
    if !may_go || !fast_path_ok(link, qp) || admissible(qp, wr).is_err() {
        return false;
    }
    let mut room = [0; SLOT_SHORT];
    let whole = wr.in_one_piece(&mut room);
    whole.is_some_and(|whole| post_at_once(link, memory, qp, &whole))
}

/// Publishes a message that is too long for `Tx::publish_in_slot`: it goes to the ring, and from
/// there to the slot if that holds it.
#[cold]
#[inline(never)]
fn publish_long(link: &mut Link, plain: Head, payload: Source<'_>, space: Space) {
    if plain.record() <= SLOT_RECORD_MAX {
        link.tx.put_in_ring(plain, payload, space);
        return link.publish_deferred();
    }
    let ack = link.ack();
    link.tx.publish_in_ring(plain, payload, space, ack);
}

/// As [`post_at_once`], for a message whose bytes are lent.
#[cold]
#[inline(never)]
fn post_lent_at_once(
    link: &mut Link,
    memory: &Memory,
    qp: &mut QpContext,
    wr: &Posted<'_>,
) -> bool {
    if !fast_path_ok(link, qp) || link.tx.unpublished() > 0 {
        return false;
    }
    let Some((head, words)) = lend::whole(link, memory, qp, wr) else { return false };
    if !has_slot(link, qp, &head) {
        return false;
    }
    let Some(space) = link.space(head.record()) else { return false };
    let (ack, payload) = (link.ack(), Source::of_words(&words));
    // Immediate data does not go into the slot.
    match head.header().immediate_bytes() == 0 && link.uses_slot(head.record()) {
        true => link.tx.publish_in_slot(head, payload, space, ack),
        false => {
            link.tx.put_in_ring(head, payload, space);
            link.tx.publish(ack);
        }
    }
    enter(link, qp, wr, (head.header(), wr.sge.length), link.tx.at);
    true
}

/// Posts the plain requests at the front of a list and returns their number. Publishes them if they
/// are the whole list.
#[inline(always)]
fn post_batch(link: &mut Link, memory: &Memory, qp: &mut QpContext, list: &[Posted<'_>]) -> usize {
    if !fast_path_ok(link, qp) {
        return 0;
    }
    if let Some(first) = list.first() {
        // A guess from the first request: the requests of a list are usually alike.
        let bytes = (list.len() as u32).saturating_mul(first.sge.length.min(FRAGMENT) + 8);
        match first.sge.length {
            _ if bytes < CLAIM_MIN => {}
            ..=OWN_MESSAGE_MAX => link.tx.own(bytes),
            _ => link.tx.claim(bytes),
        }
    }
    let mut writer = link.tx.writer();
    let most = list.len().min(qp.sq.room() as usize);
    let mut rest = list.get(..most).unwrap_or_default();
    let mut done = 0;
    while let [wr, behind @ ..] = rest {
        let Some(plain) = plain_within(memory, qp, wr, LIST_COPY_MAX) else { break };
        let Some(space) = writer.space(plain.record()) else {
            link.tx.end_writer(&writer);
            let has_space = link.makes_space(plain.record());
            // It may have jumped, with space or without.
            writer = link.tx.writer();
            if !has_space {
                break;
            }
            continue;
        };
        let header = plain.header();
        if header.flags().contains(RecordFlags::ACK_REQ) && !link.signaled.has_room() {
            break;
        }
        writer.claim_behind(header.length());
        writer.put(plain, wr.first(), space);
        enter(link, qp, wr, (header, header.length()), writer.at);
        rest = behind;
        done += 1;
        if writer.at - link.tx.published() >= u64::from(PUBLISH_EVERY) {
            link.tx.end_writer(&writer);
            link.publish();
        }
    }
    link.tx.end_writer(&writer);
    // If part of the list remains, `post_slow` publishes all of it together: each publication costs
    // the receiver a look.
    if done == list.len() && link.tx.unpublished() > 0 {
        link.publish();
    }
    done
}

/// True if no request of the queue pair waits and its link is on the fast path: a post may write to
/// the ring.
#[inline(always)]
pub(crate) fn fast_path_ok(link: &Link, qp: &QpContext) -> bool {
    qp.sq.sent == qp.sq.posted && !link.slow_path
}

/// The head of a request's message, if it is plain: one record and one piece, which needs only a
/// send slot and ring space, and is not so long that its bytes are lent. Every other request takes
/// the slow path.
#[inline(always)]
pub(crate) fn plain(memory: &Memory, qp: &QpContext, wr: &SendWr<'_>) -> Option<Head> {
    plain_within(memory, qp, wr, LEND_MIN - 1)
}

/// The same for a SEND that the slot holds as a short one. It is checked only if it differs from
/// the last of its queue pair.
#[inline(always)]
fn plain_again(memory: &Memory, qp: &mut QpContext, wr: &SendWr<'_>) -> Option<Head> {
    if qp.again.is_like(memory, wr.sge, wr.flags) {
        return Some(Head::of_send(qp.common, wr.flags, wr.sge.length));
    }
    let removals = memory.removals();
    let head = match wr.sge.length as usize {
        ..=SLOT_SHORT => plain(memory, qp, wr)?,
        _ => return None,
    };
    qp.again.note(removals, wr.sge, wr.flags);
    Some(head)
}

/// The same; a message that is not inline may have `most` bytes.
#[inline(always)]
fn plain_within(memory: &Memory, qp: &QpContext, wr: &SendWr<'_>, most: u32) -> Option<Head> {
    let length = wr.sge.length;
    let inline = wr.flags.contains(SendFlags::INLINE);
    let limit = if inline { qp.sq.inline_max() } else { most };
    if length > limit || !wr.more.is_empty() || wr.flags.contains(SendFlags::FENCE) {
        return None;
    }
    if !inline && !readable(memory, qp.pd, wr.sge) {
        return None;
    }
    match wr.op {
        SendOp::Send => Some(Head::of_send(qp.common, wr.flags, length)),
        SendOp::SendWithImm(imm) => Some(Head::with_imm(qp.common, wr.flags, imm, length)),
        _ => None,
    }
}

/// True if there is a send slot for a plain request.
#[inline(always)]
pub(crate) fn has_slot(link: &Link, qp: &QpContext, plain: &Head) -> bool {
    let asks = plain.header().flags().contains(RecordFlags::ACK_REQ);
    qp.sq.room() > 0 && (!asks || link.signaled.has_room())
}

/// Writes a message of one record to the ring of a link on the fast path, unpublished. Returns
/// false, having done nothing, if the request is another, or there is no slot or space.
fn write_whole(link: &mut Link, memory: &Memory, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
    let Some(plain) = plain(memory, qp, wr) else {
        return wr.sge.length >= LEND_MIN && write_long(link, memory, qp, wr);
    };
    if !has_slot(link, qp, &plain) {
        return false;
    }
    let Some(space) = link.space(plain.record()) else { return false };
    write(link, qp, wr, (plain, space));
    true
}

/// The same for a long message: lends its bytes, or else copies them.
#[cold]
#[inline(never)]
fn write_long(link: &mut Link, memory: &Memory, qp: &mut QpContext, wr: &Posted<'_>) -> bool {
    let (head, words) = match lend::whole(link, memory, qp, wr) {
        Some((head, words)) => (head, Some(words)),
        None => match plain_within(memory, qp, wr, FRAGMENT) {
            Some(plain) => (plain, None),
            None => return false,
        },
    };
    if !has_slot(link, qp, &head) {
        return false;
    }
    let Some(space) = link.space(head.record()) else { return false };
    let payload = words.as_ref().map_or(wr.first(), Source::of_words);
    link.tx.put_in_ring(head, payload, space);
    enter(link, qp, wr, (head.header(), wr.sge.length), link.tx.at);
    true
}

/// Writes a plain request for which there is a slot and space.
#[inline(always)]
pub(crate) fn write(
    link: &mut Link,
    qp: &mut QpContext,
    wr: &Posted<'_>,
    (plain, space): (Head, Space),
) {
    let mut writer = link.tx.writer();
    writer.put(plain, wr.first(), space);
    link.tx.end_writer(&writer);
    enter(link, qp, wr, (plain.header(), plain.header().length()), writer.at);
}

/// Enters a request that is on the wire, up to ring position `end`, in the send queue. It is a
/// message of `length` bytes.
#[inline(always)]
fn enter(
    link: &mut Link,
    qp: &mut QpContext,
    wr: &SendWr<'_>,
    (header, length): (Header, u32),
    end: u64,
) {
    let mut sent = Sent::ON_WIRE;
    if header.flags().contains(RecordFlags::ACK_REQ) {
        sent |= Sent::SIGNALED;
        link.signaled.push(Signaled { end, qp: qp.num, index: qp.sq.posted });
        link.contention.note_signaled();
    }
    qp.sq.push(SqEntry { wr_id: wr.wr_id, end, sent, length });
    qp.sq.sent = qp.sq.posted;
}
