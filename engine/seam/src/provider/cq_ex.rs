//! Extended completion queues (`ibv_create_cq_ex`, CP-9): completions with the requested fields,
//! such as timestamps.
//!
//! In C, a program reads them with `ibv_start_poll`, `ibv_next_poll` and `ibv_end_poll`, each
//! allowed only after some of the others. A function reads each field, and it exists only if the
//! queue was made with that field. [`super::PollerEx::next`] does all of that for one completion
//! and returns a value: the caller may read it at any time, and no lock is held meanwhile. Drivers
//! hold the queue's lock from start to end; a thread that destroyed a queue pair in between would
//! wait for ever.

use bitflags::bitflags;

use crate::wc::{Status, Wc, WcFlags, WcOpcode};

bitflags! {
    /// Fields of a completion (`enum ibv_create_cq_wc_flags`, numbers as there).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFields: u32 {
        /// Bytes received or read.
        const BYTE_LEN = 1 << 0;
        /// Immediate data, or the key that the message has invalidated.
        const IMM = 1 << 1;
        /// The queue pair.
        const QP_NUM = 1 << 2;
        /// The sender's queue pair, of datagrams.
        const SRC_QP = 1 << 3;
        /// The sender's port, of datagrams; 0 where ports have no numbers (RoCE, soft).
        const SLID = 1 << 4;
        /// The service level, of datagrams; 0 as above.
        const SL = 1 << 5;
        /// The low bits of the destination LID, of datagrams; 0 as above.
        const DLID_PATH_BITS = 1 << 6;
        /// Time of the completion, by the device's clock.
        const COMPLETION_TIMESTAMP = 1 << 7;
        /// The VLAN tag that was removed from a frame.
        const CVLAN = 1 << 8;
        /// When it was made, in nanoseconds since 1970.
        const COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;
    }
}

bitflags! {
    /// Flags of creation (`enum ibv_create_cq_attr_flags`, numbers as there).
    /// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED` is not among them: it removes the driver's locks, which
    /// are needed when another thread destroys a queue pair.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CqFlags: u32 {
        /// A completion that comes when the queue is full overwrites the oldest, instead of
        /// breaking the queue (CP-5).
        const IGNORE_OVERRUN = 1 << 1;
    }
}

/// Attributes for making a completion queue (`struct ibv_cq_init_attr_ex`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqInit {
    /// Minimum number of entries.
    pub depth: u32,
    /// The completion vector to use, below [`super::Caps::comp_vectors`].
    pub comp_vector: u32,
    /// The fields that its completions carry.
    pub fields: WcFields,
    /// Flags of creation.
    pub flags: CqFlags,
}

impl CqInit {
    /// A plain queue of at least `depth` entries.
    pub fn new(depth: u32) -> CqInit {
        CqInit { depth, ..CqInit::default() }
    }

    /// True if making it needs the extended call.
    pub fn is_extended(&self) -> bool {
        !self.fields.is_empty() || !self.flags.is_empty()
    }
}

/// A completion of an extended queue: a field is present if the queue was made with it and the
/// completion has it. On an error only `wr_id`, `status`, `vendor_err` and `qp_num` are defined
/// (CP-1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WcEx {
    /// The request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was; undefined on an error.
    pub opcode: WcOpcode,
    /// The vendor's code for an error.
    pub vendor_err: u32,
    /// What else is defined.
    pub flags: WcFlags,
    /// The queue pair.
    pub qp_num: Option<u32>,
    /// Bytes received, read, or written by a WRITE with immediate data (CP-2).
    pub byte_len: Option<u32>,
    /// Immediate data of the sender.
    pub imm: Option<u32>,
    /// The key of the window that the message has invalidated.
    pub invalidated: Option<u32>,
    /// The sender's queue pair; where present, 0 for anything but a datagram.
    pub src_qp: Option<u32>,
    /// The sender's port.
    pub slid: Option<u32>,
    /// The service level.
    pub sl: Option<u8>,
    /// The low bits of the destination LID.
    pub dlid_path_bits: Option<u8>,
    /// When it was made, in ticks of the device's clock; nanoseconds on soft.
    pub completion_ts: Option<u64>,
    /// When it was made, in nanoseconds since 1970.
    pub wallclock_ns: Option<u64>,
    /// The VLAN tag that was taken out.
    pub cvlan: Option<u16>,
}

impl WcEx {
    /// The same as an ordinary completion; missing fields are 0.
    pub fn plain(&self) -> Wc {
        let word = self.imm.or(self.invalidated).or(self.cvlan.map(u32::from));
        Wc {
            wr_id: self.wr_id,
            qp_num: self.qp_num.unwrap_or(0),
            byte_len: self.byte_len.unwrap_or(0),
            imm: word.unwrap_or(0),
            vendor_err: self.vendor_err,
            status: self.status,
            opcode: self.opcode,
            flags: self.flags,
            src_qp: self.src_qp.unwrap_or(0),
        }
    }

    /// Takes those fields from an ordinary completion, as far as it has them; it has no timestamps.
    pub fn of(wc: &Wc, fields: WcFields) -> WcEx {
        let ok = wc.status.is_ok();
        let datagram = ok && wc.flags.contains(WcFlags::GRH);
        let has = |field, there: bool| there && fields.contains(field);
        let word = |field, flag| has(field, ok && wc.flags.contains(flag)).then_some(wc.imm);
        WcEx {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: if ok { wc.opcode } else { WcOpcode::default() },
            vendor_err: wc.vendor_err,
            flags: if ok { wc.flags } else { WcFlags::empty() },
            qp_num: has(WcFields::QP_NUM, true).then_some(wc.qp_num),
            byte_len: has(WcFields::BYTE_LEN, ok).then_some(wc.byte_len),
            imm: word(WcFields::IMM, WcFlags::WITH_IMM),
            invalidated: word(WcFields::IMM, WcFlags::WITH_INV),
            src_qp: has(WcFields::SRC_QP, datagram).then_some(wc.src_qp),
            slid: has(WcFields::SLID, datagram).then_some(0),
            sl: has(WcFields::SL, datagram).then_some(0),
            dlid_path_bits: has(WcFields::DLID_PATH_BITS, datagram).then_some(0),
            completion_ts: None,
            wallclock_ns: None,
            cvlan: word(WcFields::CVLAN, WcFlags::CVLAN).map(|tag| tag as u16),
        }
    }
}
