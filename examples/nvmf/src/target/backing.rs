//! How a poll loop carries out commands: at once, by io_uring, or by threads that may wait.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use doorbell::{Buffer, CmError, Fabric, IdKey};

use crate::controller::Controller;
use crate::session::{Request, Work};
use crate::store::{Jobs, REGIONS, Ring};
use crate::subsystem::Subsystem;
use crate::wire::status::Status;

/// Threads for what io_uring does not do, or for all if it is not permitted.
const THREADS: usize = 4;

/// A command that is carried out.
pub(super) struct Job<F: Fabric> {
    /// The queue that waits for it.
    pub(super) queue: IdKey,
    pub(super) request: Request,
    pub(super) buffer: Option<Buffer<F>>,
    /// The registered region of the buffer.
    pub(super) index: Option<u16>,
    pub(super) status: Status,
    /// Tells the subsystem that the controller still has work.
    pub(super) _controller: Option<Arc<Controller>>,
}

impl<F: Fabric> Job<F> {
    /// Does the work, and may wait.
    fn run(&mut self) {
        let len = self.request.data_len();
        let data = self.buffer.as_deref_mut().and_then(|buffer| buffer.get_mut(..len));
        if let Work::Io(io) = &self.request.work {
            self.status = io.run(data.unwrap_or_default());
        }
    }

    fn is_quick(&self) -> bool {
        match &self.request.work {
            Work::Connect(_) => true,
            Work::Io(io) => io.is_quick(),
        }
    }
}

/// What carries out the commands of one poll loop.
pub(super) struct Backing<F: Fabric> {
    ring: Option<Ring<F, Job<F>>>,
    threads: Option<Jobs<Job<F>>>,
    /// Commands that threads have.
    waiting: usize,
}

impl<F: Fabric> Backing<F> {
    /// What the stores of a subsystem need. If io_uring cannot be used, it says so once.
    pub(super) fn new(subsystem: &Subsystem, first: bool) -> Result<Backing<F>, CmError> {
        let quick = subsystem.namespaces().iter().all(|space| space.store().is_quick());
        if quick {
            return Ok(Backing { ring: None, threads: None, waiting: 0 });
        }
        let ring = Ring::new();
        if let (Err(error), true) = (&ring, first) {
            eprintln!("nvmf: io_uring cannot be used ({error}): threads serve the files instead");
        }
        let threads = Jobs::new(THREADS, Job::run)
            .map_err(|error| CmError::from_io("start threads for files", &error))?;
        Ok(Backing { ring: ring.ok(), threads: Some(threads), waiting: 0 })
    }

    /// Carries out a command. It comes back if it is done; otherwise [`Backing::take`] returns it.
    pub(super) fn give(&mut self, mut job: Job<F>) -> Option<Job<F>> {
        if job.is_quick() {
            job.run();
            return Some(job);
        }
        self.give_to_ring(job).and_then(|job| self.give_to_threads(job))
    }

    /// Gives a plain transfer to the kernel. Others come back.
    fn give_to_ring(&mut self, mut job: Job<F>) -> Option<Job<F>> {
        let Some(ring) = &mut self.ring else { return Some(job) };
        let buffer = job.buffer.take();
        let transfer = match &job.request.work {
            Work::Io(io) => io.transfer(buffer.as_deref().unwrap_or_default()),
            Work::Connect(_) => None,
        };
        let Some(transfer) = transfer else { return Some(Job { buffer, ..job }) };
        let given = ring.give(transfer, job.index, job, buffer);
        given.err().map(|(job, buffer)| Job { buffer, ..job })
    }

    fn give_to_threads(&mut self, job: Job<F>) -> Option<Job<F>> {
        let given = match &self.threads {
            Some(threads) => threads.give(job),
            None => Err(job),
        };
        match given {
            Ok(()) => {
                self.waiting += 1;
                None
            }
            Err(job) => Some(Job { status: Status::INTERNAL, ..job }),
        }
    }

    /// The next command that was carried out, if there is one.
    pub(super) fn take(&mut self) -> Option<Job<F>> {
        while let Some((job, buffer, moved)) = self.ring.as_mut().and_then(Ring::take) {
            let job = Job { buffer, ..job };
            let Work::Io(io) = &job.request.work else { return Some(job) };
            if let Some(status) = io.ended(&moved) {
                return Some(Job { status, ..job });
            }
            // The kernel has done a part of it: a thread does all of it again.
            if let Some(refused) = self.give_to_threads(job) {
                return Some(refused);
            }
        }
        let done = self.threads.as_ref().and_then(Jobs::take);
        self.waiting -= usize::from(done.is_some());
        done
    }

    /// Hands transfers to the kernel, all with one call.
    pub(super) fn submit(&mut self) -> Result<(), CmError> {
        let done = self.ring.as_mut().map_or(Ok(()), Ring::submit);
        done.map_err(|error| CmError::from_io("submit transfers to io_uring", &error))
    }

    /// True while a thread works, which wakes nobody.
    pub(super) fn has_threads_busy(&self) -> bool {
        self.waiting > 0
    }

    /// Becomes readable when a transfer has ended; none if there are no transfers.
    pub(super) fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.ring.as_ref().filter(|ring| !ring.is_empty()).map(AsFd::as_fd)
    }

    /// Registers the regions of a queue's buffers; see [`Ring::register`].
    pub(super) fn register(&mut self, regions: [(usize, usize); REGIONS]) -> Option<u16> {
        self.ring.as_mut()?.register(regions)
    }

    /// Ends a registration.
    pub(super) fn unregister(&mut self, set: u16) {
        if let Some(ring) = &mut self.ring {
            ring.unregister(set);
        }
    }

    /// Registrations that queues can still have.
    #[cfg(test)]
    pub(super) fn free_sets(&self) -> usize {
        self.ring.as_ref().map_or(0, Ring::free_sets)
    }
}
