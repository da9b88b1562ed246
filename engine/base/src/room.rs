//! Lists and a map that never panic for lack of memory. The data plane fills them within their
//! capacity; only commands of the control plane make them longer.

use arrayvec::ArrayVec;
use std_alloc::collections::VecDeque;
use std_alloc::vec::Vec;

/// A list that is filled within its capacity and never reallocates.
pub trait FixedCapacity<T> {
    /// Adds an entry at the end, or gives it back if there is no room.
    fn offer(&mut self, value: T) -> Result<(), T>;

    /// Removes the first `count` entries, or all if there are fewer.
    fn drop_first(&mut self, count: usize);

    /// Adds an entry to a list whose owner has made room for every possible entry. Without room it
    /// drops the entry; debug builds panic.
    fn put(&mut self, value: T);
}

/// Marks a branch that cannot be reached by construction. A function of its own, so that the
/// compiler treats it as rare; `inline`, so that other crates see that it does nothing.
#[cold]
#[inline]
pub fn never() {
    debug_assert!(false, "the list was made with room for all its entries");
}

/// A list that commands of the control plane may make longer.
pub trait TryGrow<T>: FixedCapacity<T> {
    /// Makes room for `entries` entries in total. False: there is no memory for them.
    #[must_use]
    fn make_room(&mut self, entries: usize) -> bool;

    /// Replaces an entry, or adds one at the end. False: there is no memory for one more.
    #[must_use]
    fn place(&mut self, at: usize, value: T) -> bool;
}

impl<T> FixedCapacity<T> for Vec<T> {
    #[inline(always)]
    fn offer(&mut self, value: T) -> Result<(), T> {
        if self.len() == self.capacity() {
            return Err(value);
        }
        self.push(value);
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, value: T) {
        match self.len() < self.capacity() {
            true => self.push(value),
            false => never(),
        }
    }

    fn drop_first(&mut self, count: usize) {
        let mut at = 0;
        self.retain(|_| {
            at += 1;
            at > count
        });
    }
}

impl<T> TryGrow<T> for Vec<T> {
    fn make_room(&mut self, entries: usize) -> bool {
        self.try_reserve(entries.saturating_sub(self.len())).is_ok()
    }

    fn place(&mut self, at: usize, value: T) -> bool {
        if let Some(place) = self.get_mut(at) {
            *place = value;
            return true;
        }
        self.make_room(self.len() + 1) && self.offer(value).is_ok()
    }
}

impl<T> FixedCapacity<T> for VecDeque<T> {
    #[inline(always)]
    fn offer(&mut self, value: T) -> Result<(), T> {
        if self.len() == self.capacity() {
            return Err(value);
        }
        self.push_back(value);
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, value: T) {
        match self.len() < self.capacity() {
            true => self.push_back(value),
            false => never(),
        }
    }

    fn drop_first(&mut self, count: usize) {
        for _ in 0..count {
            drop(self.pop_front());
        }
    }
}

impl<T> TryGrow<T> for VecDeque<T> {
    fn make_room(&mut self, entries: usize) -> bool {
        self.try_reserve(entries.saturating_sub(self.len())).is_ok()
    }

    fn place(&mut self, at: usize, value: T) -> bool {
        if let Some(place) = self.get_mut(at) {
            *place = value;
            return true;
        }
        self.make_room(self.len() + 1) && self.offer(value).is_ok()
    }
}

impl<T, const N: usize> FixedCapacity<T> for ArrayVec<T, N> {
    #[inline(always)]
    fn offer(&mut self, value: T) -> Result<(), T> {
        self.try_push(value).map_err(|full| full.element())
    }

    #[inline(always)]
    fn put(&mut self, value: T) {
        if self.try_push(value).is_err() {
            never();
        }
    }

    fn drop_first(&mut self, count: usize) {
        let mut at = 0;
        self.retain(|_| {
            at += 1;
            at > count
        });
    }
}

/// A list that entries can be removed from at any position.
pub trait RemoveAt<T> {
    /// Removes the entry at a position; the last entry takes its place.
    fn swap_remove_at(&mut self, at: usize) -> Option<T>;

    /// Removes the entry at a position; later entries move up.
    fn remove_at(&mut self, at: usize) -> Option<T>;
}

impl<T> RemoveAt<T> for Vec<T> {
    #[inline(always)]
    fn swap_remove_at(&mut self, at: usize) -> Option<T> {
        if at >= self.len() {
            return None;
        }
        let last = self.pop()?;
        match self.get_mut(at) {
            Some(place) => Some(core::mem::replace(place, last)),
            None => Some(last),
        }
    }

    fn remove_at(&mut self, at: usize) -> Option<T> {
        match self.get_mut(at..) {
            Some(rest) if !rest.is_empty() => rest.rotate_left(1),
            _ => return None,
        }
        self.pop()
    }
}

/// Copies as much as both slices hold. Returns how much.
#[inline(always)]
pub fn copy_into<T: Copy>(to: &mut [T], from: &[T]) -> usize {
    let count = to.len().min(from.len());
    if let (Some(to), Some(from)) = (to.get_mut(..count), from.get(..count)) {
        to.copy_from_slice(from);
    }
    count
}

/// Entries sorted by number. A map that does not panic if there is no memory for one more.
pub struct SortedMap<T>(Vec<(u32, T)>);

impl<T> Default for SortedMap<T> {
    fn default() -> Self {
        SortedMap::new()
    }
}

impl<T> SortedMap<T> {
    /// An empty map.
    pub const fn new() -> SortedMap<T> {
        SortedMap(Vec::new())
    }

    /// True if it has no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Entries in it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn place(&self, number: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&number, |(number, _)| *number)
    }

    /// The entry with that number.
    pub fn get(&self, number: u32) -> Option<&T> {
        let at = self.place(number).ok()?;
        self.0.get(at).map(|(_, entry)| entry)
    }

    /// Adds an entry under a number that has none yet. False: there is no memory for it.
    pub fn insert(&mut self, number: u32, entry: T) -> bool {
        if !self.0.make_room(self.0.len() + 1) || self.0.offer((number, entry)).is_err() {
            return false;
        }
        // The new entry, now last, moves down to its place.
        for pair in (0..self.0.len() - 1).rev() {
            match self.0.get_mut(pair..pair + 2) {
                Some([before, new]) if before.0 > new.0 => core::mem::swap(before, new),
                _ => break,
            }
        }
        true
    }

    /// Removes the entry with that number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let at = self.place(number).ok()?;
        self.0.remove_at(at).map(|(_, entry)| entry)
    }

    /// Keeps the entries for which `stays` is true.
    pub fn retain(&mut self, mut stays: impl FnMut(u32, &T) -> bool) {
        self.0.retain(|(number, entry)| stays(*number, entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_list_is_filled_and_not_grown() {
        let mut list = Vec::with_capacity(2);
        let capacity = list.capacity();
        for n in 0..capacity {
            assert_eq!(list.offer(n), Ok(()));
        }
        assert_eq!((list.offer(99), list.capacity()), (Err(99), capacity));
        list.drop_first(1);
        assert_eq!(list.first(), Some(&1));
        assert!(list.make_room(capacity + 1) && list.offer(99).is_ok() && list.offer(100).is_ok());
        assert_eq!(
            (list.swap_remove_at(9), list.swap_remove_at(0), list.remove_at(0)),
            (None, Some(1), Some(100))
        );
    }

    #[test]
    fn as_much_is_copied_as_both_have() {
        let mut to = [0; 4];
        assert_eq!((copy_into(&mut to, &[1, 2]), copy_into(&mut to[2..], &[3, 4, 5])), (2, 2));
        assert_eq!(to, [1, 2, 3, 4]);
    }

    /// Compares with the standard library's map while many entries come and go.
    #[test]
    fn a_sorted_map_agrees_with_a_btree_map() {
        let (mut sorted, mut map) = (SortedMap::new(), BTreeMap::new());
        let mut seed = 3u64;
        for round in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (seed >> 58) as u32;
            let gone = map.remove(&number);
            assert_eq!(sorted.remove(number), gone);
            if gone.is_none() {
                assert!(sorted.insert(number, round));
                map.insert(number, round);
            }
            if round % 500 == 0 {
                sorted.retain(|number, _| number % 3 != 0);
                map.retain(|number, _| number % 3 != 0);
            }
            assert_eq!((sorted.len(), sorted.get(number)), (map.len(), map.get(&number)));
        }
        assert!(sorted.0.is_sorted_by_key(|(number, _)| *number));
    }
}
