//! Queues of events that programs wait for by descriptor.
#![expect(unsafe_code, reason = "eventfd")]

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

use libc::c_int;

use crate::abi::ibv_async_event;
use crate::border::{Errno, lock, number, take_one};

/// A queue whose descriptor is readable while there is an event. A program may poll it, and make it
/// not block.
pub(crate) struct Queue<T> {
    fd: OwnedFd,
    list: Mutex<VecDeque<T>>,
}

/// The asynchronous events of a context.
pub(crate) type AsyncQueue = Queue<ibv_async_event>;

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
        Ok(Queue { fd: eventfd(libc::EFD_SEMAPHORE)?, list: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    pub(crate) fn push(&self, event: T) {
        lock(&self.list).push_back(event);
        ring(self.fd());
    }

    /// The next event, after [`take_one`]. There is none if it was for an object that is gone.
    pub(crate) fn next(&self) -> Option<T> {
        lock(&self.list).pop_front()
    }

    /// The same, and does something with the event before [`Queue::forget`] can miss it.
    pub(crate) fn next_and(
        &self,
        note: impl FnOnce(&T) -> Result<(), Errno>,
    ) -> Result<Option<T>, Errno> {
        let mut list = lock(&self.list);
        let next = list.pop_front();
        next.as_ref().map_or(Ok(()), note)?;
        Ok(next)
    }

    /// Forgets the events of an object that goes.
    pub(crate) fn forget(&self, is_of_it: impl Fn(&T) -> bool) {
        lock(&self.list).retain(|event| !is_of_it(event));
    }
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
}
