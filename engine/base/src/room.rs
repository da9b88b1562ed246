//! Room that was made beforehand: lists that the data plane fills and never grows, so that no push
//! of its ends the process for want of memory, and nothing that it does to a list can panic.

use arrayvec::ArrayVec;
use std_alloc::collections::VecDeque;
use std_alloc::vec::Vec;

/// A list with room for a known number of entries.
pub trait Room<T> {
    /// Adds an entry at the end, or gives it back if there is no room.
    fn offer(&mut self, value: T) -> Result<(), T>;

    /// Takes out the first entries, as many as there are at most.
    fn drop_first(&mut self, count: usize);

    /// Adds an entry where its owner has made room for all there can be.
    fn put(&mut self, value: T);
}

/// Where nothing comes by construction. Apart, so that the compiler takes it to be rare; `inline`,
/// so that other crates see that it does nothing.
#[cold]
#[inline]
pub fn never() {
    debug_assert!(false, "the list was made with room for all its entries");
}

/// A list that commands of the control plane may make longer.
pub trait Grow<T>: Room<T> {
    /// Makes room for that many entries in all. False: there is no memory for them.
    #[must_use]
    fn make_room(&mut self, entries: usize) -> bool;

    /// Puts an entry in the place of another, or behind the last. False: there is no memory for one
    /// more.
    #[must_use]
    fn place(&mut self, at: usize, value: T) -> bool;
}

impl<T> Room<T> for Vec<T> {
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

impl<T> Grow<T> for Vec<T> {
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

impl<T> Room<T> for VecDeque<T> {
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

impl<T> Grow<T> for VecDeque<T> {
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

impl<T, const N: usize> Room<T> for ArrayVec<T, N> {
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

/// A list out of whose middle entries are taken.
pub trait Take<T> {
    /// Takes out the entry at a place; the last one is there then.
    fn take_at(&mut self, at: usize) -> Option<T>;

    /// Takes out the entry at a place; those behind it move up.
    fn take_out(&mut self, at: usize) -> Option<T>;
}

impl<T> Take<T> for Vec<T> {
    #[inline(always)]
    fn take_at(&mut self, at: usize) -> Option<T> {
        if at >= self.len() {
            return None;
        }
        let last = self.pop()?;
        match self.get_mut(at) {
            Some(place) => Some(core::mem::replace(place, last)),
            None => Some(last),
        }
    }

    fn take_out(&mut self, at: usize) -> Option<T> {
        match self.get_mut(at..) {
            Some(rest) if !rest.is_empty() => rest.rotate_left(1),
            _ => return None,
        }
        self.pop()
    }
}

/// Copies as much as both have; how much that is.
#[inline(always)]
pub fn copy_into<T: Copy>(to: &mut [T], from: &[T]) -> usize {
    let count = to.len().min(from.len());
    if let (Some(to), Some(from)) = (to.get_mut(..count), from.get(..count)) {
        to.copy_from_slice(from);
    }
    count
}

/// Entries by number, in order. A map that does not panic where there is no memory for one more.
pub struct Book<T>(Vec<(u32, T)>);

impl<T> Default for Book<T> {
    fn default() -> Self {
        Book::new()
    }
}

impl<T> Book<T> {
    /// An empty one.
    pub const fn new() -> Book<T> {
        Book(Vec::new())
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

    /// The entry of a number.
    pub fn get(&self, number: u32) -> Option<&T> {
        let at = self.place(number).ok()?;
        self.0.get(at).map(|(_, entry)| entry)
    }

    /// Enters what has no entry yet. False: there is no memory for it.
    pub fn insert(&mut self, number: u32, entry: T) -> bool {
        if !self.0.make_room(self.0.len() + 1) || self.0.offer((number, entry)).is_err() {
            return false;
        }
        // The last one moves down to its place.
        for pair in (0..self.0.len() - 1).rev() {
            match self.0.get_mut(pair..pair + 2) {
                Some([before, new]) if before.0 > new.0 => core::mem::swap(before, new),
                _ => break,
            }
        }
        true
    }

    /// Takes out the entry of a number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let at = self.place(number).ok()?;
        self.0.take_out(at).map(|(_, entry)| entry)
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
            (list.take_at(9), list.take_at(0), list.take_out(0)),
            (None, Some(1), Some(100))
        );
    }

    #[test]
    fn as_much_is_copied_as_both_have() {
        let mut to = [0; 4];
        assert_eq!((copy_into(&mut to, &[1, 2]), copy_into(&mut to[2..], &[3, 4, 5])), (2, 2));
        assert_eq!(to, [1, 2, 3, 4]);
    }

    /// Against a map of the library, over many entries that come and go.
    #[test]
    fn a_book_agrees_with_a_map() {
        let (mut book, mut map) = (Book::new(), BTreeMap::new());
        let mut seed = 3u64;
        for round in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (seed >> 58) as u32;
            let gone = map.remove(&number);
            assert_eq!(book.remove(number), gone);
            if gone.is_none() {
                assert!(book.insert(number, round));
                map.insert(number, round);
            }
            if round % 500 == 0 {
                book.retain(|number, _| number % 3 != 0);
                map.retain(|number, _| number % 3 != 0);
            }
            assert_eq!((book.len(), book.get(number)), (map.len(), map.get(&number)));
        }
        assert!(book.0.is_sorted_by_key(|(number, _)| *number));
    }
}
