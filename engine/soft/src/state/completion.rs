//! The contents of completions.

use crate::model::send_queue::SqEntry;
use crate::shm::layout::RecordFlags;
use crate::wc::{Status, Wc, WcFlags, WcOpcode};

/// An error completion. Only number, status and queue pair are valid (CP-1). The rest is garbage,
/// so that a reader of it notices.
pub(crate) fn error_wc(wr_id: u64, qp_num: u32, status: Status) -> Wc {
    Wc {
        wr_id,
        qp_num,
        byte_len: 0xdead_beef,
        imm: 0xdead_beef,
        vendor_err: status as u32,
        status,
        opcode: WcOpcode::Other,
        flags: WcFlags::all(),
        src_qp: 0xdead_beef,
    }
}

/// The completion of a send that has succeeded.
#[inline(always)]
pub(crate) fn send_wc(qp_num: u32, entry: SqEntry) -> Wc {
    sent_wc(entry.wr_id, qp_num, entry.length, entry.sent.opcode())
}

/// The same by what is in it.
#[inline(always)]
pub(crate) fn sent_wc(wr_id: u64, qp_num: u32, byte_len: u32, opcode: WcOpcode) -> Wc {
    Wc {
        wr_id,
        qp_num,
        byte_len,
        imm: 0,
        vendor_err: 0,
        status: Status::Success,
        opcode,
        flags: WcFlags::empty(),
        src_qp: 0,
    }
}

/// The completion of a receive that a record with those flags has filled.
#[inline(always)]
pub(crate) fn recv_wc(wr_id: u64, qp_num: u32, byte_len: u32, record: RecordFlags, imm: u32) -> Wc {
    let word = match (record.contains(RecordFlags::IMM), record.contains(RecordFlags::INV)) {
        (false, _) => WcFlags::empty(),
        (true, false) => WcFlags::WITH_IMM,
        (true, true) => WcFlags::WITH_INV,
    };
    Wc {
        wr_id,
        qp_num,
        byte_len,
        imm,
        vendor_err: 0,
        status: Status::Success,
        opcode: WcOpcode::Recv,
        flags: word,
        src_qp: 0,
    }
}
