//! The border to C: objects that programs know by address, errno, and panics, which end here. A
//! thread that another one cancels ends where it waits for an event, or after a call.
#![expect(unsafe_code, reason = "programs name objects by address")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_fabric::CmError;
use doorbell_seam::error::SetupError;
use doorbell_seam::wr::{PostCause, PostError};
use doorbell_soft::Uncancelled;
use libc::c_int;

use crate::abi::{ibv_device_attr_ex, ibv_qp, ibv_qp_ex, ibv_send_wr};
use crate::abi_context::verbs_context;
use crate::abi_ext::ibv_cq_ex;
use crate::abi_raw::ibv_wq;
use crate::cm::abi::{rdma_addrinfo, rdma_cm_id};

/// An error, as a positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const ABSENT: Errno = Errno(libc::EOPNOTSUPP);

impl From<SetupError> for Errno {
    fn from(error: SetupError) -> Errno {
        explain(&error);
        Errno(error.code().errno())
    }
}

impl From<CmError> for Errno {
    fn from(error: CmError) -> Errno {
        explain(&error);
        Errno(error.code().errno())
    }
}

impl From<PostCause> for Errno {
    fn from(cause: PostCause) -> Errno {
        Errno(cause.errno())
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Errno {
        error.cause.into()
    }
}

/// Prints an error if `DOORBELL_EXPLAIN` is set: an errno, or the status of an event, does not say
/// what was asked.
pub(crate) fn explain(error: &dyn std::fmt::Display) {
    if std::env::var_os("DOORBELL_EXPLAIN").is_some() {
        eprintln!("doorbell: {error}");
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(Errno(value): Errno) {
    // SAFETY: the C library's own errno of this thread.
    unsafe { *libc::__errno_location() = value };
}

// Cancellation points, from which the C library unwinds the stack of a cancelled thread. The frames
// of the callers must have nothing to drop, and must not be within `guarded`.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, millis: c_int) -> c_int;
    fn read(fd: c_int, to: *mut c_void, length: usize) -> isize;
}

/// Ends this thread if another one has cancelled it.
pub(crate) fn may_end() {
    // SAFETY: takes nothing. Nothing is dropped here, and the callers see to the same.
    unsafe { pthread_testcancel() };
}

/// Waits until a descriptor is readable, for ever without one, or until a signal comes. The thread
/// may end here.
pub(crate) fn wait_readable(fd: Option<c_int>) {
    // One below zero is ignored.
    let fd = fd.unwrap_or(-1);
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one `pollfd`. Nothing is dropped here, and the callers see to the same.
    unsafe { poll(&raw mut asked, 1, -1) };
}

/// Takes one from an eventfd, as its flags say: waits, or not. True if there was one; if not,
/// `errno` says why. The thread may end here.
pub(crate) fn take_one(fd: c_int) -> bool {
    let mut count = 0_u64;
    // SAFETY: eight bytes of `count`. Nothing is dropped here, and the callers see to the same.
    unsafe { read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// A panic is an error of ours, which must not end the program.
fn caught<R>(f: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    // What a panic leaves behind is behind mutexes, and whole: see `lock`.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)))
}

/// The same, and the thread is not cancelled in the midst of the call: it may hold locks, and the C
/// library would abort when its unwinding is caught.
fn guarded<R>(f: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let _uncancelled = Uncancelled::new();
    caught(f)
}

fn to_code(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

fn to_number(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// A call that returns 0 or an errno.
pub(crate) fn code(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    to_code(guarded(f))
}

/// A call that returns a number, or -1 with `errno`.
pub(crate) fn number(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    to_number(guarded(f))
}

/// As [`code`], for a post or a poll. What they do most often has no cancellation point, and their
/// rare steps turn cancellation off by themselves ([`Uncancelled`]).
pub(crate) fn quick_code(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    to_code(caught(f))
}

/// As [`number`], for a poll: see [`quick_code`].
pub(crate) fn quick_number(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    to_number(caught(f))
}

/// A call that returns a pointer, or NULL with `errno`.
pub(crate) fn pointer<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(f).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}

/// What an object of C is here.
pub(crate) trait Noun {
    /// The structure that the program sees.
    type C;
    /// Tells it from other objects, and from what was freed.
    const TAG: u64;
}

/// The tag of an object that each post or poll looks at: one that a comparison holds in itself.
pub(crate) const fn quick_tag(number: u32) -> u64 {
    !(number as u64)
}

/// An object that a program knows by address. The program sees `c` and may write there; the rest is
/// ours.
#[repr(C)]
pub(crate) struct Object<T: Noun> {
    c: UnsafeCell<T::C>,
    tag: AtomicU64,
    pub(crate) own: T,
}

// SAFETY: `c` is only accessed by raw pointer, as the program does too; `T` is what is shared.
unsafe impl<T: Noun + Sync> Sync for Object<T> {}
// SAFETY: as above: the pointers in `c` belong to the program.
unsafe impl<T: Noun + Send> Send for Object<T> {}

impl<T: Noun> Object<T> {
    /// Makes an object, and gives it to the program.
    pub(crate) fn give(c: T::C, own: T) -> *mut T::C {
        let object = Box::new(Object { c: UnsafeCell::new(c), tag: AtomicU64::new(T::TAG), own });
        Box::into_raw(object).cast()
    }

    /// The structure that the program sees.
    pub(crate) fn c(&self) -> *mut T::C {
        self.c.get()
    }
}

/// The object at an address that the program gave. An address that is NULL or not aligned, or holds
/// something else or something freed, is an error where that can be seen.
///
/// # Safety
/// The program has the object from [`Object::give`], and does not destroy it meanwhile.
pub(crate) unsafe fn object<'a, T: Noun>(at: *mut T::C) -> Result<&'a Object<T>, Errno> {
    let at = at.cast::<Object<T>>();
    if at.is_null() || !at.is_aligned() {
        return Err(INVALID);
    }
    // SAFETY: as the caller says.
    unsafe { called(at.cast()) }
}

/// The same in a call that the program has found by the object's context, and so by the object: it
/// is not NULL.
///
/// # Safety
/// As for [`object`].
#[inline(always)]
pub(crate) unsafe fn called<'a, T: Noun>(at: *mut T::C) -> Result<&'a Object<T>, Errno> {
    // SAFETY: the program says that it is one of ours.
    let object = unsafe { &*at.cast::<Object<T>>() };
    if object.tag.load(Ordering::Relaxed) == T::TAG { Ok(object) } else { Err(INVALID) }
}

/// Takes an object back from the program, and frees it.
///
/// # Safety
/// As for [`object`], and the program does not use it any more.
pub(crate) unsafe fn take<T: Noun>(at: *mut T::C) -> Result<T, Errno> {
    // SAFETY: as the caller says.
    let object = unsafe { object::<T>(at) }?;
    // Of two threads that destroy it, one gets it.
    if object.tag.swap(0, Ordering::AcqRel) != T::TAG {
        return Err(INVALID);
    }
    // SAFETY: it was a box, and this call alone has changed the tag.
    let object = unsafe { Box::from_raw(at.cast::<Object<T>>()) };
    Ok(object.own)
}

/// What a pointer of the program points to.
///
/// # Safety
/// It is NULL or points to a `T` for as long as `'a`, which nobody writes meanwhile.
pub(crate) unsafe fn given<'a, T>(at: *const T) -> Result<&'a T, Errno> {
    // SAFETY: as the caller says.
    unsafe { at.as_ref() }.ok_or(INVALID)
}

/// Writes what a call returns to where the program wants it.
///
/// # Safety
/// It is NULL or points to room for a `T`.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Result<(), Errno> {
    if at.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller says.
    unsafe { at.write(value) };
    Ok(())
}

/// Locks. Poisoning says that another thread panicked between two whole steps: still in order.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Text of the program's structures: cut, and ended by a zero.
pub(crate) fn text<const N: usize>(text: &str) -> [libc::c_char; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    bytes
}

/// A structure of C for which all bits zero is a value.
///
/// # Safety
/// It consists of numbers, arrays of numbers, pointers and functions that may be NULL, unions of
/// these, and pthread's objects, for which glibc defines all zero as new ones.
pub(crate) unsafe trait Zero: Sized {}

/// A structure of C with all bits zero.
pub(crate) fn zeroed<T: Zero>() -> T {
    // SAFETY: the trait says so.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

// SAFETY: so it is, by glibc's PTHREAD_MUTEX_INITIALIZER.
unsafe impl Zero for libc::pthread_mutex_t {}
// SAFETY: so it is, by glibc's PTHREAD_COND_INITIALIZER.
unsafe impl Zero for libc::pthread_cond_t {}
// SAFETY: so it is, by <signal.h>.
unsafe impl Zero for libc::sigset_t {}
// SAFETY: so it is, by <netdb.h>.
unsafe impl Zero for libc::addrinfo {}
// SAFETY: so it is, by <netinet/in.h>.
unsafe impl Zero for libc::sockaddr_in {}
// SAFETY: so it is, by <netinet/in.h>.
unsafe impl Zero for libc::sockaddr_in6 {}
// SAFETY: so it is, by <sys/socket.h>.
unsafe impl Zero for libc::sockaddr_storage {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_device_attr_ex {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_qp {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_qp_ex {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_send_wr {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_cq_ex {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for verbs_context {}
// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_wq {}
// SAFETY: so it is, by <rdma/rdma_cma.h>.
unsafe impl Zero for rdma_cm_id {}
// SAFETY: so it is, by <rdma/rdma_cma.h>.
unsafe impl Zero for rdma_addrinfo {}
