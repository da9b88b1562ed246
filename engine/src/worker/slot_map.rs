//! From queue pair numbers to the slots of a worker's peers.

use std_alloc::boxed::Box;
use std_alloc::vec;

use crate::prefetch::fetch_line;
use crate::room::never;

/// Queue pair number to slot: open addressing, at most half full. Devices number queue pairs in
/// sequence, so the low bits are a good hash.
pub(super) struct SlotMap {
    cells: Box<[(u32, u32)]>,
}

/// No queue pair's number.
pub(super) const EMPTY: u32 = u32::MAX;

impl SlotMap {
    pub(super) fn new(peers: u32) -> SlotMap {
        let cells = (peers as usize * 2).next_power_of_two();
        SlotMap { cells: vec![(EMPTY, 0); cells].into_boxed_slice() }
    }

    #[inline(always)]
    pub(super) fn find(&self, num: u32) -> Option<u32> {
        let mask = self.cells.len() - 1;
        let mut at = num as usize & mask;
        loop {
            let Some((key, slot)) = self.cells.get(at).copied() else {
                never();
                return None;
            };
            if key == num {
                return Some(slot);
            }
            if key == EMPTY {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    /// Prefetches the cell where the search for that number begins.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self, num: u32) {
        if let Some(cell) = self.cells.get(num as usize & (self.cells.len() - 1)) {
            fetch_line(core::ptr::from_ref(cell).cast());
        }
    }

    pub(super) fn insert(&mut self, num: u32, slot: u32) {
        let mask = self.cells.len() - 1;
        let mut at = num as usize & mask;
        while let Some(cell) = self.cells.get_mut(at) {
            if cell.0 == EMPTY {
                *cell = (num, slot);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn remove(&mut self, num: u32) {
        let mask = self.cells.len() - 1;
        let mut hole = num as usize & mask;
        while self.key(hole) != num {
            if self.key(hole) == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        // Moves up the entries behind the hole that may not stay behind it.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let key = self.key(at);
            if key == EMPTY {
                break;
            }
            let home = key as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                let entry = self.cells.get(at).copied();
                if let (Some(place), Some(entry)) = (self.cells.get_mut(hole), entry) {
                    *place = entry;
                }
                hole = at;
            }
        }
        if let Some(place) = self.cells.get_mut(hole) {
            place.0 = EMPTY;
        }
    }

    /// The number at a place.
    fn key(&self, at: usize) -> u32 {
        self.cells.get(at).map_or(EMPTY, |cell| cell.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with a plain map over many inserts and removes, with numbers that collide.
    #[test]
    fn the_map_agrees_with_a_plain_one() {
        let mut map = SlotMap::new(16);
        let mut plain = std::collections::BTreeMap::new();
        let mut seed = 1u64;
        for round in 0..100_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let num = (seed >> 33) as u32 % 24 * 32 + (seed >> 60) as u32 % 3;
            if plain.remove(&num).is_some() {
                map.remove(num);
            } else if plain.len() < 16 {
                plain.insert(num, round);
                map.insert(num, round);
            }
            for (num, slot) in &plain {
                assert_eq!(map.find(*num), Some(*slot));
            }
            assert_eq!(map.find(num), plain.get(&num).copied());
        }
    }
}
