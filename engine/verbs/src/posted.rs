//! What a driver's answer to a list of requests means.

use core::ffi::c_int;

use crate::wr::{PostCause, PostError};

/// The result of posting `count` requests from `first` on; the driver has set `bad` to the one that
/// it refused.
#[inline]
pub(super) fn posted<T>(
    answer: c_int,
    first: *const T,
    bad: *const T,
    count: usize,
) -> Result<(), PostError> {
    if answer == 0 && bad.is_null() {
        return Ok(());
    }
    Err(PostError { accepted: accepted_of(first, bad, count), cause: cause_of(answer) })
}

/// How many of `count` requests from `first` on come before the refused one. A driver that names
/// none has taken all: it owns their buffers.
#[inline]
fn accepted_of<T>(first: *const T, bad: *const T, count: usize) -> usize {
    if bad.is_null() {
        return count;
    }
    (bad.addr().wrapping_sub(first.addr()) / size_of::<T>()).min(count)
}

/// The cause behind a driver's answer, of either sign (G-2). A driver that answers 0 and names a
/// refused request breaks its contract; that counts as EIO.
pub(super) fn cause_of(answer: i32) -> PostCause {
    match answer.saturating_abs() {
        libc::ENOMEM | libc::ENOSPC => PostCause::Full,
        0 => PostCause::Device(libc::EIO),
        errno => PostCause::Device(errno),
    }
}
