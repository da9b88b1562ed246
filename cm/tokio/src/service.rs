//! What the program does on the worker's thread.

use doorbell::worker::PeerId;

/// Who takes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The [`Service`]: it has taken the message.
    Service,
    /// The task that calls [`Connection::recv`](crate::Connection::recv).
    Task,
}

/// Answers requests and takes messages on the worker's thread, between two polls: no crossing, no
/// allocation, and nothing that blocks. A panic in it ends the worker. `()` answers no
/// request, and leaves all messages to tasks.
pub trait Service: Send + 'static {
    /// A peer's request: the first `len` bytes of `room`. Write the answer to the front of `room`,
    /// which holds a whole block less the header, and return its length. `None`: no answer, so the
    /// peer's deadline passes.
    fn request(&mut self, peer: PeerId, room: &mut [u8], len: usize) -> Option<usize> {
        let _ = (peer, room, len);
        None
    }

    /// A peer's message that is no request: from
    /// [`Connection::send`](crate::Connection::send), or from any other worker. Returns who takes
    /// it. Default: a task, by [`Connection::recv`](crate::Connection::recv).
    fn message(&mut self, peer: PeerId, bytes: &[u8]) -> Recipient {
        let _ = (peer, bytes);
        Recipient::Task
    }
}

impl Service for () {}
