//! Access rights of memory, sharing of queues, and capacities of queue pairs.

use bitflags::bitflags;

bitflags! {
    /// What a region may be used for (`enum ibv_access_flags`, MR-1). Local read is always on.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The device may write receives and results of READs here.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE here; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 2;
        /// A peer may READ from here.
        const REMOTE_READ = 4;
        /// A peer may do atomics here; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
    }
}

impl Access {
    /// False if peers may change bytes that the local side may not (MR-1).
    pub fn is_consistent(self) -> bool {
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        !self.intersects(changes) || self.contains(Access::LOCAL_WRITE)
    }
}

/// Who polls a completion queue, and who posts on the queue pairs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One thread at a time does both: no locks (a worker).
    Exclusive,
    /// Any thread may post while another polls; the device locks where it must.
    Shared,
}

/// Capacities of a queue pair (`struct ibv_qp_cap`): those requested, and those granted (QP-10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Send requests outstanding.
    pub send_wr: u32,
    /// Receive requests outstanding; ignored on a shared receive queue (SRQ-11).
    pub recv_wr: u32,
    /// Scatter-gather entries of a send request.
    pub send_sge: u32,
    /// Scatter-gather entries of a receive request.
    pub recv_sge: u32,
    /// Bytes of an inline payload.
    pub inline: u32,
}
