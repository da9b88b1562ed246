//! [`RemoteMemory`]: what a peer tells about memory that it exposes; and [`RequestOp`], the
//! operation of a worker's request.

use core::fmt;

use crate::provider::Access;
use crate::wr::{Remote, SendOp};

/// Memory of a peer for one-sided requests: where it is, its length, and what its owner allows. The
/// owner sends it to its peers as [`RemoteMemory::to_bytes`].
///
/// It makes the operations of requests, and refuses those that would fail at the peer and end the
/// connection. It is the memory of one peer: use it for requests to that peer alone.
///
/// ```
/// use doorbell_seam::provider::Access;
/// use doorbell_seam::remote::RemoteMemory;
/// use doorbell_seam::wr::{Remote, SendOp};
///
/// let at = Remote { addr: 0x1000, rkey: 7 };
/// let told = RemoteMemory::new(at, 4096, Access::REMOTE_READ).to_bytes();
/// let there = RemoteMemory::from_bytes(&told); // at the peer
/// let read = there.read(64, 8)?; // for 8 bytes of pieces
/// assert_eq!(read.op(), SendOp::Read(at.offset(64)));
/// let refused = there.read(4092, 8).unwrap_err();
/// assert!(refused.to_string().contains("8 bytes at 4092"));
/// let refused = there.write(64, 8).unwrap_err();
/// assert!(refused.to_string().contains("needs Access::REMOTE_WRITE"));
/// # Ok::<(), doorbell_seam::remote::RemoteError>(())
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
    pub fn write(self, offset: u64, length: u32) -> Result<RequestOp, RemoteError> {
        let at = self.checked(Access::REMOTE_WRITE, offset, length)?;
        Ok(RequestOp::checked(SendOp::Write(at), length))
    }

    /// As [`RemoteMemory::write`], and then `imm` as a message. A worker's request refuses `imm` if
    /// its upper 16 bits are [`RESERVED_IMM`].
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn write_with_imm(
        self,
        offset: u64,
        length: u32,
        imm: u32,
    ) -> Result<RequestOp, RemoteError> {
        let at = self.checked(Access::REMOTE_WRITE, offset, length)?;
        Ok(RequestOp::checked(SendOp::WriteWithImm(at, imm), length))
    }

    /// An RDMA READ of `length` bytes from `offset` on.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn read(self, offset: u64, length: u32) -> Result<RequestOp, RemoteError> {
        let at = self.checked(Access::REMOTE_READ, offset, length)?;
        Ok(RequestOp::checked(SendOp::Read(at), length))
    }

    /// The eight bytes at `offset` become `swap` if they equal `compare` (RC-6).
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn compare_swap(
        self,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<RequestOp, RemoteError> {
        let at = self.word(offset)?;
        Ok(RequestOp::checked(SendOp::CompareSwap { at, compare, swap }, ATOMIC))
    }

    /// Adds `add` to the eight bytes at `offset` (RC-6).
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn fetch_add(self, offset: u64, add: u64) -> Result<RequestOp, RemoteError> {
        let at = self.word(offset)?;
        Ok(RequestOp::checked(SendOp::FetchAdd { at, add }, ATOMIC))
    }

    /// Where an atomic works.
    fn word(self, offset: u64) -> Result<Remote, RemoteError> {
        let at = self.checked(Access::REMOTE_ATOMIC, offset, ATOMIC)?;
        match at.addr.is_multiple_of(ATOMIC.into()) {
            true => Ok(at),
            false => Err(RemoteError::Misaligned { addr: at.addr }),
        }
    }

    fn checked(self, right: Access, offset: u64, length: u32) -> Result<Remote, RemoteError> {
        if !self.rights.contains(right) {
            return Err(RemoteError::NotAllowed { asked: right, granted: self.rights });
        }
        let length = u64::from(length);
        match offset.checked_add(length) {
            Some(end) if end <= self.len => Ok(self.at.offset(offset)),
            _ => Err(RemoteError::OutOfBounds { offset, length, len: self.len }),
        }
    }
}

/// Bytes of an atomic.
const ATOMIC: u32 = 8;

/// Immediate data with these upper 16 bits belongs to Doorbell. A worker marks the end of its
/// messages with a WRITE that carries such immediate data, so it refuses a program's WRITE with
/// them.
pub const RESERVED_IMM: u16 = 0xdb1c;

/// The operation of a worker's request.
///
/// [`RemoteMemory`] makes those that use a peer's memory. It checks their right, range and
/// alignment, and the worker checks that the pieces of the request have the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOp {
    op: SendOp,
    /// The length of the pieces that was checked; `None` if any will do.
    length: Option<u32>,
}

impl RequestOp {
    /// A message.
    pub const SEND: RequestOp = RequestOp { op: SendOp::Send, length: None };

    /// A message with four bytes of immediate data.
    pub fn send_with_imm(imm: u32) -> RequestOp {
        RequestOp { op: SendOp::SendWithImm(imm), length: None }
    }

    /// Any operation, as it is. Nothing is known of the peer's memory, so nothing is checked here:
    /// the peer's device checks right, key, range and alignment. If it refuses the request, that
    /// ends with an error such as [`Status::RemoteAccess`](crate::wc::Status::RemoteAccess), the
    /// connection ends, and with it every other request and message of that peer.
    pub fn unchecked(op: SendOp) -> RequestOp {
        RequestOp { op, length: None }
    }

    fn checked(op: SendOp, length: u32) -> RequestOp {
        RequestOp { op, length: Some(length) }
    }

    /// The operation, for a send request made by hand.
    pub fn op(self) -> SendOp {
        self.op
    }

    /// True if it may be used for pieces of this length altogether.
    pub fn is_for(self, length: u64) -> bool {
        self.length.is_none_or(|checked| u64::from(checked) == length)
    }
}

/// Why a request to a peer's memory, or telling peers about memory, is refused here. The peer's
/// device would refuse it too, and end the connection.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// The owner does not allow it.
    #[error(
        "the request needs Access::{}, and the owner of that memory grants {}: the owner has to \
         register it with that right too, and tell its peers again",
        RightNames(*asked),
        RightNames(*granted)
    )]
    NotAllowed {
        /// The right that the operation needs.
        asked: Access,
        /// The rights that the owner told of.
        granted: Access,
    },
    /// The region was registered without a right for peers.
    #[error(
        "peers may do nothing with this region: register it with Access::REMOTE_READ, REMOTE_WRITE \
         or REMOTE_ATOMIC"
    )]
    NoRights,
    /// Some of the bytes lie past the end.
    #[error(
        "{length} bytes at {offset} were asked for, and the memory has {len}: ask for less, or let \
         the owner tell of more"
    )]
    OutOfBounds {
        /// The first byte, counted from the beginning of the memory.
        offset: u64,
        /// The bytes asked for.
        length: u64,
        /// The bytes there are.
        len: u64,
    },
    /// An atomic needs an address that is a multiple of eight (RC-6).
    #[error("address {addr:#x} of an atomic: choose an offset that makes it a multiple of 8")]
    Misaligned {
        /// The address at the peer.
        addr: u64,
    },
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
        match self.0.is_empty() {
            true => f.write_str("nothing"),
            false => bitflags::parser::to_writer(&self.0, f),
        }
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
                        assert_eq!(
                            error,
                            RemoteError::NotAllowed { asked: needed, granted: given }
                        );
                        assert_ne!(given, needed);
                    }
                }
            }
        }
    }

    #[test]
    fn nothing_reaches_past_the_end() {
        let there = RemoteMemory::new(AT, 64, RIGHTS);
        let read = there.read(60, 4).unwrap();
        assert_eq!(read.op(), SendOp::Read(AT.offset(60)));
        assert!(there.write(64, 0).is_ok());
        for (offset, length) in [(60, 5), (65, 0), (u64::MAX, 2), (0, 65)] {
            let refused = RemoteError::OutOfBounds { offset, length: length.into(), len: 64 };
            assert_eq!(there.read(offset, length), Err(refused));
            assert_eq!(there.write(offset, length), Err(refused));
            assert_eq!(there.write_with_imm(offset, length, 1), Err(refused));
        }
        let refused = RemoteError::OutOfBounds { offset: 57, length: 8, len: 64 };
        assert_eq!(there.fetch_add(57, 1), Err(refused));
        let refused = RemoteError::Misaligned { addr: AT.addr + 4 };
        assert_eq!(there.fetch_add(4, 1), Err(refused));
        assert_eq!(there.compare_swap(4, 1, 2), Err(refused));
    }

    /// What was checked holds for pieces of one length; messages may have any.
    #[test]
    fn an_operation_knows_the_length_that_was_checked() {
        let there = RemoteMemory::new(AT, 64, RIGHTS);
        let fits = |op: RequestOp| [0, 7, 8, 9, 8 + (1 << 32)].map(|length| op.is_for(length));
        let eight = [
            there.read(0, 8),
            there.write(0, 8),
            there.write_with_imm(0, 8, 1),
            there.fetch_add(0, 1),
            there.compare_swap(0, 1, 2),
        ];
        for op in eight {
            assert_eq!(fits(op.unwrap()), [false, false, true, false, false]);
        }
        let unchecked = RequestOp::unchecked(SendOp::Read(AT));
        for op in [RequestOp::SEND, RequestOp::send_with_imm(1), unchecked] {
            assert_eq!(fits(op), [true; 5]);
        }
    }

    #[test]
    fn an_error_says_what_was_asked_and_what_is_granted() {
        let (asked, read) = (Access::REMOTE_ATOMIC, Access::REMOTE_READ);
        let text = std::format!("{}", RemoteError::NotAllowed { asked, granted: read });
        assert!(text.contains("needs Access::REMOTE_ATOMIC"), "{text}");
        assert!(text.contains("grants REMOTE_READ:"), "{text}");
        let granted = Access::empty();
        let text = std::format!("{}", RemoteError::NotAllowed { asked, granted });
        assert!(text.contains("grants nothing:"), "{text}");
    }
}
