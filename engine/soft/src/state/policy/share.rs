//! Whether both sides of a link send, or this side alone.

use crate::shm::layout::AREA;

/// The bytes of a span. A side compares what it has sent with what the peer has sent since the span
/// before this one. A span is twice the ring: each side may fill the ring before the other answers.
const SPAN: u64 = 2 * AREA as u64;

/// Positions of both directions: at the start of this span, and of the one before.
pub(crate) struct Share {
    before: Mark,
    last: Mark,
}

#[derive(Clone, Copy)]
struct Mark {
    written: u64,
    read: u64,
}

impl Share {
    pub(crate) const fn new() -> Share {
        let start = Mark { written: 0, read: 0 };
        Share { before: start, last: start }
    }

    /// True if the peer sends as well: at least one byte for every 64 that this side sends.
    /// `written` and `read` are how far this side has written and read. A peer that sends short
    /// requests and gets long answers is above that, and one that sends words of credit alone is
    /// below. Also true in the first span, when nothing is known.
    pub(crate) fn both_send(&mut self, written: u64, read: u64) -> bool {
        if written - self.last.written >= SPAN {
            self.before = core::mem::replace(&mut self.last, Mark { written, read });
        }
        written < SPAN || (read - self.before.read) * 64 >= written - self.before.written
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Whether both send, by this side's view after each KiB that it sends. The peer sends the
    /// bytes that `peer` gives for the position.
    fn views(share: &mut Share, from: (u64, u64), peer: impl Fn(u64) -> u64) -> Vec<bool> {
        let (mut written, mut read) = from;
        (0..4 * SPAN / 1024)
            .map(|_| {
                written += 1024;
                read += peer(written);
                share.both_send(written, read)
            })
            .collect()
    }

    /// It sees a peer that answers, in turn or with whole rings at a time, and one that sends a
    /// little. A change is seen after two spans.
    #[test]
    fn a_side_knows_whether_the_peer_sends() {
        let steady = (2 * SPAN / 1024) as usize;
        let mut share = Share::new();
        assert!(views(&mut share, (0, 0), |_| 1024).iter().all(|both| *both));
        let read = 4 * SPAN;
        let alone = views(&mut share, (4 * SPAN, read), |_| 8);
        assert!(alone[0] && !alone[steady..].contains(&true));
        let at_once = |written: u64| match written.is_multiple_of(AREA.into()) {
            true => u64::from(AREA),
            false => 0,
        };
        let in_turn = views(&mut share, (8 * SPAN, read + 8 * 4 * SPAN / 1024), at_once);
        assert!(!in_turn[0] && !in_turn[steady..].contains(&false));
    }

    /// Before anything is known, both may send.
    #[test]
    fn the_first_span_may_be_a_conversation() {
        let alone = views(&mut Share::new(), (0, 0), |_| 0);
        let span = (SPAN / 1024) as usize;
        assert!(!alone[..span - 1].contains(&false) && !alone[span..].contains(&true));
    }
}
