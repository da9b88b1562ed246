//! Work completions: what a poll returns. 32 bytes, plain data.

use core::fmt;

use bitflags::bitflags;

/// How a request ended (`enum ibv_wc_status`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Status {
    /// The request succeeded.
    #[default]
    Success = 0,
    /// The message was longer than the receive, or than the device allows.
    LocalLength = 1,
    /// The queue pair could not carry out the request.
    LocalQpOperation = 2,
    /// A local key, bound or access right was wrong.
    LocalProtection = 4,
    /// The queue pair was in error before the request ran.
    Flushed = 5,
    /// A memory window could not be bound.
    MwBind = 6,
    /// A response from the peer made no sense.
    BadResponse = 7,
    /// A local access failed while the request ran.
    LocalAccess = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 9,
    /// The key, bounds or rights at the peer did not allow it.
    RemoteAccess = 10,
    /// The peer could not carry it out.
    RemoteOperation = 11,
    /// The peer never acknowledged, over all retries.
    RetryExceeded = 12,
    /// The peer had no receive posted, over all retries.
    RnrRetryExceeded = 13,
    /// Aborted by the peer.
    RemoteAborted = 16,
    /// The device failed.
    Fatal = 19,
    /// The peer's response took too long.
    ResponseTimeout = 20,
    /// Any other error, and numbers newer than this list.
    General = 21,
}

impl Status {
    /// The status for a number from a device; unknown numbers are [`Status::General`].
    pub fn from_raw(raw: u32) -> Status {
        match raw {
            0 => Status::Success,
            1 => Status::LocalLength,
            2 => Status::LocalQpOperation,
            4 => Status::LocalProtection,
            5 => Status::Flushed,
            6 => Status::MwBind,
            7 => Status::BadResponse,
            8 => Status::LocalAccess,
            9 => Status::RemoteInvalidRequest,
            10 => Status::RemoteAccess,
            11 => Status::RemoteOperation,
            12 => Status::RetryExceeded,
            13 => Status::RnrRetryExceeded,
            16 => Status::RemoteAborted,
            19 => Status::Fatal,
            20 => Status::ResponseTimeout,
            _ => Status::General,
        }
    }

    /// True for [`Status::Success`].
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Status::Success
    }

    /// What it means, and what to do about it.
    fn meaning(self) -> &'static str {
        match self {
            Status::Success => "the request succeeded",
            Status::LocalLength => {
                "the message is longer than the receive, or than the device allows; post longer \
                 receives, or send less at a time"
            }
            Status::LocalQpOperation => {
                "the queue pair could not carry it out; compare the request with the capacities \
                 of the queue pair"
            }
            Status::LocalProtection => {
                "a local key, bound or right was wrong; register the memory for this use, and \
                 keep it registered until the completion"
            }
            Status::Flushed => {
                "the queue pair was in error before the request ran; look for the first request \
                 that failed, or for the end of the connection"
            }
            Status::MwBind => {
                "the memory window could not be bound; register its region with Access::MW_BIND"
            }
            Status::BadResponse => {
                "the peer's response made no sense; compare the devices and versions of both sides"
            }
            Status::LocalAccess => {
                "a local access failed while the request ran; keep the memory registered until \
                 the completion"
            }
            Status::RemoteInvalidRequest => {
                "the peer found it invalid; compare its length with the peer's receive, and its \
                 READs and atomics in flight with what the peer serves"
            }
            Status::RemoteAccess => {
                "the key, bounds or rights at the peer did not allow it; let the peer tell again \
                 which memory it exposes"
            }
            Status::RemoteOperation => {
                "the peer could not carry it out; look for the error at the peer"
            }
            Status::RetryExceeded => {
                "the peer did not acknowledge it, over all retries; see whether its program \
                 still runs and the network works"
            }
            Status::RnrRetryExceeded => {
                "the peer had no receive posted, over all retries; let it post more receives, or \
                 raise rnr_retry"
            }
            Status::RemoteAborted => "the peer aborted it; look for the error at the peer",
            Status::Fatal => "the device failed; open it again",
            Status::ResponseTimeout => {
                "the peer's response took too long; see whether its program still runs and the \
                 network works"
            }
            Status::General => "the device gives no reason; look up its vendor error",
        }
    }
}

impl fmt::Display for Status {
    /// Name, number, meaning and cure.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?} (status {}): {}", *self as u8, self.meaning())
    }
}

/// Which kind of request ended (`enum ibv_wc_opcode`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum WcOpcode {
    /// A SEND of ours.
    #[default]
    Send = 0,
    /// A WRITE of ours.
    Write = 1,
    /// A READ of ours; its bytes have arrived.
    Read = 2,
    /// A compare-and-swap of ours; the previous value has arrived.
    CompareSwap = 3,
    /// A fetch-and-add of ours; the previous value has arrived.
    FetchAdd = 4,
    /// A memory window of ours is open.
    Bind = 5,
    /// A memory window of ours is closed.
    LocalInv = 6,
    /// A segmented send of ours.
    Tso = 7,
    /// A receive that a SEND filled.
    Recv = 128,
    /// A receive that a WRITE with immediate data consumed; its buffer is untouched.
    RecvWriteWithImm = 129,
    /// An opcode this engine does not post.
    Other = 255,
}

impl WcOpcode {
    /// The opcode for a number from a device.
    pub fn from_raw(raw: u32) -> WcOpcode {
        match raw {
            0 => WcOpcode::Send,
            1 => WcOpcode::Write,
            2 => WcOpcode::Read,
            3 => WcOpcode::CompareSwap,
            4 => WcOpcode::FetchAdd,
            5 => WcOpcode::Bind,
            6 => WcOpcode::LocalInv,
            7 => WcOpcode::Tso,
            128 => WcOpcode::Recv,
            129 => WcOpcode::RecvWriteWithImm,
            _ => WcOpcode::Other,
        }
    }
}

bitflags! {
    /// Flags of a completion (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u16 {
        /// A global routing header is present (UD).
        const GRH = 1;
        /// `imm` holds the immediate data of the sender.
        const WITH_IMM = 2;
        /// `imm` holds the key of the memory window that the message has invalidated (RC-5).
        const WITH_INV = 8;
        /// `imm` holds the VLAN tag that was removed from a frame, in its low 16 bits
        /// ([`crate::provider::CreateFlags::CVLAN_STRIPPING`]).
        const CVLAN = 16;
    }
}

/// One completion (`struct ibv_wc`). On an error only `wr_id`, `status`, `qp_num` and
/// `vendor_err` are defined (CP-1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Wc {
    /// The request's own number.
    pub wr_id: u64,
    /// The queue pair the request ran on.
    pub qp_num: u32,
    /// Bytes received, read, or written by a WRITE with immediate data (CP-2); undefined for sends
    /// and WRITEs.
    pub byte_len: u32,
    /// Immediate data, as the sender gave it, if the flag says so.
    pub imm: u32,
    /// The vendor's code for an error.
    pub vendor_err: u32,
    /// How it ended.
    pub status: Status,
    /// What it was; undefined on an error.
    pub opcode: WcOpcode,
    /// What else is defined.
    pub flags: WcFlags,
    /// The sender's queue pair; for datagrams only.
    pub src_qp: u32,
}

impl Wc {
    /// True for a message that arrived successfully and carries nothing but its bytes.
    #[inline(always)]
    pub fn is_plain_receive(&self) -> bool {
        // One comparison covers all three.
        let [low, high] = self.flags.bits().to_le_bytes();
        let what = [self.status as u8, self.opcode as u8, low, high];
        u32::from_le_bytes(what) == u32::from_le_bytes([0, WcOpcode::Recv as u8, 0, 0])
    }
}

const _: () = assert!(size_of::<Wc>() == 32, "two completions fill a cache line");
const _: () = assert!(Status::Success as u8 == 0, "`is_plain_receive` says so");

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::vec::Vec;

    /// The text of a status begins with the name and number that a C program knows. Each failure
    /// has a text of its own, which ends with what to do.
    #[test]
    fn a_status_is_printed_with_its_number_and_a_cure() {
        let text = format!("{}", Status::RetryExceeded);
        assert!(
            text.starts_with("RetryExceeded (status 12): the peer did not acknowledge"),
            "{text}"
        );
        let known = (1..=21).map(Status::from_raw).filter(|status| *status != Status::General);
        let mut texts: Vec<_> = known.chain([Status::General]).map(Status::meaning).collect();
        assert_eq!(texts.len(), 16);
        assert!(texts.iter().all(|text| text.contains("; ")), "{texts:?}");
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), 16);
    }
}
