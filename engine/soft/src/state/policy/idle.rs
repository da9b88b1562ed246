//! When polls stop serving a link.
//!
//! A domain has a link for each domain it talks to, and most of many are idle. A link on which
//! nothing has come for a while becomes idle: a poll serves the busy links and only checks a few of
//! the idle ones, in turn. So the cost of a poll depends on the busy links. The first message on an
//! idle link is seen after as many polls as there are idle links, divided by the checks of a poll.

/// A link may become idle after this many polls without an arrival.
const IDLE_AFTER: u32 = 256;

/// Idle links that a poll checks besides the busy ones it serves.
pub(crate) const IDLE_CHECKS: usize = 8;

/// Counts polls of a domain's links.
pub(crate) struct IdlePolicy {
    /// Polls since the links were last examined.
    polls: u32,
}

impl IdlePolicy {
    pub(crate) const fn new() -> IdlePolicy {
        IdlePolicy { polls: 0 }
    }

    /// A poll has served the busy links. True once in [`IDLE_AFTER`] polls: examine them.
    pub(crate) fn is_due(&mut self) -> bool {
        self.polls += 1;
        let is_due = self.polls >= IDLE_AFTER;
        if is_due {
            self.polls = 0;
        }
        is_due
    }

    /// True if a link on which nothing came in that many polls may become idle.
    pub(crate) fn is_quiet(empty_polls: u32) -> bool {
        empty_polls >= IDLE_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links are examined once in every 256 polls.
    #[test]
    fn links_are_examined_once_in_so_many_polls() {
        let mut policy = IdlePolicy::new();
        let due: std::vec::Vec<bool> = (0..3 * IDLE_AFTER).map(|_| policy.is_due()).collect();
        assert_eq!(due.iter().filter(|due| **due).count(), 3);
        assert!(due[IDLE_AFTER as usize - 1] && !due[IDLE_AFTER as usize]);
    }

    /// One message per examination keeps a link busy.
    #[test]
    fn a_link_with_one_message_lately_stays_busy() {
        assert!(!IdlePolicy::is_quiet(0) && !IdlePolicy::is_quiet(IDLE_AFTER - 1));
        assert!(IdlePolicy::is_quiet(IDLE_AFTER));
    }
}
