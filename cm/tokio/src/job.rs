//! What crosses between the program's tasks and the worker.

use doorbell::worker::{DownReason, PeerId, SendError, Token};

use crate::inbox::Letter;

/// A send, a request, or the end of sending. There is a fixed number of them; each belongs to one
/// slot, and is either in the pool, on its way to the worker, with the worker, on its way back, or
/// with its future.
pub(crate) struct Job {
    /// The number of its slot.
    pub(crate) slot: u32,
    pub(crate) peer: Option<PeerId>,
    pub(crate) kind: Kind,
    /// The payload, and then the answer's. It never grows beyond its first capacity.
    pub(crate) bytes: Vec<u8>,
    pub(crate) outcome: Result<(), Failure>,
}

/// What is to be done.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Send,
    /// With a deadline on the worker's clock, in nanoseconds.
    Request(u64),
    FinishSending,
}

/// Why the worker has no result.
#[derive(Clone, Copy)]
pub(crate) enum Failure {
    Deadline,
    /// The peer went down with the job.
    Down(DownReason),
    /// The peer was down before the job came.
    Gone,
    NotSent(SendError),
    /// The worker has ended.
    Ended,
}

impl Job {
    /// A job with room for `bytes` bytes.
    pub(crate) fn new(slot: u32, bytes: usize) -> Job {
        let (kind, bytes) = (Kind::Send, Vec::with_capacity(bytes));
        Job { slot, peer: None, kind, bytes, outcome: Ok(()) }
    }
}

/// What the driver asks of the worker.
pub(crate) enum Control {
    /// Close the connection when everything that was accepted for it has arrived.
    Finish(PeerId),
}

/// What is left for the worker.
pub(crate) enum Work {
    Control(Control),
    /// The future of this slot was dropped.
    Cancel(u32),
    /// A task has taken the message of this block.
    Taken(Token),
    Job(Box<Job>),
}

/// The worker reports these to the driver, oldest first.
pub(crate) enum Report {
    Done(Box<Job>),
    /// A new peer, and true if this side dialed it.
    Up(PeerId, bool),
    Message(Box<Letter>),
    FinishedSending(PeerId),
    Down(PeerId, DownReason),
}
