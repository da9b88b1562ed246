//! What a drain leaves undone.

/// What [`super::Worker::drain`] could not bring to its end in order: when its time was over, and
/// of peers that it had cut off before ([`super::DownReason::CutOff`]). All zero: nothing was cut
/// off. Peers that failed meanwhile are not counted; the handler was told of them.
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
