//! Whether messages of both sides cross on a link.
//!
//! Both sides write the mailbox slot. In a ping-pong its lines move with the messages. When
//! messages cross, each side takes the lines away from the other, which is writing them, and the
//! ring alone is faster.
//!
//! A second slot for each direction, in the lines of its tail, for messages that cross, gained
//! nothing. With Poisson arrivals on near cores at a tenth and at half of the peak, a round trip
//! takes 243 and 398 ns. With that slot it took 245 and 390 where only a message alone on its way
//! used it, and 262 and 487 where one behind up to 1 KiB of others did, too.
//!
//! Eight such slots for each direction, used in turn in place of the tail, helped few messages in
//! flight and hurt many. This is their message rate divided by the rate without them, on an Intel
//! processor (family 6, model 207), far cores, 64 bytes, the medians of four runs of 5 rounds:
//!
//! | in flight | rate |
//! |---|---|
//! | 2 | 0.91 to 1.05 |
//! | 3, 4 | 1.04 to 1.30 |
//! | 8 | 0.87 to 0.97 |
//! | 16 | 0.79 to 0.87 |
//! | 32 | 0.66 to 0.84 |

/// From this level on, records do not use the slot. Two crossings with few other arrivals between
/// them reach it.
const CONTENDED: u32 = 8;

/// How much the messages of a link cross.
pub(crate) struct Contention {
    level: u32,
}

impl Contention {
    pub(crate) const fn new() -> Contention {
        Contention { level: 0 }
    }

    /// True if a record may go by the slot.
    #[inline(always)]
    pub(crate) fn allows_slot(&self) -> bool {
        self.level < CONTENDED
    }

    /// Messages came from a peer that had not read everything, or several were taken at once.
    #[inline(always)]
    pub(crate) fn note_crossed(&mut self) {
        self.level = (self.level + CONTENDED / 2).min(2 * CONTENDED);
    }

    /// A message came that crossed no other.
    #[inline(always)]
    pub(crate) fn note_followed(&mut self) {
        self.level = self.level.saturating_sub(1);
    }

    /// A signalled message is sent, one of many. Credit messages cross with a stream, so earlier
    /// crossings count no more.
    #[inline(always)]
    pub(crate) fn note_signaled(&mut self) {
        self.level = self.level.saturating_sub(CONTENDED / 2);
    }

    /// How much they cross.
    #[cfg(test)]
    pub(crate) fn level(&self) -> u32 {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two crossings close the slot; each message that follows opens it a little.
    #[test]
    fn two_crossings_close_the_slot_until_messages_follow_each_other() {
        let mut contention = Contention::new();
        contention.note_crossed();
        assert!(contention.allows_slot());
        contention.note_crossed();
        assert!(!contention.allows_slot());
        contention.note_followed();
        assert!(contention.allows_slot());
        // However many have crossed, two full levels of messages open it again.
        (0..100).for_each(|_| contention.note_crossed());
        let closed = (0..).take_while(|_| {
            contention.note_followed();
            !contention.allows_slot()
        });
        assert_eq!(closed.count() as u32, CONTENDED);
    }

    /// In a stream each signalled send makes up for one crossing with the credit messages that come
    /// back.
    #[test]
    fn a_signalled_send_makes_up_for_one_crossing() {
        let mut contention = Contention::new();
        for _ in 0..100 {
            contention.note_crossed();
            assert!(contention.allows_slot());
            contention.note_signaled();
        }
        assert_eq!(contention.level(), 0);
    }
}
