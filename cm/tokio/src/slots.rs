//! The fixed pool of jobs, and who waits for each.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use tokio::sync::Semaphore;

use crate::job::Job;

/// Where a slot's job is.
enum State {
    /// In the pool.
    Free,
    /// On its way, and a future waits for it.
    Waiting(Option<Waker>),
    /// Back, and its future has not looked yet.
    Done(Box<Job>),
    /// On its way, and its future was dropped.
    Abandoned,
}

struct Slot {
    state: Mutex<State>,
    /// The future was dropped: the worker should give the job back. The worker takes no lock.
    abandoned: AtomicBool,
    /// The slot is in the queue of those to be looked at for this.
    listed: AtomicBool,
}

/// The slots, and the jobs that are free.
pub(crate) struct Slots {
    slots: Box<[Slot]>,
    free: ArrayQueue<Box<Job>>,
    /// As many permits as free jobs.
    permits: Semaphore,
}

impl Slots {
    pub(crate) fn new(count: u32, bytes: usize) -> Slots {
        let slot = |_| Slot {
            state: Mutex::new(State::Free),
            abandoned: AtomicBool::new(false),
            listed: AtomicBool::new(false),
        };
        let free = ArrayQueue::new(count as usize);
        (0..count).for_each(|n| drop(free.push(Box::new(Job::new(n, bytes)))));
        let permits = Semaphore::new(count as usize);
        Slots { slots: (0..count).map(slot).collect(), free, permits }
    }

    fn state(&self, slot: u32) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a thread that panicked left nothing half done.
        self.slots[slot as usize].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a free job, no longer than `limit`. The caller waits for its return from now on.
    /// The error is `true` if the time is over, and `false` if the worker has ended.
    pub(crate) async fn take(&self, limit: Option<Duration>) -> Result<Box<Job>, bool> {
        let permit = match limit {
            None => self.permits.acquire().await,
            Some(limit) => {
                tokio::time::timeout(limit, self.permits.acquire()).await.map_err(|_| true)?
            }
        };
        let permit = permit.map_err(|_| false)?;
        // A permit is given back after its job, so there is one.
        let job = self.free.pop().ok_or(false)?;
        permit.forget();
        // Relaxed: the job's way to the worker orders it.
        self.slots[job.slot as usize].abandoned.store(false, Ordering::Relaxed);
        *self.state(job.slot) = State::Waiting(None);
        Ok(job)
    }

    /// Takes a job that is not needed any more.
    pub(crate) fn give_back(&self, job: Box<Job>) {
        *self.state(job.slot) = State::Free;
        drop(self.free.push(job));
        self.permits.add_permits(1);
    }

    /// A job has come back: its future gets it, or the pool.
    pub(crate) fn resolve(&self, job: Box<Job>) {
        let mut state = self.state(job.slot);
        match mem::replace(&mut *state, State::Free) {
            State::Waiting(waker) => {
                *state = State::Done(job);
                drop(state);
                waker.into_iter().for_each(Waker::wake);
            }
            _ => {
                drop(state);
                self.give_back(job);
            }
        }
    }

    /// The job of this slot, if it is back.
    pub(crate) fn poll(&self, slot: u32, context: &Context<'_>) -> Poll<Box<Job>> {
        let mut state = self.state(slot);
        match mem::replace(&mut *state, State::Waiting(None)) {
            State::Done(job) => Poll::Ready(job),
            _ => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }

    /// The future of this slot is dropped. True if the worker should look at the slot.
    pub(crate) fn abandon(&self, slot: u32) -> bool {
        let mut state = self.state(slot);
        if let State::Done(job) = mem::replace(&mut *state, State::Abandoned) {
            drop(state);
            self.give_back(job);
            return false;
        }
        let Slot { abandoned, listed, .. } = &self.slots[slot as usize];
        // Set under the lock, so before the slot is used again. If `is_abandoned` has lowered
        // `listed` before this swap, the slot is listed again. If it lowers it later, it sees
        // `abandoned`.
        abandoned.store(true, Ordering::Relaxed);
        !listed.swap(true, Ordering::AcqRel)
    }

    /// For the worker: the slot has left the list.
    pub(crate) fn is_abandoned(&self, slot: u32) -> bool {
        let Some(Slot { abandoned, listed, .. }) = self.slots.get(slot as usize) else {
            return false;
        };
        listed.swap(false, Ordering::AcqRel);
        abandoned.load(Ordering::Relaxed)
    }

    /// For the worker: a job that has just come is not wanted any more.
    pub(crate) fn is_unwanted(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.abandoned.load(Ordering::Relaxed))
    }

    /// Lets nobody wait for a job any more.
    pub(crate) fn close(&self) {
        self.permits.close();
    }
}
