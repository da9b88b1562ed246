//! What a drain leaves undone.

/// What [`super::Worker::drain`] did not end in order. It counts the peers that were left when its
/// time was over, and those whose end took too long ([`super::DownReason::CutOff`]). If nothing was
/// cut off, all are zero. Peers that failed meanwhile are not counted: the handler's
/// `on_peer_down` tells of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Peers that had not taken everything, or had not got their goodbye.
    pub peers: usize,
    /// Requests with a token that had not ended when the time was over. The handler was told since
    /// of those whose queue pair drained in the next 4096 turns.
    pub requests: usize,
    /// Messages of those peers that the handler kept, and had not answered.
    pub kept: usize,
}

impl Undone {
    /// One more peer, with `kept` kept messages.
    pub(super) fn add(&mut self, kept: u32) {
        self.peers += 1;
        self.kept += kept as usize;
    }
}
