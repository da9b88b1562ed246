//! Sockets with a name, in children of fork. A name is taken as long as any process has the file of
//! its socket, and a child gets all files of its parent. So a child replaces each of them by an
//! unnamed socket as soon as it runs. It may not use what its parent opened, and the parent's close
//! then frees the name.
#![expect(unsafe_code, reason = "calls in a child of fork")]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// The sockets of this process that have a name.
static NAMED: Named = Named { locked: AtomicBool::new(false), list: UnsafeCell::new(Vec::new()) };

/// A list under a lock that one call takes and another gives back: those before and after a fork.
struct Named {
    locked: AtomicBool,
    list: UnsafeCell<Vec<Entry>>,
}

/// A descriptor, and its file. A program may close descriptors that it does not know, and then open
/// files of its own under their numbers.
struct Entry {
    fd: RawFd,
    file: FileId,
}

/// Device and inode: no two open files have the same.
type FileId = (libc::dev_t, libc::ino_t);

/// The file of a descriptor, if it is open. A child of fork may call it.
fn file_of(fd: RawFd) -> Option<FileId> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: fstat writes one stat through the pointer; one of zeros is valid too.
    let (answer, stat) = unsafe { (libc::fstat(fd, stat.as_mut_ptr()), stat.assume_init()) };
    (answer == 0).then_some((stat.st_dev, stat.st_ino))
}

// SAFETY: whoever has set `locked` has `list` alone.
unsafe impl Sync for Named {}

/// As long as it lives, no child begins. A socket gets its name, or a socket with a name is closed,
/// meanwhile.
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
    fn list(&mut self) -> &mut Vec<Entry> {
        // SAFETY: locked.
        unsafe { &mut *NAMED.list.get() }
    }

    /// That socket has a name.
    pub(super) fn add(&mut self, fd: RawFd) {
        if let Some(file) = file_of(fd) {
            self.list().push(Entry { fd, file });
        }
    }

    /// That socket, which has a name, is about to be closed.
    pub(super) fn remove(&mut self, fd: RawFd) {
        self.list().retain(|named| named.fd != fd);
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
    // SAFETY: takes numbers only. `Socket` owns the descriptors that are replaced, and takes them
    // off the list before it closes them. If the program has closed one all the same, `file_of`
    // finds that the number has another file, which stays. No other thread runs in this process.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let unnamed = libc::socket(libc::AF_UNIX, kind, 0);
        if unnamed < 0 {
            return;
        }
        for Entry { fd, file } in named.list().drain(..) {
            if file_of(fd) == Some(file) {
                libc::dup3(unnamed, fd, libc::O_CLOEXEC);
            }
        }
        libc::close(unnamed);
    }
}
