//! Queues of events that programs wait for by descriptor.
#![expect(unsafe_code, reason = "eventfd")]

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};

use libc::c_int;

use crate::abi::ibv_async_event;
use crate::border::{Errno, lock, number, take_one};

/// A queue whose descriptor is readable while there is an event. A program may poll it, and make it
/// not block.
pub(crate) struct Queue<T> {
    /// A semaphore. Invariant: its count + the threads that have taken one and not yet called
    /// `next_and` = `list.events.len()` + `list.missing`.
    fd: OwnedFd,
    list: Mutex<List<T>>,
}

struct List<T> {
    events: VecDeque<T>,
    /// Forgotten events whose count could not be taken back. As many threads find nothing.
    missing: usize,
}

/// The asynchronous events of a context.
pub(crate) type AsyncQueue = Queue<ibv_async_event>;

/// The asynchronous events that a program has got and not yet acknowledged, by the address of the
/// object that each names.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    counts: Mutex<HashMap<usize, u32>>,
    fewer: Condvar,
}

impl Unacknowledged {
    /// The program has got one more.
    pub(crate) fn add(&self, element: usize) {
        *lock(&self.counts).entry(element).or_default() += 1;
    }

    /// The program has acknowledged one.
    pub(crate) fn remove(&self, element: usize) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&element) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&element);
                self.fewer.notify_all();
            }
        }
    }

    /// Waits until the program has acknowledged all that name that object.
    pub(crate) fn wait(&self, element: usize) {
        let mut counts = lock(&self.counts);
        while counts.contains_key(&element) {
            counts = self.fewer.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A new eventfd.
pub(crate) fn eventfd(flags: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The error of the system call just made.
pub(crate) fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// What a look at a queue answers if there is no event.
pub(crate) const NONE: c_int = 1;

/// Waits by a descriptor until that look has an answer. A descriptor that the program has made not
/// block does not wait. The thread may end here if another one cancels it: see [`take_one`].
pub(crate) fn wait_by(fd: c_int, look: impl Fn() -> Result<c_int, Errno> + Copy) -> c_int {
    if fd < 0 {
        return fd;
    }
    loop {
        if !take_one(fd) {
            return -1;
        }
        let answer = number(look);
        if answer != NONE {
            return answer;
        }
    }
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Result<Queue<T>, Errno> {
        let list = Mutex::new(List { events: VecDeque::new(), missing: 0 });
        Ok(Queue { fd: eventfd(libc::EFD_SEMAPHORE)?, list })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: T) {
        let mut list = lock(&self.list);
        list.events.push_back(event);
        // While the list is locked: `forget` counts on it.
        ring(self.fd());
    }

    /// The next event, after [`take_one`]. There is none if it was for an object that is gone. Does
    /// something with the event before [`Queue::forget`] can miss it.
    pub(crate) fn next_and(
        &self,
        note: impl FnOnce(&T) -> Result<(), Errno>,
    ) -> Result<Option<T>, Errno> {
        let mut list = lock(&self.list);
        if list.missing > 0 {
            list.missing -= 1;
            return Ok(None);
        }
        let next = list.events.pop_front();
        next.as_ref().map_or(Ok(()), note)?;
        Ok(next)
    }

    /// Forgets the events of an object that goes. The descriptor is readable after that only if
    /// there are others.
    pub(crate) fn forget(&self, is_of_it: impl Fn(&T) -> bool) {
        let mut list = lock(&self.list);
        let before = list.events.len();
        list.events.retain(|event| !is_of_it(event));
        for _ in list.events.len()..before {
            if !take_back(self.fd()) {
                list.missing += 1;
            }
        }
    }
}

/// Takes one from an eventfd, and does not wait. False if another thread has it, and on a kernel
/// before 5.8, which cannot do so.
fn take_back(fd: c_int) -> bool {
    let mut count = 0_u64;
    let room = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    // SAFETY: eight bytes of `count`.
    unsafe { libc::preadv2(fd, &raw const room, 1, -1, libc::RWF_NOWAIT) == 8 }
}

/// Makes an eventfd readable. By number: `write` of the C library is a cancellation point.
pub(crate) fn ring(fd: c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes of `one`. It fails only when it has been rung too often to count.
    unsafe { libc::syscall(libc::SYS_write, fd, &raw const one, 8) };
}

/// Makes an eventfd unreadable that does not block. By number, as in [`ring`].
pub(crate) fn clear(fd: c_int) {
    let mut count = 0_u64;
    // SAFETY: eight bytes of `count`. It fails only when there is nothing to clear.
    unsafe { libc::syscall(libc::SYS_read, fd, &raw mut count, 8) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object that goes forgets its events first, and then waits for those that were counted. An
    /// event must be in the list or counted at any time.
    #[test]
    fn an_event_is_counted_while_the_list_is_locked() {
        let queue = Queue::new().unwrap();
        queue.push(7);
        let mut locked = None;
        let event = queue.next_and(|_| {
            locked = Some(queue.list.try_lock().is_err());
            Ok(())
        });
        assert_eq!((event, locked), (Ok(Some(7)), Some(true)));
    }

    fn is_readable<T>(queue: &Queue<T>) -> bool {
        let mut asked = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd`.
        unsafe { libc::poll(&raw mut asked, 1, 0) == 1 }
    }

    fn next<T>(queue: &Queue<T>) -> Option<T> {
        queue.next_and(|_| Ok(())).unwrap()
    }

    #[test]
    fn a_queue_is_readable_only_while_it_has_an_event() {
        let queue = Queue::new().unwrap();
        [1, 2, 1].into_iter().for_each(|event| queue.push(event));
        queue.forget(|event| *event == 1);
        assert!(is_readable(&queue), "the event 2 is left");
        assert!(take_one(queue.fd()));
        assert_eq!((next(&queue), is_readable(&queue)), (Some(2), false));
    }

    /// A thread has begun to take an event, which is forgotten before the thread comes for it.
    #[test]
    fn a_thread_whose_event_was_forgotten_leaves_the_next_one_its_count() {
        let queue = Queue::new().unwrap();
        queue.push(1);
        assert!(take_one(queue.fd()));
        queue.forget(|event| *event == 1);
        queue.push(2);
        assert_eq!((next(&queue), is_readable(&queue)), (None, true));
        assert!(take_one(queue.fd()));
        assert_eq!((next(&queue), is_readable(&queue)), (Some(2), false));
    }
}
