//! Completion queues, as their owners hold them, and their readers.

use core::time::Duration;

use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::error::{Code, SetupError};
use crate::model::cq::{Arm, SHARED_BUDGET};
use crate::provider::wake::{Notifier, WakeFds};
use crate::provider::{Polled, Poller, Sharing};
use crate::state::completions::NO_QUEUE;
use crate::state::domain_state::DomainState;
use crate::steps::domain::{Domain, Reader};
use crate::wc::Wc;

/// A completion queue of the soft device.
#[derive(Clone)]
pub struct SoftCq {
    pub(crate) domain: Arc<Domain>,
    pub(crate) index: usize,
    /// Other threads ring it when they add an entry, in the shared domain.
    pub(crate) notifier: Option<Notifier>,
    /// Frees the queue's place when the last handle is dropped.
    pub(crate) place: Arc<CqPlace>,
}

/// What [`SoftCq::poll_left`] has done.
pub enum LeftReceive {
    /// The receive.
    Taken(Wc),
    /// Nothing: the message is long, and was asked for as a short one.
    Long,
    /// Nothing: another poll finds the receive.
    Later,
}

/// A completion queue's place in its domain, freed when the last handle is dropped.
pub(crate) struct CqPlace {
    pub(crate) nic: Arc<Nic>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) index: usize,
}

impl Drop for CqPlace {
    fn drop(&mut self) {
        self.domain.remove_cq(self.index);
    }
}

/// The reader of a [`SoftCq`]; polling it moves messages.
pub struct SoftPoller {
    pub(crate) cq: SoftCq,
    pub(crate) reader: Reader,
}

impl Poller for SoftPoller {
    #[inline(always)]
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        match self.reader.alone() {
            Some(state) => state.poll(out),
            None => self.poll_shared(out),
        }
    }

    #[inline(always)]
    fn poll_one(&mut self) -> Polled {
        match self.reader.alone() {
            Some(state) => state.poll_one(),
            None => Polled::More,
        }
    }

    #[inline(always)]
    fn poll_more(&mut self, out: &mut [Wc]) -> usize {
        match self.reader.alone() {
            Some(state) => state.poll_more(out),
            None => self.poll_shared(out),
        }
    }

    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        let domain = &self.cq.domain;
        if domain.local_waker.notifier.is_none() {
            let answer = "this device was opened without notifiers";
            return Err(SetupError::new(Code::NotSupported, "arm a completion queue", answer));
        }
        let arm = if solicited { Arm::Solicited } else { Arm::Any };
        let (index, sharing) = (self.cq.index, domain.sharing());
        self.reader.enter(|state| match sharing {
            Sharing::Shared => state.arm(index, arm),
            Sharing::Exclusive => state.fall_asleep(),
        });
        Ok(())
    }

    fn wake_fds(&self) -> Option<WakeFds> {
        let device = self.cq.domain.local_waker.notifier.as_ref()?.fd();
        Some(WakeFds { device, queue: self.cq.notifier.as_ref().map(Notifier::fd) })
    }

    fn look_again(&mut self) -> Option<Duration> {
        self.reader.enter(|state| state.look_again()).flatten()
    }

    fn woken(&mut self) -> bool {
        let (domain, index) = (&self.cq.domain, self.cq.index);
        for notifier in [&domain.local_waker.notifier, &self.cq.notifier].into_iter().flatten() {
            notifier.clear();
        }
        let sharing = domain.sharing();
        let looked = self.reader.enter(|state| match sharing {
            Sharing::Shared => state.attend_wake(index, SHARED_BUDGET),
            Sharing::Exclusive => {
                state.wake_up();
                true
            }
        });
        looked.unwrap_or(true)
    }

    fn notifier(&self) -> Option<Notifier> {
        self.cq.domain.local_waker.notifier.clone()
    }
}

impl SoftPoller {
    /// True while another thread polls or posts in the shared domain. A call would spin meanwhile:
    /// a thread that is not in a hurry asks first, because it may have the core of that other one.
    pub fn is_busy(&self) -> bool {
        self.cq.domain.is_entered()
    }

    /// Promises that somebody polls the shared domain within a few milliseconds after the program
    /// has ceased to, or takes that back; then a poll must follow. Such a poll has no places for
    /// completions. A thread that has armed a queue keeps the promise if it sleeps: what comes
    /// wakes it, and then it polls. Under the promise, a poll of the program may leave a message to
    /// the next poll, and an acknowledgement to the reply that is likely to follow. If nobody has
    /// armed its queue, it looks at some of the quiet links only.
    pub fn promise_polls(&mut self, on: bool) {
        self.cq.domain.enter_shared(|state| {
            state.ready.forget();
            state.transport.res.attended = on;
        });
    }

    fn poll_shared(&mut self, out: &mut [Wc]) -> usize {
        self.cq.poll_shared(out)
    }
}

impl SoftCq {
    /// True if a thread waits for an entry of this queue of the shared domain, which has not come.
    pub fn is_armed(&self) -> bool {
        let is_armed =
            |state: &mut DomainState| state.transport.res.completions.is_queue_armed(self.index);
        self.domain.enter_shared(is_armed).unwrap_or(false)
    }

    /// In an armed queue of the shared domain, the entries that wait count as coming now: the
    /// thread that armed it cannot know of them, because a poll of another queue has put them
    /// there.
    pub fn count_waiting(&self) {
        self.domain.enter_shared(|state| {
            if let Some(cq) = state.transport.res.completions.get_mut(self.index) {
                cq.count_waiting();
            }
        });
    }

    #[inline(never)]
    fn poll_shared(&self, out: &mut [Wc]) -> usize {
        let index = self.index;
        self.domain.enter_shared(|state| state.poll_shared(index, out)).unwrap_or(0)
    }

    /// As [`Poller::poll_one`], for several threads at once: a queue of the shared domain is locked
    /// anyway. [`Polled::More`]: call [`SoftCq::poll_more_shared`]. Finds nothing in an exclusive
    /// queue.
    #[inline(always)]
    pub fn poll_one_shared(&self) -> Polled {
        let Some(mut state) = self.domain.shared() else { return Polled::Nothing };
        let polled = state.poll_one_shared(self.index);
        if let Polled::One(_) = polled {
            self.domain.note_left(state.predicted.left_queue());
        }
        polled
    }

    /// True if [`SoftCq::poll_one_shared`] of any queue has left a receive for this one, as far as
    /// is known without the lock.
    #[inline(always)]
    pub fn has_left(&self) -> bool {
        self.domain.has_left_for(self.index)
    }

    /// That receive, if nothing else is to be done, and the lock of the domain belongs to this
    /// thread. Unless the message may be `LONG`, only that of a short one, and without a call, so
    /// that the caller need not save registers.
    #[inline(always)]
    pub fn poll_left<const LONG: bool>(&self) -> LeftReceive {
        self.domain.note_left(NO_QUEUE);
        let Some(mut state) = self.domain.own() else { return LeftReceive::Later };
        match state.poll_left_at_once::<LONG>(self.index) {
            Some(wc) => LeftReceive::Taken(wc),
            None if !LONG && state.predicted.is_left_long() => LeftReceive::Long,
            None => LeftReceive::Later,
        }
    }

    /// After [`SoftCq::poll_one_shared`] has returned the end of a send: the receive of the answer
    /// that has come with it, if that ends in this queue too, for a caller with room for both.
    #[inline(always)]
    pub fn poll_left_shared(&self) -> Option<Wc> {
        self.domain.shared().and_then(|mut state| state.poll_left_shared(self.index))
    }

    /// The rest of a poll, as [`Poller::poll_more`].
    #[inline(never)]
    pub fn poll_more_shared(&self, out: &mut [Wc]) -> usize {
        let index = self.index;
        self.domain.enter_shared(|state| state.poll_more_shared(index, out)).unwrap_or(0)
    }
}
