//! The limits of the device that more than one file has to know.

/// Queue pairs of one device at most; the low bits of a number are its index.
pub(crate) const QPS: usize = 1 << 14;

/// Pieces of a send request at most.
pub(crate) const SEND_SGE_MAX: usize = 8;

/// READs and atomics in flight at most, in each direction of a connection.
pub(crate) const READS_MAX: usize = 16;

/// Bytes of a message at most (SQ-10).
pub(crate) const MESSAGE_MAX: u32 = 1 << 30;

/// True if a fragment of `length` bytes may come behind `written` bytes of a message of `size`.
/// The last one must end the message.
pub(crate) fn fragment_fits(size: u32, (written, length): (u32, u32), is_last: bool) -> bool {
    let end = u64::from(written) + u64::from(length);
    size <= MESSAGE_MAX && end <= u64::from(size) && (!is_last || end == u64::from(size))
}
