//! Shared memory: the layout of a link, the two ends of a direction, copies, what wakes a peer;
//! inboxes for datagrams, and the tables and regions of other processes.

pub(crate) mod burst;
pub(crate) mod copy;
#[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
mod copy_x86;
pub(crate) mod inbox;
pub(crate) mod layout;
pub(crate) mod peer_waker;
pub(crate) mod reader;
pub(crate) mod remote_map;
pub(crate) mod ring;
pub(crate) mod wrap_policy;
