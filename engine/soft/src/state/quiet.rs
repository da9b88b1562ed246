//! Links that no poll serves: where the sender of each publishes, and what it had published before.
//!
//! The watched words of all resting links lie side by side, so a look at many links reads the
//! shared words and little else.
#![expect(unsafe_code, reason = "words in the memory of links")]

use arrayvec::ArrayVec;
use core::ptr::NonNull;

use crate::prefetch::fetch_line;
use crate::room::FixedCapacity;
use crate::shm::layout::LINE;
use crate::state::link::Link;
use crate::state::policy::idle::{IDLE_AFTER, RESTING_MAX};
use crate::sync::{AtomicU64, Ordering};

/// A word that a sender publishes in, and its value when the link became quiet.
#[derive(Clone, Copy)]
struct Watch {
    word: NonNull<AtomicU64>,
    seen: u64,
}

// SAFETY: it belongs to the domain, as the link does.
unsafe impl Send for Watch {}

impl Watch {
    /// True if the sender has published something. The poll serves a link for which this is true,
    /// and reads the words again with the right order. So this load may be relaxed.
    #[inline(always)]
    fn has_changed(&self) -> bool {
        // SAFETY: the word is in the memory of a link in the table. Only commands take links out,
        // and `Domain::attend` makes all links busy after commands, so no poll finds a link quiet
        // that has gone.
        unsafe { self.word.as_ref() }.load(Ordering::Relaxed) != self.seen
    }
}

/// The sender's word in a slot.
#[derive(Clone, Copy)]
struct Slot {
    watch: Watch,
    /// The last record in the slot filled one line behind the first. The next probably will.
    two_lines: bool,
}

impl Slot {
    /// As [`Watch::has_changed`]. It prefetches the second line of a record along with the first.
    /// If that line were read behind the first, a message of 64 bytes from a far core would take a
    /// transfer more: with 8 links in turn 360 ns in place of 220.
    #[inline(always)]
    fn has_changed(&self) -> bool {
        if self.two_lines {
            fetch_line(self.watch.word.as_ptr().cast::<u8>().wrapping_add(LINE));
        }
        self.watch.has_changed()
    }
}

/// A link that rests or is idle.
#[derive(Clone, Copy)]
pub(crate) struct Quiet {
    /// In the table of links.
    pub(crate) index: usize,
    /// The count of looks when something last came.
    pub(crate) since: u32,
    /// The sender's words: in the slot, and for records that are in the ring alone.
    slot: Slot,
    tail: Watch,
}

impl Quiet {
    /// The link, which has no work.
    #[inline(always)]
    pub(crate) fn new(link: &Link, since: u32) -> Quiet {
        let [watch, tail] =
            link.rx.watched().map(|(word, seen)| Watch { word: NonNull::from(word), seen });
        let slot = Slot { watch, two_lines: link.rx.slot_lines == 1 };
        Quiet { index: link.index, since, slot, tail }
    }

    /// True if the sender has published something. For an idle link: it prefetches nothing.
    #[inline(always)]
    pub(crate) fn has_changed(&self) -> bool {
        self.slot.watch.has_changed() || self.tail.has_changed()
    }

    /// True if nothing has come for long, by the count of looks.
    #[inline(always)]
    pub(crate) fn has_rested(&self, looks: u32) -> bool {
        looks.wrapping_sub(self.since) >= IDLE_AFTER
    }
}

/// The resting links.
pub(crate) struct Resting {
    slots: ArrayVec<Slot, RESTING_MAX>,
    tails: ArrayVec<Watch, RESTING_MAX>,
    links: ArrayVec<(usize, u32), RESTING_MAX>,
    /// The places where the next looks begin.
    next_slot: usize,
    next_tail: usize,
}

impl Resting {
    pub(crate) const fn new() -> Resting {
        Resting {
            slots: ArrayVec::new_const(),
            tails: ArrayVec::new_const(),
            links: ArrayVec::new_const(),
            next_slot: 0,
            next_tail: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.links.is_full()
    }

    /// Adds a link, for which there is room.
    pub(crate) fn put(&mut self, quiet: Quiet) {
        self.slots.put(quiet.slot);
        self.tails.put(quiet.tail);
        self.links.put((quiet.index, quiet.since));
    }

    /// The link at that place.
    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> Option<Quiet> {
        let (index, since) = *self.links.get(at)?;
        Some(Quiet { index, since, slot: *self.slots.get(at)?, tail: *self.tails.get(at)? })
    }

    /// The index in the table of the link at that place.
    #[inline(always)]
    pub(crate) fn index_at(&self, at: usize) -> Option<usize> {
        self.links.get(at).map(|(index, _)| *index)
    }

    /// The link at that place has seen what came, and rests again. Its words stay where they are:
    /// to note them anew costs a message 28 instructions.
    #[inline(always)]
    pub(crate) fn renew(&mut self, at: usize, link: &Link, now: u32) {
        if let Some(slot) = self.slots.get_mut(at)
            && let Some(tail) = self.tails.get_mut(at)
            && let Some((_, since)) = self.links.get_mut(at)
        {
            [slot.watch.seen, tail.seen] = link.rx.seen();
            slot.two_lines = link.rx.slot_lines == 1;
            *since = now;
        }
    }

    /// Takes out the link at that place. The last one moves there, and may be looked at next.
    pub(crate) fn take(&mut self, at: usize) -> Option<Quiet> {
        let quiet = self.get(at)?;
        for next in [&mut self.next_slot, &mut self.next_tail] {
            *next -= usize::from(*next == at + 1);
        }
        self.slots.swap_pop(at);
        self.tails.swap_pop(at);
        self.links.swap_pop(at);
        Some(quiet)
    }

    /// The place of the link with that index in the table.
    pub(crate) fn place_of(&self, index: usize) -> Option<usize> {
        self.links.iter().position(|(rests, _)| *rests == index)
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.tails.clear();
        self.links.clear();
    }

    /// Looks at up to `slots` slots, and if nothing has come there at up to `tails` tails, each
    /// time behind those of the last time. Returns the place of the first link on which something
    /// has come, and how many slots it has not looked at.
    #[inline(always)]
    pub(crate) fn find(&mut self, slots: usize, tails: usize) -> Option<(usize, usize)> {
        if let Some((at, looked)) = first(&self.slots, self.next_slot, slots, Slot::has_changed) {
            self.next_slot = at + 1;
            return Some((at, slots.saturating_sub(looked + 1)));
        }
        let found = first(&self.tails, self.next_tail, tails, Watch::has_changed);
        let next = found.map_or(self.next_tail + tails, |(at, _)| at + 1);
        self.next_tail = if next < self.tails.len() { next } else { 0 };
        found.map(|(at, _)| (at, slots))
    }
}

/// Looks at up to `looks` words, beginning with the one at `first`. Returns the place of the first
/// that has changed, and how many it has looked at before.
#[inline(always)]
pub(crate) fn first<W>(
    words: &[W],
    first: usize,
    looks: usize,
    changed: impl Fn(&W) -> bool,
) -> Option<(usize, usize)> {
    let (before, behind) = words.split_at_checked(first).unwrap_or((&[], words));
    let first = before.len();
    let behind = behind.get(..looks).unwrap_or(behind);
    if let Some(n) = behind.iter().position(&changed) {
        return Some((first + n, n));
    }
    let before = before.get(..looks - behind.len()).unwrap_or(before);
    let at = before.iter().position(&changed)?;
    Some((at, behind.len() + at))
}
