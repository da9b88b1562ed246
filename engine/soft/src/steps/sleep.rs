//! How a domain goes to sleep and wakes up.
//!
//! Before it sleeps, a domain announces that to everybody who may wake it, and looks once more at
//! everything.

use core::time::Duration;

use crate::model::cq::{Arm, Queued};
use crate::state::domain_state::DomainState;
use crate::state::transport::Transport;
use crate::sync::{Ordering, fence};

/// Runs between the announcement and the last look. The barrier is the half that publishers leave
/// out: see [`crate::shm::peer_waker`].
pub(crate) fn before_last_look(barrier: fn()) {
    fence(Ordering::SeqCst);
    barrier();
}

impl DomainState {
    /// Announces that this domain is about to sleep. A poll after this sees everything that was
    /// published before; everything published later wakes the domain.
    pub(crate) fn fall_asleep(&mut self) {
        self.transport.res.local_waker.set(true);
        self.transport.res.next_look.renew(self.transport.res.nic.host.clock);
        self.links.activate_all();
        for link in self.links.table.iter_mut().flatten() {
            link.shared.set_asleep(true);
            // A poll of an exclusive domain then looks around. The shared one gives receives back
            // below, and its short poll looks at everything else.
            link.empty_polls = 0;
        }
        let Transport { qps, res } = &mut self.transport;
        res.inboxes.set_asleep(qps, true);
        before_last_look(res.nic.host.barrier);
        // A poll of several links reads the lines of peers at its end, for the next poll.
        for link in self.links.table.iter_mut().flatten() {
            if link.has_unacked() {
                link.note_taken();
            }
        }
        // Another domain may have asked while this one was awake, and then wakes nobody.
        if res.receives.give_back() {
            // The prediction may name one of these receives.
            self.predicted.to.forget();
        }
        // Nobody announces that the wait for a sender is over, so this domain looks again.
        if let Some((at, now)) = res.inboxes.end_of_patience(qps, res.nic.host.clock) {
            res.look_again_at(at, now);
        }
        // Makes the next poll a full one, which looks at all inboxes.
        if let Some(qp) = res.inboxes.at(0).and_then(|num| qps.get_mut(num)) {
            res.service_queue.schedule(qp);
        }
    }

    /// How long a thread may sleep that has armed a queue of this domain and then looked once more.
    /// `None`: until it is woken. If the domain is awake, another thread may make the look for
    /// which it was woken, and then nobody wakes this one. So a time to come counts in that case
    /// too. A time that has passed does not: that look renews it, or nobody has armed a queue.
    pub(crate) fn look_again(&self) -> Option<Duration> {
        let res = &self.transport.res;
        let left = res.next_look.left(res.nic.host.clock)?;
        (res.local_waker.is_asleep() || !left.is_zero()).then_some(left)
    }

    /// Announces that this domain is awake.
    pub(crate) fn wake_up(&mut self) {
        self.transport.res.local_waker.set(false);
        for link in self.links.table.iter_mut().flatten() {
            link.shared.set_asleep(false);
            link.empty_polls = 0;
        }
        let Transport { qps, res } = &self.transport;
        res.inboxes.set_asleep(qps, false);
    }

    /// Arms a queue of the shared domain.
    pub(crate) fn arm(&mut self, index: usize, arm: Arm) {
        self.ready.forget();
        if let Some(cq) = self.transport.res.completions.get_mut(index) {
            cq.arm(arm);
        }
        self.fall_asleep();
    }

    /// A thread that waited for a queue of the shared domain was woken. Does the work of all
    /// queues, and returns whether that queue's entry has come. Other threads may keep waiting.
    pub(crate) fn attend_wake(&mut self, index: usize, budget: usize) -> bool {
        self.wake_up();
        self.progress(&mut Queued::within(budget));
        self.attend_overruns();
        if self.transport.res.completions.is_armed() {
            self.fall_asleep();
            self.progress(&mut Queued::within(budget));
            self.attend_overruns();
        }
        self.transport.res.completions.get_mut(index).is_some_and(|cq| cq.take_fired())
    }
}
