//! How a peer breaks the rules of credit.

/// How a peer broke the rules of credit: what was seen, and what was allowed. All are counts of
/// messages; those of a whole connection wrap.
///
/// The worker compares what a peer says and sends with what it was granted whenever it tells the
/// peer its credit, and when it reviews all peers: each within a million turns, and before a sleep.
/// So a burst beyond the credit is seen after it has come. Until then it may use the receives of
/// other peers, whose senders wait, or try again. A peer that is no worker has no credit to exceed.
///
/// The credit words of all peers of a worker have one key. A peer that writes to the word of
/// another can thus end the other's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The peer sent more messages than it was granted.
    #[error("it has sent {sent} messages, and was allowed {allowed}")]
    SentTooMuch {
        /// Messages of the connection that have come.
        sent: u32,
        /// Messages it was granted, less those it gave back.
        allowed: u32,
    },
    /// Its credit word says that it gives back more than it had.
    #[error("it gave back credit for {said} messages, and had {allowed}")]
    GaveBackTooMuch {
        /// Messages it gave back since the last look.
        said: u32,
        /// Messages it might still have sent.
        allowed: u32,
    },
    /// Its credit word grants less than it granted before, or than was used since.
    #[error("its credit word went back: it grants {said} messages, after {before}")]
    WentBack {
        /// What the word grants beyond the first window, counted from the beginning.
        said: u32,
        /// What it granted before, or what was sent.
        before: u32,
    },
    /// Its credit word grants more than the longest window.
    #[error("its credit word grants {said} messages at once, and the longest window has {most}")]
    GrantedTooMuch {
        /// Messages that may be sent by that word.
        said: u32,
        /// The longest window.
        most: u32,
    },
}
