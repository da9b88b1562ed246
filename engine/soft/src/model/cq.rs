//! Completion queues, and the destinations of new completions.
//!
//! A worker's domain has one queue and its thread is the one that polls: completions are made
//! straight into the array it passed, and only as many as fit. In the shared domain any poll
//! does the work of all, so completions wait in the ring of the queue they belong to.

use core::slice;

use std_alloc::boxed::Box;
use std_alloc::vec;

use crate::provider::wake::Notifier;
use crate::wc::Wc;

/// A send request that is retired when this completion is polled (SQ-2).
#[derive(Clone, Copy, Default)]
pub(crate) struct Retire {
    /// Number of the queue pair; 0 for receives.
    pub(crate) qp: u32,
    /// Requests of it that are then retired, counted from its creation.
    pub(crate) upto: u32,
    /// The sender of the message wanted its receiver woken (CP-6).
    pub(crate) solicited: bool,
}

impl Retire {
    /// For a receive; its sender wanted an event (CP-6) if `solicited`.
    #[inline(always)]
    pub(crate) fn receive(solicited: bool) -> Retire {
        Retire { solicited, ..Retire::default() }
    }
}

/// The extra part of an extended queue.
#[derive(Clone, Copy)]
pub(crate) struct Stamps {
    /// The clocks that each entry records.
    pub(crate) clock: Option<fn() -> u64>,
    pub(crate) wallclock: Option<fn() -> u64>,
    /// An entry that finds no room replaces the oldest.
    pub(crate) overwrites: bool,
}

/// Timestamps, one for each place of the ring.
struct Stamped {
    stamps: Stamps,
    times: Box<[[Option<u64>; 2]]>,
}

impl Stamped {
    /// The times of the entry at a place.
    fn at(&self, place: usize) -> [Option<u64>; 2] {
        self.times.get(place).copied().unwrap_or_default()
    }

    fn set(&mut self, place: usize, times: [Option<u64>; 2]) {
        if let Some(place) = self.times.get_mut(place) {
            *place = times;
        }
    }
}

/// A completion queue's ring.
pub(crate) struct CompletionQueue {
    ring: Box<[(Wc, Retire)]>,
    /// The part of an extended queue.
    stamped: Option<Box<Stamped>>,
    depth: u32,
    head: u32,
    tail: u32,
    health: Health,
    /// Wakes a thread that waits for an entry.
    notifier: Option<Notifier>,
    /// A thread waits for the next entry, or for the next solicited one (CP-6).
    armed: Option<Arm>,
    /// Awaited entries that came and that [`CompletionQueue::take_fired`] has not returned.
    fired: u32,
}

/// The kind of entry that a queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arm {
    Any,
    Solicited,
}

/// Whether a completion queue still takes entries (CP-5).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    /// It takes entries; extended queue.
    Extended,
    /// An entry found it full; its queue pairs have not been told.
    Overrun,
    /// Its queue pairs have been told. It takes no more entries.
    Dead,
    /// No queue.
    Gone,
}

/// What an entry does that finds an extended queue full.
enum Full {
    Overruns,
    /// It replaces the oldest.
    Replaces,
}

impl CompletionQueue {
    pub(crate) fn new(
        depth: u32,
        notifier: Option<Notifier>,
        stamps: Option<Stamps>,
    ) -> CompletionQueue {
        let size = depth.max(1).next_power_of_two() as usize;
        let times = || vec![Default::default(); size].into_boxed_slice();
        CompletionQueue {
            ring: vec![Default::default(); size].into_boxed_slice(),
            stamped: stamps.map(|stamps| Box::new(Stamped { stamps, times: times() })),
            depth,
            head: 0,
            tail: 0,
            health: if stamps.is_some() { Health::Extended } else { Health::Good },
            notifier,
            armed: None,
            fired: 0,
        }
    }

    /// A place without a queue.
    pub(crate) fn gone() -> CompletionQueue {
        CompletionQueue {
            ring: Box::default(),
            stamped: None,
            depth: 0,
            head: 0,
            tail: 0,
            health: Health::Gone,
            notifier: None,
            armed: None,
            fired: 0,
        }
    }

    /// True if no entry waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.health == Health::Gone
    }

    /// Arms the queue: the next entry of that kind wakes the waiting thread. A queue that is armed
    /// for any entry stays so, and an entry that an earlier call awaited still counts (CP-6).
    pub(crate) fn arm(&mut self, arm: Arm) {
        if self.armed != Some(Arm::Any) {
            self.armed = Some(arm);
        }
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// The entries that wait in an armed queue count as coming now, unless the thread has yet to
    /// hear of an awaited entry: then it polls anyway, and one entry must not wake it twice.
    pub(crate) fn count_waiting(&mut self) {
        if self.armed.is_none() || self.is_empty() || self.fired > 0 {
            return;
        }
        let mask = self.ring.len() - 1;
        let mut waiting = (0..self.tail.wrapping_sub(self.head))
            .filter_map(|at| self.ring.get(self.head.wrapping_add(at) as usize & mask));
        let special = waiting.any(|(wc, retire)| retire.solicited || !wc.status.is_ok());
        self.wake(special);
    }

    /// Returns true once for each awaited entry that came.
    pub(crate) fn take_fired(&mut self) -> bool {
        let Some(left) = self.fired.checked_sub(1) else { return false };
        self.fired = left;
        if left > 0 {
            self.ring();
        }
        true
    }

    fn fire(&mut self) {
        (self.armed, self.fired) = (None, self.fired.saturating_add(1));
        self.ring();
    }

    /// Wakes the waiting thread.
    pub(crate) fn ring(&self) {
        if let Some(notifier) = &self.notifier {
            notifier.ring();
        }
    }

    /// Adds a completion; a full queue overruns, and the new entry is lost. The first `ahead`
    /// entries of this poll have left already; they count as if they were still there. Inlined: see
    /// [`Queued`].
    #[inline(always)]
    pub(crate) fn push(&mut self, wc: Wc, retire: Retire, mut ahead: u32) {
        if self.health != Health::Good {
            match self.make_stamps() {
                // What has left makes room, as what is replaced does.
                Some(Full::Replaces) => ahead = 0,
                Some(Full::Overruns) => {}
                None => return,
            }
        }
        if self.tail.wrapping_sub(self.head) + ahead >= self.depth {
            return self.overrun();
        }
        let at = self.tail as usize & (self.ring.len() - 1);
        if let Some(place) = self.ring.get_mut(at) {
            *place = (wc, retire);
        }
        self.tail = self.tail.wrapping_add(1);
        if self.armed.is_some() {
            self.wake(retire.solicited || !wc.status.is_ok());
        }
    }

    #[cold]
    #[inline(never)]
    fn overrun(&mut self) {
        self.health = Health::Overrun;
        if self.armed.is_some() {
            self.fire();
        }
    }

    /// An entry has come to an armed queue; it is `special` if it wakes those who wait for a
    /// solicited one.
    #[cold]
    #[inline(never)]
    fn wake(&mut self, special: bool) {
        if special || self.armed == Some(Arm::Any) {
            self.fire();
        }
    }

    /// Records the time for the next entry, and makes room for the entry if the queue overwrites.
    /// `None`: the queue takes no more.
    #[cold]
    fn make_stamps(&mut self) -> Option<Full> {
        let (Health::Extended, Some(stamped)) = (self.health, &mut self.stamped) else {
            return None;
        };
        let Stamps { clock, wallclock, overwrites } = stamped.stamps;
        if self.tail.wrapping_sub(self.head) >= self.depth {
            if !overwrites {
                return Some(Full::Overruns);
            }
            self.head = self.head.wrapping_add(1);
        }
        let at = self.tail as usize & (self.ring.len() - 1);
        stamped.set(at, [clock, wallclock].map(|clock| clock.map(|clock| clock())));
        Some(if overwrites { Full::Replaces } else { Full::Overruns })
    }

    /// The times of the oldest entry.
    pub(crate) fn first_times(&self) -> [Option<u64>; 2] {
        let at = self.head as usize & (self.ring.len() - 1);
        self.stamped.as_ref().map(|stamped| stamped.at(at)).unwrap_or_default()
    }

    /// Makes room for `depth` entries. Fails with the number of entries if there are more.
    pub(crate) fn resize(&mut self, depth: u32) -> Result<(), u32> {
        let count = self.tail.wrapping_sub(self.head);
        if count > depth {
            return Err(count);
        }
        let stamps = self.stamped.as_ref().map(|stamped| stamped.stamps);
        let mut fresh = CompletionQueue::new(depth, None, stamps);
        for at in 0..count as usize {
            if let Some(stamped) = &mut fresh.stamped {
                stamped.set(at, self.first_times());
            }
            fresh.ring[at] = self.pop().unwrap_or_default();
        }
        (self.ring, self.stamped) = (fresh.ring, fresh.stamped);
        (self.depth, self.head, self.tail) = (depth, 0, count);
        Ok(())
    }

    /// True after an overrun, until [`CompletionQueue::take_overrun`].
    #[inline(always)]
    pub(crate) fn has_overrun(&self) -> bool {
        self.health == Health::Overrun
    }

    /// True once after an overrun: the queue's pairs must fail now.
    pub(crate) fn take_overrun(&mut self) -> bool {
        let overrun = self.has_overrun();
        if overrun {
            self.health = Health::Dead;
        }
        overrun
    }

    /// Removes all completions of a queue pair (SM-1), and calls `lost` with the numbers of its
    /// receives.
    pub(crate) fn forget(&mut self, qp: u32, lost: impl Fn(u64)) {
        let mask = self.ring.len() - 1;
        let (mut from, mut to) = (self.head, self.head);
        while from != self.tail {
            let entry = self.ring.get(from as usize & mask).copied();
            if let Some((wc, Retire { qp: 0, .. })) = entry.filter(|entry| entry.0.qp_num == qp) {
                lost(wc.wr_id);
            }
            if let Some(entry) = entry.filter(|entry| entry.0.qp_num != qp)
                && let Some(place) = self.ring.get_mut(to as usize & mask)
            {
                *place = entry;
                if let Some(stamped) = &mut self.stamped {
                    stamped.set(to as usize & mask, stamped.at(from as usize & mask));
                }
                to = to.wrapping_add(1);
            }
            from = from.wrapping_add(1);
        }
        self.tail = to;
    }

    /// The number of entries that may go straight to a poll that has emptied the ring: as many as
    /// the ring holds, if it keeps no times, and nobody waits for an entry.
    #[inline(always)]
    pub(crate) fn passes(&self) -> usize {
        debug_assert_eq!(self.head, self.tail);
        let is_plain = self.health == Health::Good || self.is_extended_without_times();
        if is_plain && self.armed.is_none() { self.depth as usize } else { 0 }
    }

    /// True if no entry waits, and one may go straight to a poll, by [`CompletionQueue::passes`].
    /// An extended queue answers false.
    #[inline(always)]
    pub(crate) fn passes_plain(&self) -> bool {
        let is_plain = self.health == Health::Good && self.armed.is_none() && self.depth > 0;
        is_plain && self.is_empty()
    }

    #[cold]
    #[inline(never)]
    fn is_extended_without_times(&self) -> bool {
        let has_times = |stamps: &Stamps| stamps.clock.is_some() || stamps.wallclock.is_some();
        let has_times = self.stamped.as_ref().is_some_and(|stamped| has_times(&stamped.stamps));
        self.health == Health::Extended && !has_times
    }

    /// Takes the oldest completion.
    pub(crate) fn pop(&mut self) -> Option<(Wc, Retire)> {
        if self.head == self.tail {
            return None;
        }
        let at = self.head as usize & (self.ring.len() - 1);
        self.head = self.head.wrapping_add(1);
        self.ring.get(at).copied()
    }
}

/// The destination of completions while the device works.
pub(crate) trait Sink {
    /// True if each poll must do all it can at once, because the next may be long in coming.
    /// Otherwise small tasks may wait for the next poll.
    const THOROUGH: bool;
    /// The number of completions that it takes now.
    fn room(&self) -> usize;
    /// True if an acknowledgement may wait for a reply: the program polls.
    fn may_wait(&self) -> bool;
    /// Takes one, for completion queue `cq`. True if it counts as polled: the poller has it.
    fn put(&mut self, cqs: &mut [CompletionQueue], cq: usize, wc: Wc, retire: Retire) -> bool;
    /// Lets `fill` write completions of receives that wake nobody, from the first place on. `fill`
    /// returns their number, which this returns too. 0 if each completion needs a look of its own.
    fn fill(&mut self, fill: impl FnOnce(&mut [Wc]) -> usize) -> usize;
}

/// The array of the polling thread: the part that is not yet filled.
pub(crate) struct Direct<'a> {
    pub(crate) free: slice::IterMut<'a, Wc>,
}

impl Sink for Direct<'_> {
    const THOROUGH: bool = false;

    #[inline(always)]
    fn room(&self) -> usize {
        self.free.len()
    }

    fn may_wait(&self) -> bool {
        true
    }

    #[inline(always)]
    fn put(&mut self, _cqs: &mut [CompletionQueue], _cq: usize, wc: Wc, _: Retire) -> bool {
        if let Some(place) = self.free.next() {
            *place = wc;
        }
        true
    }

    #[inline(always)]
    fn fill(&mut self, fill: impl FnOnce(&mut [Wc]) -> usize) -> usize {
        let places = core::mem::take(&mut self.free).into_slice();
        let count = fill(places);
        self.free = places.get_mut(count..).unwrap_or_default().iter_mut();
        count
    }
}

/// The most work that one poll of the shared domain does.
pub(crate) const SHARED_BUDGET: usize = 256;

/// The index of no queue: somebody works in place of the program.
const NO_QUEUE: usize = usize::MAX;

/// The rings of the shared domain, and the array of the poll. In the array a completion is built in
/// place. Through a ring it would be loaded by wider loads than the stores that have just written
/// it, and wait for them.
pub(crate) struct Queued<'a> {
    /// Bounds the work of one poll.
    budget: usize,
    /// The queue that the program polls, or [`NO_QUEUE`].
    polled: usize,
    /// The part of the array that is not yet filled, and the number of entries in the rest.
    free: slice::IterMut<'a, Wc>,
    taken: u32,
}

impl<'a> Queued<'a> {
    /// A poll of one queue. Its entries go straight to `out`, as many as there are places.
    #[inline(always)]
    pub(crate) fn polling(polled: usize, out: &'a mut [Wc]) -> Queued<'a> {
        Queued { budget: SHARED_BUDGET, polled, free: out.iter_mut(), taken: 0 }
    }

    /// Work without a poll of the program, which may sleep.
    pub(crate) fn within(budget: usize) -> Queued<'a> {
        Queued { budget, ..Queued::polling(NO_QUEUE, &mut []) }
    }

    /// True if an entry of that queue would go to the array.
    #[inline(always)]
    pub(crate) fn passes(&self, cq: usize) -> bool {
        cq == self.polled && self.free.len() > 0
    }

    /// The number of entries in the array.
    #[inline(always)]
    pub(crate) fn taken(&self) -> usize {
        self.taken as usize
    }
}

impl Sink for Queued<'_> {
    const THOROUGH: bool = true;

    fn room(&self) -> usize {
        self.budget
    }

    fn may_wait(&self) -> bool {
        self.polled != NO_QUEUE
    }

    #[inline(always)]
    fn put(&mut self, cqs: &mut [CompletionQueue], cq: usize, wc: Wc, retire: Retire) -> bool {
        self.budget = self.budget.saturating_sub(1);
        let is_polled = cq == self.polled;
        if is_polled && let Some(place) = self.free.next() {
            *place = wc;
            self.taken += 1;
            return true;
        }
        if let Some(queue) = cqs.get_mut(cq) {
            queue.push(wc, retire, if is_polled { self.taken } else { 0 });
        }
        false
    }

    fn fill(&mut self, _: impl FnOnce(&mut [Wc]) -> usize) -> usize {
        0
    }
}
