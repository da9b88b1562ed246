//! [`FreeList`]: the free blocks of a shared pool, on a stack without locks.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std_alloc::boxed::Box;
#[cfg(debug_assertions)]
use std_alloc::sync::Arc;

use super::blocks::{Blocks, LeakedBlocks};
#[cfg(debug_assertions)]
use super::tracker::Tracker;
use crate::arena::Piece;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// A value alone on its cache line and on the line that is prefetched with it.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// The free blocks, linked through `next`, and what else the caches of the pool share.
///
/// This is a stack without locks (Treiber) that moves whole batches. The low half of `head` is the
/// first block; the high half counts exchanges. To push a batch, a worker links its blocks, which
/// nobody else sees yet, and swaps `head`. To pop a batch, a worker reads `head`, follows as many
/// links as it needs, and swaps `head` for the block below. If the swap succeeds, the count proves
/// that nothing was pushed or popped since `head` was read. Links of listed blocks change only by a
/// push or a pop, so the walk saw the true list. If the swap fails, the walk may have followed
/// links of blocks that were being moved. That does no harm: every link is a block number or the
/// end, the walk is bounded, and it is repeated. The count could deceive a pop only if it went
/// through all 2^32 values between the read and the swap.
///
/// Orderings: a push releases its links and everything its worker wrote to the blocks; a pop
/// acquires when it reads `head`. A pop need not release: every change of `head` is a
/// read-modify-write, so later values of `head` belong to the release sequence of each earlier
/// push, and an acquire of any of them sees the links of all. Without the acquire, a walk could
/// read a link that is older than the push it found in `head`.
#[derive(Debug)]
pub(super) struct FreeList {
    head: Line<AtomicU64>,
    /// Blocks in the list: raised before a push and lowered after a pop, so never below 0.
    len: Line<AtomicU32>,
    next: Box<[AtomicU32]>,
    pub(super) blocks: Blocks,
    /// The piece that the blocks lie in, if they were cut from one.
    pub(super) piece: Option<Piece>,
    #[cfg(debug_assertions)]
    pub(super) tracker: Arc<Tracker>,
}

/// What a pop saw: the head, how many blocks follow from it, and the block below those.
struct Walk {
    head: u64,
    count: usize,
    below: u32,
}

const fn first_of(head: u64) -> u32 {
    head as u32
}

/// The head after the next exchange, with `first` as the first block.
const fn advanced(head: u64, first: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | first as u64
}

impl FreeList {
    /// A list of all of `blocks`.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(super) fn full(blocks: Blocks, piece: Option<Piece>) -> Self {
        let count = blocks.count;
        Self {
            head: Line(AtomicU64::new(0)),
            len: Line(AtomicU32::new(count)),
            next: (1..count).chain([NONE]).map(AtomicU32::new).collect(),
            blocks,
            piece,
            #[cfg(debug_assertions)]
            tracker: Arc::new(Tracker::new(count)),
        }
    }

    /// Blocks in the list now. Other threads may change it at any moment.
    pub(super) fn len(&self) -> u32 {
        // Relaxed: a figure for reports; nobody infers from it what else was written.
        self.len.0.load(Ordering::Relaxed)
    }

    /// Puts blocks on the list.
    pub(super) fn push(&self, batch: &[u32]) {
        let (Some(&first), Some(&last)) = (batch.first(), batch.last()) else { return };
        for (&block, &below) in batch.iter().zip(batch.iter().skip(1)) {
            self.set_below(block, below);
        }
        // Relaxed: only a count; the list itself is exact.
        self.len.0.fetch_add(batch.len() as u32, Ordering::Relaxed);
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            self.set_below(last, first_of(head));
            let new = advanced(head, first);
            // Release: see above. Relaxed on failure: only `head` itself is used.
            let swap =
                self.head.0.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed);
            match swap {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Links `block` to the one below it. Relaxed: the swap of `head` in `push` publishes it.
    fn set_below(&self, block: u32, below: u32) {
        if let Some(next) = self.next.get(block as usize) {
            next.store(below, Ordering::Relaxed);
        }
    }

    /// Takes up to `room.len()` blocks off the list; returns how many.
    pub(super) fn pop(&self, room: &mut [u32]) -> usize {
        loop {
            let walk = self.walk(room);
            if walk.count == 0 {
                return 0;
            }
            if self.unlink(&walk) {
                self.len.0.fetch_sub(walk.count as u32, Ordering::Relaxed);
                return walk.count;
            }
        }
    }

    /// Reads the list from its head into `room`.
    fn walk(&self, room: &mut [u32]) -> Walk {
        // Acquire: see above.
        let head = self.head.0.load(Ordering::Acquire);
        let (mut below, mut count) = (first_of(head), 0);
        for place in room {
            let Some(next) = self.next.get(below as usize) else { break };
            *place = below;
            count += 1;
            below = next.load(Ordering::Relaxed);
        }
        Walk { head, count, below }
    }

    /// Takes the blocks of `walk` off the list, unless the list has changed since.
    fn unlink(&self, walk: &Walk) -> bool {
        let new = advanced(walk.head, walk.below);
        // Relaxed: the walk has acquired, and a pop need not release; see above.
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        self.head.0.compare_exchange(walk.head, new, order.0, order.1).is_ok()
    }

    /// Which blocks are not in the list, while `caches` caches are still alive.
    pub(super) fn leaked(&self, caches: usize) -> LeakedBlocks {
        let count = self.blocks.count;
        let out = count - self.len().min(count);
        LeakedBlocks {
            count,
            out,
            caches,
            #[cfg(debug_assertions)]
            held: self.tracker.held(),
            #[cfg(not(debug_assertions))]
            held: std_alloc::string::String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_over_a_changed_list_takes_nothing() {
        let list = FreeList::full(Blocks::new(0, 3, 64).expect("a size"), None);
        let mut room = [0; 1];
        let walk = list.walk(&mut room);
        assert_eq!((room, walk.count, walk.below), ([0], 1, 1));
        // Meanwhile another worker takes two blocks and puts the first one back: the head is
        // the same block again, but the one below it is no longer in the list.
        let mut others = [0; 2];
        assert_eq!((list.pop(&mut others), others), (2, [0, 1]));
        list.push(&[0]);
        assert!(!list.unlink(&walk), "block 1 would be given out twice");

        assert_eq!((list.pop(&mut room), room), (1, [0]));
        assert_eq!((list.pop(&mut room), room), (1, [2]));
        assert_eq!(list.pop(&mut room), 0);
    }

    #[test]
    fn the_count_of_exchanges_wraps_without_touching_the_block() {
        let last = (u64::from(u32::MAX) << 32) | 5;
        assert_eq!(advanced(last, 7), 7);
        assert_eq!(first_of(advanced(last, NONE)), NONE);
    }
}
