//! Whether an acknowledgement waits for the reply that will carry it.
//!
//! A poll of the shared domain acknowledges at once what it has taken, because the next one may be
//! long in coming. That is a transfer between cores of its own. Where the program answers each
//! message, the reply can carry the acknowledgement instead, and a sender that waits for the end of
//! its send and for the reply finds both in one line. So after some messages that were answered,
//! the acknowledgement of the next waits, until the next post or poll.

/// Arrivals answered in a row after which the next is expected to be.
const ANSWERED: u32 = 8;

/// After this number of acknowledgements that came alone, a poll looks at everything.
const ALONE_MAX: u32 = 64;

/// What becomes of the messages of a link.
pub(crate) struct ReplyPolicy {
    /// The position that was published when something last came.
    published: u64,
    /// Arrivals in a row that were answered before the next.
    answered: u32,
    /// The last acknowledgement of the peer came with a message.
    pub(crate) peer_replies: bool,
    /// Acknowledgements that came alone since the last look at everything.
    alone: u32,
}

impl ReplyPolicy {
    pub(crate) const fn new() -> ReplyPolicy {
        ReplyPolicy { published: 0, answered: 0, peer_replies: false, alone: 0 }
    }

    /// Something has come, when everything up to `published` was sent. True if its acknowledgement
    /// may wait for a reply.
    #[inline(always)]
    pub(crate) fn note_arrival(&mut self, published: u64) -> bool {
        let answered = core::mem::replace(&mut self.published, published) != published;
        self.answered = if answered { self.answered.saturating_add(1) } else { 0 };
        self.answered > ANSWERED
    }

    /// True if [`ReplyPolicy::note_arrival`] would return true, as it has before. Then it only
    /// notes what was published. That stays so until something comes, or an acknowledgement has
    /// waited in vain.
    #[inline(always)]
    pub(crate) fn arrives_again(&self, published: u64) -> bool {
        self.published != published && self.answered > ANSWERED
    }

    /// The rest of [`ReplyPolicy::note_arrival`] after [`ReplyPolicy::arrives_again`].
    #[inline(always)]
    pub(crate) fn note_again(&mut self, published: u64) {
        self.published = published;
    }

    /// An acknowledgement of the peer has come alone, and a poll has looked at nothing else.
    #[inline(always)]
    pub(crate) fn note_ack_alone(&mut self) {
        self.peer_replies = false;
        self.alone += 1;
    }

    /// True if the next poll is to look at everything, although an acknowledgement has come: a
    /// program that only writes finds one in each poll, and messages must not wait for ever.
    #[inline(always)]
    pub(crate) fn is_look_due(&self) -> bool {
        self.alone >= ALONE_MAX
    }

    /// A poll looks at everything.
    pub(crate) fn note_look(&mut self) {
        self.alone = 0;
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
