//! Sleeping until a completion comes, and the events of the device: descriptors of the kernel.
#![expect(unsafe_code, reason = "eventfds, completion channels and events through libibverbs")]

use core::mem::{MaybeUninit, offset_of};
use core::ptr::{self, NonNull};

use crate::rdma_core::*;
use std_alloc::sync::Arc;

use super::shim::{errno, refused};
use crate::error::SetupError;
use crate::event::{AsyncEvent, AsyncKind, Object};
use crate::provider::wake::Notifier;

/// A completion channel with one queue on it (`ibv_comp_channel`).
pub(super) struct Channel {
    channel: NonNull<ibv_comp_channel>,
}

impl Channel {
    pub(super) fn new(context: *mut ibv_context) -> Result<Channel, SetupError> {
        let asked = "a completion channel";
        // SAFETY: the context is open.
        let channel = unsafe { ibv_create_comp_channel(context) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| refused(asked, errno()).cure("close files, or raise ulimit -n"))?;
        let made = Channel { channel };
        if !never_block(made.fd()) {
            return Err(refused(asked, errno()));
        }
        Ok(made)
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    pub(super) fn fd(&self) -> i32 {
        // SAFETY: the channel is alive; the descriptor never changes.
        unsafe { (*self.as_ptr()).fd }
    }

    /// Takes and acknowledges all events of the one queue. Returns how many.
    pub(super) fn drain(&self, cq: *mut ibv_cq) -> u32 {
        let mut count = 0;
        let (mut which, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and does not block; the call fills in two pointers.
        while unsafe { ibv_get_cq_event(self.as_ptr(), &raw mut which, &raw mut context) } == 0 {
            count += 1;
        }
        if count > 0 {
            // SAFETY: this queue is the only one on the channel, and had that many events.
            unsafe { ibv_ack_cq_events(cq, count) };
        }
        count
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the queue on it is gone. Should the driver refuse, it stays.
        unsafe { ibv_destroy_comp_channel(self.as_ptr()) };
    }
}

/// Makes reads of a descriptor return at once. If false, errno says why.
pub(super) fn never_block(fd: i32) -> bool {
    // SAFETY: takes numbers only.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
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
pub(super) fn notifier() -> Option<Notifier> {
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

/// The next event of a device whose descriptor does not block. It is acknowledged. Events of kinds
/// that this crate does not know are skipped.
pub(super) fn next_event(context: *mut ibv_context) -> Option<AsyncEvent> {
    loop {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open; the call fills the structure it is given.
        if unsafe { ibv_get_async_event(context, event.as_mut_ptr()) } != 0 {
            return None;
        }
        // Read as numbers: a kind newer than the bindings is no value of their type.
        let raw = event.as_ptr().cast::<u8>();
        // SAFETY: both fields lie in the structure; the element is a pointer or a port number in
        // its first bytes, the rest of which are zero.
        let (kind, element) = unsafe {
            let kind = raw.add(offset_of!(ibv_async_event, event_type)).cast::<u32>();
            (kind.read(), raw.cast::<u64>().read())
        };
        let kind = AsyncKind::from_raw(kind);
        let object = kind.map(|kind| object(kind, element));
        // SAFETY: the event that was just taken, once. After this what it names may go.
        unsafe { ibv_ack_async_event(event.as_mut_ptr()) };
        if let (Some(kind), Some(object)) = (kind, object) {
            return Some(AsyncEvent { kind, object });
        }
    }
}

fn object(kind: AsyncKind, element: u64) -> Object {
    use AsyncKind::*;
    match kind {
        CqError => Object::Cq(element),
        SrqError | SrqLimitReached => Object::Srq(element),
        QpFatal | QpRequestError | QpAccessError | CommEstablished | SqDrained | PathMigrated
        | PathMigrationError | LastWqeReached => {
            // SAFETY: for these kinds it is a queue pair, which lives until the event is
            // acknowledged; its number never changes.
            Object::Qp(unsafe { (*(element as *const ibv_qp)).qp_num })
        }
        PortActive | PortError | LidChange | PkeyChange | SmChange | ClientReregister
        | GidChange | SpeedChange => Object::Port(element as u8),
        // The device itself, and a work queue, which has no name among the objects.
        _ => Object::Device,
    }
}
