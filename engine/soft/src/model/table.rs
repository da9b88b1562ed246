//! The table of a device: its queue pairs, regions and inboxes.
//!
//! A key is the slot and twenty random bits: a deregistered key fails (MR-3), and nobody finds a
//! key by counting.

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::model::limits::QPS;
use crate::model::slot::Slot;

/// The part of a device that peers may read: its queue pairs, regions and inboxes. All zero is
/// empty.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) inboxes: [InboxSlot; INBOXES],
    /// For each slot: number, rights and domain of a queue pair in RTS, 0 otherwise.
    pub(crate) qps: [AtomicU64; QPS],
    /// For each slot: the word of such a queue pair without its rights, which may change. The
    /// messages that it lends name this word.
    pub(crate) lenders: [AtomicU64; QPS],
    pub(crate) slots: [Slot; REGIONS],
}

/// Bytes of memory that a device's table takes.
pub const DIRECTORY_BYTES: usize = size_of::<Table>();

/// The most regions of one device.
pub(crate) const REGIONS: usize = 4096;

/// Random bits of a key.
pub(super) const SECRET_BITS: u32 = 20;
const _: () = assert!(REGIONS == 1 << (32 - SECRET_BITS));

/// Slot of a key.
#[inline(always)]
pub(crate) fn index_of(key: u32) -> usize {
    (key >> SECRET_BITS) as usize
}

/// The key of a slot with those random bits.
pub(super) fn key_of(index: u32, random: u32) -> u32 {
    index << SECRET_BITS | random >> (32 - SECRET_BITS)
}

/// The most UD queue pairs of one device.
pub(crate) const INBOXES: usize = 1024;

/// The entry where senders find the inbox of a UD queue pair.
#[repr(C)]
pub(crate) struct InboxSlot {
    /// The number of the queue pair, 0 if there is none.
    pub(crate) qp: AtomicU32,
    /// The file's descriptor.
    pub(crate) fd: AtomicU32,
    pub(crate) inode: AtomicU64,
}
