//! The C library: errno, descriptors of the kernel, limits of the process.
#![expect(unsafe_code, reason = "the C library is called")]

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use std::io;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use crate::provider::wake::Notifier;

/// The errno of the last C call of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: the C library gives each thread a valid address for its errno.
    unsafe { *libc::__errno_location() }
}

/// The system's text for an errno of either sign.
pub(crate) fn errno_text(errno: i32) -> String {
    let errno = errno.saturating_abs();
    let mut text = [0; 128];
    // SAFETY: the call writes at most the given length, and a terminating zero.
    let answer = unsafe { libc::strerror_r(errno, text.as_mut_ptr(), text.len()) };
    // SAFETY: as above; if the call failed, the buffer still holds zeros.
    let name = unsafe { CStr::from_ptr(text.as_ptr()) };
    match name.to_str() {
        Ok(name) if answer == 0 => format!("{name} (errno {errno})"),
        _ => format!("errno {errno}"),
    }
}

/// The number of bytes that this process may lock in all; `None` if there is no limit.
pub(crate) fn lock_limit() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: the call writes one rlimit into room for one; one of zeros is valid too.
    let (answer, limit) =
        unsafe { (libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr()), limit.assume_init()) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Makes reads of a descriptor return at once. If false, errno says why.
pub(crate) fn never_block(fd: i32) -> bool {
    // SAFETY: takes numbers only.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
    }
}

/// Waits until a descriptor is readable; false if it is not after that many milliseconds, or when a
/// signal came. -1 is for ever.
pub(crate) fn wait_readable(fd: i32, limit_ms: c_int) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, ours.
    match unsafe { libc::poll(&raw mut poll, 1, limit_ms) } {
        0 => Ok(false),
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        _ => Ok(true),
    }
}

/// Closes a descriptor when its last notifier is dropped.
struct Closer(i32);

impl Drop for Closer {
    fn drop(&mut self) {
        // SAFETY: the descriptor was made for this value alone.
        unsafe { libc::close(self.0) };
    }
}

/// A new notifier over an eventfd; `None` if there are no descriptors left.
pub(crate) fn notifier() -> Option<Notifier> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    let ring = |fd| {
        let one = 1_u64;
        // SAFETY: eight bytes of a local word. It fails only when it is rung already.
        unsafe { libc::write(fd, (&raw const one).cast(), 8) };
    };
    let clear = |fd| {
        let mut count = 0_u64;
        // SAFETY: as above.
        unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
    };
    Some(Notifier::new(fd, Arc::new(Closer(fd)), ring, clear))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_named_whatever_its_sign() {
        assert_eq!(errno_text(12), errno_text(-12));
        assert!(errno_text(12).ends_with("(errno 12)"));
    }

    #[test]
    fn a_rung_notifier_is_readable_until_it_is_cleared() {
        let bell = notifier().expect("a descriptor");
        let readable = || wait_readable(bell.fd(), 0).expect("it is open");
        assert!(!readable());
        bell.ring();
        bell.ring();
        assert!(readable());
        bell.clear();
        assert!(!readable());
        assert!(never_block(bell.fd()));
        assert!(!never_block(-1));
    }
}
