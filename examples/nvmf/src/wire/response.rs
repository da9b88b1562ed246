//! Responses: the 16 bytes that answer a command.

use super::le::{put, u16_at, u64_at};
use super::status::Status;

/// Bytes of a response capsule.
pub const RESPONSE_BYTES: usize = 16;

/// A completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The result, which depends on the command.
    pub result: u64,
    /// How far the target has come in the submission queue.
    pub head: u16,
    /// The queue of the command.
    pub queue: u16,
    /// The number of the command.
    pub id: u16,
    /// How it ended.
    pub status: Status,
}

impl Response {
    /// Its bytes.
    pub fn bytes(&self) -> [u8; RESPONSE_BYTES] {
        let mut out = [0; RESPONSE_BYTES];
        put(&mut out, 0, &self.result.to_le_bytes());
        put(&mut out, 8, &self.head.to_le_bytes());
        put(&mut out, 10, &self.queue.to_le_bytes());
        put(&mut out, 12, &self.id.to_le_bytes());
        put(&mut out, 14, &self.status.field().to_le_bytes());
        out
    }

    /// Reads a response; `None` if it is too short.
    pub fn read(bytes: &[u8]) -> Option<Response> {
        (bytes.len() >= RESPONSE_BYTES).then(|| Response {
            result: u64_at(bytes, 0),
            head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            id: u16_at(bytes, 12),
            status: Status::from_field(u16_at(bytes, 14)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_as_it_was_written() {
        let status = Status::COMPARE;
        let response = Response { result: 0x0102_0304_0506, head: 3, queue: 2, id: 900, status };
        let bytes = response.bytes();
        assert_eq!((bytes[8], bytes[10], u16_at(&bytes, 12)), (3, 2, 900));
        assert_eq!(Response::read(&bytes), Some(response));
        assert_eq!(Response::read(&bytes[..15]), None);
    }
}
