//! Where the program's tasks and the worker meet: bounded queues without locks, and a descriptor
//! for a driver that rests.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll};

use crossbeam::queue::ArrayQueue;
use doorbell::worker::Handle;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::SetOnce;

use crate::error::{Ended, Failed};
use crate::job::{Control, Failure, Job, Report};
use crate::slots::Slots;

/// Requests of the driver that wait for the worker, at most.
const CONTROLS: usize = 64;

/// What tasks, driver and worker share.
pub(crate) struct Crossing {
    pub(crate) slots: Slots,
    /// To the worker. There is room for all jobs and all slots.
    jobs: ArrayQueue<Box<Job>>,
    cancels: ArrayQueue<u32>,
    controls: ArrayQueue<Control>,
    /// The worker is to look into these queues, and will.
    called: AtomicBool,
    worker: OnceLock<Handle>,
    /// To the driver.
    reports: ArrayQueue<Report>,
    /// The driver waits for `wake` or is about to.
    resting: AtomicBool,
    wake: OwnedFd,
    /// Set when the worker will turn no more.
    pub(crate) ended: SetOnce<Ended>,
}

impl Crossing {
    /// For `count` jobs with up to `bytes` bytes each, and so many peers.
    pub(crate) fn new(count: u32, bytes: usize, peers: u32) -> std::io::Result<Crossing> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let reports = count as usize + 2 * peers as usize + 16;
        Ok(Crossing {
            slots: Slots::new(count, bytes),
            jobs: ArrayQueue::new(count as usize),
            cancels: ArrayQueue::new(count as usize),
            controls: ArrayQueue::new(CONTROLS),
            called: AtomicBool::new(false),
            worker: OnceLock::new(),
            reports: ArrayQueue::new(reports),
            resting: AtomicBool::new(false),
            wake,
            ended: SetOnce::new(),
        })
    }

    /// The descriptor that wakes the driver. Nobody reads from it: each write is an edge.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    /// The worker on the other side.
    pub(crate) fn joins(&self, worker: Handle) {
        drop(self.worker.set(worker));
    }

    // For tasks and the driver.

    /// Gives the worker a job that was taken from the slots.
    pub(crate) fn submit(&self, job: Box<Job>) {
        // There is room for all jobs.
        if let Err(job) = self.jobs.push(job) {
            return self.slots.resolve(job);
        }
        self.call_worker();
        // Either this thread sees the worker's end, or `end` sees the job.
        fence(Ordering::SeqCst);
        if self.ended.get().is_some() {
            self.fail_jobs();
        }
    }

    /// The future of this slot is dropped before its job was back.
    pub(crate) fn abandon(&self, slot: u32) {
        if self.slots.abandon(slot) {
            // A slot is listed once, so there is room.
            let _ = self.cancels.push(slot);
            self.call_worker();
        }
    }

    /// The job of this slot, if it is back.
    pub(crate) fn poll(&self, slot: u32, context: &Context<'_>) -> Poll<Box<Job>> {
        self.slots.poll(slot, context)
    }

    /// Asks the worker for something. It comes back if there is no room.
    pub(crate) fn control(&self, control: Control) -> Result<(), Control> {
        self.controls.push(control)?;
        self.call_worker();
        Ok(())
    }

    fn call_worker(&self) {
        // The worker lowers the flag before it looks. If this swap finds the flag up, that lowering
        // comes after it, reads from it, and so sees what was pushed before.
        if !self.called.swap(true, Ordering::AcqRel)
            && let Some(worker) = self.worker.get()
        {
            // There is room: a key goes in only after the one before was taken.
            let _ = worker.submit(0);
        }
    }

    /// Why the worker has ended, for a job that it did not do.
    pub(crate) fn why_ended(&self) -> Failed {
        let unknown = || Ended::failed("its runtime is gone");
        Failed::Ended(self.ended.get().cloned().unwrap_or_else(unknown))
    }

    // For the worker.

    /// The worker begins to look into its queues.
    pub(crate) fn answers_call(&self) {
        self.called.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn next_job(&self) -> Option<Box<Job>> {
        self.jobs.pop()
    }

    pub(crate) fn next_cancel(&self) -> Option<u32> {
        self.cancels.pop()
    }

    pub(crate) fn next_control(&self) -> Option<Control> {
        self.controls.pop()
    }

    /// Tells the driver. It comes back if there is no room.
    pub(crate) fn report(&self, report: Report) -> Result<(), Report> {
        self.reports.push(report)?;
        self.wake_driver();
        Ok(())
    }

    fn wake_driver(&self) {
        // As in `begin_rest`: either this thread sees that the driver rests, or the driver sees the
        // report before it rests.
        fence(Ordering::SeqCst);
        if self.resting.load(Ordering::Relaxed) && self.resting.swap(false, Ordering::Relaxed) {
            // It cannot fail before 2^64 writes.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// The worker turns no more. `held`: the jobs that it had. Every future gets a result.
    pub(crate) fn end(&self, why: Ended, held: impl Iterator<Item = Box<Job>>) {
        let _ = self.ended.set(why);
        // Pairs with the fence in `submit`.
        fence(Ordering::SeqCst);
        held.for_each(|job| self.fail(job));
        self.fail_jobs();
        // The driver may be gone.
        while let Some(report) = self.reports.pop() {
            if let Report::Done(job) = report {
                self.slots.resolve(job);
            }
        }
        self.slots.close();
        self.resting.store(true, Ordering::Relaxed);
        self.wake_driver();
    }

    fn fail_jobs(&self) {
        while let Some(job) = self.jobs.pop() {
            self.fail(job);
        }
    }

    fn fail(&self, mut job: Box<Job>) {
        job.outcome = Err(Failure::Ended);
        self.slots.resolve(job);
    }

    // For the driver.

    pub(crate) fn next_report(&self) -> Option<Report> {
        self.reports.pop()
    }

    /// The driver is about to rest. False: there is something to do.
    pub(crate) fn begin_rest(&self) -> bool {
        self.resting.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let rests = self.reports.is_empty() && self.ended.get().is_none();
        if !rests {
            self.end_rest();
        }
        rests
    }

    pub(crate) fn end_rest(&self) {
        self.resting.store(false, Ordering::Relaxed);
    }
}
