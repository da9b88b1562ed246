//! Timers of one worker: a heap of bounded size over a clock the caller reads.

use std_alloc::boxed::Box;
use std_alloc::vec::Vec;

use crate::room::{FixedCapacity, RemoveAt};

/// A timer that is set. One that has fired or was cancelled names nothing. Valid only in the worker
/// that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, Default)]
struct Timer {
    /// When it is due. Of two at the same time, the one that was set first comes first.
    at: u64,
    serial: u64,
    key: u64,
    generation: u32,
    /// Its place in the heap.
    place: u32,
}

/// All timers of a worker: those set, as a binary heap of their numbers, and the free ones.
pub(super) struct Timers {
    timers: Box<[Timer]>,
    heap: Vec<u32>,
    free: Vec<u32>,
    pub(super) now: u64,
    /// The timers set so far.
    set: u64,
}

impl Timers {
    pub(super) fn new(most: u32) -> Timers {
        Timers {
            timers: (0..most).map(|_| Timer::default()).collect(),
            heap: Vec::with_capacity(most as usize),
            free: (0..most).rev().collect(),
            now: 0,
            set: 0,
        }
    }

    /// Sets a timer; `None` if all are set. A time that is over counts as now: otherwise a handler
    /// that sets such a timer again and again would keep back those that are due.
    pub(super) fn set(&mut self, at: u64, key: u64) -> Option<TimerId> {
        let index = self.free.pop()?;
        let place = self.heap.len();
        let timer = self.timers.get_mut(index as usize)?;
        (timer.at, timer.serial) = (at.max(self.now), self.set);
        (timer.key, timer.place) = (key, place as u32);
        self.set += 1;
        let generation = timer.generation;
        self.heap.put(index);
        self.rise(place);
        Some(TimerId { index, generation })
    }

    /// Cancels a timer. False: it has fired, or was cancelled.
    pub(super) fn cancel(&mut self, id: TimerId) -> bool {
        let Some(timer) = self.timers.get(id.index as usize) else { return false };
        if timer.generation != id.generation
            || self.heap.get(timer.place as usize) != Some(&id.index)
        {
            return false;
        }
        let place = timer.place as usize;
        self.remove(place);
        true
    }

    /// The timers set so far: see [`Timers::fire`].
    pub(super) fn set_so_far(&self) -> u64 {
        self.set
    }

    /// Takes out the timer that is due first, and returns its key. `None`: none is due of the first
    /// `set` timers that were set.
    pub(super) fn fire(&mut self, set: u64) -> Option<u64> {
        let first = *self.heap.first()?;
        let Timer { at, serial, key, .. } = *self.timers.get(first as usize)?;
        if at > self.now || serial >= set {
            return None;
        }
        self.remove(0);
        Some(key)
    }

    /// When the next is due.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.first().map(|_| self.order(0).0)
    }

    /// When the timer at a place of the heap is due, and its number; never where there is none.
    fn order(&self, place: usize) -> (u64, u64) {
        let timer = self.heap.get(place).and_then(|index| self.timers.get(*index as usize));
        timer.map_or((u64::MAX, u64::MAX), |timer| (timer.at, timer.serial))
    }

    fn remove(&mut self, place: usize) {
        let Some(index) = self.heap.swap_remove_at(place) else { return };
        if let Some(timer) = self.timers.get_mut(index as usize) {
            timer.generation = timer.generation.wrapping_add(1);
        }
        self.free.put(index);
        if place < self.heap.len() {
            self.note_place(place);
            self.sink(place);
            self.rise(place);
        }
    }

    fn swap(&mut self, one: usize, two: usize) {
        if one < self.heap.len() && two < self.heap.len() {
            self.heap.swap(one, two);
        }
        self.note_place(one);
        self.note_place(two);
    }

    /// Stores the place of a timer in the heap.
    fn note_place(&mut self, place: usize) {
        let index = self.heap.get(place).copied();
        if let Some(timer) = index.and_then(|index| self.timers.get_mut(index as usize)) {
            timer.place = place as u32;
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.order(place) < self.order((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let mut least = place;
            for child in [left, right] {
                if child < self.heap.len() && self.order(child) < self.order(least) {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Compared with a sorted set over many sets, cancels and fires. A used name cancels nothing.
    #[test]
    fn the_heap_agrees_with_a_sorted_set() {
        let mut timers = Timers::new(32);
        let mut plain = BTreeSet::new();
        let mut ids = std::collections::BTreeMap::new();
        let mut seed = 7u64;
        for key in 0..100_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = seed >> 40;
            match dice % 4 {
                0 | 1 => {
                    let id = timers.set((timers.now + dice % 97).saturating_sub(9), key);
                    let at = timers.now + (dice % 97).saturating_sub(9);
                    assert_eq!(id.is_some(), plain.len() < 32);
                    if let Some(id) = id {
                        plain.insert((at, key));
                        ids.insert(key, (at, id));
                    }
                }
                2 => {
                    let some = ids.keys().nth(dice as usize % ids.len().max(1)).copied();
                    if let Some((at, id)) = some.and_then(|key| ids.remove(&key)) {
                        let was = plain.len();
                        plain.retain(|(_, key)| timers.timers[id.index as usize].key != *key);
                        assert_eq!(plain.len() + 1, was, "at {at}");
                        assert!(timers.cancel(id) && !timers.cancel(id));
                    }
                }
                _ => {
                    timers.now += dice % 13;
                    while let Some(fired) = timers.fire(u64::MAX) {
                        let (at, id) = ids.remove(&fired).unwrap();
                        assert!(at <= timers.now);
                        assert_eq!(plain.pop_first(), Some((at, fired)));
                        assert!(!timers.cancel(id), "it has fired");
                    }
                }
            }
            assert_eq!(timers.next_at(), plain.first().map(|first| first.0));
        }
    }
}
