//! A poll: the short one, for the next message of the one busy link, and the full one.
//!
//! In a ping-pong a domain waits for one message and has nothing else to do. The short poll looks
//! up what the checks of that message need while it waits ([`crate::state::predicted`]). It also
//! looks at the resting links. A message that has come alone there, or on the busy link without
//! having been predicted, is taken where it is. Everything else is left to the full poll.
//!
//! A send that waits for its acknowledgement changes little: the short poll waits as before, and
//! the message that comes acknowledges it. With full polls, half a round trip of 8 bytes took 155
//! ns, in a ping-pong in which each send completes, between two threads of one core. It then took
//! 53, and 83 in place of 155 when the machine had other work.

use crate::model::cq::{Direct, Queued, SHARED_BUDGET, Sink};
use crate::provider::Polled;
use crate::shm::copy::claim_line;
use crate::shm::layout::{LINE, SLOT_SHORT};
use crate::shm::reader::SlotRecord;
use crate::state::domain_state::DomainState;
use crate::state::policy::idle::{RESTING_MAX, TAIL_LOOKS};
use crate::steps::receive::LOOK_EVERY;
use crate::sync::{Ordering, fence};
use crate::wc::Wc;

/// While idle, a poll reads the peer's own line in the first empty poll and in every `LOOK_IDLE`-th
/// after it, or in every [`LOOK_EVERY`]-th while a send waits for its acknowledgement.
const LOOK_IDLE: u32 = 64;

/// A full poll that has found a message on a resting link looks at this many more resting links
/// before it returns. It finds messages that come at once soon, and one that comes alone does not
/// wait for looks at all other links.
const LOOK_ON: usize = 8;

/// Before a poll serves a busy link, it prefetches the slot of the link this many places later in
/// the round. So the lines of messages that come at once travel together. With 64 links at once
/// the poll is 10 % shorter.
const FETCH_AHEAD: usize = 2;

impl DomainState {
    /// One poll of a domain whose poller is its thread, for at most one completion.
    #[inline(always)]
    pub(crate) fn poll_one(&mut self) -> Polled {
        let Some(link) = self.links.only() else { return Polled::More };
        if !self.transport.res.service_queue.is_empty() || link.needs_service() {
            return Polled::More;
        }
        if link.ping_pong {
            if self.links.has_background() && self.look_behind_reply() {
                return Polled::More;
            }
            self.spin_after_reply();
        }
        let Some(link) = self.links.only() else { return Polled::More };
        if !link.rx.has_seen_written() {
            return Polled::More;
        }
        let word = link.rx.peek();
        if link.rx.has_seen(word) {
            return self.wait();
        }
        // The full poll makes the completions of the sends that the message acknowledges.
        if !link.signaled.is_empty() {
            return Polled::More;
        }
        let Some(record) = self.predicted.find(link, word) else { return Polled::More };
        match self.predicted.receive(link, record, &mut self.transport.res) {
            Some(length) => Polled::One(self.predicted.wc(length)),
            None => Polled::More,
        }
    }

    /// Looks at the other links once after a message. If something has come there, this poll takes
    /// it, and the next begins with the busy link again.
    #[cold]
    #[inline(never)]
    fn look_behind_reply(&mut self) -> bool {
        if let Some(link) = self.links.only() {
            link.ping_pong = false;
            link.contention.note_followed();
        }
        self.look_at_background()
    }

    /// The first poll after a predicted message: gives the peer time to answer the reply.
    ///
    /// If the message was replied to, the peer owns the slot's lines now and will write to them. A
    /// look would take the lines away from it, which costs two transfers where a message costs one.
    /// So this side first prepares what the next message and its reply need, and then spins for as
    /// long as [`SpinPolicy`](crate::state::policy::spin::SpinPolicy) says.
    ///
    /// The spin begins when the reply is visible, hence the fence. A reply is late when the peer
    /// has just looked at the line in vain. Without the fence that delay would shorten the spin,
    /// and then this side would look in vain.
    ///
    /// True if a message has come; false: look.
    #[inline(never)]
    fn spin_after_reply(&mut self) -> bool {
        let Some(link) = self.links.only() else { return false };
        link.ping_pong = false;
        // A message that was not predicted has noted this already. To note it twice does no harm.
        link.contention.note_followed();
        if !link.rx.has_acked() || !link.spin.may_spin() {
            return false;
        }
        self.predicted.prepare(link, &mut self.transport);
        // A ping-pong goes through the whole ring, which is more than the nearest cache holds.
        // The reply may be longer. A constant number of lines costs the least instructions.
        link.tx.claim(SLOT_SHORT as u32);
        // A ping-pong goes through its receives as well, and a reply waits until the message it
        // replies to is written there.
        for line in 0..=link.rx.slot_lines {
            claim_line(self.predicted.to.address().wrapping_add(line * LINE));
        }
        link.empty_polls = 1;
        if self.transport.res.receives.were_posted(link.rq) {
            link.spin.note_work();
        }
        fence(Ordering::SeqCst);
        for _ in 0..link.spin.steps() {
            core::hint::black_box(());
        }
        let came = link.rx.has_news();
        link.rx.is_near = link.spin.note_look(came);
        came
    }

    /// Nothing has come: prepares for the next message.
    #[inline(always)]
    fn wait(&mut self) -> Polled {
        let Some(link) = self.links.only() else { return Polled::More };
        link.fetch_next();
        link.empty_polls = link.empty_polls.wrapping_add(1);
        let every = if link.signaled.is_empty() { LOOK_IDLE } else { LOOK_EVERY };
        if link.empty_polls % every == 1 {
            self.predicted.prepare(link, &mut self.transport);
        }
        // The spin after a reply may have read the acknowledgement, too. This may be the last poll
        // before a sleep.
        if !link.signaled.is_empty() && link.has_completed() {
            return Polled::More;
        }
        let came = self.links.has_background() && self.look_at_background();
        let nothing = self.transport.res.service_queue.is_empty() && !came;
        if nothing { Polled::Nothing } else { Polled::More }
    }

    /// Looks at the resting links, some idle links and the next inbox. True if something has come;
    /// then [`DomainState::poll_more`] takes it.
    #[cold]
    #[inline(never)]
    fn look_at_background(&mut self) -> bool {
        let others_first = self.links.is_check_due();
        others_first && self.check_others()
            || self.links.find_message()
            || !others_first && self.check_others()
    }

    /// Checks a resting link for a refusal or a response, some idle links for anything, and the
    /// next inbox for datagrams. True if something has come.
    #[inline(always)]
    fn check_others(&mut self) -> bool {
        let came = self.links.check_one_resting().is_some() || self.links.find_on_idle();
        self.transport.check_inbox() || came
    }

    /// Drops what is known of the next message.
    #[inline(always)]
    pub(crate) fn drop_prediction(&mut self) {
        self.predicted.to.forget();
    }
}

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

    /// The predicted message, if it has come. Nothing is done.
    #[inline(always)]
    fn find_predicted(&mut self) -> Option<SlotRecord> {
        let link = self.links.only()?;
        let word = link.rx.peek();
        if !link.rx.has_seen_written() || link.rx.has_seen(word) {
            return None;
        }
        self.predicted.find(link, word)
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

    /// One poll of a domain whose poller is its thread. Completions go straight to `out`; returns
    /// their number.
    #[inline(always)]
    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> usize {
        let Some(first) = out.first_mut() else { return 0 };
        match self.poll_one() {
            Polled::Nothing => 0,
            Polled::More => self.poll_more(out),
            Polled::One(wc) => {
                *first = wc;
                1
            }
        }
    }

    /// The rest of a poll, when `poll_one` has said that there may be more.
    #[inline(never)]
    pub(crate) fn poll_more(&mut self, out: &mut [Wc]) -> usize {
        let taken = self.receive_acking(out);
        if taken > 0 {
            // The next look finds the link anew.
            self.links.forget_found();
            return taken;
        }
        if self.links.has_background()
            && let Some(first) = out.first_mut()
            && let Some(wc) = self.receive_short()
        {
            *first = wc;
            return 1;
        }
        let places = out.len();
        let mut sink = Direct { free: out.iter_mut() };
        self.progress(&mut sink);
        places - sink.room()
    }

    /// Takes the predicted message, if it has come and acknowledges sends that complete. Returns
    /// the number of completions: those of the sends, and behind them that of the message, if there
    /// is a place for it.
    #[inline(always)]
    fn receive_acking(&mut self, out: &mut [Wc]) -> usize {
        if !self.predicted.is_known() {
            return 0;
        }
        let Some(record) = self.find_predicted() else { return 0 };
        let Some(link) = self.links.only() else { return 0 };
        let has_more = link.needs_service() || !self.transport.res.service_queue.is_empty();
        if link.signaled.is_empty() || has_more {
            return 0;
        }
        let places = out.len();
        let mut sink = Direct { free: out.iter_mut() };
        // It acknowledges everything.
        link.rx.hear(record);
        self.transport.complete_here(link, &mut sink);
        if sink.room() > 0
            && let Some(length) = self.predicted.receive(link, record, &mut self.transport.res)
        {
            let wc = self.predicted.wc(length);
            self.transport.res.completions.receive(self.predicted.recv_cq, wc, false, &mut sink);
        }
        places - sink.room()
    }

    /// Takes the message that has come alone on the quiet link that `poll_one` has found, or else
    /// on the only busy link. `None`: there is none, or a full poll is due.
    #[inline(always)]
    fn receive_short(&mut self) -> Option<Wc> {
        self.drop_prediction();
        if self.links.is_look_due() {
            self.look_at_background();
        }
        if let Some((at, link)) = self.links.take_found() {
            let came = self.transport.receive_alone(link);
            link.ping_pong = false;
            self.links.served_quiet(at, came.is_some());
            if let Some(only) = self.links.only() {
                only.spin.pause();
            }
            return came;
        }
        if !self.transport.res.service_queue.is_empty() {
            return None;
        }
        let link = self.links.only().filter(|link| !link.is_busy())?;
        let came = self.transport.receive_alone(link);
        self.links.look_due = came.is_some();
        came
    }

    /// One pass over all work, until the sink is full. Links are served in turn, so that a busy one
    /// cannot starve the others.
    #[inline(always)]
    pub(crate) fn progress<S: Sink>(&mut self, sink: &mut S) {
        self.drop_prediction();
        if !self.transport.res.inboxes.is_empty() {
            self.transport.check_inboxes();
        }
        if !self.transport.res.service_queue.is_empty() {
            self.run_service_queue(sink);
        }
        if self.links.table.len() == 1 {
            self.serve(0, sink);
        } else {
            self.serve_all(sink);
        }
    }

    /// Serves the busy links in turn, as long as the sink has room, and looks at the others. The
    /// next round begins where this one ends, so a busy link cannot starve the others.
    #[inline(never)]
    fn serve_all<S: Sink>(&mut self, sink: &mut S) {
        let busy = self.links.begin_round();
        let mut served = 0;
        while served < busy && (S::THOROUGH || sink.room() > 0) {
            let Some(index) = self.links.busy_at(served, busy) else { break };
            if let Some(next) = self.links.busy_link(served + FETCH_AHEAD, busy) {
                next.rx.fetch_slot();
            }
            self.serve(index, sink);
            served += 1;
        }
        if busy == 0 {
            self.transport.res.receives.give_back();
        }
        let mut looks = RESTING_MAX;
        let tails = if S::THOROUGH { RESTING_MAX } else { TAIL_LOOKS };
        while let Some((index, left)) = self.links.check_resting(looks, tails) {
            self.serve(index, sink);
            looks = if S::THOROUGH { left } else { left.min(LOOK_ON) };
        }
        if let Some(index) = self.links.check_one_resting() {
            self.serve(index, sink);
        }
        for _ in 0..self.links.idle_checks() {
            if let Some(index) = self.links.check_idle() {
                self.serve(index, sink);
            }
        }
        if let Some(index) = self.links.glance_at_idle() {
            self.serve(index, sink);
        }
        self.links.end_round(busy, served);
    }

    /// Serves one link.
    #[inline(always)]
    fn serve<S: Sink>(&mut self, index: usize, sink: &mut S) {
        if let Some(link) = self.links.get_mut(index) {
            self.transport.serve_link(link, sink);
        }
    }
}
