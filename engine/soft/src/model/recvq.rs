//! Receive queues: one type for a queue pair's own and for a shared one.
//!
//! Receives leave in the order they came, to whichever domain asks. A domain prefetches a few at a
//! time, as a NIC does, so that it takes the lock once for all of them. A domain that finds nothing
//! left asks the others; on its next poll each gives back what it has prefetched, once.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec;
use std_alloc::vec::Vec;

use crate::model::biased::{Biased, Threads};
use crate::model::local_waker::LocalWaker;
use crate::model::memory::MrCache;
use crate::model::pd::PdMark;
use crate::room::{TryGrow, copy_into};
use crate::wr::{PostCause, PostError, RecvWr};

/// The most receives that a domain prefetches.
pub(crate) const PREFETCH_MAX: usize = 64;

/// The queue proper: a ring of posted receives.
struct Ring {
    slots: Box<[RecvWr]>,
    /// The number of receives it takes, including those that are prefetched and not used.
    depth: u32,
    head: u32,
    tail: u32,
    /// The domains, by their number here.
    claims: Vec<Option<Claim>>,
    /// Receives that they have prefetched, used or not.
    claimed: u32,
    /// What the only domain tells; `None` with none or several. It stands in `claims` too: here a
    /// post finds it without a look at the list.
    only: Option<Used>,
    /// Raise an event when fewer than this many are left; 0 for none.
    limit: u32,
}

/// A domain found no receive, and may be asleep. Changes under the lock of the ring.
const STARVED: u32 = 1;

/// The owner of the queue has flushed it, and must hear of each receive that is posted from then
/// on. Set under the lock of the ring; the owner's domain takes it back.
const FLUSHED: u32 = 2;

/// What a domain and a queue tell each other about the receives that the domain has prefetched.
pub(crate) type Used = Arc<Use>;

/// See [`Used`].
#[derive(Default)]
pub(crate) struct Use {
    /// How many of them the domain has used; it counts them.
    count: AtomicU32,
    /// The domain has to give the others back: another one found the queue empty, or the limit is
    /// near. Written under the lock of the queue.
    asked: AtomicBool,
}

/// What one domain has prefetched from a queue.
struct Claim {
    /// How many receives it has prefetched, and how many of those it has used.
    claimed: u32,
    used: Used,
    local_waker: Arc<LocalWaker>,
}

impl Claim {
    /// Relaxed: a stale count only makes the queue look fuller.
    #[inline(always)]
    fn unused(&self) -> u32 {
        self.claimed.saturating_sub(self.used.count.load(Ordering::Relaxed))
    }

    fn has_some(&self) -> bool {
        self.unused() > 0
    }
}

impl Ring {
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Receives that are prefetched and not used.
    #[inline(always)]
    fn ahead(&self) -> u32 {
        let mut ahead = 0;
        for claim in self.claims.iter().flatten() {
            ahead += claim.unused();
        }
        ahead
    }

    /// The claims of the domains that have some left, all but the one of that number.
    fn others(&self, number: Option<usize>) -> impl Iterator<Item = &Claim> {
        let claims = self.claims.iter().enumerate().filter(move |(at, _)| Some(*at) != number);
        claims.filter_map(|(_, claim)| claim.as_ref()).filter(|claim| claim.has_some())
    }

    /// True if fewer than the limit are left, in the queue and with the domains, when `used` more
    /// are used; then there is no limit any more.
    fn reaches_limit(&mut self, used: u32) -> bool {
        let reached = self.len() + self.ahead() < self.limit + used;
        if reached {
            self.limit = 0;
        }
        reached
    }

    /// True if one more receive fits. Prefetched receives keep their place here, because they may
    /// come back. The counts of used ones lie in lines of other processors, so they are read only
    /// where they matter.
    #[inline(always)]
    fn has_room(&self) -> bool {
        let len = self.len();
        len + self.claimed < self.depth || len < self.depth && len + self.ahead() < self.depth
    }

    /// The same without a loop. False: perhaps there is room, if several domains use the queue.
    #[inline(always)]
    fn has_room_at_once(&self) -> bool {
        // The domain has used no more than it has prefetched: its count begins anew under the lock.
        let used = self.only.as_ref().map_or(0, |only| only.count.load(Ordering::Relaxed));
        (self.len() + self.claimed).wrapping_sub(used) < self.depth
    }

    /// The domains have changed.
    fn update_only(&mut self) {
        let mut claims = self.claims.iter().flatten();
        let only = claims.next().filter(|_| claims.next().is_none());
        self.only = only.map(|claim| claim.used.clone());
    }

    /// Adds one receive, for which there is room.
    #[inline(always)]
    fn add(&mut self, wr: impl FnOnce() -> RecvWr) -> bool {
        let at = self.tail as usize & (self.slots.len() - 1);
        let Some(place) = self.slots.get_mut(at) else { return false };
        *place = wr();
        self.tail = self.tail.wrapping_add(1);
        true
    }

    fn claim(&mut self, number: usize, claimed: u32) {
        if let Some(Some(claim)) = self.claims.get_mut(number) {
            let before = core::mem::replace(&mut claim.claimed, claimed);
            self.claimed = self.claimed - before + claimed;
        }
    }
}

/// The slots of a ring for `depth` receives.
fn slots_for(depth: u32) -> Box<[RecvWr]> {
    vec![RecvWr::default(); depth.max(1).next_power_of_two() as usize].into_boxed_slice()
}

/// A receive queue.
pub(crate) struct RecvQueue {
    /// Unique within the device.
    id: u32,
    /// The protection domain it belongs to.
    pd: PdMark,
    /// It is a shared receive queue: several domains may use it, and it may have a limit.
    is_shared: bool,
    ring: Biased<Ring>,
    /// Domains that consume from it.
    users: AtomicU32,
    /// What a post has to do beside adding receives: bits of [`STARVED`] and [`FLUSHED`].
    attends: AtomicU32,
    /// The position behind the last list of receives that was posted. Written under the lock of
    /// `ring`.
    listed: AtomicU32,
}

impl RecvQueue {
    /// A queue for `depth` receives, in memory of that protection domain, which those threads use.
    pub(crate) fn new(id: u32, depth: u32, pd: PdMark, threads: Threads) -> RecvQueue {
        let ring = Ring {
            slots: slots_for(depth),
            depth,
            head: 0,
            tail: 0,
            claims: Vec::new(),
            claimed: 0,
            only: None,
            limit: 0,
        };
        RecvQueue {
            id,
            pd,
            is_shared: false,
            ring: Biased::new(ring, threads),
            users: AtomicU32::new(0),
            attends: AtomicU32::new(0),
            listed: AtomicU32::new(0),
        }
    }

    /// The same as a shared receive queue.
    pub(crate) fn shared(self) -> RecvQueue {
        RecvQueue { is_shared: true, ..self }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn depth(&self) -> u32 {
        self.ring.lock().depth
    }

    /// Makes room for `depth` receives. If it has more, counting the prefetched ones, or its limit
    /// is higher, it changes nothing; the error is the least depth possible.
    pub(crate) fn resize(&self, depth: u32) -> Result<(), u32> {
        let mut slots = slots_for(depth);
        let mut ring = self.ring.lock();
        let least = (ring.len() + ring.ahead()).max(ring.limit);
        if depth < least {
            return Err(least);
        }
        let (count, mask) = (ring.len(), ring.slots.len() - 1);
        for (place, at) in slots.iter_mut().take(count as usize).zip(ring.head as usize..) {
            *place = ring.slots[at & mask];
        }
        (ring.slots, ring.depth, ring.head, ring.tail) = (slots, depth, 0, count);
        Ok(())
    }

    pub(crate) fn pd(&self) -> PdMark {
        self.pd
    }

    /// One more domain consumes from here, and counts its use in `used`. `None`: no memory for it.
    pub(crate) fn attach(&self, local_waker: &Arc<LocalWaker>, used: Used) -> Option<Prefetch> {
        let mut ring = self.ring.lock();
        let claim = Claim { claimed: 0, used: used.clone(), local_waker: local_waker.clone() };
        let claims = &mut ring.claims;
        let number = claims.iter().position(Option::is_none).unwrap_or(claims.len());
        if !claims.place(number, Some(claim)) {
            return None;
        }
        ring.update_only();
        self.users.fetch_add(1, Ordering::Relaxed);
        let (mr_cache, wrs) = (MrCache::of(self.pd), [RecvWr::default(); PREFETCH_MAX]);
        Some(Prefetch { number, used, next: 0, end: 0, mr_cache, wrs })
    }

    /// A domain leaves and gives back what it has prefetched. True as for
    /// [`RecvQueue::give_back`].
    #[must_use]
    pub(crate) fn detach(&self, prefetch: &mut Prefetch) -> bool {
        let reached = self.give_back(prefetch);
        self.users.fetch_sub(1, Ordering::Relaxed);
        let mut ring = self.ring.lock();
        ring.claim(prefetch.number, 0);
        if let Some(claim) = ring.claims.get_mut(prefetch.number) {
            *claim = None;
        }
        ring.update_only();
        reached
    }

    /// Adds one receive at the end, if there is room and no domain waits for it. False: nothing was
    /// done, and the caller uses [`RecvQueue::post`].
    #[inline(always)]
    pub(crate) fn post_one(&self, wr: impl FnOnce() -> RecvWr) -> bool {
        self.add_one(&mut self.ring.lock(), wr)
    }

    /// As [`RecvQueue::post_one`], if the lock of the queue belongs to this thread, and under that
    /// lock `is_open` is true. It makes no call.
    #[inline(always)]
    pub(crate) fn post_one_own(
        &self,
        is_open: impl FnOnce() -> bool,
        wr: impl FnOnce() -> RecvWr,
    ) -> bool {
        let Some(mut ring) = self.ring.lock_own() else { return false };
        is_open() && !self.attends() && ring.has_room_at_once() && ring.add(wr)
    }

    #[inline(always)]
    fn add_one(&self, ring: &mut Ring, wr: impl FnOnce() -> RecvWr) -> bool {
        !self.attends() && ring.has_room() && ring.add(wr)
    }

    /// True if a post has to do more than to add receives. Relaxed: see
    /// [`RecvQueue::is_flushed`].
    #[inline(always)]
    fn attends(&self) -> bool {
        self.attends.load(Ordering::Relaxed) != 0
    }

    fn is_starved(&self) -> bool {
        self.attends.load(Ordering::Relaxed) & STARVED != 0
    }

    /// Adds receives at the end: all, or as many as fit (PL-5).
    pub(crate) fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let mut ring = self.ring.lock();
        if let [one] = list
            && self.add_one(&mut ring, || *one)
        {
            return Ok(());
        }
        let mut room = ring.depth.saturating_sub(ring.len());
        // As in `has_room`.
        if list.len() > room.saturating_sub(ring.claimed) as usize {
            room = room.saturating_sub(ring.ahead());
        }
        let take = list.len().min(room as usize);
        let at = ring.tail as usize & (ring.slots.len() - 1);
        let new = list.get(..take).unwrap_or_default();
        let (front, back) = ring.slots.split_at_mut_checked(at).unwrap_or_default();
        let straight = copy_into(back, new);
        copy_into(front, new.get(straight..).unwrap_or_default());
        ring.tail = ring.tail.wrapping_add(take as u32);
        self.listed.store(ring.tail, Ordering::Relaxed);
        if self.is_starved() {
            self.feed(&ring);
        }
        if take < list.len() {
            return Err(PostError { accepted: take, cause: PostCause::Full });
        }
        Ok(())
    }

    /// Wakes the domains: one lacked receives and may sleep, and now there are some.
    #[cold]
    fn feed(&self, ring: &Ring) {
        self.attends.fetch_and(!STARVED, Ordering::Relaxed);
        for claim in ring.claims.iter().flatten() {
            claim.local_waker.wake();
        }
    }

    /// Sets the limit: the domain that leaves fewer than `limit` receives raises an event. Domains
    /// give back what they have prefetched, so that the event comes in time.
    pub(crate) fn set_limit(&self, limit: u32) {
        let mut ring = self.ring.lock();
        ring.limit = limit;
        self.ask_back(&ring, None);
    }

    /// The current limit.
    pub(crate) fn limit(&self) -> u32 {
        self.ring.lock().limit
    }

    /// Refills an empty prefetch. A shallow or nearly empty queue hands out one receive at a time,
    /// so that no domain keeps one that another needs. True if fewer than the limit are left now.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub(crate) fn fetch(&self, prefetch: &mut Prefetch, exact: bool) -> bool {
        let mut ring = self.ring.lock();
        let reached = self.take(&mut ring, prefetch, exact);
        if prefetch.end == 0 {
            self.want(&ring, prefetch.number);
        }
        reached
    }

    /// Refills an empty prefetch before a message needs it, unless another domain may lack those
    /// receives or the limit event would come too early. The last receive of a shared queue stays:
    /// the message that takes it must find out whether a limit is reached that was set meanwhile.
    #[cold]
    #[inline(never)]
    pub(crate) fn prefetch_ahead(&self, prefetch: &mut Prefetch, exact: bool) {
        let mut ring = self.ring.lock();
        let users = self.users.load(Ordering::Relaxed);
        if ring.len() > ring.limit + if self.is_shared { users } else { 0 } {
            let reached = self.take(&mut ring, prefetch, exact);
            debug_assert!(!reached);
        }
    }

    /// A domain found no receive. The next posted receive wakes it; and the domains that have
    /// prefetched some are woken to give them back.
    fn want(&self, ring: &Ring, number: usize) {
        self.attends.fetch_or(STARVED, Ordering::Relaxed);
        if self.users.load(Ordering::Relaxed) <= 1 {
            return;
        }
        self.ask_back(ring, Some(number));
    }

    /// Asks the domains that have prefetched some, all but the one of that number, and wakes them.
    fn ask_back(&self, ring: &Ring, number: Option<usize>) {
        for claim in ring.others(number) {
            claim.used.asked.store(true, Ordering::Relaxed);
            claim.local_waker.wake();
        }
    }

    /// Moves receives from the front to an empty prefetch; see [`RecvQueue::fetch`].
    fn take(&self, ring: &mut Ring, prefetch: &mut Prefetch, exact: bool) -> bool {
        let shared = self.users.load(Ordering::Relaxed).max(1);
        let share = ring.len() / 4 / shared;
        // Nobody else can lack what the only domain has.
        let exact = exact && shared > 1;
        let mut ahead = if exact { 1 } else { share.clamp(1, PREFETCH_MAX as u32) };
        if ring.limit > 0 {
            ahead = ahead.min(ring.len().saturating_sub(ring.limit)).max(1);
        }
        let take = ahead.min(ring.len());
        let at = ring.head as usize & (ring.slots.len() - 1);
        let (front, back) = ring.slots.split_at_checked(at).unwrap_or_default();
        let to = prefetch.wrs.get_mut(..take as usize).unwrap_or_default();
        let straight = copy_into(to, back);
        copy_into(to.get_mut(straight..).unwrap_or_default(), front);
        ring.head = ring.head.wrapping_add(take);
        (prefetch.next, prefetch.end) = (0, take);
        prefetch.used.count.store(0, Ordering::Relaxed);
        ring.claim(prefetch.number, take);
        if ring.len() >= ring.limit {
            return false;
        }
        // A message is about to use one of them.
        let reached = ring.reaches_limit(take.min(1));
        if !reached {
            // The receives that are above the limit lie with other domains, which may use them
            // without a look at the limit.
            self.ask_back(ring, Some(prefetch.number));
        }
        reached
    }

    /// Puts prefetched receives back at the front, in order. There is always room: `post` leaves
    /// it. It wakes a domain that lacked receives. True if fewer than the limit are left now.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub(crate) fn give_back(&self, prefetch: &mut Prefetch) -> bool {
        let mut ring = self.ring.lock();
        prefetch.used.asked.store(false, Ordering::Relaxed);
        let some = prefetch.len() > 0;
        let mask = ring.slots.len() - 1;
        while prefetch.len() > 0 {
            prefetch.end -= 1;
            ring.head = ring.head.wrapping_sub(1);
            let at = ring.head as usize & mask;
            let back = prefetch.wrs.get(prefetch.end as usize);
            if let (Some(place), Some(wr)) = (ring.slots.get_mut(at), back) {
                *place = *wr;
            }
        }
        ring.claim(prefetch.number, prefetch.end);
        if some && self.is_starved() {
            self.feed(&ring);
        }
        ring.reaches_limit(0)
    }

    /// Takes the oldest receive, for flushing a queue of one owner (SM-2). If there is none, the
    /// queue is flushed: see [`RecvQueue::is_flushed`].
    pub(crate) fn pop(&self) -> Option<RecvWr> {
        let mut ring = self.ring.lock();
        if ring.len() == 0 {
            self.attends.fetch_or(FLUSHED, Ordering::Relaxed);
            return None;
        }
        let at = ring.head as usize & (ring.slots.len() - 1);
        ring.head = ring.head.wrapping_add(1);
        ring.slots.get(at).copied()
    }

    /// True if the owner of the queue must hear of the receive just posted, because it has flushed
    /// the queue before. Relaxed: the flush has found the queue empty and stored this under the
    /// lock that the post has taken since. A flush that comes later finds the receive.
    #[inline(always)]
    pub(crate) fn is_flushed(&self) -> bool {
        self.attends.load(Ordering::Relaxed) & FLUSHED != 0
    }

    /// Where the last list of receives ends, if one domain uses this queue alone: then probably its
    /// own thread has posted the list. Relaxed: it tells how long a spin may be, and nothing else.
    #[inline(always)]
    pub(crate) fn listed(&self) -> Option<u32> {
        let alone = self.users.load(Ordering::Relaxed) == 1;
        alone.then(|| self.listed.load(Ordering::Relaxed))
    }

    /// The owner, in whose domain the caller is, serves its receives again.
    pub(crate) fn serves_again(&self) {
        self.attends.fetch_and(!FLUSHED, Ordering::Relaxed);
    }

    /// Receives in the queue, without the prefetched ones.
    pub(crate) fn posted(&self) -> u32 {
        self.ring.lock().len()
    }
}

/// Receives that one domain has prefetched, oldest first from `next`.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct Prefetch {
    next: u32,
    end: u32,
    /// Its count is a copy of `next` that the queue reads.
    used: Used,
    /// The domain's number at the queue.
    number: usize,
    mr_cache: MrCache,
    wrs: [RecvWr; PREFETCH_MAX],
}

impl Prefetch {
    /// The oldest, which stays in place.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&RecvWr> {
        if self.next == self.end { None } else { self.wrs.get(self.next as usize) }
    }

    /// The oldest, which stays in place, and the cache for its region.
    #[inline(always)]
    pub(crate) fn ready_first(&mut self) -> Option<(&RecvWr, &mut MrCache)> {
        if self.next == self.end {
            return None;
        }
        Some((&self.wrs[self.next as usize % PREFETCH_MAX], &mut self.mr_cache))
    }

    /// All of them, which stay in place, and the cache for their region.
    #[inline(always)]
    pub(crate) fn ready(&mut self) -> (&[RecvWr], &mut MrCache) {
        let wrs = self.wrs.get(self.next as usize..self.end as usize).unwrap_or_default();
        (wrs, &mut self.mr_cache)
    }

    /// Removes the oldest `count`.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: u32) {
        debug_assert!(count <= self.len());
        self.next += count;
        self.used.count.store(self.next, Ordering::Relaxed);
    }

    /// True if the domain has to give them back.
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        self.used.asked.load(Ordering::Relaxed)
    }

    /// How many are left.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        self.end - self.next
    }
}

#[cfg(test)]
#[path = "recvq_tests.rs"]
mod tests;
