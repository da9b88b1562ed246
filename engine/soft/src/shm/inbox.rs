//! The inbox of a queue pair of UD: a ring of slots in shared memory, written by any number of
//! senders in any number of processes, read by its owner alone.
//!
//! ```text
//! inbox:  [ header line: owner, hint where the next goes, asleep, notifier ][ slots ]
//! slot:   [ state | length, sender | key, flags | immediate data | sender's GID ][ payload ]
//! ```
//! The state word of a slot holds its lap and its state: `FREE` → `CLAIMED` by a sender → `READY` →
//! `FREE` in the next lap. A sender claims the slot that the hint names with one compare-and-swap.
//! Any sender moves the hint on, so a sender that dies anywhere holds up no other. A full ring
//! drops new datagrams, which is legal.
//!
//! A sender that dies between claim and ready would stop the owner. The owner therefore waits for a
//! bounded time, then takes the slot out of use (`LEFT`) and goes on. The sender may still be
//! writing there, so no other sender gets the slot until that one gives it back (`RETURNED`). A
//! sender that only lost its processor for a while does so, and puts its datagram into another
//! slot. A sender that was killed never does, and costs the inbox one slot.
//!
//! The owner believes nothing: its position is its own, it resets a slot in an impossible state,
//! and it reads each word once and then checks it.
#![expect(unsafe_code, reason = "words of memory that other processes also have")]

use core::ptr::NonNull;

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::sync::Arc;

use crate::model::buffers::Target;
use crate::model::slot::FileName;
use crate::provider::Gid;
use crate::provider::wake::Notifier;
use crate::shm::copy;
use crate::shm::layout::LINE;
use crate::sync::{AtomicU64, Ordering, half_barrier, word, wrote};

/// The number of datagrams that an inbox holds.
pub(crate) const SLOTS: u64 = 64;
/// The longest payload of a datagram: the path MTU of this device.
pub(crate) const DATAGRAM_MAX: u32 = 4096;

/// The most datagrams that one poll takes for a queue pair.
pub(crate) const BURST: usize = 16;

const SLOT: usize = LINE + DATAGRAM_MAX as usize;

/// Bytes of memory an inbox needs; all zero is empty.
pub const INBOX_BYTES: usize = LINE + SLOTS as usize * SLOT;

/// How many slots a sender tries if it is too slow for the owner each time.
const TRIES: u32 = 16;

/// How long the owner waits for a sender in the middle of a datagram, in nanoseconds.
const PATIENCE_NS: u64 = 1_000_000;

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const READY: u64 = 2;
const LEFT: u64 = 3;
const RETURNED: u64 = 4;

/// Bit of a slot's flags: the immediate data counts.
const WITH_IMM: u64 = 1;
/// Bit of a slot's flags: the sender wants the receiver woken (CP-6).
const SOLICITED: u64 = 2;

/// The state word of a slot.
fn state(lap: u64, what: u64) -> u64 {
    lap << 3 | what
}

fn lap_of(state: u64) -> u64 {
    state >> 3
}

fn what_of(state: u64) -> u64 {
    state & 7
}

/// The memory, from either side.
#[derive(Clone, Copy)]
struct Slots {
    base: NonNull<u8>,
}

impl Slots {
    /// `None` if the memory is too short.
    fn over(memory: &Mapping) -> Option<Slots> {
        let base = NonNull::new(memory.as_ptr())?;
        let fits = memory.len() >= INBOX_BYTES && base.addr().get().is_multiple_of(LINE);
        fits.then_some(Slots { base })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: every caller's offset is a multiple of 8 inside the inbox; whoever made this
        // value keeps its memory, and these words are only ever used as atomics.
        unsafe { word(self.base.add(offset)) }
    }

    /// The owner's queue pair number; 0 when it is gone.
    fn owner(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Writes the owner. Release: a sender that sees the owner sees its notifier, too.
    fn say_whose(&self, num: u32, notifier: Option<FileName>) {
        if let Some(name) = notifier {
            let [fd, inode] = self.notifier();
            fd.store(u64::from(name.fd) + 1, Ordering::Relaxed);
            inode.store(name.inode, Ordering::Relaxed);
        }
        self.owner().store(num.into(), Ordering::Release);
    }

    /// Not 0 while the owner sleeps.
    fn asleep(&self) -> &AtomicU64 {
        self.word(16)
    }

    /// The owner's notifier: descriptor plus one, 0 for none, and inode.
    fn notifier(&self) -> [&AtomicU64; 2] {
        [self.word(24), self.word(32)]
    }

    /// Where senders begin to look for a free slot.
    fn hint(&self) -> &AtomicU64 {
        self.word(8)
    }

    /// Word `n` of the slot of a ticket: 0 is the state, 1 the length and, high, the sender; 2 the
    /// key and, high, the flags; 3 the immediate data; 4 and 5 the sender's GID.
    fn slot(&self, ticket: u64, n: usize) -> &AtomicU64 {
        debug_assert!(n < 8);
        self.word(LINE + (ticket % SLOTS) as usize * SLOT + n * 8)
    }

    /// The payload of that slot.
    fn payload(&self, ticket: u64) -> Target<'_> {
        let at = LINE + (ticket % SLOTS) as usize * SLOT + LINE;
        // SAFETY: inside the inbox, whose memory the maker of this value keeps.
        unsafe { Target::new(self.base.add(at).as_ptr(), DATAGRAM_MAX) }
    }
}

/// The fields of a datagram besides its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) length: u32,
    pub(crate) from: u32,
    pub(crate) gid: Gid,
    pub(crate) qkey: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) solicited: bool,
}

/// The owner's side.
pub(crate) struct Inbox {
    slots: Slots,
    /// The ticket of the next datagram to take.
    at: u64,
    /// When the owner first saw that a sender is writing it.
    since_ns: Option<u64>,
    memory: Arc<Mapping>,
}

// SAFETY: the slots lie in memory this value keeps, and are atomics, or written by one side at a
// time as their states say.
unsafe impl Send for Inbox {}

impl Inbox {
    /// The inbox of a queue pair, in memory that is all zero; `None` if that is too short.
    /// `notifier` wakes the owner.
    pub(crate) fn new(memory: Mapping, num: u32, notifier: Option<FileName>) -> Option<Inbox> {
        let slots = Slots::over(&memory)?;
        slots.say_whose(num, notifier);
        Some(Inbox { slots, at: 0, since_ns: None, memory: Arc::new(memory) })
    }

    /// A view for others than the owner.
    pub(crate) fn door(&self) -> Door {
        Door { slots: self.slots, _memory: self.memory.clone() }
    }

    /// Drops the datagrams before that ticket.
    pub(crate) fn skip_to(&mut self, ticket: u64, clock: fn() -> u64) {
        for _ in 0..SLOTS {
            if self.first(clock).is_none() || self.at >= ticket {
                return;
            }
            self.advance();
        }
    }

    /// Notes that the owner is about to sleep, or is awake again. [`crate::shm::peer_waker`] argues
    /// why no sender misses it.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        self.slots.asleep().store(asleep.into(), Ordering::SeqCst);
    }

    /// True if [`Inbox::first`] may find something. It reads a word or two and changes nothing.
    /// Relaxed: `first` reads them again.
    pub(crate) fn has_news(&self) -> bool {
        let seen = self.slots.slot(self.at, 0).load(Ordering::Relaxed);
        let is_free = what_of(seen) == FREE && lap_of(seen) <= self.at / SLOTS;
        // Senders may have skipped a free slot.
        !is_free || self.slots.hint().load(Ordering::Relaxed) > self.at
    }

    /// True if [`Inbox::first`] waits for a sender that is writing, or that has ended. Relaxed: a
    /// sender announces what it writes afterwards.
    pub(crate) fn waits_for_sender(&self) -> bool {
        let seen = self.slots.slot(self.at, 0).load(Ordering::Relaxed);
        what_of(seen) == CLAIMED && lap_of(seen) == self.at / SLOTS
    }

    /// When the wait for that sender ends: if it has not begun, it begins now.
    pub(crate) fn end_of_patience(&self, now: u64) -> u64 {
        self.since_ns.unwrap_or(now).saturating_add(PATIENCE_NS)
    }

    /// The oldest datagram, which stays in place; `None` if there is none, or its sender is still
    /// writing it.
    pub(crate) fn first(&mut self, clock: fn() -> u64) -> Option<Stamp> {
        // Visit each slot at most once: a ring whose slots are all out of use is empty, too.
        for _ in 0..SLOTS {
            let word = self.slots.slot(self.at, 0);
            // Acquire pairs with the Release of `put`: a READY datagram is completely written.
            let seen = word.load(Ordering::Acquire);
            let lap = self.at / SLOTS;
            match what_of(seen) {
                READY if lap_of(seen) == lap => return Some(self.stamp()),
                FREE if lap_of(seen) <= lap => {
                    // Senders may have skipped it while it was out of use; then nobody fills it.
                    let passed = self.slots.hint().load(Ordering::Relaxed) > self.at;
                    if !passed || !self.exchange(seen, FREE, lap + 1) {
                        return None;
                    }
                }
                CLAIMED if lap_of(seen) == lap => {
                    let now = clock();
                    let since = *self.since_ns.get_or_insert(now);
                    if now.saturating_sub(since) < PATIENCE_NS {
                        return None;
                    }
                    if !self.exchange(seen, LEFT, lap) {
                        continue;
                    }
                }
                LEFT => {}
                // Its sender gave it back, or the state is impossible.
                _ => word.store(state(lap + 1, FREE), Ordering::Release),
            }
            self.step();
        }
        None
    }

    /// Changes the state of the next slot, if it is still the expected one.
    fn exchange(&self, seen: u64, what: u64, lap: u64) -> bool {
        let word = self.slots.slot(self.at, 0);
        let (done, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        word.compare_exchange(seen, state(lap, what), done, failed).is_ok()
    }

    fn step(&mut self) {
        self.at = self.at.wrapping_add(1);
        self.since_ns = None;
    }

    fn stamp(&self) -> Stamp {
        let word = |n| self.slots.slot(self.at, n).load(Ordering::Relaxed);
        let (one, two) = (word(1), word(2));
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&word(4).to_ne_bytes());
        gid[8..].copy_from_slice(&word(5).to_ne_bytes());
        Stamp {
            length: (one as u32).min(DATAGRAM_MAX),
            from: (one >> 32) as u32 & 0x00ff_ffff,
            gid: Gid(gid),
            qkey: two as u32,
            imm: (two >> 32 & WITH_IMM != 0).then_some(word(3) as u32),
            solicited: two >> 32 & SOLICITED != 0,
        }
    }

    /// Fills `to`, of at most `DATAGRAM_MAX` bytes, with the oldest datagram's payload.
    pub(crate) fn fetch(&self, to: Target<'_>) {
        copy::copy(to, self.slots.payload(self.at).source());
    }

    /// As [`Inbox::fetch`], for a borrowed buffer.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn fetch_into(&self, to: &mut [u8]) {
        self.fetch(Target::of(to));
    }

    /// Removes the oldest datagram. Release: it is read before its slot is written again.
    pub(crate) fn advance(&mut self) {
        let next = state(self.at / SLOTS + 1, FREE);
        self.slots.slot(self.at, 0).store(next, Ordering::Release);
        self.step();
    }
}

/// A view of an inbox for those who may not take anything out of it.
pub(crate) struct Door {
    slots: Slots,
    _memory: Arc<Mapping>,
}

// SAFETY: the slots lie in memory this value keeps, and only an atomic of them is read.
unsafe impl Send for Door {}
// SAFETY: as above.
unsafe impl Sync for Door {}

impl Door {
    /// The ticket of the next datagram to come.
    pub(crate) fn next(&self) -> u64 {
        self.slots.hint().load(Ordering::Relaxed)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.slots.owner().store(0, Ordering::Release);
    }
}

/// A sender's side: the inbox of another queue pair, as it is mapped here.
pub(crate) struct Outlet {
    slots: Slots,
    /// The owner's process, the function that opens its notifier, and the notifier once opened.
    process: i32,
    open: OpenNotifier,
    notifier: Mutex<Option<Option<Notifier>>>,
    _memory: Mapping,
}

/// Opens the notifier that a process names; `None` if that fails.
pub type OpenNotifier = fn(process: i32, notifier: FileName) -> Option<Notifier>;

// SAFETY: as for `Inbox`; senders keep out of each other's slots by their states.
unsafe impl Send for Outlet {}
// SAFETY: as above.
unsafe impl Sync for Outlet {}

impl Outlet {
    /// `None` if the memory is too short.
    pub(crate) fn new(memory: Mapping, process: i32, open: OpenNotifier) -> Option<Outlet> {
        let slots = Slots::over(&memory)?;
        Some(Outlet { slots, process, open, notifier: Mutex::new(None), _memory: memory })
    }

    /// True while the inbox belongs to that queue pair.
    pub(crate) fn is_for(&self, num: u32) -> bool {
        self.slots.owner().load(Ordering::Acquire) == u64::from(num)
    }

    /// The queue pair that owns the inbox; 0 when that is gone.
    #[cfg(feature = "sim")]
    pub(crate) fn owner(&self) -> u32 {
        self.slots.owner().load(Ordering::Acquire) as u32
    }

    /// Puts a datagram in, or drops it if there is no slot for it. `payload` writes the payload, of
    /// `stamp.length` bytes, at most `DATAGRAM_MAX`.
    pub(crate) fn put(&self, stamp: &Stamp, payload: &impl Fn(Target<'_>)) {
        for _ in 0..TRIES {
            let Some(ticket) = self.claim() else { return };
            self.fill(ticket, stamp, payload);
            if self.publish(ticket) {
                break;
            }
        }
        // As in `PeerWaker::check`: publish first, then check whether the owner sleeps.
        half_barrier();
        if self.slots.asleep().load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    /// False: a datagram put in now would be dropped, because the owner has not taken older ones.
    pub(crate) fn has_room(&self) -> bool {
        let ticket = self.slots.hint().load(Ordering::Relaxed);
        let seen = self.slots.slot(ticket, 0).load(Ordering::Relaxed);
        !matches!(what_of(seen), CLAIMED | READY) || lap_of(seen) == ticket / SLOTS
    }

    /// As [`Outlet::put`], with that payload of at most `DATAGRAM_MAX` bytes.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn put_bytes(&self, stamp: &Stamp, payload: &[u8]) {
        let length = payload.len().min(DATAGRAM_MAX as usize) as u32;
        self.put(&Stamp { length, ..*stamp }, &|to: Target<'_>| to.write(payload));
    }

    /// Writes a datagram into a claimed slot.
    fn fill(&self, ticket: u64, stamp: &Stamp, payload: &impl Fn(Target<'_>)) {
        let gid = stamp.gid.0;
        let half = |at: usize| u64::from_ne_bytes(core::array::from_fn(|n| gid[at + n]));
        let with_imm = if stamp.imm.is_some() { WITH_IMM } else { 0 };
        let flags = with_imm | if stamp.solicited { SOLICITED } else { 0 };
        let words = [
            u64::from(stamp.length) | u64::from(stamp.from) << 32,
            u64::from(stamp.qkey) | flags << 32,
            stamp.imm.unwrap_or(0).into(),
            half(0),
            half(8),
        ];
        for (n, word) in words.into_iter().enumerate() {
            self.slots.slot(ticket, n + 1).store(word, Ordering::Relaxed);
        }
        // The slot is ours now.
        let to = self.slots.payload(ticket).part(0, stamp.length);
        wrote(to.as_ptr(), to.length() as usize);
        payload(to);
    }

    /// The first sender that finds the owner asleep wakes it.
    #[cold]
    fn wake(&self) {
        if self.slots.asleep().swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        let mut notifier = self.notifier.lock();
        let notifier = notifier.get_or_insert_with(|| {
            let [fd, inode] = self.slots.notifier().map(|word| word.load(Ordering::Relaxed));
            let fd = u32::try_from(fd).ok()?.checked_sub(1)?;
            (self.open)(self.process, FileName { fd, inode })
        });
        if let Some(notifier) = notifier {
            notifier.ring();
        }
    }

    /// Claims a slot; its ticket. `None`: the ring is full.
    fn claim(&self) -> Option<u64> {
        let hint = self.slots.hint();
        let mut ticket = hint.load(Ordering::Relaxed);
        // Other senders may be faster, or may have left slots behind, but not for ever.
        for _ in 0..2 * SLOTS {
            let (word, lap) = (self.slots.slot(ticket, 0), ticket / SLOTS);
            let seen = word.load(Ordering::Acquire);
            match what_of(seen) {
                FREE if lap_of(seen) == lap => {
                    // Acquire pairs with `advance`: the owner has read the datagram that was there.
                    let claimed = state(lap, CLAIMED);
                    let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
                    if word.compare_exchange(seen, claimed, done, failed).is_ok() {
                        self.help(ticket);
                        return Some(ticket);
                    }
                }
                FREE | LEFT | RETURNED => {}
                _ if lap_of(seen) == lap => {}
                _ => return None,
            }
            ticket = self.help(ticket);
        }
        None
    }

    /// Moves the hint past a ticket, if it still names that one. Returns the new hint.
    fn help(&self, ticket: u64) -> u64 {
        let next = ticket.wrapping_add(1);
        // Relaxed: it is only a hint; the states decide.
        let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        self.slots
            .hint()
            .compare_exchange(ticket, next, done, failed)
            .map_or_else(|now| now, |_| next)
    }

    /// Marks a claimed slot as ready. Release: an owner that sees the state sees the whole
    /// datagram. False if this came too late: the owner has gone on without it.
    fn publish(&self, ticket: u64) -> bool {
        let (word, lap) = (self.slots.slot(ticket, 0), ticket / SLOTS);
        let (claimed, ready) = (state(lap, CLAIMED), state(lap, READY));
        let (done, failed) = (Ordering::Release, Ordering::Relaxed);
        let in_time = word.compare_exchange(claimed, ready, done, failed).is_ok();
        if !in_time {
            let (left, returned) = (state(lap, LEFT), state(lap, RETURNED));
            let _ = word.compare_exchange(left, returned, done, failed);
        }
        in_time
    }
}

#[cfg(test)]
#[cfg(loom)]
#[path = "inbox_models.rs"]
pub(crate) mod models;
#[cfg(test)]
#[cfg(not(loom))]
#[path = "inbox_tests.rs"]
mod tests;
