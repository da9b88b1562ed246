//! Event channels.
#![expect(unsafe_code, reason = "the C interface")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use doorbell_fabric::Fabric;
use doorbell_soft::SoftChannel;

use crate::border::{Noun, Object, number, pointer, take};
use crate::context::device;

use super::abi::rdma_event_channel;

/// An event channel.
pub(crate) struct Channel {
    pub(crate) channel: SoftChannel,
}

impl Noun for Channel {
    type C = rdma_event_channel;
    const TAG: u64 = 0x6462_5f65_6300_000a;
}

#[unsafe(no_mangle)]
extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(|| {
        let channel = device()?.device.open_channel()?;
        let c = rdma_event_channel { fd: channel.as_fd().as_raw_fd() };
        Ok(Object::give(c, Channel { channel }))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(at: *mut rdma_event_channel) {
    // SAFETY: the program's channel, which it no longer uses.
    number(|| unsafe { take::<Channel>(at) }.map(|_| 0));
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
