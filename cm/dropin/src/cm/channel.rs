//! Event channels.
#![expect(unsafe_code, reason = "the C interface")]

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use doorbell_fabric::Fabric;
use doorbell_soft::SoftChannel;
use libc::c_int;

use crate::border::{Errno, Noun, Object, lock, number, object, pointer, take};
use crate::context::device;

use super::abi::rdma_event_channel;

/// An event channel.
pub(crate) struct Channel {
    pub(crate) channel: Arc<SoftChannel>,
    number: u64,
}

impl Noun for Channel {
    type C = rdma_event_channel;
    const TAG: u64 = 0x6462_5f65_6300_000a;
}

/// All channels, by their number.
static CHANNELS: LazyLock<Mutex<HashMap<u64, Arc<SoftChannel>>>> = LazyLock::new(Mutex::default);

/// Locked while an event leaves its channel and until its id has counted it.
pub(super) static LEAVES: Mutex<()> = Mutex::new(());

/// What librdmacm says of a channel that is destroyed: its descriptor is closed.
const GONE: Errno = Errno(libc::EBADF);

/// A thread that waits for an event keeps this of its channel, which another may destroy meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct ChannelName {
    number: u64,
    /// Readable while there is work. What is destroyed has no descriptor.
    pub(crate) fd: Option<c_int>,
}

impl ChannelName {
    /// The channel, unless it is destroyed.
    pub(crate) fn channel(&mut self) -> Option<Arc<SoftChannel>> {
        let found = lock(&CHANNELS).get(&self.number).cloned();
        self.fd = found.as_ref().map(|channel| channel.as_fd().as_raw_fd());
        found
    }
}

/// The channel at an address that the program gave.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn channel_at<'a>(at: *mut rdma_event_channel) -> Result<&'a Channel, Errno> {
    // SAFETY: as the caller says.
    unsafe { object::<Channel>(at) }.map(|object| &object.own).map_err(|_| GONE)
}

impl Channel {
    pub(crate) fn name(&self) -> ChannelName {
        ChannelName { number: self.number, fd: None }
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    pointer(|| {
        let channel = Arc::new(device()?.device.open_channel()?);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&CHANNELS).insert(number, channel.clone());
        let c = rdma_event_channel { fd: channel.as_fd().as_raw_fd() };
        Ok(Object::give(c, Channel { channel, number }))
    })
}

/// A thread that waits for an event goes on waiting, as in librdmacm.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(at: *mut rdma_event_channel) {
    number(|| {
        // SAFETY: the program's channel, which it asks for no further event.
        let own = unsafe { take::<Channel>(at) }?;
        lock(&CHANNELS).remove(&own.number);
        Ok(0)
    });
}

/// The channel that a synchronous id shows, whose events its calls take by themselves.
pub(crate) struct Private;

impl Noun for Private {
    type C = rdma_event_channel;
    const TAG: u64 = 0x6462_5f70_6300_000c;
}

/// Makes one with the descriptor of the id's own channel, which is readable while there is work.
pub(crate) fn private(fd: BorrowedFd<'_>) -> *mut rdma_event_channel {
    Object::give(rdma_event_channel { fd: fd.as_raw_fd() }, Private)
}

/// Frees it; does nothing to a channel of the program.
///
/// # Safety
/// It is a channel of the program, or from [`private`] and no longer used.
pub(crate) unsafe fn drop_private(at: *mut rdma_event_channel) {
    // SAFETY: as the caller says. A channel of the program is told by its tag.
    let _ = unsafe { take::<Private>(at) };
}
