//! Responses to READs and atomics of a peer that are still to be sent.

use super::memory::Who;

/// An answer that is owed to a peer.
#[derive(Clone, Copy)]
pub(super) struct Response {
    /// Our queue pair that was asked, and the peer's that did.
    pub(super) who: Who,
    pub(super) peer: u32,
    pub(super) unsent: Unsent,
}

/// What is still to be sent.
#[derive(Clone, Copy)]
pub(super) enum Unsent {
    /// Bytes of a region, from `addr` on.
    Bytes { addr: u64, rkey: u32, left: u32 },
    /// What was there before an atomic.
    Value(u64),
}
