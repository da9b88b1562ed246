//! The regions from which the two sides of a link lend the bytes of messages.
//!
//! A sender lends only from regions that the receiver has mapped, and whose keys the receiver has
//! written to a line of the link. When a link is made, each side maps the regions of the other if
//! they are few. The sender asks for any other region once, when it first sends a long message from
//! there. Until it is mapped, and if it cannot be mapped, messages go through the ring.

use arrayvec::ArrayVec;

use crate::room::FixedCapacity;
use crate::shm::layout::{KEYS, LinkHeader, Side};
use crate::state::policy::copying::Distance;
use crate::sync::Ordering;

/// One side's part.
pub(crate) struct Lending {
    header: LinkHeader,
    side: Side,
    /// The region last lent from, 0 for none.
    last: u32,
    /// This side has lent since it last copied what the peer lends. So the peer's core probably has
    /// the lines of this side's receives too: programs answer from the memory of the question.
    pub(crate) lent: bool,
    /// Whether the peer's core is far.
    pub(crate) distance: Distance,
    /// The regions of this side that the peer was asked to map.
    asked: ArrayVec<u32, KEYS>,
    /// How many regions of the peer this side has told of.
    told: usize,
}

impl Lending {
    pub(crate) fn new(header: LinkHeader, side: Side) -> Lending {
        // The regions that were mapped when the link was made.
        let is_told = |n: &usize| header.mapped(side, *n).load(Ordering::Relaxed) != 0;
        let told = (0..KEYS).take_while(is_told).count();
        let (lent, distance) = (false, Distance::default());
        Lending { header, side, last: 0, lent, distance, asked: ArrayVec::new(), told }
    }

    /// True if the peer reads the region of that key.
    #[inline(always)]
    pub(crate) fn allows(&mut self, key: u32) -> bool {
        self.last == key || self.look_up(key)
    }

    #[cold]
    fn look_up(&mut self, key: u32) -> bool {
        // Relaxed: the key tells only that the peer has mapped the region, which is the peer's own
        // business.
        let told = |n| self.header.mapped(self.side.peer(), n).load(Ordering::Relaxed);
        let found = key != 0 && (0..KEYS).any(|n| told(n) == key);
        if found {
            self.last = key;
        }
        found
    }

    /// True if the peer was not asked for the region of that key, and can be.
    pub(crate) fn may_ask(&self, key: u32) -> bool {
        !self.asked.is_full() && !self.asked.contains(&key)
    }

    /// Notes that the peer is asked for that region.
    pub(crate) fn note_asked(&mut self, key: u32) {
        self.asked.put(key);
    }

    /// True if there is room to tell of one more region of the peer.
    pub(crate) fn may_tell(&self) -> bool {
        self.told < KEYS
    }

    /// Tells the peer that its region of that key is mapped here. There is room:
    /// [`Lending::may_tell`].
    pub(crate) fn tell(&mut self, key: u32) {
        self.header.mapped(self.side, self.told).store(key, Ordering::Relaxed);
        self.told += 1;
    }
}
