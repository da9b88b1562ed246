//! What the program does on the worker's thread.

use doorbell::worker::PeerId;

/// Answers requests and takes messages on the worker's thread, between two polls: no crossing, no
/// allocation, and nothing that blocks. A panic in it ends the worker. `()` takes nothing and
/// answers nothing, for a program that only asks.
pub trait Service: Send + 'static {
    /// A peer's request: the first `len` bytes of `room`. Write the answer to the front of `room`,
    /// which holds a whole block less the header, and return its length. `None`: no answer, so the
    /// peer's deadline passes.
    fn request(&mut self, peer: PeerId, room: &mut [u8], len: usize) -> Option<usize> {
        let _ = (peer, room, len);
        None
    }

    /// A peer's message that is no request: from
    /// [`Connection::send`](crate::Connection::send), or from any other worker. To hand it to a
    /// task, use a channel that does not wait, such as `try_send` of a bounded one.
    fn message(&mut self, peer: PeerId, bytes: &[u8]) {
        let _ = (peer, bytes);
    }
}

impl Service for () {}
