//! The reader of extended completion queues.
//!
//! Each poll starts, reads and ends one completion; `ibv_next_poll` is never called. After it has
//! answered that there are no more, some drivers need `ibv_end_poll`, but with rxe of rdma-core 44
//! that call skips a completion and releases a lock twice. One completion a poll is right with all
//! drivers.

use std::time::Duration;

use super::cq::VerbsCq;
use super::objects::CqEx;
use super::poll::{Started, VerbsPoller};
use crate::error::SetupError;
use crate::provider::wake::{Notifier, WakeFds};
use crate::provider::{Poller, PollerEx, WcEx, WcFields};
use crate::wc::{Wc, WcFlags, WcOpcode};

/// The reader of an extended completion queue of an RDMA device.
pub struct VerbsPollerEx {
    poller: VerbsPoller,
    cq: CqEx,
    fields: WcFields,
    broken: bool,
}

impl VerbsPollerEx {
    /// The reader of a queue that the extended call made.
    pub(super) fn new(cq: VerbsCq, ex: CqEx, fields: WcFields) -> VerbsPollerEx {
        VerbsPollerEx { poller: VerbsPoller::new(cq), cq: ex, fields, broken: false }
    }
}

/// What a completion says, of the fields that were asked for.
fn read(from: &Started<'_>, fields: WcFields) -> WcEx {
    let has = |field| fields.contains(field);
    let mut wc = WcEx { wr_id: from.wr_id(), status: from.status(), ..WcEx::default() };
    wc.qp_num = has(WcFields::QP_NUM).then(|| from.qp_num()).flatten();
    if !wc.status.is_ok() {
        wc.vendor_err = from.vendor_err().unwrap_or(0);
        return wc;
    }
    wc.opcode = from.opcode().map_or(WcOpcode::Other, WcOpcode::from_raw);
    wc.flags = WcFlags::from_bits_truncate(from.wc_flags().unwrap_or(0) as u16);
    wc.byte_len = has(WcFields::BYTE_LEN).then(|| from.byte_len()).flatten();
    if has(WcFields::IMM) && wc.flags.contains(WcFlags::WITH_INV) {
        wc.invalidated = from.imm_data();
    } else if has(WcFields::IMM) && wc.flags.contains(WcFlags::WITH_IMM) {
        wc.imm = from.imm_data().map(u32::from_be);
    }
    if wc.flags.contains(WcFlags::GRH) {
        wc.src_qp = has(WcFields::SRC_QP).then(|| from.src_qp()).flatten();
        wc.slid = has(WcFields::SLID).then(|| from.slid()).flatten();
        wc.sl = has(WcFields::SL).then(|| from.sl()).flatten();
        wc.dlid_path_bits = has(WcFields::DLID_PATH_BITS).then(|| from.dlid_path_bits()).flatten();
    }
    wc.completion_ts = has(WcFields::COMPLETION_TIMESTAMP).then(|| from.completion_ts()).flatten();
    wc.wallclock_ns =
        has(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK).then(|| from.wallclock_ns()).flatten();
    wc.cvlan = has(WcFields::CVLAN).then(|| from.cvlan()).flatten();
    wc
}

impl PollerEx for VerbsPollerEx {
    fn next(&mut self) -> Option<WcEx> {
        if self.broken {
            return None;
        }
        match self.cq.start() {
            Ok(started) => started.map(|started| read(&started, self.fields)),
            Err(_) => {
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

    fn look_again(&mut self) -> Option<Duration> {
        self.poller.look_again()
    }

    fn woken(&mut self) -> bool {
        self.poller.woken()
    }

    fn notifier(&self) -> Option<Notifier> {
        self.poller.notifier()
    }
}
