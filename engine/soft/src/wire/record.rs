//! What a wire carries: the records of a link's ring, each with a sequence number.

use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::shm::layout::{
    Header, KIND_ADD, KIND_JUMP, KIND_READ, KIND_RESPONSE, KIND_SEND, KIND_SWAP, KIND_WRITE,
    RECORD_MAX, RESPONSE_OPERANDS, RecordFlags, WRITE_OPERANDS,
};
use crate::wc::Status;

/// A packet sequence number: 24 bits, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// The number modulo 2^24.
    pub fn new(number: u32) -> Psn {
        Psn(number & 0x00ff_ffff)
    }
    /// The number `count` after this one.
    pub fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }
    /// How far this is past `from`, modulo 2^24.
    pub fn past(self, from: Psn) -> u32 {
        Psn::new(self.0.wrapping_sub(from.0)).0
    }
    /// As an integer.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Bytes of an encoded record before its payload.
const HEAD: usize = 12;

/// One record of a ring on its way to another ring.
#[derive(Clone)]
pub struct Record {
    pub(crate) header: Header,
    pub(crate) imm: u32,
    pub(crate) payload: Arc<[u8]>,
}

impl Record {
    /// The most bytes that [`Record::encode`] appends.
    pub const ENCODED_MAX: usize = HEAD + RECORD_MAX as usize;

    /// The queue pair that it is for.
    pub fn qp(&self) -> u32 {
        self.header.qp()
    }

    /// Appends the record as bytes: header, immediate data, payload. Header and immediate data are
    /// little-endian; the operands at the start of the payload are in the byte order of this
    /// machine, as they are in the ring.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Header(word) = self.header;
        out.extend(word.to_le_bytes());
        out.extend(self.imm.to_le_bytes());
        out.extend(&*self.payload);
    }

    /// Reads a record from the front of `bytes`, and returns it with its encoded length; `Ok(None)`
    /// if the rest has not come yet. The domain that receives the record checks what it asks for.
    ///
    /// # Errors
    /// No ring can hold such a record.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Record, usize)>, BadRecord> {
        let Some((word, rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let header = Header(u64::from_le_bytes(*word));
        let too_long = header.record() > RECORD_MAX;
        if too_long || header.kind() == KIND_JUMP {
            return Err(BadRecord);
        }
        let Some((imm, rest)) = rest.split_first_chunk() else { return Ok(None) };
        let Some(payload) = rest.get(..header.length() as usize) else { return Ok(None) };
        let imm = u32::from_le_bytes(*imm);
        let used = HEAD + payload.len();
        Ok(Some((Record { header, imm, payload: Arc::from(payload) }, used)))
    }

    /// True if the far domain owes a response for it.
    pub fn asks(&self) -> bool {
        self.header.kind() == KIND_READ || self.is_atomic()
    }

    /// True if carrying it out twice differs from carrying it out once.
    pub fn is_atomic(&self) -> bool {
        matches!(self.header.kind(), KIND_SWAP | KIND_ADD)
    }

    /// True for a response or a piece of one.
    pub fn is_answer(&self) -> bool {
        self.header.kind() == KIND_RESPONSE
    }

    /// True for a response or its last piece.
    pub fn answers(&self) -> bool {
        self.is_answer() && self.is_last()
    }

    /// True for a message, or a piece of one.
    pub fn is_message(&self) -> bool {
        self.header.kind() == KIND_SEND
    }

    /// True for a message of one piece.
    pub fn is_whole_message(&self) -> bool {
        self.is_message() && self.is_last() && self.header.flags().contains(RecordFlags::FIRST)
    }

    /// True if it is whole, or the last piece.
    pub fn is_last(&self) -> bool {
        self.header.flags().contains(RecordFlags::LAST)
    }

    /// An empty WRITE, which asks the domain how far it has read.
    pub(super) fn urge(qp: u32) -> Record {
        let flags = RecordFlags::FIRST | RecordFlags::LAST | RecordFlags::ACK_REQ;
        let header = Header::new(KIND_WRITE, flags, WRITE_OPERANDS, qp);
        Record { header, imm: 0, payload: Arc::from([0; WRITE_OPERANDS as usize]) }
    }

    /// The response for a queue pair whose peer is out of reach: all retries have failed.
    pub fn no_answer(qp: u32) -> Record {
        let header = Header::new(KIND_RESPONSE, RecordFlags::LAST, RESPONSE_OPERANDS, qp);
        let status = (Status::RetryExceeded as u64).to_ne_bytes();
        Record { header, imm: 0, payload: Arc::from(status) }
    }
}

/// The other side of the wire wrote what no ring can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no ring can hold the record that came over the wire")]
pub struct BadRecord;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(length: u32, imm: u32) -> Record {
        let flags = RecordFlags::IMM | RecordFlags::FIRST | RecordFlags::LAST;
        let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
        Record { header: Header::new(KIND_SEND, flags, length, 9), imm, payload: payload.into() }
    }

    /// Every prefix waits for the rest, and bytes behind a record are left alone.
    #[test]
    fn encoding_and_decoding_agree() {
        for length in [0, 1, 8, 1000, crate::shm::layout::FRAGMENT] {
            let sent = record(length, 0x0102_0304);
            let mut bytes = Vec::new();
            sent.encode(&mut bytes);
            assert!(bytes.len() <= Record::ENCODED_MAX);
            for cut in 0..bytes.len() {
                assert!(matches!(Record::decode(&bytes[..cut]), Ok(None)), "{cut} of {length}");
            }
            let whole = bytes.len();
            bytes.push(7);
            let (got, used) = Record::decode(&bytes).unwrap().unwrap();
            assert_eq!((got.imm, used), (sent.imm, whole));
            assert!(got.header == sent.header && got.payload == sent.payload);
        }
    }

    #[test]
    fn a_record_that_no_ring_can_hold_is_refused() {
        let long = Header::new(KIND_SEND, RecordFlags::LAST, RECORD_MAX, 9);
        for Header(word) in [long, Header::JUMP] {
            assert!(matches!(Record::decode(&word.to_le_bytes()), Err(BadRecord)));
        }
    }
}
