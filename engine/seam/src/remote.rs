//! [`RemoteMemory`]: what a peer tells about memory that it exposes.

use core::fmt;

use crate::provider::Access;
use crate::wr::{Remote, SendOp};

/// Memory of a peer for one-sided requests: where it is, its length, and what its owner allows. The
/// owner sends it to its peers as [`RemoteMemory::to_bytes`].
///
/// It makes the operations of requests, and refuses those that would fail at the peer and end the
/// connection.
///
/// ```
/// use doorbell_seam::provider::Access;
/// use doorbell_seam::remote::{RemoteError, RemoteMemory};
/// use doorbell_seam::wr::{Remote, SendOp};
///
/// let at = Remote { addr: 0x1000, rkey: 7 };
/// let told = RemoteMemory::new(at, 4096, Access::REMOTE_READ).to_bytes();
/// let there = RemoteMemory::from_bytes(&told); // at the peer
/// assert_eq!(there.read(64, 8), Ok(SendOp::Read(at.offset(64))));
/// assert_eq!(there.read(4096, 8), Err(RemoteError::OutOfBounds));
/// let refused = there.write(64, 8).unwrap_err();
/// assert_eq!(refused, RemoteError::NotAllowed(Access::REMOTE_WRITE));
/// assert!(refused.to_string().contains("REMOTE_WRITE"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    at: Remote,
    len: u64,
    rights: Access,
}

/// What a peer can be allowed to do.
const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

impl RemoteMemory {
    /// The length of [`RemoteMemory::to_bytes`].
    pub const BYTES: usize = 21;

    /// `len` bytes at `at`, in which a peer may do what `rights` says. Rights that concern no peer
    /// are left out.
    pub fn new(at: Remote, len: u64, rights: Access) -> RemoteMemory {
        RemoteMemory { at, len, rights: rights & RIGHTS }
    }

    /// As [`RemoteMemory::new`], for the owner of a region that is registered for `access`.
    ///
    /// # Errors
    /// `NoRights`: the region is not registered for peers.
    pub(crate) fn of(at: Remote, len: u64, access: Access) -> Result<RemoteMemory, RemoteError> {
        match access.intersects(RIGHTS) {
            true => Ok(RemoteMemory::new(at, len, access)),
            false => Err(RemoteError::NoRights),
        }
    }

    /// The form in which a message carries it, the same on every machine.
    pub fn to_bytes(self) -> [u8; RemoteMemory::BYTES] {
        let mut bytes = [0; RemoteMemory::BYTES];
        bytes[..8].copy_from_slice(&self.at.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.at.rkey.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20] = self.rights.bits() as u8;
        bytes
    }

    /// Reads what [`RemoteMemory::to_bytes`] wrote. A peer that tells something untrue makes
    /// requests fail, no more.
    pub fn from_bytes(bytes: &[u8; RemoteMemory::BYTES]) -> RemoteMemory {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, rights] = *bytes;
        let at = Remote {
            addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_le_bytes([i, j, k, l]),
        };
        let len = u64::from_le_bytes([m, n, o, p, q, r, s, t]);
        RemoteMemory::new(at, len, Access::from_bits_truncate(rights.into()))
    }

    /// Its first byte, for a peer that checks nothing.
    pub fn remote(self) -> Remote {
        self.at
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// What its owner allows: REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC.
    pub fn rights(self) -> Access {
        self.rights
    }

    /// An RDMA WRITE of `length` bytes to `offset`.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn write(self, offset: u64, length: u32) -> Result<SendOp, RemoteError> {
        self.checked(Access::REMOTE_WRITE, offset, length).map(SendOp::Write)
    }

    /// As [`RemoteMemory::write`], and then `imm` as a message.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn write_with_imm(self, offset: u64, length: u32, imm: u32) -> Result<SendOp, RemoteError> {
        let at = self.checked(Access::REMOTE_WRITE, offset, length)?;
        Ok(SendOp::WriteWithImm(at, imm))
    }

    /// An RDMA READ of `length` bytes from `offset` on.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn read(self, offset: u64, length: u32) -> Result<SendOp, RemoteError> {
        self.checked(Access::REMOTE_READ, offset, length).map(SendOp::Read)
    }

    /// The eight bytes at `offset` become `swap` if they equal `compare` (RC-6).
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn compare_swap(self, offset: u64, compare: u64, swap: u64) -> Result<SendOp, RemoteError> {
        Ok(SendOp::CompareSwap { at: self.word(offset)?, compare, swap })
    }

    /// Adds `add` to the eight bytes at `offset` (RC-6).
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn fetch_add(self, offset: u64, add: u64) -> Result<SendOp, RemoteError> {
        Ok(SendOp::FetchAdd { at: self.word(offset)?, add })
    }

    /// Where an atomic works.
    fn word(self, offset: u64) -> Result<Remote, RemoteError> {
        let at = self.checked(Access::REMOTE_ATOMIC, offset, 8)?;
        if at.addr.is_multiple_of(8) { Ok(at) } else { Err(RemoteError::Misaligned) }
    }

    fn checked(self, right: Access, offset: u64, length: u32) -> Result<Remote, RemoteError> {
        if !self.rights.contains(right) {
            return Err(RemoteError::NotAllowed(right));
        }
        match offset.checked_add(length.into()) {
            Some(end) if end <= self.len => Ok(self.at.offset(offset)),
            _ => Err(RemoteError::OutOfBounds),
        }
    }
}

/// Why a request to a peer's memory, or telling peers about memory, is refused here. The peer's
/// device would refuse it too, and end the connection.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The owner does not allow it.
    #[error(
        "the owner of that memory does not allow this: it has to register it with Access::{}",
        RightNames(*.0)
    )]
    NotAllowed(Access),
    /// The region was registered without a right for peers.
    #[error(
        "peers may do nothing with this region: register it with Access::REMOTE_READ, REMOTE_WRITE \
         or REMOTE_ATOMIC"
    )]
    NoRights,
    /// Some of the bytes lie past the end.
    #[error("some of these bytes lie past the end of the memory")]
    OutOfBounds,
    /// An atomic needs an address that is a multiple of eight (RC-6).
    #[error("atomics need an address that is a multiple of eight")]
    Misaligned,
}

impl fmt::Debug for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rights by their names.
struct RightNames(Access);

impl fmt::Display for RightNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Remote = Remote { addr: 0x7000_0000_1008, rkey: 0x0a0b_0c0d };

    #[test]
    fn the_bytes_say_everything() {
        let told = RemoteMemory::new(AT, u64::MAX - 1, Access::all());
        assert_eq!(RemoteMemory::from_bytes(&told.to_bytes()), told);
        assert_eq!(told.rights(), RIGHTS);
        assert_eq!((told.remote(), told.len(), told.is_empty()), (AT, u64::MAX - 1, false));
        let odd = RemoteMemory::from_bytes(&[0xff; RemoteMemory::BYTES]);
        assert_eq!((odd.rights(), odd.len()), (RIGHTS, u64::MAX));
    }

    #[test]
    fn each_operation_needs_its_right() {
        let rights = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        for given in rights {
            let there = RemoteMemory::new(AT, 64, given);
            let asked = [
                there.read(0, 64),
                there.write(0, 64),
                there.write_with_imm(0, 64, 1),
                there.compare_swap(56, 1, 2),
                there.fetch_add(0, 1),
            ];
            let needed = [0, 1, 1, 2, 2].map(|right| rights[right]);
            for (asked, needed) in asked.into_iter().zip(needed) {
                match asked {
                    Ok(_) => assert_eq!(given, needed),
                    Err(error) => {
                        assert_eq!(error, RemoteError::NotAllowed(needed));
                        assert_ne!(given, needed);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_reaches_past_the_end() {
        let there = RemoteMemory::new(AT, 64, RIGHTS);
        assert_eq!(there.read(60, 4), Ok(SendOp::Read(AT.offset(60))));
        assert!(there.write(64, 0).is_ok());
        for (offset, length) in [(60, 5), (65, 0), (u64::MAX, 2), (0, 65)] {
            assert_eq!(there.read(offset, length), Err(RemoteError::OutOfBounds));
            assert_eq!(there.write(offset, length), Err(RemoteError::OutOfBounds));
        }
        assert_eq!(there.fetch_add(57, 1), Err(RemoteError::OutOfBounds));
        assert_eq!(there.fetch_add(4, 1), Err(RemoteError::Misaligned));
    }

    #[test]
    fn an_error_names_the_right() {
        let text = std::format!("{}", RemoteError::NotAllowed(Access::REMOTE_ATOMIC));
        assert!(text.ends_with("Access::REMOTE_ATOMIC"), "{text}");
    }
}
