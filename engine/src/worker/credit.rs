//! Credit: how many messages a peer may send, so that each finds a posted receive.
//!
//! A worker promises each peer a *window* of its shared receives, and the windows add up to no more
//! than the queue holds (see [`super::SharedRecv`]). What a peer may send is counted from the
//! beginning of the connection: the window, and one for each of its messages whose block is free
//! again. The receiver writes that count into a word of the sender's memory by an RDMA WRITE, after
//! each half of the window, and completely when nothing has come for a while. The sender reads the
//! word when it has used up the credit that it knew of.
//!
//! **Why nothing is stuck for ever.** A message whose handler replies to it in place needs a
//! receive at the other side to leave its block. If such messages filled the windows of both sides,
//! none could leave. So a reply may take the last credit and a fresh message may not: when the last
//! fresh message was taken, one receive was left over. Replies only move messages, so one receive
//! is always left over somewhere. Its owner grants it at once, not half a window later, if it has
//! replies of its own that wait for this peer.

use super::handshake::Handshake;
use crate::wr::Remote;

/// The bit of a credit word that says goodbye: its writer has sent everything it accepted, and ends
/// the connection. The lower half of the word is the count, with or without it.
pub(super) const GOODBYE: u64 = 1 << 63;

/// Whether a peer counts the messages sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerCredit {
    /// Not known yet.
    Unknown,
    /// It is no worker, or does not count.
    Free,
    /// It counts, and promised that many receives at first.
    Counted(u32),
}

/// The credits of one connection, in both directions.
pub(super) struct Credit {
    pub(super) flow: PeerCredit,
    /// Messages of the peer that must leave their blocks before it is told of credit; that number
    /// after the last word; and its usual value.
    pub(super) until_return: u32,
    step: u32,
    return_every: u32,
    /// Messages that the peer may send, counted from the beginning: the value of the next word.
    pub(super) granted: u64,
    /// The credit word in its memory.
    pub(super) peer_word: Option<Remote>,
    /// The word is to be written.
    pub(super) due: bool,
}

impl Credit {
    /// The credit of a connection with that window for the peer.
    pub(super) fn new(window: u32) -> Credit {
        let return_every = if window == 0 { u32::MAX } else { (window / 2).max(1) };
        Credit {
            flow: PeerCredit::Unknown,
            until_return: return_every,
            step: return_every,
            return_every,
            granted: window.into(),
            peer_word: None,
            due: false,
        }
    }

    /// Ends a step: the peer may send that many messages more. With `eager` the next step is one
    /// message long. True if the peer is to be told now and was not to be told before.
    pub(super) fn step(&mut self, eager: bool) -> bool {
        // More than a step, if several blocks became free at once.
        let done = self.step.wrapping_sub(self.until_return);
        self.step = if eager { self.return_every.min(1) } else { self.return_every };
        self.until_return = self.step;
        // Nothing is promised to it, or it is no worker.
        if done == 0
            || self.granted == 0
            || self.peer_word.is_none() && self.flow != PeerCredit::Unknown
        {
            return false;
        }
        self.granted += u64::from(done);
        !core::mem::replace(&mut self.due, true)
    }

    /// Sets the peer's handshake; without one it is no worker. False: it was set before, and only
    /// the first counts.
    pub(super) fn set_handshake(&mut self, handshake: Option<Handshake>) -> bool {
        if self.flow != PeerCredit::Unknown {
            return false;
        }
        self.flow = match handshake {
            Some(Handshake { window: window @ 1.., .. }) => PeerCredit::Counted(window),
            _ => PeerCredit::Free,
        };
        self.peer_word = handshake.map(|handshake| handshake.word);
        true
    }

    /// Credit that a fresh message must leave for replies.
    pub(super) fn spare(&self) -> u32 {
        u32::from(self.flow != PeerCredit::Free)
    }

    /// Messages that may be sent, if `sent` were sent and the word says `allowed`.
    pub(super) fn left(&self, sent: u32, allowed: u64) -> u32 {
        match self.flow {
            PeerCredit::Unknown => 0,
            PeerCredit::Free => u32::MAX,
            PeerCredit::Counted(window) => {
                let allowed = if allowed == 0 { window } else { allowed as u32 };
                // A word that no worker writes gives nothing, or at most the window, which no
                // honest word exceeds.
                let left = allowed.wrapping_sub(sent);
                if left > u32::MAX / 2 { 0 } else { left.min(window) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The credit across the wrap of the count, and for words that make no sense.
    #[test]
    fn credit_follows_the_word_and_stays_in_bounds() {
        let mut credit = Credit::new(8);
        assert_eq!(credit.left(0, 0), 0, "it has not spoken");
        let handshake = Handshake { window: 20, word: Remote::default(), block_bytes: 64 };
        assert!(credit.set_handshake(Some(handshake)) && !credit.set_handshake(None));
        assert_eq!((credit.left(0, 0), credit.left(20, 0)), (20, 0));
        assert_eq!(credit.left(20, 25), 5);
        assert_eq!(credit.left(u32::MAX - 1, (1 << 32) + 3), 5);
        assert_eq!(credit.left(30, 25), 0);
        assert_eq!((credit.left(0, 1 << 30), credit.left(0, 21)), (20, 20), "a window at most");
        let mut plain = Credit::new(8);
        plain.set_handshake(None);
        assert_eq!((plain.left(1000, 0), plain.spare(), plain.peer_word), (u32::MAX, 0, None));
    }
}
