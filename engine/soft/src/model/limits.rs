//! The limits of the device that more than one file has to know.

/// Queue pairs of one device at most; the low bits of a number are its index.
pub(crate) const QPS: usize = 1 << 14;

/// Pieces of a send request at most.
pub(crate) const SEND_SGE_MAX: usize = 8;

/// READs and atomics in flight at most, in each direction of a connection.
pub(crate) const READS_MAX: usize = 16;

/// Bytes of a message at most (SQ-10).
pub(crate) const MESSAGE_MAX: u32 = 1 << 30;
