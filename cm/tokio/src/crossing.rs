//! Where the program's tasks and the worker meet: bounded queues without locks, and a descriptor
//! for a driver that rests.

use std::iter;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll};

use crossbeam::queue::ArrayQueue;
use doorbell::worker::{Handle, Token};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::SetOnce;

use crate::error::{Ended, Failed};
use crate::inbox::Letter;
use crate::job::{Control, Failure, Job, Report, Work};
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
    /// Blocks of messages that tasks have taken.
    taken: ArrayQueue<Token>,
    /// The worker is to look into these queues, and will.
    called: AtomicBool,
    worker: OnceLock<Handle>,
    /// To the driver.
    reports: ArrayQueue<Report>,
    /// Letters without a message.
    letters: ArrayQueue<Box<Letter>>,
    block_bytes: usize,
    /// The worker is to end, and drops the messages that still come.
    ending: AtomicBool,
    driver_gone: AtomicBool,
    /// The driver waits for `wake` or is about to.
    resting: AtomicBool,
    wake: OwnedFd,
    /// Set when the worker will turn no more.
    pub(crate) ended: SetOnce<Ended>,
}

impl Crossing {
    /// Holds `count` jobs of up to `bytes` bytes each, `peers` peers, and `messages` messages that
    /// wait for tasks.
    pub(crate) fn new(
        count: u32,
        bytes: usize,
        peers: u32,
        messages: u32,
    ) -> std::io::Result<Crossing> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let reports = (count + 3 * peers + messages) as usize + 16;
        let messages = messages as usize;
        let letters = ArrayQueue::new(messages.max(1));
        (0..messages).for_each(|_| drop(letters.push(Box::new(Letter::new(bytes)))));
        Ok(Crossing {
            slots: Slots::new(count, bytes),
            jobs: ArrayQueue::new(count as usize),
            cancels: ArrayQueue::new(count as usize),
            controls: ArrayQueue::new(CONTROLS),
            // Each turn empties it before it looks at new messages. Until then all blocks may be
            // taken, and taken once more if their peers went down meanwhile.
            taken: ArrayQueue::new(2 * messages.max(1)),
            called: AtomicBool::new(false),
            worker: OnceLock::new(),
            reports: ArrayQueue::new(reports),
            letters,
            block_bytes: bytes,
            ending: AtomicBool::new(false),
            driver_gone: AtomicBool::new(false),
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

    /// A task has taken this message, or nobody will.
    pub(crate) fn done_with(&self, mut letter: Box<Letter>) {
        letter.token.take().into_iter().for_each(|token| self.give_back(token));
        letter.bytes.clear();
        // There is no room for those that were made beyond the first ones.
        drop(self.letters.push(letter));
    }

    /// A block that the worker keeps is free.
    pub(crate) fn give_back(&self, token: Token) {
        // There is room.
        let _ = self.taken.push(token);
        self.call_worker();
    }

    fn call_worker(&self) {
        // If the flag is already up, the worker has not looked yet: it lowers the flag first, and
        // then sees what was pushed here.
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

    /// Everything that was left for the worker. Only the worker's thread calls this.
    pub(crate) fn work(&self) -> impl Iterator<Item = Work> {
        // The flag goes down before the look. A job that comes after the look raises it again.
        self.called.swap(false, Ordering::AcqRel);
        let controls = iter::from_fn(|| self.controls.pop()).map(Work::Control);
        let cancels = iter::from_fn(|| self.cancels.pop()).map(Work::Cancel);
        let taken = iter::from_fn(|| self.taken.pop()).map(Work::Taken);
        let jobs = iter::from_fn(|| self.jobs.pop()).map(Work::Job);
        controls.chain(cancels).chain(taken).chain(jobs)
    }

    /// Tells the driver. It comes back if there is no room.
    pub(crate) fn report(&self, report: Report) -> Result<(), Report> {
        self.reports.push(report)?;
        self.wake_driver();
        Ok(())
    }

    /// A letter to write into.
    pub(crate) fn free_letter(&self) -> Box<Letter> {
        // All are in use only if connections that have ended still hold some.
        self.letters.pop().unwrap_or_else(|| Box::new(Letter::new(self.block_bytes)))
    }

    /// The worker is to end: nobody will take what still comes.
    pub(crate) fn takes_no_messages(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
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
        // A driver that is there takes the reports: they may hold messages.
        if self.driver_gone.load(Ordering::Relaxed) {
            self.resolve_reports();
        }
        self.slots.close();
        self.resting.store(true, Ordering::Relaxed);
        self.wake_driver();
    }

    /// Gives the jobs among the reports to their futures. Nobody is there for the others.
    fn resolve_reports(&self) {
        while let Some(report) = self.reports.pop() {
            match report {
                Report::Done(job) => self.slots.resolve(job),
                Report::Message(letter) => self.done_with(letter),
                _ => {}
            }
        }
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

    /// The worker is to end, and drops the messages that come from now on.
    pub(crate) fn begin_end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// The driver takes no more reports.
    pub(crate) fn driver_ends(&self) {
        self.driver_gone.store(true, Ordering::Relaxed);
        // Pairs with the fence in `end`. Either `end` sees `driver_gone` and resolves the reports,
        // or this call does. If the worker has not ended, its later reports are resolved by `end`.
        fence(Ordering::SeqCst);
        self.resolve_reports();
    }

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

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::future::Future;

    /// Waits for the descriptor, and forgets what came. False: nothing came in a long time.
    fn is_woken(crossing: &Crossing, seconds: i64) -> bool {
        let mut fds = [PollFd::new(&crossing.wake, PollFlags::IN)];
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let woken = poll(&mut fds, Some(&limit)).unwrap() == 1;
        if woken {
            rustix::io::read(&crossing.wake, &mut [0; 8]).unwrap();
        }
        woken
    }

    /// A report is found before the rest, or ends it.
    #[test]
    fn a_resting_driver_is_woken_for_each_report() {
        const ROUNDS: u32 = 20_000;
        let crossing = Crossing::new(1, 8, 1, 0).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                for slot in 0..ROUNDS {
                    let mut report = Report::Done(Box::new(Job::new(slot, 0)));
                    while let Err(back) = crossing.report(report) {
                        report = back;
                        thread::yield_now();
                    }
                    // Now and then the driver has time to fall asleep.
                    if slot % 64 == 0 {
                        thread::sleep(Duration::from_micros(50));
                    }
                }
            });
            let mut next = 0;
            while next < ROUNDS {
                while let Some(Report::Done(job)) = crossing.next_report() {
                    assert_eq!(job.slot, next);
                    next += 1;
                }
                if next < ROUNDS && crossing.begin_rest() {
                    assert!(is_woken(&crossing, 60), "report {next} woke nobody");
                    crossing.end_rest();
                }
            }
        });
    }

    /// The flag is down before the worker looks, so whatever comes during the look raises it.
    #[test]
    fn a_call_during_the_look_is_a_new_one() {
        let crossing = Crossing::new(2, 8, 1, 0).unwrap();
        crossing.submit(Box::new(Job::new(0, 0)));
        assert!(crossing.called.load(Ordering::Relaxed));
        let mut work = crossing.work();
        assert!(matches!(work.next(), Some(Work::Job(_))));
        assert!(!crossing.called.load(Ordering::Relaxed));
        crossing.submit(Box::new(Job::new(1, 0)));
        assert!(crossing.called.load(Ordering::Relaxed));
    }

    /// A job that comes while the worker looks is found, or calls it again.
    #[test]
    fn the_worker_is_called_for_each_job() {
        const ROUNDS: u32 = 50_000;
        let crossing = Crossing::new(1, 8, 1, 0).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if !crossing.called.load(Ordering::Acquire) {
                        thread::yield_now();
                        continue;
                    }
                    for work in crossing.work() {
                        let Work::Job(job) = work else { continue };
                        assert!(crossing.report(Report::Done(job)).is_ok());
                    }
                }
            });
            let (mut round, mut moved) = (0, Instant::now());
            crossing.submit(Box::new(Job::new(0, 0)));
            while round < ROUNDS && moved.elapsed() < Duration::from_secs(60) {
                match crossing.next_report() {
                    Some(Report::Done(job)) => {
                        (round, moved) = (round + 1, Instant::now());
                        // At any moment of the worker's look.
                        (0..round % 64).for_each(|_| std::hint::spin_loop());
                        crossing.submit(job);
                    }
                    _ => thread::yield_now(),
                }
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(round, ROUNDS, "a job called nobody");
        });
    }

    /// The descriptor is written to once for a rest, and never for a driver that works.
    #[test]
    fn only_a_resting_driver_costs_a_system_call() {
        let crossing = Crossing::new(4, 8, 1, 0).unwrap();
        let report =
            |slot| assert!(crossing.report(Report::Done(Box::new(Job::new(slot, 0)))).is_ok());
        report(0);
        assert!(!is_woken(&crossing, 0), "it does not rest");
        assert!(!crossing.begin_rest(), "there is a report");
        assert!(crossing.next_report().is_some());
        assert!(crossing.begin_rest());
        report(1);
        report(2);
        let mut count = [0; 8];
        rustix::io::read(&crossing.wake, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }

    /// The end wakes the driver, and gives every job a result.
    #[test]
    fn the_end_reaches_all() {
        let crossing = Crossing::new(4, 8, 1, 0).unwrap();
        let job = || {
            let taken = std::pin::pin!(crossing.slots.take(None))
                .poll(&mut Context::from_waker(std::task::Waker::noop()));
            match taken {
                Poll::Ready(Ok(job)) => job,
                _ => panic!("a job is free"),
            }
        };
        let (held, reported, queued, late) = (job(), job(), job(), job());
        let slots = [held.slot, reported.slot, queued.slot, late.slot];
        crossing.submit(queued);
        assert!(crossing.report(Report::Done(reported)).is_ok());
        crossing.driver_ends();
        crossing.end(Ended::asked(), std::iter::once(held));
        crossing.submit(late);
        let context = Context::from_waker(std::task::Waker::noop());
        for slot in slots {
            let Poll::Ready(job) = crossing.poll(slot, &context) else {
                panic!("slot {slot} has no result");
            };
            crossing.slots.give_back(job);
        }
        assert!(is_woken(&crossing, 0));
        assert!(!crossing.begin_rest());
    }
}
