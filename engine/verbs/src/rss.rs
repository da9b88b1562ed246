//! Receive side scaling (RSS): work queues and tables of them (QX-8), on devices that have them.
#![expect(unsafe_code, reason = "work queues are raw pointers of the driver")]

use core::mem::zeroed;
use core::ptr::NonNull;

use crate::rdma_core::{
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_attr_mask,
    ibv_wq_init_attr, ibv_wq_init_attr_mask, ibv_wq_type,
};
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::Verbs;
use super::cq::VerbsCq;
use super::extended::{TableCalls, WqCalls};
use super::shim::{errno, refused};
use super::srq::post_chunks;
use crate::error::{Code, SetupError};
use crate::provider::{Wq, WqFlags, WqState};
use crate::wr::{PostCause, PostError, RecvWr};

/// A work queue of an RDMA device.
#[derive(Clone)]
pub struct VerbsWq(Arc<Queue>);

struct Queue {
    wq: NonNull<ibv_wq>,
    depth: u32,
    calls: WqCalls,
    // Not gone before the queue that completes there.
    _cq: VerbsCq,
    device: Verbs,
}

// SAFETY: libibverbs' calls on a work queue may be made from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made by `create_wq`, and destroyed here alone; tables that name it keep it.
        unsafe { (self.calls.destroy)(self.wq.as_ptr()) };
    }
}

fn lacks(device: &Verbs, asked: String) -> SetupError {
    SetupError::new(Code::NotSupported, asked, "its driver has no work queues")
        .cure(format!("use another device than {}", device.name()))
}

impl Verbs {
    /// Makes a work queue, in RESET (`ibv_create_wq`).
    ///
    /// # Errors
    /// `NotSupported`, or what the device answers.
    pub fn create_wq(
        &self,
        cq: &VerbsCq,
        depth: u32,
        flags: WqFlags,
    ) -> Result<VerbsWq, SetupError> {
        let asked = || format!("a work queue of {depth} on {}", self.name());
        let calls = self.wq_calls().ok_or_else(|| lacks(self, asked()))?;
        // SAFETY: zero is a valid value of each field.
        let mut init: ibv_wq_init_attr = unsafe { zeroed() };
        init.wq_type = ibv_wq_type::IBV_WQT_RQ;
        init.max_wr = depth;
        init.max_sge = 1;
        init.pd = self.pd();
        init.cq = cq.as_ptr();
        if !flags.is_empty() {
            init.comp_mask = ibv_wq_init_attr_mask::IBV_WQ_INIT_ATTR_FLAGS.0;
            init.create_flags = flags.bits();
        }
        // SAFETY: context, domain and completion queue are alive; the call fills in real figures.
        let wq = unsafe { (calls.create)(self.context(), &raw mut init) };
        let wq = NonNull::new(wq).ok_or_else(|| refused(asked(), errno()))?;
        // SAFETY: just made. As libibverbs' own wrapper does, what drivers leave to it is set; its
        // lock and condition are for events, none of which is asked for here.
        unsafe {
            (*wq.as_ptr()).events_completed = 0;
            libc::pthread_mutex_init((&raw mut (*wq.as_ptr()).mutex).cast(), core::ptr::null());
            libc::pthread_cond_init((&raw mut (*wq.as_ptr()).cond).cast(), core::ptr::null());
        }
        let (depth, device) = (init.max_wr, self.clone());
        Ok(VerbsWq(Arc::new(Queue { wq, depth, calls, _cq: cq.clone(), device })))
    }

    /// Makes a table of work queues (`ibv_create_rwq_ind_table`).
    ///
    /// # Errors
    /// `Invalid`: their number is not a power of two; `NotSupported`, or what the device answers.
    pub fn create_rwq_ind_table(&self, queues: &[&VerbsWq]) -> Result<VerbsIndTable, SetupError> {
        let asked = || format!("a table of {} work queues on {}", queues.len(), self.name());
        if !queues.len().is_power_of_two() {
            return Err(SetupError::new(Code::Invalid, asked(), "it takes a power of two"));
        }
        let calls = self.table_calls().ok_or_else(|| lacks(self, asked()))?;
        let mut raws: Vec<*mut ibv_wq> = queues.iter().map(|wq| wq.0.wq.as_ptr()).collect();
        let mut init = ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size: raws.len().ilog2(),
            ind_tbl: raws.as_mut_ptr(),
            comp_mask: 0,
        };
        // SAFETY: the context and the queues are alive; the array is read during the call.
        let table = unsafe { (calls.create)(self.context(), &raw mut init) };
        let table = NonNull::new(table).ok_or_else(|| refused(asked(), errno()))?;
        let queues = queues.iter().map(|queue| queue.0.clone()).collect();
        Ok(VerbsIndTable(Arc::new(Table { table, calls, _queues: queues })))
    }
}

impl Wq for VerbsWq {
    fn num(&self) -> u32 {
        // SAFETY: the queue lives while its handle does; the number never changes.
        unsafe { (*self.0.wq.as_ptr()).wq_num }
    }

    fn depth(&self) -> u32 {
        self.0.depth
    }

    fn modify(&self, to: WqState) -> Result<(), SetupError> {
        // SAFETY: zero is a valid value of each field.
        let mut attr: ibv_wq_attr = unsafe { zeroed() };
        attr.attr_mask = ibv_wq_attr_mask::IBV_WQ_ATTR_STATE.0;
        attr.wq_state = to as u32;
        // SAFETY: the queue lives while its handle does; the mask names what is set.
        match unsafe { (self.0.calls.modify)(self.0.wq.as_ptr(), &raw mut attr) } {
            0 => Ok(()),
            errno => {
                let name = self.0.device.name();
                Err(refused(format!("take a work queue on {name} to {to:?}"), errno))
            }
        }
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let wq = self.0.wq.as_ptr();
        // SAFETY: the queue lives while its handle does; drivers fill the field when they make it.
        let Some(post) = (unsafe { (*wq).post_recv }) else {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        };
        // SAFETY: the chunk is a valid list, and the caller vouches for the buffers.
        post_chunks(list, |first, bad| unsafe { post(wq, first, bad) })
    }
}

/// A table of work queues of an RDMA device.
#[derive(Clone)]
pub struct VerbsIndTable(Arc<Table>);

struct Table {
    table: NonNull<ibv_rwq_ind_table>,
    calls: TableCalls,
    // Not gone before the table they are in.
    _queues: Vec<Arc<Queue>>,
}

// SAFETY: libibverbs' calls on a table may be made from any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: made by `create_rwq_ind_table`, and destroyed here alone; queue pairs that use it
        // keep it.
        unsafe { (self.calls.destroy)(self.table.as_ptr()) };
    }
}

impl VerbsIndTable {
    /// The table for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_rwq_ind_table {
        self.0.table.as_ptr()
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
