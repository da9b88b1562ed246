//! A poll of the shared domain, which any thread may make, for one queue of several.
//!
//! It does the work of all queues: entries of the queue that is polled go straight to its caller,
//! and others wait in their queue. A ping-pong needs few looks here as well. The short poll
//! ([`DomainState::poll_one_shared`]) takes the predicted message ([`crate::state::predicted`]), or
//! the end of the send that it acknowledges, or finds that nothing has come. A message that comes
//! before a poll in vain has predicted it is predicted then. Everything else is left to
//! [`DomainState::poll_more_shared`], which begins with entries that are there, and with the end of
//! a send whose acknowledgement has come alone.
//!
//! While a poll waits it also finds out how the send that the message acknowledges ends
//! ([`crate::state::ready`]). Then the poll that finds the message and the one that takes it look
//! less up. A poll that has spun trusts what it has found out just before, and notes for the spin
//! policy only later what its look has found. In `ib_send_lat` these two polls take 83 instructions
//! from the look on, and 114. Before, they took 131 and 135.
//!
//! Beside quiet links and inboxes a poll is short only if somebody polls soon in any case, and
//! nobody has armed the queue: it looks at some of them, as in a domain of one thread
//! ([`crate::steps::poll`]). UCX has such links. Over the drop-in, half a round trip of its 8 bytes
//! went from 256 to 125 ns near and from 540 to 183 far, together with its inline messages of two
//! pieces, which had taken the slow post and the ring.
//!
//! A completion goes to the caller by value. In memory its fields would be stored one by one, and a
//! copy of it loaded at once, which waits for these stores. Two versions were measured against the
//! previous poll. The one that copied completions through memory saved 88 instructions in
//! `ib_send_lat` and no time (150 and 140 ns, near). The one that returns them by value saved 217
//! instructions, and took 100 ns in place of 125.

use crate::model::cq::{Queued, SHARED_BUDGET};
use crate::provider::Polled;
use crate::shm::layout::Header;
use crate::shm::reader::SlotRecord;
use crate::state::domain_state::DomainState;
use crate::steps::poll::LOOK_IDLE;
use crate::wc::Wc;

impl DomainState {
    /// A poll of one queue of the shared domain, whichever thread makes it.
    #[inline(always)]
    pub(crate) fn poll_shared(&mut self, index: usize, out: &mut [Wc]) -> usize {
        let polled = if out.is_empty() { Polled::More } else { self.poll_one_shared(index) };
        match (polled, &mut *out) {
            (Polled::One(wc), [first, rest @ ..]) => {
                *first = wc;
                if let Some(second) = rest.first_mut()
                    && let Some(wc) = self.poll_left_shared(index)
                {
                    *second = wc;
                    return 2;
                }
                1
            }
            (Polled::More, _) => self.poll_more_shared(index, out),
            _ => 0,
        }
    }

    /// The same without a place for completions: it takes one at most. If that is the end of a
    /// send, and there is room for several, [`DomainState::poll_left_shared`] takes the answer.
    /// [`Polled::More`]: a call of [`DomainState::poll_more_shared`] must follow.
    #[inline(always)]
    pub(crate) fn poll_one_shared(&mut self, index: usize) -> Polled {
        if let Some(left) = self.predicted.left_for(index) {
            return self.take_left(index, left).map_or(Polled::More, Polled::One);
        }
        let others = self.links.has_background();
        if !self.has_one_source(index) || self.transport.res.completions.has_some(index) {
            return Polled::More;
        }
        let Some(link) = self.links.only() else { return Polled::More };
        if link.await_ack() {
            return Polled::More;
        }
        let mut came = false;
        if link.ping_pong {
            if others && self.find_in_background() {
                return Polled::More;
            }
            if self.spin_and_make_ready() {
                let DomainState { links, ready, predicted, transport, .. } = self;
                let Some(link) = links.only() else { return Polled::More };
                let words = link.rx.awaited();
                if let Some(wc) = ready.end_found(predicted, link, (index, words), transport) {
                    return Polled::One(wc);
                }
                came = self.note_look(words);
            }
        }
        let Some(link) = self.links.only() else { return Polled::More };
        link.empty_polls = link.empty_polls.wrapping_add(1);
        if came || link.has_news() {
            if let Some(wc) = self.end_ready(index) {
                return Polled::One(wc);
            }
            return self.take_predicted_shared(index).map_or(Polled::More, Polled::One);
        }
        if link.empty_polls.is_multiple_of(LOOK_IDLE) {
            return Polled::More;
        }
        if link.empty_polls % LOOK_IDLE == 2 && !self.predicted.is_known() {
            self.predicted.prepare(link, &mut self.transport);
            self.make_ready();
        }
        if others && self.find_in_background() { Polled::More } else { Polled::Nothing }
    }

    /// Spins after a reply as in a domain of one thread, and prepares for the message before. True
    /// if the caller has to look. What the last such look has found is noted only here, because
    /// that message is waited for and this one is not there yet.
    #[inline(never)]
    fn spin_and_make_ready(&mut self) -> bool {
        if let Some(link) = self.links.only()
            && link.spin.take_found()
        {
            link.rx.is_near = link.spin.note_look(true);
        }
        self.spin(DomainState::make_ready).is_some()
    }

    /// Tells the policy what that look has found. True if it has found something.
    #[inline(always)]
    fn note_look(&mut self, words: [u64; 2]) -> bool {
        let Some(link) = self.links.only() else { return false };
        let came = words != link.rx.seen();
        link.rx.is_near = link.spin.note_look(came);
        came
    }

    /// See [`Ready`](crate::state::ready::Ready).
    fn make_ready(&mut self) {
        match self.links.only() {
            Some(link) => self.ready.renew(&self.predicted, link, &mut self.transport),
            None => self.ready.forget(),
        }
    }

    /// Ends the send that was made ready for that, if the predicted message has come, and leaves
    /// the message to the next poll. As on a NIC, a send ends before the receive of its answer.
    #[inline(always)]
    fn end_ready(&mut self, index: usize) -> Option<Wc> {
        if !self.predicted.is_known() {
            return None;
        }
        let link = self.links.only()?;
        let record = self.predicted.find_news(link)?;
        let wc = self.ready.end_send(link, index, &mut self.transport.qps)?;
        link.reply.peer_replies = true;
        self.predicted.leave(record);
        Some(wc)
    }

    /// Takes the message that the last poll of that queue has left, if it has left one: the answer
    /// to a send that ends in the same queue.
    #[inline(always)]
    pub(crate) fn poll_left_shared(&mut self, index: usize) -> Option<Wc> {
        let left = self.predicted.left_for(index)?;
        self.take_left(index, left)
    }

    /// As [`DomainState::poll_left_shared`], for a message behind which nothing else is to be done,
    /// as was found out before it came. `None`: nothing was done.
    #[inline(always)]
    pub(crate) fn poll_left_at_once<const LONG: bool>(&mut self, index: usize) -> Option<Wc> {
        let (link, res) = (self.links.only()?, &mut self.transport.res);
        // Otherwise see `end_thorough`.
        if !self.ready.receive {
            return None;
        }
        let length = self.predicted.receive_left::<LONG>(link, index, res)?;
        link.reply.note_again(link.tx.published());
        Some(self.predicted.wc(length))
    }

    /// True if all that a poll of that queue may find comes over the only busy link. A poll that
    /// looks at a part of the others is enough, if there are others.
    #[inline(always)]
    fn has_one_source(&mut self, index: usize) -> bool {
        let Some(link) = self.links.only() else { return false };
        let res = &self.transport.res;
        if link.needs_service() || !res.service_queue.is_empty() {
            return false;
        }
        !self.links.has_background() || res.may_wait(index)
    }

    /// Takes the predicted message, if it has come, and its receive ends in that queue. Or ends the
    /// one send that the message acknowledges, if its queue is that one, and leaves the message to
    /// the next poll, which probably asks for it. `None`: nothing was done.
    #[inline(always)]
    fn take_predicted_shared(&mut self, index: usize) -> Option<Wc> {
        if !self.transport.res.completions.passes(index) {
            return None;
        }
        if !self.predicted.is_known() && !self.predict_late() {
            return None;
        }
        // One look for the link: this is the way of each message of a ping-pong.
        let link = self.links.only()?;
        let record = self.predicted.find_news(link)?;
        let recv_cq = self.predicted.recv_cq;
        let is_for_it = recv_cq == index;
        if let Some(send) = link.signaled.first() {
            if !is_for_it || self.transport.send_cq_of(send) == Some(index) {
                if !self.transport.res.may_wait(recv_cq) {
                    return None;
                }
                let wc = self.transport.end_only_send(link, send, index)?;
                link.reply.peer_replies = true;
                self.predicted.leave(record);
                self.ready.forget();
                return Some(wc);
            }
            if !self.end_send_elsewhere(record) {
                return None;
            }
        }
        if is_for_it { self.receive_shared(record) } else { None }
    }

    /// Ends the one send that waits, in its own queue, which is not the one that is polled. The
    /// message that acknowledges it is taken next. False: the message may not be taken now.
    #[cold]
    #[inline(never)]
    fn end_send_elsewhere(&mut self, record: SlotRecord) -> bool {
        let Some(link) = self.links.only().filter(|link| link.signaled.has_one()) else {
            return false;
        };
        // It acknowledges everything.
        link.rx.hear(record);
        link.reply.peer_replies = true;
        self.ready.forget();
        self.transport.complete(link, &mut Queued::within(SHARED_BUDGET));
        self.attend_overruns();
        self.predicted.is_known()
    }

    /// Predicts the message that has come, if it is alone and in the slot: no poll in vain has
    /// predicted it, because it came too soon. False: nothing is predicted.
    #[cold]
    #[inline(never)]
    fn predict_late(&mut self) -> bool {
        let Some(link) = self.links.only() else { return false };
        let (word, like) = (link.rx.peek(), Header::plain_for(link.last_qp));
        let is_alone = link.rx.has_seen_written()
            && link.rx.predicted_in_slot(word, like, link.tx.published()).is_some();
        // Another domain may lack the receives that this one has prefetched.
        if !is_alone || self.transport.res.receives.give_back() {
            return false;
        }
        self.predicted.predict(link, &mut self.transport);
        self.ready.forget();
        self.predicted.is_known()
    }

    /// Takes the predicted message that the last poll has left, for the queue that is polled.
    #[inline(always)]
    fn take_left(&mut self, index: usize, left: SlotRecord) -> Option<Wc> {
        if self.transport.res.completions.passes(index) { self.receive_shared(left) } else { None }
    }

    /// Takes the predicted message, and makes its completion.
    #[inline(always)]
    fn receive_shared(&mut self, record: SlotRecord) -> Option<Wc> {
        let link = self.links.only()?;
        let length = self.predicted.receive(link, record, &mut self.transport.res)?;
        self.transport.end_thorough(link, true, true);
        Some(self.predicted.wc(length))
    }

    /// The rest of a poll, when [`DomainState::poll_one_shared`] has said that there may be more.
    /// It takes the entries that are there, and what a few looks find. Only if that is nothing, or
    /// there is no place for entries, it does the work of all queues.
    #[inline(never)]
    pub(crate) fn poll_more_shared(&mut self, index: usize, out: &mut [Wc]) -> usize {
        self.ready.forget();
        let taken = self.transport.take_completions(index, out);
        let out = out.get_mut(taken..).unwrap_or_default();
        if taken > 0 && out.is_empty() {
            return taken;
        }
        if let Some(first) = out.first_mut()
            && let Some(wc) = self.end_acked(index)
        {
            *first = wc;
            return taken + 1;
        }
        self.poll_behind(index, out, taken)
    }

    /// Ends the one send that waits, if its acknowledgement has come alone, and its queue is that
    /// one. `None`: nothing was done.
    #[inline(always)]
    fn end_acked(&mut self, index: usize) -> Option<Wc> {
        if !self.has_one_source(index) || !self.transport.res.completions.passes(index) {
            return None;
        }
        // As in `poll_for_few`.
        if self.links.found().is_some() {
            return None;
        }
        let link = self.links.only()?;
        if !link.is_acked() || link.reply.is_look_due() {
            return None;
        }
        let send = link.signaled.first()?;
        let wc = self.transport.end_only_send(link, send, index)?;
        link.reply.note_ack_alone();
        Some(wc)
    }

    /// The rest of [`DomainState::poll_more_shared`], after it has taken `taken` entries that were
    /// there, and has ended no send.
    #[inline(never)]
    fn poll_behind(&mut self, index: usize, out: &mut [Wc], taken: usize) -> usize {
        let short = if out.is_empty() { 0 } else { self.poll_for_few(index, out) };
        // A poll that finds nothing has looked at everything: a program that has armed its queue
        // sleeps then, and nobody wakes it for a message that is there already.
        if taken + short > 0 {
            return taken + short;
        }
        // The looks at idle links go on behind the one on which the short poll has found something.
        if let Some((at, _)) = self.links.found() {
            self.links.served_quiet(at, false);
        }
        if let Some(link) = self.links.only() {
            link.reply.note_look();
        }
        self.collect(index, out, |state, sink| {
            state.progress(sink);
            state.attend_overruns();
        })
    }

    /// Takes an acknowledgement that has come alone, or the predicted message and all sends that it
    /// acknowledges.
    #[inline(always)]
    fn poll_for_few(&mut self, index: usize, out: &mut [Wc]) -> usize {
        // What a look at the others has found is left to the full pass.
        if !self.has_one_source(index) || self.links.found().is_some() {
            return 0;
        }
        let Some(link) = self.links.only() else { return 0 };
        let is_acked = link.is_acked();
        if !is_acked && !self.predicted.is_known() || is_acked && link.reply.is_look_due() {
            return 0;
        }
        self.collect(index, out, |state, sink| {
            match state.links.only() {
                Some(link) if is_acked => state.transport.take_ack(link, sink),
                _ => state.receive_predicted(sink),
            }
            state.attend_overruns();
        })
    }

    /// Takes the predicted message, if it has come. The sends that it acknowledges complete first,
    /// as they do on a NIC. If this poll asked for these alone, the message may be left to the next
    /// one.
    #[inline(always)]
    fn receive_predicted(&mut self, sink: &mut Queued<'_>) {
        let Some(record) = self.find_predicted() else { return };
        let Some(link) = self.links.only() else { return };
        let recv_cq = self.predicted.recv_cq;
        if !link.signaled.is_empty() {
            // It acknowledges everything.
            link.rx.hear(record);
            link.reply.peer_replies = true;
            self.transport.complete(link, sink);
            if sink.taken() > 0 && !sink.passes(recv_cq) && self.transport.res.may_wait(recv_cq) {
                return self.predicted.leave(record);
            }
        }
        let solicited = record.header.flags().is_solicited();
        if let Some(wc) = self.receive_shared(record) {
            self.transport.res.completions.receive(recv_cq, wc, solicited, sink);
        }
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
}
