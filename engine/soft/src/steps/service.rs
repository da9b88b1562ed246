//! Work on queue pairs that no message triggers: delayed completions, requests that cannot run, and
//! the flush of a queue pair in ERR.

use crate::event::{AsyncKind, Object};
use crate::model::cq::{CompletionQueue, Sink};
use crate::model::send_queue::Sent;
use crate::provider::QpType;
use crate::shm::layout::{Header, KIND_WRITE, RecordFlags, WRITE_OPERANDS};
use crate::state::completions::Completions;
use crate::state::domain_state::DomainState;
use crate::state::link_scheduler::Links;
use crate::state::qp::{Gone, QpContext, State};
use crate::state::resources::Resources;
use crate::state::transport::Transport;
use crate::wc::Status;

impl DomainState {
    /// Moves the queue pairs of an overrun completion queue to ERR (CP-5).
    #[inline(always)]
    pub(crate) fn attend_overruns(&mut self) {
        if self.transport.res.completions.has_overrun() {
            self.fail_overrun();
        }
    }

    #[cold]
    #[inline(never)]
    fn fail_overrun(&mut self) {
        // The message may be for one of these queue pairs, and be left to the next poll.
        self.drop_prediction();
        let Transport { qps, res } = &mut self.transport;
        for cq in 0..res.completions.all().len() {
            if !res.completions.get_mut(cq).is_some_and(CompletionQueue::take_overrun) {
                continue;
            }
            let id = u64::from(res.id) << 32 | cq as u64;
            res.nic.raise(AsyncKind::CqError, Object::Cq(id));
            for qp in qps.iter_mut().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq) {
                res.nic.raise(AsyncKind::QpFatal, Object::Qp(qp.num));
                let acked = self.links.acked_position(qp);
                res.fail_qp(qp, acked, None);
            }
        }
    }

    /// Serves the service queue while there is room for completions. A queue pair that is not done
    /// goes to the end: one whose receives are posted as fast as they are flushed keeps no other
    /// waiting.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_service_queue<S: Sink>(&mut self, sink: &mut S) {
        if self.transport.res.service_queue.waits() {
            self.serve_links_first(sink);
            if self.transport.res.service_queue.waits() {
                // Whoever sleeps on another queue than this poll's must look again.
                return self.transport.res.local_waker.wake_from_inside();
            }
        }
        let (links, Transport { qps, res }) = (&mut self.links, &mut self.transport);
        for _ in 0..res.service_queue.len() {
            if sink.room() == 0 {
                return;
            }
            let Some(num) = res.service_queue.next() else { return };
            let Some(qp) = qps.get_mut(num) else { continue };
            if res.service(links, qp, sink) {
                qp.is_scheduled = false;
            } else {
                res.service_queue.put_back(num);
            }
        }
    }

    /// Completes what peers have acknowledged, and takes what they have sent. The service queue
    /// goes on once that leaves room, completes no send to a peer that has left, and takes no
    /// record of its link: a long message gives one completion, after several polls. What comes
    /// from others without a pause does not count.
    #[inline(never)]
    fn serve_links_first<S: Sink>(&mut self, sink: &mut S) {
        let DomainState { links, transport, .. } = self;
        for link in links.table.iter_mut().flatten() {
            transport.look_around(link);
        }
        let before = self.progress_of_departed();
        // The command has made all of them busy.
        self.serve_all(sink);
        let came = sink.room() == 0 || self.progress_of_departed() != before;
        self.transport.res.service_queue.links_served(came);
    }

    /// Changes whenever a send to a peer that has left completes, or a record of its link is taken.
    fn progress_of_departed(&self) -> u64 {
        let Transport { qps, res } = &self.transport;
        let scheduled = res.service_queue.nums().iter().filter_map(|num| qps.get(*num));
        let departed = scheduled.filter(|qp| qp.peer_gone.is_some());
        let sum = |sum: u64, qp: &QpContext| {
            sum.wrapping_add(qp.sq.completed.into()).wrapping_add(self.links.progress_of(qp.link))
        };
        departed.fold(0, sum)
    }
}

impl Resources {
    /// Serves one queue pair. Returns true if no such work is left for it.
    fn service<S: Sink>(&mut self, links: &mut Links, qp: &mut QpContext, sink: &mut S) -> bool {
        let mut done = match qp.kind.is_unreliable() {
            true => {
                // Sends to nobody complete below.
                self.end_if_gone(links, qp);
                self.completions.complete_unreliable(qp, sink)
            }
            false => self.completions.release_parked(qp, sink) && qp.failure.poison.is_none(),
        };
        // On RC, a request that fails by itself keeps its own status.
        self.fail_poisoned(links, qp);
        self.end_if_gone(links, qp);
        if !qp.has_drained(links, &self.nic) {
            qp.ask_to_drain(links);
            done = false;
        }
        if qp.state == State::Err {
            if let Some(link) = links.get_mut(qp.link) {
                link.await_less(qp.reads.give_up());
            }
            done = self.completions.flush_assembly(qp, sink)
                && self.completions.flush_sends(qp, sink)
                && self.flush_receives(qp, sink);
        }
        let is_over = qp.state == State::Err;
        if !done || self.receive_datagrams(qp, sink) || (qp.state == State::Err) != is_over {
            return false;
        }
        let raised = qp.last_wqe_raised || qp.kind == QpType::XrcRecv;
        if qp.state == State::Err && qp.rq_shared && !raised {
            qp.last_wqe_raised = true;
            self.nic.raise(AsyncKind::LastWqeReached, Object::Qp(qp.num));
        }
        true
    }

    /// Ends the sends to a peer that takes nothing more, if there are any or it is lost.
    fn end_if_gone(&mut self, links: &mut Links, qp: &mut QpContext) {
        if let Some(how) = qp.peer_gone.take()
            && (how == Gone::Lost || qp.is_sending(links))
        {
            self.lose(links, qp);
        }
    }

    /// The peer is lost: moves the queue pair to ERR, and the first send that the peer has not
    /// taken ends with an error. On UC sends go nowhere from now on.
    fn lose(&mut self, links: &mut Links, qp: &mut QpContext) {
        if qp.state.is_unreliable() {
            if qp.kind == QpType::Uc {
                qp.lose_peer();
            }
            return;
        }
        self.fail_unacked(links, qp, Some(Status::RetryExceeded));
    }

    /// Moves the queue pair to ERR: all that the peer has not acknowledged fails, with `cause` for
    /// the first.
    pub(super) fn fail_unacked(
        &mut self,
        links: &mut Links,
        qp: &mut QpContext,
        cause: Option<Status>,
    ) {
        let upto = links.acked_position(qp);
        self.fail_qp(qp, upto, cause);
        links.ack_all();
    }

    /// A request that could not run fails its queue pair once all requests before it are done. One
    /// of those may be refused, and that error comes first (SQ-3).
    fn fail_poisoned(&mut self, links: &mut Links, qp: &mut QpContext) {
        let Some((index, status)) = qp.failure.poison else { return };
        if qp.reads.in_flight() > 0 || qp.parked.is_some() {
            return;
        }
        let mut good_until = 0;
        let mut before = qp.sq.completed;
        while before != index {
            good_until = qp.sq.entry(before).end;
            before = before.wrapping_add(1);
        }
        // The rest of a message that had begun never comes, and no other may follow it.
        if qp.sq.sent_bytes > 0 || links.acked_position(qp) >= good_until {
            return self.fail_qp(qp, good_until, Some(status));
        }
        // On an idle link nobody reads acknowledgements.
        links.activate(qp.link);
        if !qp.failure.urged {
            qp.failure.urged = urge(links, qp);
        }
    }

    /// Returns true when every receive of a queue pair's own queue has its completion. Receives of
    /// a shared queue stay for other queue pairs.
    fn flush_receives<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        loop {
            if sink.room() == 0 {
                return false;
            }
            let wr = if qp.rq_shared { None } else { self.receives.flush_one(qp) };
            let Some(wr) = wr else { return true };
            self.completions.receive_failed(qp, wr.wr_id, Status::Flushed, sink);
        }
    }
}

impl Completions {
    /// Makes the completions that waited for responses, as far as those have arrived. Returns false
    /// if there is no room for more now.
    pub(super) fn release_parked<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        let Some(upto) = qp.parked else { return true };
        while qp.sq.completed != upto {
            let index = qp.sq.completed;
            if qp.awaits_response(index) {
                return true;
            }
            if !qp.sq.entry(index).sent.contains(Sent::SIGNALED) {
                qp.sq.completed = index.wrapping_add(1);
                continue;
            }
            if sink.room() == 0 {
                return false;
            }
            self.send(qp, index, sink);
        }
        qp.parked = None;
        true
    }

    /// Returns true when the receive that a broken message had taken has its completion. This runs
    /// before the sends are flushed: an owner that has seen all send completions may destroy the
    /// queue pair.
    fn flush_assembly<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        if qp.assembly.is_some() && sink.room() == 0 {
            return false;
        }
        if let Some(assembly) = qp.assembly.take() {
            self.receive_failed(qp, assembly.wr.wr_id, Status::Flushed, sink);
        }
        true
    }

    /// Returns true when every send has its completion.
    fn flush_sends<S: Sink>(&mut self, qp: &mut QpContext, sink: &mut S) -> bool {
        while qp.sq.completed != qp.sq.posted {
            let index = qp.sq.completed;
            let good_until = qp.failure.good_until;
            let entry = *qp.sq.entry(index);
            if entry.sent.contains(Sent::ON_WIRE)
                && qp.failure.cause != Some(Status::Flushed)
                && good_until >= entry.end
                && !qp.awaits_response(index)
            {
                if !entry.sent.contains(Sent::SIGNALED) {
                    qp.sq.completed = index.wrapping_add(1);
                    continue;
                }
                if sink.room() == 0 {
                    return false;
                }
                self.send(qp, index, sink);
                continue;
            }
            if sink.room() == 0 {
                return false;
            }
            let status = qp.failure.cause.unwrap_or(Status::Flushed);
            // Requests from here on do not succeed.
            qp.failure.cause = Some(Status::Flushed);
            self.send_failed(qp, index, status, sink);
        }
        true
    }
}

impl QpContext {
    /// In SQD, asks the peer once how far it has read, when only its acknowledgement is missing.
    fn ask_to_drain(&mut self, links: &mut Links) {
        let acks_alone = self.reads.in_flight() == 0 && self.sq.sent_bytes == 0;
        if self.kind.is_unreliable() || !acks_alone {
            return;
        }
        // On an idle link nobody reads acknowledgements.
        links.activate(self.link);
        if !self.drain_urged {
            self.drain_urged = urge(links, self);
        }
    }
}

/// Asks the peer how far it has read: for requests that complete silently it need not say so by
/// itself. Returns false if there is no space.
fn urge(links: &mut Links, qp: &QpContext) -> bool {
    let Some(link) = links.get_mut(qp.link) else { return true };
    let flags = RecordFlags::FIRST | RecordFlags::LAST | RecordFlags::ACK_REQ;
    let header = Header::new(KIND_WRITE, flags, WRITE_OPERANDS, qp.peer);
    if link.is_broken() || !link.has_space(header.record()) {
        return link.is_broken();
    }
    // A WRITE of nothing has no address and no key.
    link.tx.put_words(header, 0, &[0, 0]);
    link.publish();
    true
}
