//! Attributes for making queue pairs, besides capacities (`struct ibv_qp_init_attr_ex`): numbers as
//! there.

use bitflags::bitflags;

use super::QpType;
use crate::wr::SendOp;

bitflags! {
    /// Which fields of an extended call are valid (`enum ibv_qp_init_attr_mask`, QX-4).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// A protection domain: that of the device's handle.
        const PD = 1 << 0;
        /// An XRC domain.
        const XRCD = 1 << 1;
        /// [`CreateFlags`].
        const CREATE_FLAGS = 1 << 2;
        /// The longest header of a segmented send.
        const MAX_TSO_HEADER = 1 << 3;
        /// A table of work queues over which receives are spread.
        const IND_TABLE = 1 << 4;
        /// The hash by which receives are spread.
        const RX_HASH = 1 << 5;
        /// [`SendOps`].
        const SEND_OPS_FLAGS = 1 << 6;
    }
}

bitflags! {
    /// Flags of creation (`enum ibv_qp_create_flags`, QX-6).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CreateFlags: u32 {
        /// A queue pair does not receive its own messages to a multicast group.
        const BLOCK_SELF_MCAST_LB = 1 << 1;
        /// Each frame received is followed by its check sequence, four bytes.
        const SCATTER_FCS = 1 << 8;
        /// The device removes the outer VLAN tag of a frame and reports it in the completion
        /// ([`crate::wc::WcFlags::CVLAN`]).
        const CVLAN_STRIPPING = 1 << 9;
    }
}

impl CreateFlags {
    /// The flags that queue pairs of a type may have.
    pub fn of(kind: QpType) -> CreateFlags {
        match kind {
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv => CreateFlags::empty(),
            QpType::Ud => CreateFlags::BLOCK_SELF_MCAST_LB,
            QpType::RawPacket => CreateFlags::all(),
        }
    }
}

bitflags! {
    /// The operations a queue pair is going to post (`enum ibv_qp_create_send_ops_flags`, QX-10).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendOps: u64 {
        /// RDMA WRITE.
        const RDMA_WRITE = 1 << 0;
        /// RDMA WRITE with immediate data.
        const RDMA_WRITE_WITH_IMM = 1 << 1;
        /// SEND, of a datagram too.
        const SEND = 1 << 2;
        /// SEND with immediate data, of a datagram too.
        const SEND_WITH_IMM = 1 << 3;
        /// RDMA READ.
        const RDMA_READ = 1 << 4;
        /// Compare and swap.
        const ATOMIC_CMP_AND_SWP = 1 << 5;
        /// Fetch and add.
        const ATOMIC_FETCH_AND_ADD = 1 << 6;
        /// Invalidating a local window.
        const LOCAL_INV = 1 << 7;
        /// Binding a window.
        const BIND_MW = 1 << 8;
        /// SEND that invalidates a window of the peer.
        const SEND_WITH_INV = 1 << 9;
        /// A segmented send.
        const TSO = 1 << 10;
        /// RDMA FLUSH; no queue pair here posts it.
        const FLUSH = 1 << 11;
        /// ATOMIC WRITE; no queue pair here posts it.
        const ATOMIC_WRITE = 1 << 12;
    }
}

impl SendOps {
    /// The operations that queue pairs of a type can do.
    pub fn of(kind: QpType) -> SendOps {
        let sends = SendOps::SEND | SendOps::SEND_WITH_IMM;
        match kind {
            QpType::Rc | QpType::XrcSend => {
                SendOps::all() - (SendOps::TSO | SendOps::FLUSH | SendOps::ATOMIC_WRITE)
            }
            QpType::XrcRecv => SendOps::empty(),
            QpType::Uc => sends | SendOps::RDMA_WRITE | SendOps::RDMA_WRITE_WITH_IMM,
            QpType::Ud => sends,
            QpType::RawPacket => SendOps::SEND | SendOps::TSO,
        }
    }

    /// The operation of a request.
    pub fn needed(op: SendOp) -> SendOps {
        match op {
            SendOp::Send | SendOp::SendTo(_) => SendOps::SEND,
            SendOp::SendWithImm(_) | SendOp::SendToWithImm(..) => SendOps::SEND_WITH_IMM,
            SendOp::SendWithInv(_) => SendOps::SEND_WITH_INV,
            SendOp::Write(_) => SendOps::RDMA_WRITE,
            SendOp::WriteWithImm(..) => SendOps::RDMA_WRITE_WITH_IMM,
            SendOp::Read(_) => SendOps::RDMA_READ,
            SendOp::CompareSwap { .. } => SendOps::ATOMIC_CMP_AND_SWP,
            SendOp::FetchAdd { .. } => SendOps::ATOMIC_FETCH_AND_ADD,
            SendOp::LocalInv(_) => SendOps::LOCAL_INV,
            SendOp::Bind(_) => SendOps::BIND_MW,
            SendOp::Xrc { op, .. } => SendOps::needed(op.plain()),
            SendOp::Tso(_) => SendOps::TSO,
        }
    }
}
