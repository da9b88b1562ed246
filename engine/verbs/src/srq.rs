//! Shared receive queues, and how receives are handed to the driver.
#![expect(unsafe_code, reason = "requests are linked by pointer for the driver")]

use core::ffi::c_int;
use core::mem::{MaybeUninit, zeroed};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::rdma_core::{
    ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq, ibv_recv_wr, ibv_srq,
    ibv_srq_attr, ibv_srq_attr_mask, ibv_srq_init_attr, ibv_srq_init_attr_ex,
    ibv_srq_init_attr_mask, ibv_srq_type,
};
use std_alloc::format;
use std_alloc::sync::Arc;

use super::cq::VerbsCq;
use super::device::Device;
use super::posted::posted;
use super::shim::{errno, refused};
use super::xrc::{self, VerbsXrcd};
use crate::error::{Code, SetupError};
use crate::provider::{Srq, SrqLimits, XrcSrq};
use crate::wr::{PostError, RecvWr};

/// Receives handed to the driver in one call: the list is built on the stack.
const CHUNK: usize = 64;

/// A shared receive queue of an RDMA device.
#[derive(Clone)]
pub struct VerbsSrq(Arc<Queue>);

struct Queue {
    srq: NonNull<ibv_srq>,
    depth: AtomicU32,
    /// Its number, if it is of an XRC domain.
    number: Option<u32>,
    device: Arc<Device>,
    // Dropped after the queue was destroyed.
    _used: Option<(VerbsCq, VerbsXrcd)>,
}

// SAFETY: libibverbs' calls on a shared receive queue may be made from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl VerbsSrq {
    pub(super) fn new(device: &Arc<Device>, depth: u32) -> Result<VerbsSrq, SetupError> {
        device.check_depth("shared receive queue", depth, device.caps().srq_wr_max)?;
        // SAFETY: zero is a valid value of each field.
        let mut init: ibv_srq_init_attr = unsafe { zeroed() };
        init.attr.max_wr = depth;
        init.attr.max_sge = 1;
        // SAFETY: the domain lives as long as the device; the call fills in real figures.
        let srq = unsafe { ibv_create_srq(device.pd(), &raw mut init) };
        let asked = || format!("a shared receive queue of {depth} on {}", device.caps().device);
        let srq = NonNull::new(srq).ok_or_else(|| refused(asked(), errno()))?;
        let depth = AtomicU32::new(init.attr.max_wr.max(depth));
        let device = device.clone();
        Ok(VerbsSrq(Arc::new(Queue { srq, depth, number: None, device, _used: None })))
    }

    /// One of an XRC domain.
    pub(super) fn of_xrc(
        device: &Arc<Device>,
        xrcd: &VerbsXrcd,
        cq: &VerbsCq,
        depth: u32,
    ) -> Result<VerbsSrq, SetupError> {
        device.check_depth("shared receive queue", depth, device.caps().srq_wr_max)?;
        let name = &device.caps().device;
        let asked = format!("an XRC shared receive queue of {depth} on {name}");
        let calls = xrc::calls_of(device.context_ref(), device.caps(), &asked)?;
        let mut init = xrc_attr(device, xrcd, cq, depth);
        // SAFETY: protection domain, XRC domain and completion queue are alive and of one device;
        // the call fills in real figures.
        let srq = unsafe { (calls.create_srq_ex)(device.context(), &raw mut init) };
        let srq = NonNull::new(srq).ok_or_else(|| refused(asked.as_str(), errno()))?;
        let mut queue = Queue {
            srq,
            depth: AtomicU32::new(init.attr.max_wr.max(depth)),
            number: None,
            device: device.clone(),
            _used: Some((cq.clone(), xrcd.clone())),
        };
        let mut number = 0;
        // SAFETY: the queue was just made; the call writes its number.
        match unsafe { (calls.get_srq_num)(srq.as_ptr(), &raw mut number) } {
            0 => queue.number = Some(number),
            answer => return Err(refused(asked, answer)),
        }
        Ok(VerbsSrq(Arc::new(queue)))
    }

    /// The queue for calls of libibverbs; alive as long as a clone of this handle.
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.0.srq.as_ptr()
    }
}

fn xrc_attr(device: &Device, xrcd: &VerbsXrcd, cq: &VerbsCq, depth: u32) -> ibv_srq_init_attr_ex {
    use ibv_srq_init_attr_mask as Has;
    // SAFETY: zero is a valid value of each field.
    let mut init: ibv_srq_init_attr_ex = unsafe { zeroed() };
    init.comp_mask = Has::IBV_SRQ_INIT_ATTR_TYPE.0
        | Has::IBV_SRQ_INIT_ATTR_PD.0
        | Has::IBV_SRQ_INIT_ATTR_XRCD.0
        | Has::IBV_SRQ_INIT_ATTR_CQ.0;
    init.srq_type = ibv_srq_type::IBV_SRQT_XRC;
    (init.pd, init.xrcd, init.cq) = (device.pd(), xrcd.as_ptr(), cq.as_ptr());
    (init.attr.max_wr, init.attr.max_sge) = (depth, 1);
    init
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold a handle each, so none uses the queue any more. Should the
        // driver refuse, the queue stays and nothing dangles.
        unsafe { ibv_destroy_srq(self.srq.as_ptr()) };
    }
}

impl Srq for VerbsSrq {
    fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    #[inline]
    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let (post, srq) = (self.0.device.ops().post_srq_recv, self.as_ptr());
        // SAFETY: the queue lives while its handle does, the chunk is a valid list, and the
        // caller vouches for the buffers.
        post_chunks(list, |first, bad| unsafe { post(srq, first, bad) })
    }
}

impl SrqLimits for VerbsSrq {
    /// Never makes it smaller: soft-RoCE may lose a queue when it refuses that.
    fn resize(&self, depth: u32) -> Result<(), SetupError> {
        let (caps, what) = (self.0.device.caps(), "shared receive queue");
        let asked = || format!("a {what} of {depth} on {}", caps.device);
        self.0.device.check_depth(what, depth, caps.srq_wr_max)?;
        if !caps.srq_resize {
            return Err(SetupError::new(Code::NotSupported, asked(), "its size is fixed")
                .cure("make it with its final size"));
        }
        if depth <= self.depth() {
            return Ok(());
        }
        let mut attr = ibv_srq_attr { max_wr: depth, max_sge: 0, srq_limit: 0 };
        let mask = ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0.cast_signed();
        // SAFETY: the queue lives while its handle does; the mask names what is set.
        let answer = unsafe { ibv_modify_srq(self.as_ptr(), &raw mut attr, mask) };
        if answer != 0 {
            return Err(refused(asked(), answer));
        }
        // SAFETY: as above; the call fills the structure.
        if unsafe { ibv_query_srq(self.as_ptr(), &raw mut attr) } != 0 {
            attr.max_wr = depth;
        }
        self.0.depth.store(attr.max_wr.max(depth), Ordering::Relaxed);
        Ok(())
    }

    fn set_limit(&self, limit: u32) -> Result<(), SetupError> {
        let asked = || format!("a limit of {limit} on a receive queue");
        if limit > self.depth() {
            // Some drivers take it, and the event comes at once.
            let answer = format!("the queue is for {} receives", self.depth());
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        let mask = ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed();
        // SAFETY: the queue lives while its handle does; the mask names what is set.
        match unsafe { ibv_modify_srq(self.as_ptr(), &raw mut attr, mask) } {
            0 => Ok(()),
            answer => Err(refused(asked(), answer)),
        }
    }

    fn limit(&self) -> Result<u32, SetupError> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the queue lives while its handle does; the call fills the structure.
        match unsafe { ibv_query_srq(self.as_ptr(), &raw mut attr) } {
            0 => Ok(attr.srq_limit),
            answer => Err(refused("the limit of a receive queue", answer)),
        }
    }

    fn id(&self) -> u64 {
        self.as_ptr() as u64
    }
}

impl XrcSrq for VerbsSrq {
    fn number(&self) -> Option<u32> {
        self.0.number
    }
}

/// Hands a slice of receives to the driver as linked lists, and counts what it took (PL-1).
#[inline]
pub(super) fn post_chunks(
    list: &[RecvWr],
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    let mut raw = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; CHUNK];
    let first: *mut ibv_recv_wr = raw.as_mut_ptr().cast();
    let mut accepted = 0;
    for chunk in list.chunks(CHUNK) {
        for (index, wr) in chunk.iter().enumerate() {
            let last = index + 1 == chunk.len();
            raw[index].write(ibv_recv_wr {
                wr_id: wr.wr_id,
                next: if last { ptr::null_mut() } else { first.wrapping_add(index + 1) },
                sg_list: (&raw const wr.sge).cast_mut().cast(),
                num_sge: (wr.sge.length != 0).into(),
            });
        }
        let mut bad = ptr::null_mut();
        let answer = post(first, &raw mut bad);
        if let Err(refused) = posted(answer, first, bad, chunk.len()) {
            return Err(PostError { accepted: accepted + refused.accepted, ..refused });
        }
        accepted += chunk.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr::{PostCause, Sge};
    use std_alloc::vec::Vec;

    fn receives(count: u64) -> Vec<RecvWr> {
        let sge = Sge { addr: 4096, length: 64, lkey: 3 };
        (0..count).map(|wr_id| RecvWr { wr_id, sge }).collect()
    }

    /// Walks the list as a driver does, takes up to `room`, and names the first refused one.
    fn walk(
        mut wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
        seen: &mut Vec<u64>,
        room: usize,
    ) -> c_int {
        while !wr.is_null() {
            // SAFETY: the list was built by `post_chunks` and ends with NULL.
            let one = unsafe { &*wr };
            if seen.len() == room {
                // SAFETY: the caller passes the address of its own variable.
                unsafe { *bad = wr };
                return libc::ENOMEM;
            }
            // SAFETY: one piece, in the slice that is being posted.
            assert_eq!(unsafe { (*one.sg_list).length }, 64);
            seen.push(one.wr_id);
            wr = one.next;
        }
        0
    }

    #[test]
    fn a_long_list_goes_out_in_order_and_whole() {
        let mut seen = Vec::new();
        let list = receives(3 * CHUNK as u64 + 1);
        assert_eq!(post_chunks(&list, |wr, bad| walk(wr, bad, &mut seen, 1000)), Ok(()));
        assert!(seen.iter().copied().eq(0..list.len() as u64));
    }

    #[test]
    fn a_full_queue_says_how_many_it_took() {
        for room in [0, 1, CHUNK - 1, CHUNK, CHUNK + 5] {
            let mut seen = Vec::new();
            let list = receives(2 * CHUNK as u64);
            let error = post_chunks(&list, |wr, bad| walk(wr, bad, &mut seen, room));
            assert_eq!(error, Err(PostError { accepted: room, cause: PostCause::Full }));
            assert_eq!(seen.len(), room);
        }
    }

    #[test]
    fn a_driver_that_answers_nothing_but_names_a_bad_one_has_refused() {
        let list = receives(4);
        let answer = post_chunks(&list, |first, bad| {
            // SAFETY: the variable of `post_chunks`.
            unsafe { *bad = first.wrapping_add(2) };
            0
        });
        assert_eq!(answer, Err(PostError { accepted: 2, cause: PostCause::Device(libc::EIO) }));
    }

    #[test]
    fn an_empty_receive_has_no_piece() {
        let list = [RecvWr::default()];
        let answer = post_chunks(&list, |first, _| {
            // SAFETY: the list has one entry.
            unsafe { assert_eq!((*first).num_sge, 0) };
            0
        });
        assert_eq!(answer, Ok(()));
    }
}
