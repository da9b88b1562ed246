//! Private data of the connection manager: how a queue pair says which queue it is.

use std::fmt;

use super::le::{put, u16_at};
use super::{ADMIN_DEPTH, IO_DEPTH};

/// Bytes of the private data of a request and of an answer.
pub const PRIVATE_BYTES: usize = 32;

/// The only record format.
const FORMAT: u16 = 0;

/// Why a target rejects a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "each is the status of that name")]
pub enum Reject {
    InvalidLength = 1,
    InvalidFormat = 2,
    InvalidQueue = 3,
    InvalidSendSize = 4,
    InvalidReceiveSize = 5,
    NoResources = 6,
    InvalidController = 9,
}

impl Reject {
    /// The private data of the rejection.
    pub fn bytes(self) -> [u8; 4] {
        let mut out = [0; 4];
        put(&mut out, 2, &(self as u16).to_le_bytes());
        out
    }

    /// The reason in the private data of a rejection, if it has one that is known.
    pub fn read(bytes: &[u8]) -> Option<Reject> {
        use Reject::*;
        let all = [
            InvalidLength,
            InvalidFormat,
            InvalidQueue,
            InvalidSendSize,
            InvalidReceiveSize,
            NoResources,
            InvalidController,
        ];
        let known = bytes.len() >= 4 && u16_at(bytes, 0) == FORMAT;
        all.into_iter().find(|reason| known && *reason as u16 == u16_at(bytes, 2))
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the target rejects the queue: {self:?} (status {})", *self as u16)
    }
}

/// The private data of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRequest {
    /// The queue: 0 is the admin queue.
    pub queue: u16,
    /// Entries of the host's receive queue.
    pub receives: u16,
    /// Entries of the submission queue, which the host never exceeds.
    pub depth: u16,
    /// The controller that an I/O queue belongs to; 0 if the host does not say.
    pub controller: u16,
}

impl QueueRequest {
    /// The private data.
    pub fn bytes(&self) -> [u8; PRIVATE_BYTES] {
        let mut out = [0; PRIVATE_BYTES];
        put(&mut out, 2, &self.queue.to_le_bytes());
        put(&mut out, 4, &self.receives.to_le_bytes());
        put(&mut out, 6, &self.depth.wrapping_sub(1).to_le_bytes());
        put(&mut out, 8, &self.controller.to_le_bytes());
        out
    }

    /// Reads and checks the private data of a request.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<QueueRequest, Reject> {
        if bytes.len() < PRIVATE_BYTES {
            return Err(Reject::InvalidLength);
        }
        if u16_at(bytes, 0) != FORMAT {
            return Err(Reject::InvalidFormat);
        }
        let (queue, receives, last) = (u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
        let most = if queue == 0 { ADMIN_DEPTH } else { IO_DEPTH };
        // The send size counts from zero.
        if last == 0 || last >= most {
            return Err(Reject::InvalidSendSize);
        }
        if receives == 0 {
            return Err(Reject::InvalidReceiveSize);
        }
        Ok(QueueRequest { queue, receives, depth: last + 1, controller: u16_at(bytes, 8) })
    }
}

/// The private data of an answer: the entries of the target's receive queue.
pub fn accept_bytes(depth: u16) -> [u8; PRIVATE_BYTES] {
    let mut out = [0; PRIVATE_BYTES];
    put(&mut out, 2, &depth.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let request = QueueRequest { queue: 2, receives: 128, depth: 128, controller: 7 };
        let bytes = request.bytes();
        assert_eq!((bytes[2], bytes[4], bytes[6], bytes[8]), (2, 128, 127, 7));
        assert_eq!(QueueRequest::read(&bytes), Ok(request));
    }

    #[test]
    fn each_mistake_has_its_status() {
        let good = QueueRequest { queue: 0, receives: 32, depth: 32, controller: 0 };
        let read = |at: usize, value: u16| {
            let mut bytes = good.bytes();
            put(&mut bytes, at, &value.to_le_bytes());
            QueueRequest::read(&bytes)
        };
        assert_eq!(read(0, 1), Err(Reject::InvalidFormat));
        assert_eq!(read(6, 32), Err(Reject::InvalidSendSize), "the admin queue has 32 entries");
        assert_eq!(read(6, 0), Err(Reject::InvalidSendSize), "a queue has two entries at least");
        assert_eq!(read(4, 0), Err(Reject::InvalidReceiveSize));
        assert_eq!(QueueRequest::read(&good.bytes()[..31]), Err(Reject::InvalidLength));
        assert_eq!(Reject::read(&Reject::NoResources.bytes()), Some(Reject::NoResources));
        assert_eq!(Reject::NoResources.bytes(), [0, 0, 6, 0]);
        assert_eq!(Reject::read(&[0; 148]), None);
    }
}
