//! Work requests: what is posted. Plain data, built with borrows, never allocated.

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
    /// Key of the region that holds the bytes; never looked at for inline sends (SQ-4).
    pub lkey: u32,
}

impl Sge {
    /// The bytes of an inline send, which need no key.
    #[inline(always)]
    pub fn inline(bytes: &[u8]) -> Sge {
        Sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
    }

    /// True if it is as long as the other, in the same region.
    #[inline(always)]
    pub fn is_like(self, other: Sge) -> bool {
        // Both in one look.
        let word = |sge: Sge| u64::from(sge.length) | u64::from(sge.lkey) << 32;
        word(self) == word(other)
    }
}

/// Memory at the peer, for one-sided requests: what the owner of a region tells its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte, in the owner's terms.
    pub addr: u64,
    /// The key that opens it: the region's [`crate::provider::Region::rkey`].
    pub rkey: u32,
}

impl Remote {
    /// The memory `bytes` further on, under the same key.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Remote {
        Remote { addr: self.addr.wrapping_add(bytes), ..self }
    }
}

/// What a memory window opens, once it is bound: part of a region, with some of its rights.
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
    /// The key it is to have: the window's own with other low eight bits (MW-1).
    pub rkey: u32,
}

/// How a send is cut into frames (`bind_mw.tso` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Address of the header that each frame begins with: Ethernet, IP and TCP. It is read during
    /// the post, and needs no key.
    pub header: u64,
    /// Its bytes; at most what the queue pair was made for (QX-7).
    pub header_len: u16,
    /// Payload bytes of each frame but the last, which has the rest.
    pub mss: u16,
}

/// Names an address handle in a request ([`crate::provider::AddressHandle::name`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhName(pub usize);

/// Where a datagram goes (`wr.ud` of `struct ibv_send_wr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The way there.
    pub ah: AhName,
    /// The queue pair; [`MULTICAST_QPN`] for all that are attached to a group.
    pub qpn: u32,
    /// What that queue pair's key must be; with the top bit set, the sender's own is sent.
    pub qkey: u32,
}

/// The queue pair number that stands for all of a multicast group.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// What a send request does (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND: consumes one receive at the peer.
    Send,
    /// SEND with four bytes of immediate data; the value arrives as it was given, whatever the
    /// byte order of either side (CP-3).
    SendWithImm(u32),
    /// SEND of a datagram, on a queue pair of UD: one packet to a queue pair named here.
    SendTo(Destination),
    /// As `SendTo`, with four bytes of immediate data.
    SendToWithImm(Destination, u32),
    /// RDMA WRITE: the pieces go to the peer's memory, which hears nothing of it.
    Write(Remote),
    /// RDMA WRITE, then four bytes of immediate data that consume one receive at the peer, whose
    /// buffer stays as it is (RC-4).
    WriteWithImm(Remote, u32),
    /// RDMA READ: the peer's memory goes to the pieces, in order.
    Read(Remote),
    /// Eight bytes at the peer, aligned to eight, become `swap` if they are `compare`; what they
    /// were goes to the piece, which has eight bytes (RC-6). In the peer's byte order.
    CompareSwap {
        /// The eight bytes.
        at: Remote,
        /// What they must be.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// `add` is added to eight bytes at the peer, aligned to eight, wrapping; what they were goes
    /// to the piece, which has eight bytes (RC-6).
    FetchAdd {
        /// The eight bytes.
        at: Remote,
        /// What is added.
        add: u64,
    },
    /// SEND; before the peer hears of it, its memory window of that key is closed (RC-5).
    SendWithInv(u32),
    /// Closes our own memory window of that key, of type 2. It has no pieces; READs through the
    /// window should have finished, see [`SendFlags::FENCE`].
    LocalInv(u32),
    /// Opens a memory window of type 2, for the peer of this queue pair alone (MW-1). It has no
    /// pieces.
    Bind(Binding),
    /// What goes to the peer of a queue pair of [`QpType::XrcSend`]: a receive that it takes is one
    /// of the shared receive queue that is named, and memory that it uses is of that queue's
    /// protection domain (`qp_type.xrc.remote_srqn` of `struct ibv_send_wr`).
    Xrc {
        /// The number of the queue ([`crate::provider::XrcSrq::number`]).
        srq: u32,
        /// What is done.
        op: XrcOp,
    },
    /// A send of TCP that is cut into frames, each with a header of its own; on a queue pair of
    /// RAW_PACKET.
    Tso(Segmentation),
}

/// What is done, where a request names a shared receive queue: the operations of [`SendOp`] of
/// these names.
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

    /// What its completion says it was.
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

    /// True if the payload goes to the peer; false if bytes of the peer come to the pieces.
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

    /// True for messages: what takes a receive and names no memory of the peer's.
    #[inline(always)]
    pub fn is_send(self) -> bool {
        match self {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInv(_) => true,
            SendOp::Xrc { op, .. } => op.completes_as() == WcOpcode::Send,
            _ => false,
        }
    }

    /// True for what queue pairs of UD send, and no others.
    #[inline(always)]
    pub fn is_datagram(self) -> bool {
        matches!(self, SendOp::SendTo(_) | SendOp::SendToWithImm(..))
    }

    /// What its completion says it was.
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
        /// Gives a completion also on success; errors always do (SQ-3).
        const SIGNALED = 2;
        /// Wakes a peer that armed its queue for solicited completions (CP-6).
        const SOLICITED = 4;
        /// The payload is copied during the post; the buffer is free on return (SQ-4).
        const INLINE = 8;
    }
}

/// One send request (`struct ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The operation with its operands.
    pub op: SendOp,
    /// Signalling, inline, fence, solicited.
    pub flags: SendFlags,
    /// First piece: of the payload, or of where what is read goes; length 0 for none.
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

    /// All of them, in order.
    #[inline]
    pub fn all_pieces(&self) -> impl Iterator<Item = Sge> {
        core::iter::once(self.sge).chain(self.more.iter().copied())
    }

    /// True if operation, flags and pieces go together (see [`PostCause::Malformed`]).
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
    /// Comes back in the completion.
    pub wr_id: u64,
    /// The buffer; length 0 takes empty messages only.
    pub sge: Sge,
}

/// A list post that stopped (PL-1): `list[..accepted]` belongs to the device and will run,
/// `list[accepted]` was refused for `cause`, nothing after it was looked at. A device that failed
/// without saying where counts as one that has taken the whole list: any of it may run.
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
    /// All slots are taken by requests that have not been retired (SQ-1, PL-5): poll, then
    /// post again. ENOMEM, on some devices ENOSPC.
    Full,
    /// The state of the queue pair does not allow it (SM-7). EINVAL.
    State,
    /// Longer than the inline limit of the queue pair (SQ-4). EINVAL.
    InlineTooLong,
    /// More pieces than the queue pair was made for (SQ-4, PL-5). EINVAL.
    TooManyPieces,
    /// The operation and what it came with do not go together: READs and atomics are never inline
    /// (SQ-4), the result of an atomic has eight bytes, windows take no pieces, datagrams are for
    /// queue pairs of UD and those send nothing else, and a sender of XRC names a receive queue.
    /// EINVAL.
    Malformed,
    /// The queue pair was made for other operations (QX-10). EINVAL.
    NotAsked,
    /// Another answer of the device, as a positive errno.
    Device(i32),
}

impl PostCause {
    /// The errno a C program would see.
    pub fn errno(self) -> i32 {
        match self {
            PostCause::Full => 12,
            PostCause::State | PostCause::InlineTooLong => 22,
            PostCause::TooManyPieces | PostCause::Malformed | PostCause::NotAsked => 22,
            PostCause::Device(errno) => errno,
        }
    }
}

impl fmt::Display for PostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostCause::Full => f.write_str("the queue is full; poll completions and post again"),
            PostCause::State => f.write_str("the queue pair is not in a state that takes it"),
            PostCause::InlineTooLong => f.write_str("the payload is over the inline limit"),
            PostCause::TooManyPieces => f.write_str("more pieces than the queue pair allows"),
            PostCause::Malformed => f.write_str(
                "the operation is not for this kind of queue pair, cannot be inline, or its pieces \
                 do not have the bytes it takes",
            ),
            PostCause::NotAsked => {
                f.write_str("the queue pair was made for other operations (send_ops_flags)")
            }
            PostCause::Device(errno) => write!(f, "the device answered errno {errno}"),
        }
    }
}
