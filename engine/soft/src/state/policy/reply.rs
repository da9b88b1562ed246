//! Whether an acknowledgement waits for the reply that will carry it.
//!
//! A poll of the shared domain acknowledges at once what it has taken, because the next one may be
//! long in coming. That is a transfer between cores of its own. Where the program answers each
//! message, the reply can carry the acknowledgement instead, and a sender that waits for the end of
//! its send and for the reply finds both in one line. So after some messages that were answered,
//! the acknowledgement of the next waits, until the next post or poll.

/// Arrivals answered in a row after which the next is expected to be.
const ANSWERED: u32 = 8;

/// What becomes of the messages of a link.
pub(crate) struct ReplyPolicy {
    /// The position that was published when something last came.
    published: u64,
    /// Arrivals in a row that were answered before the next.
    answered: u32,
    /// The last acknowledgement of the peer came with a message.
    pub(crate) peer_replies: bool,
}

impl ReplyPolicy {
    pub(crate) const fn new() -> ReplyPolicy {
        ReplyPolicy { published: 0, answered: 0, peer_replies: false }
    }

    /// Something has come, when everything up to `published` was sent. True if its acknowledgement
    /// may wait for a reply.
    #[inline(always)]
    pub(crate) fn note_arrival(&mut self, published: u64) -> bool {
        let answered = core::mem::replace(&mut self.published, published) != published;
        self.answered = if answered { self.answered.saturating_add(1) } else { 0 };
        self.answered > ANSWERED
    }

    /// An acknowledgement has waited, and no reply came before the next poll.
    pub(crate) fn note_vain(&mut self) {
        self.answered = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_eight_answers_the_acknowledgement_waits_until_it_has_waited_in_vain() {
        let mut reply = ReplyPolicy::new();
        let mut published = 0;
        for _ in 0..2 {
            for _ in 0..=ANSWERED {
                assert!(!reply.note_arrival(published));
                published += 16;
            }
            assert!(reply.note_arrival(published));
            published += 16;
            assert!(reply.note_arrival(published));
            reply.note_vain();
        }
        assert!(!reply.note_arrival(published), "the last was not answered");
    }
}
