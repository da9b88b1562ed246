//! What a worker has done, in plain numbers.

/// Counters of one worker; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns.
    pub turns: u64,
    /// Turns that found nothing.
    pub idle_turns: u64,
    /// Completions taken.
    pub completions: u64,
    /// Messages received.
    pub received: u64,
    /// Requests handed to the device.
    pub sent: u64,
    /// Posts of sends: one doorbell each.
    pub doorbells: u64,
    /// Messages that had to wait, or were not taken, because the peer had promised no receive.
    pub credit_stalls: u64,
    /// Words of credit sent to peers.
    pub credit_returns: u64,
    /// Replies that had to wait for room in a send queue, or for credit.
    pub deferred: u64,
    /// Posts the device cut short because a queue was full.
    pub post_full: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Completions that named no peer of this worker; their blocks went home.
    pub strays: u64,
    /// Connections that could not be reported to the control plane as closing.
    pub close_lost: u64,
}
