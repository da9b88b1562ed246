//! Receive side scaling (RSS): work queues and tables of them (QX-8), on devices that have them.
//! `post.rs` posts to the queues.

use crate::rdma_core::ibv_rwq_ind_table;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::cq::VerbsCq;
use super::device::Verbs;
use super::front::{TableCalls, WqCalls};
use super::objects::{self, Table, Wq};
use super::shim::refused;
use crate::error::{Code, SetupError};
use crate::provider::{WqFlags, WqState};

/// A work queue of an RDMA device.
#[derive(Clone)]
pub struct VerbsWq {
    pub(super) wq: Wq,
    pub(super) depth: u32,
    /// Counts as a user of its protection domain.
    device: Verbs,
}

fn lacks(device: &Verbs, asked: String) -> SetupError {
    SetupError::new(Code::NotSupported, asked, "its driver has no work queues")
        .cure(format!("use another device than {}", device.name()))
}

impl VerbsWq {
    /// Makes one, in RESET (`ibv_create_wq`).
    pub(crate) fn new(
        device: &Verbs,
        cq: &VerbsCq,
        depth: u32,
        flags: WqFlags,
    ) -> Result<VerbsWq, SetupError> {
        let asked = || format!("a work queue of {depth} on {}", device.name());
        if WqCalls::of(device.device().context()).is_none() {
            return Err(lacks(device, asked()));
        }
        let made = objects::create_wq(device.device().pd(), &cq.cq, depth, flags);
        let (wq, depth) = made.map_err(|errno| refused(asked(), errno))?;
        Ok(VerbsWq { wq: Arc::new(wq), depth, device: device.clone() })
    }

    /// `ibv_modify_wq`.
    pub(super) fn go_to(&self, to: WqState) -> Result<(), SetupError> {
        match self.wq.modify(to) {
            0 => Ok(()),
            errno => {
                let name = self.device.name();
                Err(refused(format!("take a work queue on {name} to {to:?}"), errno))
            }
        }
    }
}

/// A table of work queues of an RDMA device.
#[derive(Clone)]
pub struct VerbsIndTable {
    pub(crate) table: Table,
    _queues: Arc<[VerbsWq]>,
}

impl VerbsIndTable {
    /// Makes one (`ibv_create_rwq_ind_table`).
    pub(crate) fn new(device: &Verbs, queues: &[&VerbsWq]) -> Result<VerbsIndTable, SetupError> {
        let asked = || format!("a table of {} work queues on {}", queues.len(), device.name());
        if !queues.len().is_power_of_two() {
            return Err(SetupError::new(Code::Invalid, asked(), "it takes a power of two"));
        }
        let context = device.device().context();
        if TableCalls::of(context).is_none() {
            return Err(lacks(device, asked()));
        }
        let raws: Vec<Wq> = queues.iter().map(|queue| queue.wq.clone()).collect();
        let table = objects::create_rwq_ind_table(context, &raws);
        let table = table.map_err(|errno| refused(asked(), errno))?;
        let queues = queues.iter().map(|queue| (*queue).clone()).collect();
        Ok(VerbsIndTable { table: Arc::new(table), _queues: queues })
    }

    /// The table for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_rwq_ind_table {
        self.table.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{HashFields, HashFunction};
    use crate::rdma_core::{ibv_rx_hash_fields as Field, ibv_rx_hash_function_flags as Function};
    use crate::rdma_core::{ibv_wq_flags as Flag, ibv_wq_state as State};

    #[test]
    fn numbers_are_libibverbs_own() {
        for (ours, theirs) in [
            (HashFields::SRC_IPV4, Field::IBV_RX_HASH_SRC_IPV4),
            (HashFields::DST_IPV4, Field::IBV_RX_HASH_DST_IPV4),
            (HashFields::SRC_IPV6, Field::IBV_RX_HASH_SRC_IPV6),
            (HashFields::DST_IPV6, Field::IBV_RX_HASH_DST_IPV6),
            (HashFields::SRC_PORT_TCP, Field::IBV_RX_HASH_SRC_PORT_TCP),
            (HashFields::DST_PORT_TCP, Field::IBV_RX_HASH_DST_PORT_TCP),
            (HashFields::SRC_PORT_UDP, Field::IBV_RX_HASH_SRC_PORT_UDP),
            (HashFields::DST_PORT_UDP, Field::IBV_RX_HASH_DST_PORT_UDP),
        ] {
            assert_eq!(ours.bits(), u64::from(theirs.0));
        }
        let toeplitz = Function::IBV_RX_HASH_FUNC_TOEPLITZ.0;
        assert_eq!(u32::from(HashFunction::Toeplitz as u8), toeplitz);
        assert_eq!(WqFlags::CVLAN_STRIPPING.bits(), Flag::IBV_WQ_FLAGS_CVLAN_STRIPPING.0);
        assert_eq!(WqFlags::SCATTER_FCS.bits(), Flag::IBV_WQ_FLAGS_SCATTER_FCS.0);
        let states = [WqState::Reset, WqState::Ready, WqState::Err].map(|state| state as u32);
        assert_eq!(states, [State::IBV_WQS_RESET, State::IBV_WQS_RDY, State::IBV_WQS_ERR]);
    }
}
