//! A store in memory, in pieces with a lock each: threads meet only in the same piece.

use std::io;
use std::sync::{PoisonError, RwLock};

use super::{Store, behind};

/// Bytes of a piece.
const PIECE: usize = 1 << 18;

/// Bytes in memory. They are zero at first, and the system gives pages as they are written.
#[derive(Debug)]
pub struct Memory {
    pieces: Vec<RwLock<Vec<u8>>>,
    len: u64,
}

impl Memory {
    /// A store of that many bytes.
    pub fn new(len: u64) -> Memory {
        let count = len.div_ceil(PIECE as u64);
        let bytes = |index: u64| (len - index * PIECE as u64).min(PIECE as u64) as usize;
        let pieces = (0..count).map(|index| RwLock::new(vec![0; bytes(index)])).collect();
        Memory { pieces, len }
    }

    /// Calls `each` for the pieces that hold the bytes: the piece, the first byte there, and the
    /// bytes that belong there, counted from `at`.
    fn pieces(
        &self,
        at: u64,
        len: u64,
        mut each: impl FnMut(&RwLock<Vec<u8>>, usize, std::ops::Range<u64>) -> Option<()>,
    ) -> io::Result<()> {
        let end = at.checked_add(len).filter(|end| *end <= self.len).ok_or_else(behind)?;
        let mut next = at;
        while next < end {
            let (index, start) = (next / PIECE as u64, next % PIECE as u64);
            let count = (PIECE as u64 - start).min(end - next);
            let piece = self.pieces.get(index as usize).ok_or_else(behind)?;
            each(piece, start as usize, next - at..next - at + count).ok_or_else(behind)?;
            next += count;
        }
        Ok(())
    }
}

impl Store for Memory {
    fn len(&self) -> u64 {
        self.len
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.pieces(at, to.len() as u64, |piece, start, range| {
            let to = to.get_mut(range.start as usize..range.end as usize)?;
            let piece = piece.read().unwrap_or_else(PoisonError::into_inner);
            to.copy_from_slice(piece.get(start..start + to.len())?);
            Some(())
        })
    }

    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.pieces(at, from.len() as u64, |piece, start, range| {
            let from = from.get(range.start as usize..range.end as usize)?;
            let mut piece = piece.write().unwrap_or_else(PoisonError::into_inner);
            piece.get_mut(start..start + from.len())?.copy_from_slice(from);
            Some(())
        })
    }

    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        self.pieces(at, len, |piece, start, range| {
            let count = (range.end - range.start) as usize;
            let mut piece = piece.write().unwrap_or_else(PoisonError::into_inner);
            if count == piece.len() {
                *piece = vec![0; count]; // The old pages go back to the system.
            } else {
                piece.get_mut(start..start + count)?.fill(0);
            }
            Some(())
        })
    }

    fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        self.zero(at, len)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_where_they_were_written_across_pieces() {
        let store = Memory::new(3 * PIECE as u64 - 100);
        let (at, data) = (PIECE as u64 - 7, (0..PIECE + 20).map(|i| i as u8).collect::<Vec<_>>());
        store.write(at, &data).unwrap();
        let mut back = vec![9; data.len() + 2];
        store.read(at - 1, &mut back).unwrap();
        assert_eq!((back[0], back[back.len() - 1]), (0, 0));
        assert_eq!(&back[1..=data.len()], &data[..]);
        store.zero(at + 3, PIECE as u64 + 10).unwrap();
        store.read(at - 1, &mut back).unwrap();
        assert_eq!(&back[1..4], &data[..3]);
        assert!(back[4..PIECE + 14].iter().all(|byte| *byte == 0));
        assert_eq!(&back[PIECE + 14..=data.len()], &data[PIECE + 13..]);
    }

    #[test]
    fn nothing_is_behind_the_end() {
        let store = Memory::new(1000);
        assert!(store.write(990, &[1; 11]).is_err() && store.write(990, &[1; 10]).is_ok());
        assert!(store.read(u64::MAX, &mut [0; 2]).is_err());
        assert!(store.zero(1001, 0).is_err() && store.zero(1000, 0).is_ok());
    }
}
