//! How a domain goes to sleep and wakes up.
//!
//! Before it sleeps it says so to all who may wake it, and looks once more at everything.

use super::cq::{Arm, Queued};
use super::state::DomainState;
use super::sync::{Ordering, fence};
use super::transport::Transport;

/// Between saying that this domain sleeps and looking once more. The barrier is the half that
/// those who ring leave out: see [`super::peer_waker`].
pub(super) fn before_last_look(barrier: fn()) {
    fence(Ordering::SeqCst);
    barrier();
}

impl DomainState {
    /// Lets everybody know that this domain is about to sleep. What they did before is seen by a
    /// poll after this; what they do later wakes.
    pub(super) fn fall_asleep(&mut self) {
        self.transport.res.local_waker.set(true);
        self.links.activate_all();
        for link in self.links.table.iter_mut().flatten() {
            link.shared.set_asleep(true);
            // The poll after this looks at everything.
            link.empty_polls = 0;
        }
        let Transport { qps, res } = &mut self.transport;
        res.inboxes.set_asleep(qps, true);
        before_last_look(res.nic.host.barrier);
        // So that the next poll is a full one, which looks at all inboxes.
        if let Some(qp) = res.inboxes.at(0).and_then(|num| qps.get_mut(num)) {
            res.schedule(qp);
        }
    }

    /// Nobody needs to ring any more.
    pub(super) fn wake_up(&mut self) {
        self.transport.res.local_waker.set(false);
        for link in self.links.table.iter_mut().flatten() {
            link.shared.set_asleep(false);
            link.empty_polls = 0;
        }
        let Transport { qps, res } = &self.transport;
        res.inboxes.set_asleep(qps, false);
    }

    /// Arms a queue of the shared domain.
    pub(super) fn arm(&mut self, index: usize, arm: Arm) {
        if let Some(cq) = self.transport.res.cqs.get_mut(index) {
            cq.arm(arm);
        }
        self.fall_asleep();
    }

    /// Somebody who waited for a queue of the shared domain was woken: does what there is to do,
    /// for all of them, and says whether that queue's entry has come. Who else waits may go on.
    pub(super) fn attend_wake(&mut self, index: usize, budget: usize) -> bool {
        self.wake_up();
        self.progress(&mut Queued { budget });
        self.attend_overruns();
        if self.transport.res.cqs.iter().any(|cq| cq.is_armed()) {
            self.fall_asleep();
            self.progress(&mut Queued { budget });
            self.attend_overruns();
        }
        self.transport.res.cqs.get_mut(index).is_some_and(|cq| cq.take_fired())
    }
}
