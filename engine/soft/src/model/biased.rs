//! A lock that costs nothing to the thread that takes it again and again.
//!
//! An exchange takes as long as some twenty other instructions. So the lock belongs to the thread
//! that took it many times in a row: that thread enters by a plain store and a look whether the
//! lock is still its own. Any other thread takes the lock away from it first. It makes all threads
//! of the process pass a barrier ([`Threads::barrier`]), and waits until the owner is not inside.
//! Then the lock is an ordinary one, until a thread again takes it many times in a row: each time
//! it was taken away, twice as many as before.
#![expect(unsafe_code, reason = "one owner at a time, kept by the lock")]

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence, half_barrier, pause};

/// What a lock must know of the threads of its process.
#[derive(Clone, Copy)]
pub struct Threads {
    /// Threads have numbers (`this_thread`), and `barrier` works. Otherwise no lock belongs to a
    /// thread.
    pub numbered: bool,
    /// Makes each thread of this process pass a full memory barrier before it returns.
    pub barrier: fn(),
    /// Lets another thread run in place of one that has waited for a while.
    pub rest: fn(),
    /// Runs that step so that a C program cannot cancel the thread meanwhile.
    pub uncancelled: fn(&mut dyn FnMut()),
}

impl Threads {
    /// Threads without numbers: a lock is an ordinary one.
    pub const UNKNOWN: Threads =
        Threads { numbered: false, barrier: || (), rest: || (), uncancelled: |step| step() };
}

/// The number of the calling thread, which no other living thread has: the address of its part of
/// the C library's state. 0 where nobody knows it.
#[inline(always)]
fn this_thread() -> u64 {
    #[cfg(not(all(feature = "std", target_os = "linux", not(any(loom, miri)))))]
    return 0;
    #[cfg(all(feature = "std", target_os = "linux", not(any(loom, miri))))]
    return numbered::this_thread();
}

#[cfg(all(feature = "std", target_os = "linux", not(any(loom, miri))))]
mod numbered {
    /// See [`super::this_thread`]. A call of `pthread_self` would return the same, and take longer.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn this_thread() -> u64 {
        let number;
        // SAFETY: by the ABI for threads, the word at this place is its own address in every thread
        // of a program with a C library, and never changes.
        unsafe {
            core::arch::asm!(
                "mov {}, qword ptr fs:[0]",
                out(reg) number,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        number
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn this_thread() -> u64 {
        // SAFETY: takes nothing, and never fails.
        unsafe { libc::pthread_self() }
    }
}

/// The owner of a lock that belongs to nobody. For every thread number, and for 0, `owner ^ number`
/// is then no index of `inside`.
const NOBODY: u64 = PLACE;

/// The most threads that can own a lock in turn.
const OWNERS: usize = 4;
/// Bits of a thread's number that are zero. In `owner` they hold the thread's place.
const PLACE: u64 = 0x3f;

/// A thread that takes a new lock this many times in a row owns it from then on.
const FIRST_RUN: u32 = 32;
/// The most of these, after it was taken away again and again.
const LONGEST_RUN: u32 = 1 << 16;

/// Looks after which a thread that waits lets others run: the one inside may lack a core.
const PATIENCE: u32 = 1000;

/// A lock with what it protects.
pub struct Biased<T> {
    /// The thread that enters without an exchange, and its place. It changes under `lock` alone.
    owner: AtomicU64,
    /// By place: that thread is inside, or just finds out that it may not be. Each thread has a
    /// place of its own for good: one that has been away for long may still write there.
    inside: [AtomicBool; OWNERS],
    /// The threads of these places, under `lock`.
    places: [AtomicU64; OWNERS],
    /// A thread is inside by the ordinary way: it is not the owner, or it became the owner only
    /// after it had entered.
    lock: AtomicBool,
    /// The thread that took `lock` last, and how often in a row.
    last: AtomicU64,
    run: AtomicU32,
    /// The run that makes an owner.
    wanted: AtomicU32,
    threads: Threads,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time reach the value, so it is enough that it may move.
unsafe impl<T: Send> Sync for Biased<T> {}

/// Keeps others out as long as it lives.
pub struct Guard<'a, T> {
    of: &'a Biased<T>,
    /// What tells others that this thread is inside.
    held: &'a AtomicBool,
    /// The owner's flag is for the owner: the guard stays in its thread.
    alone: PhantomData<*const ()>,
}

impl<T> Biased<T> {
    /// A lock that belongs to nobody yet.
    pub fn new(value: T, threads: Threads) -> Biased<T> {
        Biased {
            owner: AtomicU64::new(NOBODY),
            inside: core::array::from_fn(|_| AtomicBool::new(false)),
            places: core::array::from_fn(|_| AtomicU64::new(NOBODY)),
            lock: AtomicBool::new(false),
            last: AtomicU64::new(NOBODY),
            run: AtomicU32::new(0),
            wanted: AtomicU32::new(FIRST_RUN),
            threads,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else is inside. A thread that is inside waits for ever.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        let me = this_thread();
        match self.enter(me) {
            Some(inside) => Guard { held: inside, of: self, alone: PhantomData },
            None => self.wait(me),
        }
    }

    /// The same for the owner alone, without a call. `None`: the lock does not belong to this
    /// thread.
    #[inline(always)]
    pub fn lock_own(&self) -> Option<Guard<'_, T>> {
        let inside = self.enter(this_thread())?;
        Some(Guard { held: inside, of: self, alone: PhantomData })
    }

    /// The owner's way in: its flag. `None`: it is not the owner's lock, or not any more.
    #[inline(always)]
    fn enter(&self, me: u64) -> Option<&AtomicBool> {
        // Relaxed: only this thread makes itself the owner.
        let owner = self.owner.load(Ordering::Relaxed);
        let place = (owner ^ me) as usize;
        if place >= OWNERS {
            return None;
        }
        let inside = &self.inside[place];
        // It is inside already if a signal has interrupted it; then it waits, for ever.
        if inside.load(Ordering::Relaxed) {
            return None;
        }
        inside.store(true, Ordering::Relaxed);
        // The other half is the barrier of the thread that takes the lock away: that thread sees
        // `inside`, or this one sees that it is no longer the owner.
        half_barrier();
        if self.owner.load(Ordering::Relaxed) == owner {
            return Some(inside);
        }
        inside.store(false, Ordering::Release);
        None
    }

    /// Everybody's way in.
    #[cold]
    #[inline(never)]
    fn wait(&self, me: u64) -> Guard<'_, T> {
        // Acquire pairs with the Release of the guard.
        while self.lock.swap(true, Ordering::Acquire) {
            self.wait_while(|| self.lock.load(Ordering::Relaxed));
        }
        self.take_away();
        self.note(me);
        Guard { held: &self.lock, of: self, alone: PhantomData }
    }

    fn wait_while(&self, is_held: impl Fn() -> bool) {
        let mut looks = 0;
        while is_held() {
            pause();
            looks += 1;
            if looks > PATIENCE {
                (self.threads.rest)();
            }
        }
    }

    /// Under `lock`: makes the lock an ordinary one, and waits until its owner is not inside.
    fn take_away(&self) {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == NOBODY {
            return;
        }
        self.owner.store(NOBODY, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        (self.threads.barrier)();
        let inside = self.inside.get((owner & PLACE) as usize);
        // Acquire pairs with the Release of the guard.
        self.wait_while(|| inside.is_some_and(|inside| inside.load(Ordering::Acquire)));
        let wanted = self.wanted.load(Ordering::Relaxed).saturating_mul(2).min(LONGEST_RUN);
        self.wanted.store(wanted, Ordering::Relaxed);
        self.run.store(0, Ordering::Relaxed);
    }

    /// Under `lock`: counts how often in a row this thread has taken it, and makes it the owner.
    fn note(&self, me: u64) {
        if self.last.load(Ordering::Relaxed) != me {
            self.last.store(me, Ordering::Relaxed);
            return self.run.store(0, Ordering::Relaxed);
        }
        let run = self.run.load(Ordering::Relaxed) + 1;
        if run < self.wanted.load(Ordering::Relaxed) {
            return self.run.store(run, Ordering::Relaxed);
        }
        self.run.store(0, Ordering::Relaxed);
        if let Some(place) = self.place_of(me) {
            self.owner.store(me | place as u64, Ordering::Relaxed);
        }
    }

    /// Under `lock`: the place of a thread. `None`: it has no number, or others have all places. A
    /// number is a multiple of 64, or else it does not serve as one here.
    fn place_of(&self, me: u64) -> Option<usize> {
        let is_it = |place: &AtomicU64| [NOBODY, me].contains(&place.load(Ordering::Relaxed));
        let has_number = self.threads.numbered && me != 0 && me & PLACE == 0;
        let place = self.places.iter().position(is_it).filter(|_| has_number)?;
        self.places.get(place)?.store(me, Ordering::Relaxed);
        Some(place)
    }

    /// True while somebody is inside.
    pub fn is_locked(&self) -> bool {
        let held = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        held(&self.lock) || self.inside.iter().any(held)
    }

    /// The value, for whoever has the lock to itself.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard keeps everybody else out.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: the next thread inside sees what this one did.
        self.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(feature = "std")]
#[cfg(not(any(loom, miri)))]
#[path = "biased_tests.rs"]
mod tests;

#[cfg(test)]
#[cfg(loom)]
#[path = "biased_models.rs"]
pub(crate) mod models;
