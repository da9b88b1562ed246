//! Shared memory: the layout of a link, the two ends of a direction, copies, what wakes a peer;
//! inboxes for datagrams, what tells of changes of their groups, and the tables and regions of
//! other processes.
//!
//! A message passes, in this order: `head` → `ring` → `peer_waker` → the peer's `reader` → `burst`.
//! `layout` says where it lies, `wrap_policy` when the ring wraps, and `copy` moves its bytes. A
//! record that the peer refuses comes back in `refusals`. The bytes of a long message stay in the
//! sender's memory: the record is an `offer`, and the receiver reads them through `remote_map` and
//! `views`.

pub(crate) mod burst;
pub(crate) mod changes;
pub(crate) mod copy;
#[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
mod copy_x86;
pub(crate) mod head;
pub(crate) mod inbox;
pub(crate) mod layout;
pub(crate) mod offer;
pub(crate) mod peer_waker;
pub(crate) mod reader;
pub(crate) mod refusals;
pub(crate) mod remote_map;
pub(crate) mod ring;
pub(crate) mod views;
pub(crate) mod wrap_policy;
