//! A poll of the shared domain, which any thread may make, for one queue of several.
//!
//! It does the work of all queues: entries of the queue that is polled go straight to its caller,
//! and others wait in their queue. A ping-pong needs few looks here as well, and most polls take
//! the predicted message ([`crate::state::predicted`]), an acknowledgement, or nothing.

use crate::model::cq::{Queued, SHARED_BUDGET};
use crate::shm::reader::SlotRecord;
use crate::state::domain_state::DomainState;
use crate::steps::poll::LOOK_IDLE;
use crate::wc::Wc;

/// What a poll of the shared domain has to do.
enum Work {
    Nothing,
    /// An acknowledgement has come.
    Ack,
    /// Something has come, perhaps the predicted message.
    Message,
    All,
}

impl DomainState {
    /// A poll of one queue of the shared domain, whichever thread makes it. If enough entries are
    /// there already, it takes them and does nothing else. Otherwise it does the work of all
    /// queues, as one without places for entries does.
    #[inline(always)]
    pub(crate) fn poll_shared(&mut self, index: usize, out: &mut [Wc]) -> usize {
        if let Some(left) = self.predicted.left_for(index)
            && let Some(first) = out.first_mut()
            && let Some(wc) = self.take_left(index, left)
        {
            *first = wc;
            return 1;
        }
        let mut taken = 0;
        if self.transport.res.completions.has_some(index) {
            taken = self.transport.take_completions(index, out);
            if taken > 0 && taken == out.len() {
                return taken;
            }
        }
        let out = out.get_mut(taken..).unwrap_or_default();
        let came = match if out.is_empty() { Work::All } else { self.work() } {
            Work::Nothing => return taken,
            Work::Ack => self.collect(index, out, |state, sink| {
                if let Some(link) = state.links.only() {
                    state.transport.take_ack(link, sink);
                }
            }),
            Work::Message => self.collect(index, out, DomainState::receive_predicted),
            Work::All => return taken + self.poll_all(index, out),
        };
        // A poll that finds nothing has looked at everything: a program that has armed its queue
        // sleeps then, and nobody wakes it for a message that is there already.
        if taken + came > 0 {
            return taken + came;
        }
        self.poll_all(index, out)
    }

    /// A poll of one queue of the shared domain that does the work of all queues.
    #[inline(never)]
    fn poll_all(&mut self, index: usize, out: &mut [Wc]) -> usize {
        self.collect(index, out, |state, sink| {
            state.progress(sink);
            state.attend_overruns();
        })
    }

    /// Takes the predicted message that the last poll has left, for the queue that is polled.
    #[inline(always)]
    fn take_left(&mut self, index: usize, left: SlotRecord) -> Option<Wc> {
        let completions = &mut self.transport.res.completions;
        if completions.has_some(index) || completions.get_mut(index)?.passes() == 0 {
            return None;
        }
        let link = self.links.only()?;
        let length = self.predicted.receive(link, left, &mut self.transport.res)?;
        self.transport.end_thorough(link, true, true);
        // Also those of the poll before, which has completed sends.
        self.attend_overruns();
        Some(self.predicted.wc(length))
    }

    /// Takes the predicted message, if it has come. The sends that it acknowledges complete first,
    /// as they do on a NIC. If this poll asked for these alone, the message may be left to the next
    /// one, which probably asks for its receive.
    #[inline(always)]
    fn receive_predicted(&mut self, sink: &mut Queued<'_>) {
        let Some(record) = self.find_predicted() else { return };
        let Some(link) = self.links.only() else { return };
        let recv_cq = self.predicted.recv_cq;
        if !link.signaled.is_empty() {
            // It acknowledges everything.
            link.rx.hear(record);
            link.reply.peer_replies = true;
            self.transport.complete_here(link, sink);
            if sink.taken() > 0 && !sink.passes(recv_cq) && self.transport.res.may_leave(recv_cq) {
                return self.predicted.leave(record);
            }
        }
        let came = self.predicted.receive(link, record, &mut self.transport.res);
        let Some(length) = came else { return };
        let wc = self.predicted.wc(length);
        self.transport.res.completions.receive(recv_cq, wc, false, sink);
        self.transport.end_thorough(link, true, true);
        self.attend_overruns();
    }

    /// Works, and takes the entries of a queue of the shared domain. They go straight to `out` as
    /// far as the queue lets them pass.
    #[inline(always)]
    fn collect(
        &mut self,
        index: usize,
        out: &mut [Wc],
        work: impl FnOnce(&mut DomainState, &mut Queued<'_>),
    ) -> usize {
        if out.is_empty() {
            work(self, &mut Queued::within(SHARED_BUDGET));
            return 0;
        }
        let cq = self.transport.res.completions.get_mut(index);
        let places = cq.map_or(0, |cq| cq.passes()).min(out.len());
        let mut sink = Queued::polling(index, out.get_mut(..places).unwrap_or_default());
        work(self, &mut sink);
        let taken = sink.taken();
        if !self.transport.res.completions.has_some(index) {
            return taken;
        }
        taken + self.transport.take_completions(index, out.get_mut(taken..).unwrap_or_default())
    }

    /// What a poll of the shared domain has to do, as far as a few words tell. If there are several
    /// links, or inboxes, it looks at everything.
    #[inline(always)]
    fn work(&mut self) -> Work {
        let others = self.links.has_background();
        let Some(link) = self.links.only() else { return Work::All };
        if others || link.needs_service() || !self.transport.res.service_queue.is_empty() {
            return Work::All;
        }
        if link.await_ack() {
            return Work::Ack;
        }
        let came = link.ping_pong && self.spin_after_reply();
        let Some(link) = self.links.only() else { return Work::All };
        link.empty_polls = link.empty_polls.wrapping_add(1);
        if came || link.has_news() {
            return if self.predicted.is_known() { Work::Message } else { Work::All };
        }
        if link.empty_polls.is_multiple_of(LOOK_IDLE) {
            return Work::All;
        }
        if link.empty_polls % LOOK_IDLE == 2 && !self.predicted.is_known() {
            self.predicted.prepare(link, &mut self.transport);
        }
        Work::Nothing
    }
}
