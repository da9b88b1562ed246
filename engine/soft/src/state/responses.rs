//! Responses to READs and atomics of a peer that are still to be sent.

use crate::model::memory::Who;

/// A response that is still to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Response {
    /// Our queue pair that the request was for, and the number of the peer's queue pair.
    pub(crate) who: Who,
    pub(crate) peer: u32,
    pub(crate) unsent: Unsent,
}

/// The unsent part.
#[derive(Clone, Copy)]
pub(crate) enum Unsent {
    /// Bytes of a region, from `addr` on.
    Bytes { addr: u64, rkey: u32, left: u32 },
    /// The value before an atomic.
    Value(u64),
}
