//! Work requests: what a program posts. Plain data that borrows its lists and never allocates.

use core::fmt;

use bitflags::bitflags;

use crate::provider::{Access, QpType};
use crate::wc::WcOpcode;

/// One piece of registered memory (`struct ibv_sge`): 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes; 0 is legal (SQ-9).
    pub length: u32,
    /// Key of the region that holds the bytes; ignored for inline sends (SQ-4).
    pub lkey: u32,
}

impl Sge {
    /// The bytes of an inline send, which need no key.
    #[inline(always)]
    pub fn inline(bytes: &[u8]) -> Sge {
        Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
    }

    /// True if both have the same length and lie in the same region.
    #[inline(always)]
    pub fn is_like(self, other: Sge) -> bool {
        // One comparison covers both.
        let word = |sge: Sge| u64::from(sge.length) | u64::from(sge.lkey) << 32;
        word(self) == word(other)
    }
}

/// Memory at the peer, for one-sided requests: the owner of a region tells it to its peers.
///
/// It knows neither length nor rights, so an operation made from it is unchecked until it reaches
/// the peer's device, whose refusal ends the connection. [`crate::remote::RemoteMemory`] makes
/// checked ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte, in the owner's address space.
    pub addr: u64,
    /// The key that opens it: the region's [`crate::provider::Region::rkey`].
    pub rkey: u32,
}

impl Remote {
    /// The memory `bytes` later, with the same key.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Remote {
        Remote { addr: self.addr.wrapping_add(bytes), ..self }
    }
}

/// The binding of a memory window: part of a region, with some of its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The window, by [`crate::provider::Window::handle`].
    pub window: u64,
    /// The region, by [`crate::provider::Region::handle`]; registered with MW_BIND.
    pub region: u64,
    /// First byte.
    pub addr: u64,
    /// Bytes; 0 closes a window of type 1.
    pub length: u64,
    /// What a peer may do there.
    pub access: Access,
    /// The new key: the window's own key with different low eight bits (MW-1).
    pub rkey: u32,
}

/// How a send is cut into frames (`bind_mw.tso` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Address of the header that each frame begins with: Ethernet, IP and TCP. It is read during
    /// the post, and needs no key.
    pub header: u64,
    /// Bytes of the header; at most what the queue pair was made for (QX-7).
    pub header_len: u16,
    /// Payload bytes of each frame but the last, which carries the rest.
    pub mss: u16,
}

/// Names an address handle in a request ([`crate::provider::AddressHandle::name`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhName(pub usize);

/// Where a datagram goes (`wr.ud` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address handle that leads there.
    pub ah: AhName,
    /// The queue pair number; [`MULTICAST_QPN`] for all queue pairs attached to a group.
    pub qpn: u32,
    /// The key that the queue pair must have; if the top bit is set, the sender's own key is sent.
    pub qkey: u32,
}

/// The queue pair number that stands for all queue pairs of a multicast group.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// What a send request does (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND: consumes one receive at the peer.
    Send,
    /// SEND with four bytes of immediate data; the value arrives unchanged, whatever the byte order
    /// of either side (CP-3).
    SendWithImm(u32),
    /// SEND of a datagram, on a UD queue pair: one packet to the queue pair named here.
    SendTo(Destination),
    /// As `SendTo`, with four bytes of immediate data.
    SendToWithImm(Destination, u32),
    /// RDMA WRITE: the pieces go to the peer's memory; the peer is not told.
    Write(Remote),
    /// RDMA WRITE, then four bytes of immediate data that consume one receive at the peer, whose
    /// buffer is untouched (RC-4).
    WriteWithImm(Remote, u32),
    /// RDMA READ: the peer's memory goes to the pieces, in order.
    Read(Remote),
    /// Eight bytes at the peer, aligned to eight, become `swap` if they equal `compare`; their
    /// previous value goes to the piece, which has eight bytes (RC-6). In the peer's byte order.
    CompareSwap {
        /// The eight bytes.
        at: Remote,
        /// The value to compare with.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// `add` is added to eight bytes at the peer, aligned to eight, wrapping; their previous value
    /// goes to the piece, which has eight bytes (RC-6).
    FetchAdd {
        /// The eight bytes.
        at: Remote,
        /// The value to add.
        add: u64,
    },
    /// SEND; the peer's memory window with that key is invalidated before the peer learns of the
    /// message (RC-5).
    SendWithInv(u32),
    /// Invalidates our own type 2 memory window with that key. It has no pieces; READs through the
    /// window should have finished, see [`SendFlags::FENCE`].
    LocalInv(u32),
    /// Binds a memory window of type 2, for the peer of this queue pair alone (MW-1). It has no
    /// pieces.
    Bind(Binding),
    /// A request on a queue pair of [`QpType::XrcSend`]: a receive that it consumes comes from the
    /// named shared receive queue, and memory that it uses belongs to that queue's protection
    /// domain (`qp_type.xrc.remote_srqn` of `struct ibv_send_wr`).
    Xrc {
        /// The number of the queue ([`crate::provider::XrcSrq::number`]).
        srq: u32,
        /// The operation.
        op: XrcOp,
    },
    /// A TCP send that is cut into frames, each with a header of its own; on a RAW_PACKET queue
    /// pair.
    Tso(Segmentation),
}

/// The operation of a request that names a shared receive queue: the same as the [`SendOp`] of that
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the operation of that name")]
pub enum XrcOp {
    Send,
    SendWithImm(u32),
    SendWithInv(u32),
    Write(Remote),
    WriteWithImm(Remote, u32),
    Read(Remote),
    CompareSwap { at: Remote, compare: u64, swap: u64 },
    FetchAdd { at: Remote, add: u64 },
}

impl XrcOp {
    /// The operation of that name.
    pub fn plain(self) -> SendOp {
        match self {
            XrcOp::Send => SendOp::Send,
            XrcOp::SendWithImm(imm) => SendOp::SendWithImm(imm),
            XrcOp::SendWithInv(key) => SendOp::SendWithInv(key),
            XrcOp::Write(at) => SendOp::Write(at),
            XrcOp::WriteWithImm(at, imm) => SendOp::WriteWithImm(at, imm),
            XrcOp::Read(at) => SendOp::Read(at),
            XrcOp::CompareSwap { at, compare, swap } => SendOp::CompareSwap { at, compare, swap },
            XrcOp::FetchAdd { at, add } => SendOp::FetchAdd { at, add },
        }
    }

    /// True if it is an atomic.
    fn is_atomic(self) -> bool {
        matches!(self, XrcOp::CompareSwap { .. } | XrcOp::FetchAdd { .. })
    }

    /// As [`SendOp::is_outward`].
    fn is_outward(self) -> bool {
        !self.is_atomic() && !matches!(self, XrcOp::Read(_))
    }

    /// The opcode of its completion.
    fn completes_as(self) -> WcOpcode {
        match self {
            XrcOp::Send | XrcOp::SendWithImm(_) | XrcOp::SendWithInv(_) => WcOpcode::Send,
            XrcOp::Write(_) | XrcOp::WriteWithImm(..) => WcOpcode::Write,
            XrcOp::Read(_) => WcOpcode::Read,
            XrcOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            XrcOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }
}

impl SendOp {
    /// True if queue pairs of that type send such requests.
    #[inline(always)]
    pub fn fits(self, kind: QpType) -> bool {
        match kind {
            QpType::Ud => self.is_datagram(),
            QpType::RawPacket => matches!(self, SendOp::Send | SendOp::Tso(_)),
            QpType::XrcSend => {
                matches!(self, SendOp::Xrc { .. } | SendOp::LocalInv(_) | SendOp::Bind(_))
            }
            QpType::XrcRecv => false,
            QpType::Rc | QpType::Uc => {
                !self.is_datagram() && !matches!(self, SendOp::Xrc { .. } | SendOp::Tso(_))
            }
        }
    }

    /// True if the payload goes to the peer; false if bytes from the peer go to the pieces.
    #[inline(always)]
    pub fn is_outward(self) -> bool {
        match self {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) => true,
            SendOp::SendTo(_) | SendOp::SendToWithImm(..) => true,
            SendOp::Write(_) | SendOp::WriteWithImm(..) => true,
            SendOp::LocalInv(_) | SendOp::Bind(_) => true,
            SendOp::Xrc { op, .. } => op.is_outward(),
            SendOp::Tso(_) => true,
            SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => false,
        }
    }

    /// True for messages: requests that consume a receive and name no memory of the peer.
    #[inline(always)]
    pub fn is_send(self) -> bool {
        match self {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) => true,
            SendOp::Xrc { op, .. } => op.completes_as() == WcOpcode::Send,
            _ => false,
        }
    }

    /// True for operations that only UD queue pairs send.
    #[inline(always)]
    pub fn is_datagram(self) -> bool {
        matches!(self, SendOp::SendTo(_) | SendOp::SendToWithImm(..))
    }

    /// The opcode of its completion.
    #[inline(always)]
    pub fn completes_as(self) -> WcOpcode {
        match self {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) => WcOpcode::Send,
            SendOp::LocalInv(_) => WcOpcode::LocalInv,
            SendOp::Bind(_) => WcOpcode::Bind,
            SendOp::Tso(_) => WcOpcode::Tso,
            SendOp::SendTo(_) | SendOp::SendToWithImm(..) => WcOpcode::Send,
            SendOp::Write(_) | SendOp::WriteWithImm(..) => WcOpcode::Write,
            SendOp::Xrc { op, .. } => op.completes_as(),
            SendOp::Read(_) => WcOpcode::Read,
            SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        }
    }
}

bitflags! {
    /// Flags of a send request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Starts only after earlier READs and atomics have finished (SQ-5).
        const FENCE = 1;
        /// Gives a completion on success too; errors always give one (SQ-3).
        const SIGNALED = 2;
        /// Wakes a peer that armed its queue for solicited completions (CP-6).
        const SOLICITED = 4;
        /// The payload is copied during the post; the buffer is free on return (SQ-4).
        const INLINE = 8;
        /// A WRITE or a READ that may take effect before earlier messages of its queue pair that
        /// the peer has not taken, but not before earlier WRITEs. Only soft makes use of it: such
        /// a request needs no record.
        const UNORDERED = 128;
    }
}

impl SendFlags {
    /// The flags that libibverbs knows, as it numbers them.
    pub fn to_verbs(self) -> u32 {
        self.difference(SendFlags::UNORDERED).bits().into()
    }
}

/// One send request (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Number of the request, returned in the completion.
    pub wr_id: u64,
    /// The operation with its operands.
    pub op: SendOp,
    /// Signalling, inline, fence, solicited.
    pub flags: SendFlags,
    /// First piece of the payload, or of the buffer for what is read; length 0 for none.
    pub sge: Sge,
    /// Further pieces, gathered or scattered in order.
    pub more: &'a [Sge],
}

impl SendWr<'_> {
    /// Payload bytes over all pieces.
    #[inline]
    pub fn length(&self) -> u64 {
        let mut sum = u64::from(self.sge.length);
        for sge in self.more {
            sum += u64::from(sge.length);
        }
        sum
    }

    /// Number of pieces (`num_sge`).
    #[inline]
    pub fn pieces(&self) -> usize {
        1 + self.more.len()
    }

    /// All pieces, in order.
    #[inline]
    pub fn all_pieces(&self) -> impl Iterator<Item = Sge> {
        core::iter::once(self.sge).chain(self.more.iter().copied())
    }

    /// True if operation, flags and pieces fit together (see [`PostCause::Malformed`]).
    #[inline(always)]
    pub fn is_well_formed(&self) -> bool {
        match self.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) => true,
            SendOp::SendTo(_) | SendOp::SendToWithImm(..) => true,
            SendOp::Write(_) | SendOp::WriteWithImm(..) => true,
            SendOp::LocalInv(_) | SendOp::Bind(_) => self.length() == 0,
            SendOp::Tso(how) => {
                let cut = how.mss != 0 && how.header_len != 0;
                cut && !self.flags.contains(SendFlags::INLINE)
            }
            SendOp::Read(_) => !self.flags.contains(SendFlags::INLINE),
            SendOp::Xrc { op, .. } => {
                let inline = self.flags.contains(SendFlags::INLINE);
                (op.is_outward() || !inline) && (!op.is_atomic() || self.length() == 8)
            }
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => {
                !self.flags.contains(SendFlags::INLINE) && self.length() == 8
            }
        }
    }
}

/// One receive request (`struct ibv_recv_wr`): where the next message goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvWr {
    /// Number of the request, returned in the completion.
    pub wr_id: u64,
    /// The buffer; length 0 takes empty messages only.
    pub sge: Sge,
}

/// A list post that stopped (PL-1): `list[..accepted]` belongs to the device and will run,
/// `list[accepted]` was refused for `cause`, and the device did not look at the rest. A device that
/// failed without saying where counts as having taken the whole list: any of it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device took {accepted} of the list and refused the next: {cause}")]
pub struct PostError {
    /// How many requests of the list the device has taken.
    pub accepted: usize,
    /// Why the next one was refused.
    pub cause: PostCause,
}

/// Why a request was refused at post time. A full queue is back-pressure, not a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostCause {
    /// Requests that have not been retired take all slots (SQ-1, PL-5): poll, then post again.
    /// ENOMEM, on some devices ENOSPC.
    Full,
    /// The state of the queue pair does not allow it (SM-7). EINVAL.
    State,
    /// Longer than the inline limit of the queue pair (SQ-4). EINVAL.
    InlineTooLong,
    /// More pieces than the queue pair was made for (SQ-4, PL-5). EINVAL.
    TooManyPieces,
    /// The operation and its operands do not fit together. READs and atomics are never inline
    /// (SQ-4). The result of an atomic has eight bytes. Window requests take no pieces. Only
    /// UD queue pairs send datagrams, and they send nothing else. An XRC sender names a receive
    /// queue. EINVAL.
    Malformed,
    /// The queue pair was made for other operations (QX-10). EINVAL.
    NotAsked,
    /// The bytes reach beyond the end of the buffer. EFAULT.
    BeyondBuffer,
    /// Another error of the device, as a positive errno.
    Device(i32),
}

impl PostCause {
    /// The errno a C program would see.
    pub fn errno(self) -> i32 {
        match self {
            PostCause::Full => 12,
            PostCause::State | PostCause::InlineTooLong => 22,
            PostCause::TooManyPieces | PostCause::Malformed | PostCause::NotAsked => 22,
            PostCause::BeyondBuffer => 14,
            PostCause::Device(errno) => errno,
        }
    }
}

impl fmt::Display for PostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostCause::Full => f.write_str("the queue is full; poll completions and post again"),
            PostCause::State => f.write_str(
                "the queue pair does not take this request now: it is not connected, its \
                 connection has ended, or its receives are shared",
            ),
            PostCause::InlineTooLong => f.write_str(
                "the payload is over the inline limit: post it from registered memory, or make the \
                 queue pair with a higher one",
            ),
            PostCause::TooManyPieces => f.write_str(
                "more pieces than the queue pair allows: make it with a higher send_sge",
            ),
            PostCause::Malformed => f.write_str(
                "the operation is not for this kind of queue pair, cannot be inline, or its pieces \
                 do not have the bytes it takes",
            ),
            PostCause::NotAsked => f.write_str(
                "the queue pair was made for other operations (send_ops_flags): name this one when \
                 you make it",
            ),
            PostCause::BeyondBuffer => f.write_str("the bytes reach beyond the end of the buffer"),
            PostCause::Device(errno) => write!(f, "the device answered errno {errno}"),
        }
    }
}
