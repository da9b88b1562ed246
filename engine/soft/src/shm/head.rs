//! The head of a message: all but its payload.

use crate::shm::layout::{Header, KIND_LENT, KIND_SEND, LENT_OPERANDS, record_bytes};
use crate::wr::SendFlags;

/// The head of a message of one record: all but its payload.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub(super) header: Header,
    pub(super) imm: u32,
    /// Bytes of the record, and of the payload.
    pub(super) record: u32,
    pub(super) length: u32,
}

impl Head {
    /// For a message of a queue pair whose headers have those bits in common. The payload fits one
    /// record.
    #[inline(always)]
    pub(crate) fn of_send(common: u64, flags: SendFlags, length: u32) -> Head {
        let header = Header::of_request(common, flags, false, length);
        // As `Header::record`, without decoding the header.
        Head { header, imm: 0, record: record_bytes(length.into()) as u32, length }
    }

    /// The same with immediate data.
    #[inline(always)]
    pub(crate) fn with_imm(common: u64, flags: SendFlags, imm: u32, length: u32) -> Head {
        let header = Header::of_request(common, flags, true, length);
        Head { header, imm, record: 8 + record_bytes(length.into()) as u32, length }
    }

    /// For a message whose bytes are lent: the payload is the operands of an
    /// [`Offer`](crate::shm::offer::Offer).
    pub(crate) fn of_lent(common: u64, flags: SendFlags, imm: Option<u32>) -> Head {
        let common = common ^ u64::from(KIND_SEND ^ KIND_LENT) << 16;
        match imm {
            None => Head::of_send(common, flags, LENT_OPERANDS),
            Some(imm) => Head::with_imm(common, flags, imm, LENT_OPERANDS),
        }
    }

    /// As [`Head::of_send`], without flags.
    #[inline(always)]
    pub(crate) fn plain(common: u64, length: u32) -> Head {
        let (header, record) = (Header(common | u64::from(length)), record_bytes(length.into()));
        Head { header, imm: 0, record: record as u32, length }
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> Header {
        self.header
    }

    #[inline(always)]
    pub(crate) fn record(&self) -> u32 {
        self.record
    }
}
