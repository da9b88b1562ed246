//! Transfers of files by io_uring: the kernel carries them out while the poll loop goes on.
#![expect(unsafe_code, reason = "the kernel reads and writes buffers that this module keeps")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use doorbell::{Buffer, Fabric};
use io_uring::{IoUring, opcode, squeue, types};

/// Transfers that a ring holds at most.
const ENTRIES: u32 = 1024;
/// Queues whose buffers can be registered.
const SETS: u16 = 128;
/// How long the end of a ring waits for a transfer to end. The kernel gives most disks 30 s.
const END: Duration = Duration::from_secs(60);
/// Time between two looks whether transfers have ended, at the end of a ring.
const LOOK: Duration = Duration::from_millis(1);
/// Regions of a queue.
pub const REGIONS: usize = 2;

/// The operation of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// From the file.
    Read,
    /// To the file; through to the medium if `force`.
    Write {
        /// The data must last before it completes.
        force: bool,
    },
    /// Everything written so far lasts (`fdatasync`).
    Flush,
}

/// What the kernel shall do.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The file, which the job keeps open. The kernel holds it from [`Ring::submit`] on.
    pub file: RawFd,
    /// The operation.
    pub how: Move,
    /// The first byte of the file.
    pub at: u64,
    /// Bytes, from the beginning of the buffer on.
    pub len: usize,
}

/// A transfer that has ended: the job, its buffer, and the bytes moved.
pub type Ended<F, T> = (T, Option<Buffer<F>>, io::Result<usize>);

/// A ring of one poll loop. It keeps the job and the buffer of each transfer.
pub struct Ring<F: Fabric, T> {
    ring: IoUring,
    /// By the number that a completion names.
    held: Vec<Option<(T, Option<Buffer<F>>)>>,
    free: Vec<usize>,
    /// Sets of registered buffers that no queue has; none if the kernel registers no buffers.
    sets: Vec<u16>,
}

impl<F: Fabric, T> Ring<F, T> {
    /// A ring.
    ///
    /// # Errors
    /// The system has no io_uring, does not permit it, or lacks memory.
    pub fn new() -> io::Result<Ring<F, T>> {
        let ring = IoUring::builder().dontfork().build(ENTRIES)?;
        let table = u32::from(SETS) * REGIONS as u32;
        // Kernels before 5.19 have no such table; their transfers map the buffers each time.
        let sets = match ring.submitter().register_buffers_sparse(table) {
            Ok(()) => (0..SETS).rev().collect(),
            Err(_) => Vec::new(),
        };
        let held = (0..ENTRIES).map(|_| None).collect();
        Ok(Ring { ring, held, free: (0..ENTRIES as usize).rev().collect(), sets })
    }

    /// Registers the regions that buffers are cut from, each by its address and length. Returns the
    /// number of the set; `None` if the kernel refuses, for example over the limit on locked
    /// memory.
    pub fn register(&mut self, regions: [(usize, usize); REGIONS]) -> Option<u16> {
        let set = self.sets.pop()?;
        let iov = regions.map(|(start, len)| libc::iovec { iov_base: start as _, iov_len: len });
        // SAFETY: the kernel only pins pages here. It touches them for transfers that name the set,
        // and `entry` names it only with a buffer of that set, which this module keeps meanwhile.
        // If the addresses are not mapped, the call fails.
        let done = unsafe {
            let first = u32::from(set) * REGIONS as u32;
            self.ring.submitter().register_buffers_update(first, &iov, None)
        };
        match done {
            Ok(()) => Some(set),
            Err(_) => {
                self.sets.push(set);
                None
            }
        }
    }

    /// Sets that are not registered.
    pub fn free_sets(&self) -> usize {
        self.sets.len()
    }

    /// Ends a registration. Transfers under way keep their pages.
    pub fn unregister(&mut self, set: u16) {
        let none = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; REGIONS];
        let first = u32::from(set) * REGIONS as u32;
        // SAFETY: the entries become empty; nothing is pinned.
        let done = unsafe { self.ring.submitter().register_buffers_update(first, &none, None) };
        if done.is_ok() {
            self.sets.push(set);
        }
    }

    /// Takes a transfer; it begins with [`Ring::submit`]. `index` names the registered region of
    /// the buffer: the number of the set times [`REGIONS`], and the number of the region.
    ///
    /// # Errors
    /// The ring is full, or the buffer is shorter: job and buffer come back.
    pub fn give(
        &mut self,
        transfer: Transfer,
        index: Option<u16>,
        job: T,
        mut buffer: Option<Buffer<F>>,
    ) -> Result<(), (T, Option<Buffer<F>>)> {
        let bytes = buffer.as_deref_mut().unwrap_or_default();
        let start = bytes.as_mut_ptr();
        if bytes.len() < transfer.len {
            return Err((job, buffer));
        }
        let Some(place) = self.free.pop() else { return Err((job, buffer)) };
        let entry = entry(&transfer, index, start).user_data(place as u64);
        // SAFETY: the buffer has at least as many bytes as the transfer. It stays in `held` until
        // the completion comes, where nobody borrows it, and its bytes do not move with it. `drop`
        // waits for all completions, or never frees it. An index of another buffer's region fails
        // in the kernel.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match (pushed, self.held.get_mut(place)) {
            (Ok(()), Some(slot)) => {
                *slot = Some((job, buffer));
                Ok(())
            }
            _ => {
                self.free.push(place);
                Err((job, buffer))
            }
        }
    }

    /// Hands new transfers to the kernel, all with one call.
    ///
    /// # Errors
    /// The system's error, except those that pass by themselves.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        match self.ring.submit() {
            Err(error) if !is_passing(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The next transfer that has ended, if there is one.
    pub fn take(&mut self) -> Option<Ended<F, T>> {
        let done = self.ring.completion().next()?;
        let place = done.user_data() as usize;
        let (job, buffer) = self.held.get_mut(place)?.take()?;
        self.free.push(place);
        let moved = usize::try_from(done.result());
        let moved = moved.map_err(|_| io::Error::from_raw_os_error(-done.result()));
        Some((job, buffer, moved))
    }

    /// Waits until all transfers have ended, and drops their jobs. False if none has ended for
    /// `limit`, or if the kernel refuses them.
    pub fn drain(&mut self, limit: Duration) -> bool {
        let mut progress = Instant::now();
        while !self.is_empty() {
            let submitted = self.submit();
            while self.take().is_some() {
                progress = Instant::now();
            }
            if submitted.is_err() || progress.elapsed() > limit {
                return false;
            }
            if !self.is_empty() {
                std::thread::sleep(LOOK);
            }
        }
        true
    }

    /// True while it has no transfer.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.held.len()
    }
}

impl<F: Fabric, T> AsFd for Ring<F, T> {
    /// Readable while a transfer has ended that nobody has taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open as long as it lives, and this borrows it.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl<F: Fabric, T> Drop for Ring<F, T> {
    fn drop(&mut self) {
        if !self.drain(END) {
            // The kernel may still use the buffers: they stay for ever.
            std::mem::forget(std::mem::take(&mut self.held));
        }
    }
}

/// True for errors that mean "later".
fn is_passing(error: &io::Error) -> bool {
    let later = [libc::EAGAIN, libc::EBUSY, libc::EINTR];
    error.raw_os_error().is_some_and(|code| later.contains(&code))
}

/// The entry of a transfer to or from the bytes at `start`.
fn entry(transfer: &Transfer, index: Option<u16>, start: *mut u8) -> squeue::Entry {
    let Transfer { file, how, at, len } = *transfer;
    let (fd, len) = (types::Fd(file), len as u32);
    let flags = |force: bool| if force { libc::RWF_DSYNC } else { 0 };
    match (how, index) {
        (Move::Read, Some(index)) => {
            opcode::ReadFixed::new(fd, start, len, index).offset(at).build()
        }
        (Move::Read, None) => opcode::Read::new(fd, start, len).offset(at).build(),
        (Move::Write { force }, Some(index)) => {
            let write = opcode::WriteFixed::new(fd, start, len, index).offset(at);
            write.rw_flags(flags(force)).build()
        }
        (Move::Write { force }, None) => {
            opcode::Write::new(fd, start, len).offset(at).rw_flags(flags(force)).build()
        }
        (Move::Flush, _) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
    }
}
