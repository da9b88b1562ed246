//! A poll: the short one, for the next message, and the full one.
//!
//! In a ping-pong a domain waits for one message and has nothing else to do. The short poll looks
//! up what the checks of that message need while it waits ([`crate::state::predicted`]). It takes
//! the message
//!
//! - from the slot of the one busy link;
//! - from its ring, where messages are while they cross: one, or one of two of about the same
//!   length;
//! - from a resting or idle link, at which it looks while it waits. If both links have the same
//!   receive queue, the receive is the same, and only the queue pair differs.
//!
//! A lone message that differs from the prediction is taken where it is. Everything else is left to
//! the full poll. It costs one message twice the instructions, but takes many messages at once.
//!
//! With Poisson arrivals on near cores, on a machine with other work, messages taken from the ring
//! and the preparation in [`crate::state::predicted`] brought the median of a round trip from 737
//! to 472 ns at 1 % of the peak, from 667 to 457 at 10 % and from 1361 to 791 at 50 %.
//!
//! A send that waits for its acknowledgement changes little: the short poll waits as before, and
//! the message that comes acknowledges it. With full polls, half a round trip of 8 bytes took 155
//! ns, in a ping-pong in which each send completes, between two threads of one core. It then took
//! 53, and 83 in place of 155 when the machine had other work.
//!
//! The short poll leaves two messages in the slot to the full poll, and a message that came before
//! a poll had predicted it. A short poll that took these was measured and not kept. It saved
//! instructions: of two echoes of 8 bytes at once, each cost the answering side 501 in place of
//! 962. But it took more time. With 8 peers at once a round trip took 1843 ns in place of 1422, and
//! with 64 peers 14.6 us in place of 10.9 (Intel, family 6, model 207, far cores, medians of 3
//! rounds in turn). The reason was not found.

use crate::model::cq::{Direct, Sink};
use crate::provider::Polled;
use crate::shm::layout::SLOT_SHORT;
use crate::shm::reader::SlotRecord;
use crate::state::domain_state::DomainState;
use crate::state::link::Link;
use crate::state::policy::idle::{LOOK_AGAIN_MAX, RESTING_MAX, TAIL_LOOKS};
use crate::steps::receive::LOOK_EVERY;
use crate::sync::{Ordering, fence};
use crate::wc::Wc;

/// While idle, a poll reads the peer's own line in the first empty poll and in every `LOOK_IDLE`-th
/// after it, or in every [`LOOK_EVERY`]-th while a send waits for its acknowledgement.
pub(crate) const LOOK_IDLE: u32 = 64;

/// A message is late after this many empty polls, some 1.2 us: twice the round trip between far
/// cores without a spin.
const LATE_AFTER: u32 = 2 * LOOK_IDLE + 1;

/// A full poll that has found a message on a resting link looks at this many more resting links
/// before it returns. It finds messages that come at once soon, and one that comes alone does not
/// wait for looks at all other links.
const LOOK_ON: usize = 8;

/// Before a poll serves a busy link, it prefetches the slot of the link this many places later in
/// the round. So the lines of messages that come at once travel together. With 64 links at once
/// the poll is 10 % shorter.
const FETCH_AHEAD: usize = 2;

/// What a short poll has found.
enum Looked {
    Nothing,
    /// Something that [`DomainState::poll_more`] takes.
    More,
    /// It has taken a predicted message of that length.
    Message(u32),
}

impl DomainState {
    /// One poll of a domain whose poller is its thread, for at most one completion.
    #[inline(always)]
    pub(crate) fn poll_one(&mut self) -> Polled {
        // One place for all messages: a completion made in several would be in memory.
        match self.take_predicted() {
            Looked::Nothing => Polled::Nothing,
            Looked::More => Polled::More,
            Looked::Message(length) => Polled::One(self.predicted.wc(length)),
        }
    }

    /// Takes the predicted message, if it has come.
    #[inline(always)]
    fn take_predicted(&mut self) -> Looked {
        let Some(link) = self.links.only() else { return Looked::More };
        if !self.transport.res.service_queue.is_empty() || link.needs_service() {
            return Looked::More;
        }
        if link.ping_pong {
            if self.links.has_background() {
                match self.look_behind_reply() {
                    Looked::Nothing => {}
                    looked => return looked,
                }
            }
            self.spin_after_reply();
        }
        let Some(link) = self.links.only() else { return Looked::More };
        if !link.rx.has_seen_written() {
            return self.take_from_ring();
        }
        let word = link.rx.peek();
        if link.rx.has_seen(word) {
            return self.wait();
        }
        // The full poll makes the completions of the sends that the message acknowledges.
        if !link.signaled.is_empty() {
            return Looked::More;
        }
        let Some(record) = self.predicted.find(link, word) else { return Looked::More };
        match self.predicted.receive(link, record, &mut self.transport.res) {
            Some(length) => Looked::Message(length),
            None => Looked::More,
        }
    }

    /// The same for a message in the ring alone, as they come while messages cross. Before the
    /// next one it looks at the other links.
    #[cold]
    #[inline(never)]
    fn take_from_ring(&mut self) -> Looked {
        // An earlier poll may have found a quiet link without taking its message; that place may be
        // stale.
        self.links.forget_found();
        if self.links.has_background() && self.links.is_look_due() {
            match self.look_at_background() {
                Looked::Nothing => {}
                looked => return looked,
            }
        }
        let Some(link) = self.links.only() else { return Looked::More };
        let Some(record) = link.rx.first_of_few().filter(|_| link.signaled.is_empty()) else {
            return Looked::More;
        };
        if !self.predicted.is_known() {
            self.predicted.predict(link, &mut self.transport);
        }
        let taken = self.predicted.receive_from_ring(link, record, &mut self.transport.res);
        self.links.look_due = taken.is_some();
        taken.map_or(Looked::More, Looked::Message)
    }

    /// Looks at the other links once after a message. If something has come there, this poll takes
    /// it, and the next begins with the busy link again.
    #[cold]
    #[inline(never)]
    fn look_behind_reply(&mut self) -> Looked {
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
    /// It does not look at its other links meanwhile. With one of 2 or 8 links that has rested, in
    /// 5 to 12 rounds in turn, such looks changed neither the p50 nor the p90 for certain.
    ///
    /// True if a message has come; false: look.
    #[inline(never)]
    fn spin_after_reply(&mut self) -> bool {
        let Some(link) = self.spin(|_| ()) else { return false };
        let came = link.rx.has_awaited();
        link.rx.is_near = link.spin.note_look(came);
        came
    }

    /// The spin of [`DomainState::spin_after_reply`]. It calls `prepared` first. The caller looks
    /// for a message then, and tells the policy. `None`: this link does not spin.
    #[inline(always)]
    pub(crate) fn spin(&mut self, prepared: impl FnOnce(&mut DomainState)) -> Option<&mut Link> {
        let link = self.links.only()?;
        link.ping_pong = false;
        // A message that was not predicted has noted this already. To note it twice does no harm.
        link.contention.note_followed();
        if !link.rx.has_acked() || !link.spin.may_spin() {
            return None;
        }
        self.predicted.prepare(link, &mut self.transport);
        prepared(self);
        let link = self.links.only()?;
        link.empty_polls = 1;
        if self.transport.res.receives.were_posted(link.rq) {
            link.spin.note_work();
        }
        fence(Ordering::SeqCst);
        for _ in 0..link.spin.steps() {
            core::hint::black_box(());
        }
        Some(link)
    }

    /// Nothing has come: prepares for the next message.
    #[inline(always)]
    fn wait(&mut self) -> Looked {
        let Some(link) = self.links.only() else { return Looked::More };
        link.fetch_next();
        link.empty_polls = link.empty_polls.wrapping_add(1);
        let every = if link.signaled.is_empty() { LOOK_IDLE } else { LOOK_EVERY };
        if link.empty_polls % every == 1 {
            match link.empty_polls {
                // A spin counts as the first empty poll, so there was none.
                1 => link.spin.note_wait(),
                // A far one, if it sends at random, must not seem near for the next 1024 replies.
                LATE_AFTER if link.spin.note_late() => link.rx.is_near = false,
                _ => {}
            }
            self.predicted.prepare(link, &mut self.transport);
        }
        // The spin after a reply may have read the acknowledgement, too. This may be the last poll
        // before a sleep.
        if !link.signaled.is_empty() && link.has_completed() {
            return Looked::More;
        }
        if self.links.has_background() {
            return self.look_at_background();
        }
        if self.transport.res.service_queue.is_empty() { Looked::Nothing } else { Looked::More }
    }

    /// Looks at the resting links, some idle links and the next inbox. If a message has come alone,
    /// and is like the predicted one, it takes it. [`DomainState::poll_more`] takes anything else.
    #[cold]
    #[inline(never)]
    fn look_at_background(&mut self) -> Looked {
        let came = self.find_in_background();
        if !self.transport.res.service_queue.is_empty() {
            return Looked::More;
        }
        if came {
            return self.receive_quiet().map_or(Looked::More, Looked::Message);
        }
        if self.predicted.was_used_elsewhere()
            && let Some(link) = self.links.only()
        {
            self.predicted.predict(link, &mut self.transport);
        }
        Looked::Nothing
    }

    /// True if something has come on a quiet link, which the links remember, or in an inbox.
    #[inline(always)]
    pub(super) fn find_in_background(&mut self) -> bool {
        let others_first = self.links.is_check_due();
        others_first && self.check_others()
            || self.links.find_message(RESTING_MAX, TAIL_LOOKS)
            || !others_first && (self.check_others() || self.links.find_message(LOOK_AGAIN_MAX, 0))
    }

    /// Takes the message on the quiet link that was found, if it is a plain one for the queue pair
    /// that has received there last, and fits the next receive. Returns its length. `None`: nothing
    /// was taken.
    #[inline(always)]
    fn receive_quiet(&mut self) -> Option<u32> {
        let (at, link) = self.links.found()?;
        let word = link.rx.peek();
        if !self.predicted.turn_to(link, &mut self.transport) {
            return None;
        }
        let (predicted, res) = (&mut self.predicted, &mut self.transport.res);
        let length = if link.rx.has_seen_written() {
            let record = predicted.find(link, word);
            record.and_then(|record| predicted.receive(link, record, res))
        } else {
            let record = link.rx.first_of_few();
            record.and_then(|record| predicted.receive_from_ring(link, record, res))
        };
        // It must not count for the busy link.
        self.predicted.to.forget();
        let length = length?;
        self.predicted.used_elsewhere = true;
        if core::mem::take(&mut link.ping_pong) {
            link.contention.note_followed();
        }
        // The reply goes there, and may be longer.
        link.tx.claim(SLOT_SHORT as u32);
        let is_last = link.rx.has_seen_written();
        self.links.served_quiet(at, is_last);
        if let Some(only) = self.links.only() {
            only.spin.pause();
        }
        Some(length)
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
        // The full poll moves quiet links, so the place that was found counts no longer.
        self.links.forget_found();
        let places = out.len();
        let mut sink = Direct { free: out.iter_mut() };
        self.progress(&mut sink);
        places - sink.room()
    }

    /// The predicted message, if it has come. Nothing is done.
    #[inline(always)]
    pub(crate) fn find_predicted(&mut self) -> Option<SlotRecord> {
        let link = self.links.only()?;
        let word = link.rx.peek();
        if !link.rx.has_seen_written() || link.rx.has_seen(word) {
            return None;
        }
        self.predicted.find(link, word)
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
            self.find_in_background();
        }
        if let Some((at, link)) = self.links.found() {
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
        if let [Some(_)] = self.links.table.as_slice() {
            self.serve(0, sink);
        } else {
            self.serve_all(sink);
        }
    }

    /// Serves the busy links in turn, as long as the sink has room, and looks at the others. The
    /// next round begins where this one ends, so a busy link cannot starve the others.
    #[inline(never)]
    pub(super) fn serve_all<S: Sink>(&mut self, sink: &mut S) {
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
