//! Extended completion queues (`ibv_create_cq_ex`).
//!
//! A completion is started, read and ended in one go; `ibv_next_poll` is never called. Once that
//! has answered that there are no more, the end has to be told to some drivers and must not be told
//! to rxe of rdma-core 44, which would then pass over a completion and give a lock back twice. A
//! walk of one completion is right with all of them.
#![expect(unsafe_code, reason = "fields are read by the driver's functions")]

use core::mem::zeroed;
use core::ptr::{self, NonNull};

use rdma_sys::{
    ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_destroy_cq, ibv_poll_cq_attr,
};

use super::cq::{VerbsCq, VerbsPoller};
use super::device::Device;
use super::front::{self, CreateCqEx};
use super::shim::{errno, refused};
use super::wake::Channel;
use crate::error::{Code, SetupError};
use crate::provider::wake::{Bell, WakeFds};
use crate::provider::{CqFlags, CqInit, Poller, PollerEx, WcEx, WcFields};
use crate::wc::{Status, Wc, WcFlags, WcOpcode};

/// The reader of an extended completion queue of an RDMA device.
pub struct VerbsPollerEx {
    /// Keeps the queue.
    poller: VerbsPoller,
    cq: NonNull<ibv_cq_ex>,
    fields: WcFields,
    broken: bool,
}

// SAFETY: libibverbs' calls on a completion queue may be made from any thread.
unsafe impl Send for VerbsPollerEx {}

/// Makes the queue proper.
///
/// # Safety
/// The channel outlives it.
pub(super) unsafe fn create(
    device: &Device,
    init: &CqInit,
    channel: &Channel,
) -> Result<NonNull<ibv_cq>, SetupError> {
    let name = &device.caps().device;
    let asked = || std_alloc::format!("a completion queue with {init:?} on {name}");
    // SAFETY: librdmacm keeps the context open while the process lives.
    let call = unsafe { front::create_cq_ex(device.context_ref()) };
    let call = call.ok_or_else(|| refused(asked(), libc::EOPNOTSUPP))?;
    // SAFETY: the caller vouches for the channel.
    let cq = unsafe { call_with(call, device, init, channel.as_ptr()) };
    NonNull::new(cq.cast()).ok_or_else(|| match errno() {
        // Depth and vector are in range, as was checked: it is a field or a flag.
        libc::EINVAL | libc::EOPNOTSUPP => {
            let answer = std_alloc::format!(
                "the device has {:?} and {:?}",
                device.caps().wc_fields,
                device.caps().cq_flags
            );
            SetupError::new(Code::NotSupported, asked(), answer).cure("ask for fewer of them")
        }
        errno => refused(asked(), errno),
    })
}

/// # Safety
/// The call is that of the device, the channel null or one that outlives the queue.
unsafe fn call_with(
    call: CreateCqEx,
    device: &Device,
    init: &CqInit,
    channel: *mut rdma_sys::ibv_comp_channel,
) -> *mut ibv_cq_ex {
    // SAFETY: zero is a valid value of each field.
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    attr.cqe = init.depth;
    attr.channel = channel;
    attr.comp_vector = init.comp_vector;
    attr.wc_flags = init.fields.bits().into();
    attr.flags = init.flags.bits();
    if !init.flags.is_empty() {
        attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    }
    if device.is_parent() {
        attr.comp_mask |= ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
        attr.parent_domain = device.pd();
    }
    // SAFETY: the context is open, the mask names what is set; the caller vouches for the rest.
    unsafe { call(device.context(), &raw mut attr) }
}

/// Fields and flags that queues of the device can be made with: no call tells, so each is tried.
pub(super) fn offered(device: &Device) -> (WcFields, CqFlags) {
    // SAFETY: librdmacm keeps the context open while the process lives.
    let Some(call) = (unsafe { front::create_cq_ex(device.context_ref()) }) else {
        return Default::default();
    };
    let works = |init: CqInit| {
        // SAFETY: no channel is given; nothing uses the queue, which goes at once.
        unsafe {
            let cq = call_with(call, device, &init, ptr::null_mut());
            !cq.is_null() && ibv_destroy_cq(cq.cast()) == 0
        }
    };
    let one = CqInit { depth: 1, fields: WcFields::BYTE_LEN, ..CqInit::default() };
    let field = |fields: &WcFields| works(CqInit { fields: *fields, ..one });
    let flag = |flags: &CqFlags| works(CqInit { flags: *flags, ..one });
    (WcFields::all().iter().filter(field).collect(), CqFlags::all().iter().filter(flag).collect())
}

impl VerbsPollerEx {
    /// Of a queue that was made by the extended call.
    pub(super) fn new(cq: VerbsCq, fields: WcFields) -> VerbsPollerEx {
        // What that gave is the beginning of an extended queue.
        let whole = cq.as_non_null().cast();
        VerbsPollerEx { poller: VerbsPoller::new(cq), cq: whole, fields, broken: false }
    }

    /// The fields of the completion that was started.
    ///
    /// # Safety
    /// One was started, and not ended.
    unsafe fn read(&self) -> WcEx {
        let (cq, whole) = (self.cq.as_ptr(), self.cq);
        // SAFETY: the queue lives while the poller does; what a field is read by is there, and may
        // be called between start and end, by the caller's word.
        unsafe {
            let queue = whole.as_ref();
            let mut wc = WcEx {
                wr_id: queue.wr_id,
                status: Status::from_raw(queue.status),
                ..WcEx::default()
            };
            let has = |field| self.fields.contains(field);
            wc.qp_num = queue.read_qp_num.filter(|_| has(WcFields::QP_NUM)).map(|read| read(cq));
            if !wc.status.is_ok() {
                wc.vendor_err = queue.read_vendor_err.map_or(0, |read| read(cq));
                return wc;
            }
            wc.opcode =
                queue.read_opcode.map_or(WcOpcode::Other, |read| WcOpcode::from_raw(read(cq)));
            let flags = queue.read_wc_flags.map_or(0, |read| read(cq));
            wc.flags = WcFlags::from_bits_truncate(flags as u16);
            wc.byte_len =
                queue.read_byte_len.filter(|_| has(WcFields::BYTE_LEN)).map(|read| read(cq));
            let word = queue.read_imm_data.filter(|_| has(WcFields::IMM));
            if wc.flags.contains(WcFlags::WITH_INV) {
                wc.invalidated = word.map(|read| read(cq));
            } else if wc.flags.contains(WcFlags::WITH_IMM) {
                wc.imm = word.map(|read| u32::from_be(read(cq)));
            }
            if wc.flags.contains(WcFlags::GRH) {
                wc.src_qp =
                    queue.read_src_qp.filter(|_| has(WcFields::SRC_QP)).map(|read| read(cq));
                wc.slid = queue.read_slid.filter(|_| has(WcFields::SLID)).map(|read| read(cq));
                wc.sl = queue.read_sl.filter(|_| has(WcFields::SL)).map(|read| read(cq));
                wc.dlid_path_bits = queue
                    .read_dlid_path_bits
                    .filter(|_| has(WcFields::DLID_PATH_BITS))
                    .map(|read| read(cq));
            }
            wc.completion_ts = queue
                .read_completion_ts
                .filter(|_| has(WcFields::COMPLETION_TIMESTAMP))
                .map(|read| read(cq));
            wc.wallclock_ns = queue
                .read_completion_wallclock_ns
                .filter(|_| has(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK))
                .map(|read| read(cq));
            wc.cvlan = queue.read_cvlan.filter(|_| has(WcFields::CVLAN)).map(|read| read(cq));
            wc
        }
    }
}

impl PollerEx for VerbsPollerEx {
    fn next(&mut self) -> Option<WcEx> {
        if self.broken {
            return None;
        }
        // SAFETY: the queue lives while the poller does; its functions never change.
        let (start, end) = unsafe { (self.cq.as_ref().start_poll?, self.cq.as_ref().end_poll?) };
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: as above; nothing was started, for each start below is ended at once.
        match unsafe { start(self.cq.as_ptr(), &raw mut attr) } {
            0 => {
                // SAFETY: one was started; it is ended once, after it was read.
                let wc = unsafe { self.read() };
                // SAFETY: as above.
                unsafe { end(self.cq.as_ptr()) };
                Some(wc)
            }
            libc::ENOENT => None,
            _ => {
                self.broken = true;
                None
            }
        }
    }
}

impl Poller for VerbsPollerEx {
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        self.poller.poll(out)
    }

    fn is_broken(&self) -> bool {
        self.broken || self.poller.is_broken()
    }

    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        self.poller.arm(solicited)
    }

    fn wake_fds(&self) -> Option<WakeFds> {
        self.poller.wake_fds()
    }

    fn woken(&mut self) -> bool {
        self.poller.woken()
    }

    fn bell(&self) -> Option<Bell> {
        self.poller.bell()
    }
}
