//! Sockets with a name, in children of fork. A name is taken as long as any process has the file of
//! its socket, and a child gets all files of its parent. So the child puts an unnamed socket in
//! place of each as soon as it runs: what its parent opened is not for it, and the parent's close
//! frees the name.
#![expect(unsafe_code, reason = "calls in a child of fork")]

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The sockets of this process that have a name.
static NAMED: Named = Named { locked: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

/// A list under a lock that one call takes and another gives back: those before and after a fork.
struct Named {
    locked: AtomicBool,
    list: UnsafeCell<Vec<RawFd>>,
}

// SAFETY: whoever has set `locked` has `list` alone.
unsafe impl Sync for Named {}

/// As long as it lives, no child begins. A socket gets its name, or is closed, meanwhile.
pub(super) struct Locked(());

pub(super) fn lock() -> Locked {
    static HOOKS: Once = Once::new();
    // Without the hooks, which only a lack of memory forbids, children keep names.
    // SAFETY: the three functions stay.
    HOOKS.call_once(|| unsafe { _ = libc::pthread_atfork(Some(before), Some(after), Some(child)) });
    wait()
}

fn wait() -> Locked {
    // Acquire pairs with the Release in `drop`: the last holder's changes to the list are seen.
    while NAMED.locked.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    Locked(())
}

impl Locked {
    fn list(&mut self) -> &mut Vec<RawFd> {
        // SAFETY: locked.
        unsafe { &mut *NAMED.list.get() }
    }

    /// That socket has a name.
    pub(super) fn add(&mut self, fd: RawFd) {
        self.list().push(fd);
    }

    /// That socket is about to be closed. Most have no name.
    pub(super) fn remove(&mut self, fd: RawFd) {
        self.list().retain(|named| *named != fd);
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        NAMED.locked.store(false, Ordering::Release);
    }
}

unsafe extern "C" fn before() {
    std::mem::forget(wait());
}

unsafe extern "C" fn after() {
    drop(Locked(()));
}

/// Only calls that a child of fork may make.
unsafe extern "C" fn child() {
    let mut named = Locked(());
    if named.list().is_empty() {
        return;
    }
    // SAFETY: takes numbers only. The descriptors are of sockets in this process, which keep their
    // numbers.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let unnamed = libc::socket(libc::AF_UNIX, kind, 0);
        if unnamed < 0 {
            return;
        }
        for fd in named.list().drain(..) {
            libc::dup3(unnamed, fd, libc::O_CLOEXEC);
        }
        libc::close(unnamed);
    }
}
