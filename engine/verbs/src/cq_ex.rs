//! The reader of extended completion queues.
//!
//! Each poll starts, reads and ends one completion; `ibv_next_poll` is never called. After it has
//! answered that there are no more, some drivers need `ibv_end_poll`, but with rxe of rdma-core 44
//! that call skips a completion and releases a lock twice. One completion a poll is right with all
//! drivers.
#![expect(unsafe_code, reason = "fields are read by the driver's functions")]

use core::ptr::NonNull;

use crate::rdma_core::{ibv_cq_ex, ibv_poll_cq_attr};

use super::cq::{VerbsCq, VerbsPoller};
use crate::error::SetupError;
use crate::provider::wake::{Notifier, WakeFds};
use crate::provider::{Poller, PollerEx, WcEx, WcFields};
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

impl VerbsPollerEx {
    /// The reader of a queue that the extended call made.
    pub(super) fn new(cq: VerbsCq, fields: WcFields) -> VerbsPollerEx {
        // Its pointer is that of an extended queue.
        let whole = cq.as_non_null().cast();
        VerbsPollerEx { poller: VerbsPoller::new(cq), cq: whole, fields, broken: false }
    }

    /// The fields of the completion that was started.
    ///
    /// # Safety
    /// One was started, and not ended.
    unsafe fn read(&self) -> WcEx {
        let (cq, whole) = (self.cq.as_ptr(), self.cq);
        // SAFETY: the queue lives while the poller does. The caller vouches that a completion is
        // started and not ended, so the read functions may be called.
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

    fn notifier(&self) -> Option<Notifier> {
        self.poller.notifier()
    }
}
