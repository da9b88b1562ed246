//! [`Depot`]: one stock of blocks behind the caches of several workers.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

#[cfg(debug_assertions)]
use super::ledger::Ledger;
use super::{BlockPool, Blocks, NotHome};
use crate::arena::Piece;
use crate::arith::SizeError;

/// One stock of blocks that several workers draw on, each through a cache of its own.
///
/// A cache is a [`BlockPool`]: taking and putting there touch nothing that another worker
/// touches. Only when it runs empty or full does it exchange a batch, half of what it can hold,
/// with the depot, in a few atomic steps without a lock. A block may be put into another cache than
/// the one it was taken from. All memory is allocated when depot and caches are made.
///
/// Caches are bounded, and what lies in one is out of the others' reach: for `n` blocks to be had
/// by one worker whatever the others hold, the depot needs `n` plus the sizes of all the other
/// caches.
///
/// ```
/// use doorbell_alloc::Depot;
///
/// let depot = Depot::new(256, 2048)?;
/// let (mut one, mut two) = (depot.cache(1, 32), depot.cache(2, 32));
/// let block = one.take().ok_or("256 are there")?;
/// two.put(block); // a worker may free what another took
/// drop((one, two)); // what caches hold goes home
/// depot.close()?; // an error if a block is missing
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Depot(Arc<Stock>);

impl Depot {
    /// A depot of `count` blocks of `block_size` bytes, all home. The region must hold
    /// `count * block_size` bytes.
    ///
    /// # Errors
    /// As for [`BlockPool::new`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(count: u32, block_size: usize) -> Result<Self, SizeError> {
        Ok(Self::of(Blocks::new(0, count, block_size)?, None))
    }

    /// A depot of as many blocks of `block_size` bytes as a piece of a region holds; their offsets
    /// are those of the region.
    ///
    /// # Errors
    /// As for [`BlockPool::over`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn within(piece: Piece, block_size: usize) -> Result<Self, SizeError> {
        let blocks = Blocks::within(&piece, block_size)?;
        Ok(Self::of(blocks, Some(piece)))
    }

    #[cfg_attr(debug_assertions, track_caller)]
    fn of(blocks: Blocks, piece: Option<Piece>) -> Self {
        let count = blocks.count;
        let next = (1..count).chain([NONE]).map(AtomicU32::new).collect();
        Self(Arc::new(Stock {
            head: Line(AtomicU64::new(0)),
            home: Line(AtomicU32::new(count)),
            next,
            blocks,
            piece,
            #[cfg(debug_assertions)]
            ledger: Arc::new(Ledger::new(count)),
        }))
    }

    /// A cache of at most `size` blocks (at least 1, at most all) for one worker. It starts empty.
    /// `owner` is the number that assertions call it by.
    #[must_use]
    pub fn cache(&self, owner: u32, size: u32) -> BlockPool {
        BlockPool::cache(self.0.clone(), owner, size)
    }

    /// Blocks in the depot itself now, not in any cache. Others may change it at any moment.
    #[must_use]
    pub fn available(&self) -> u32 {
        // Relaxed: a figure for reports; nobody concludes from it what else was written.
        self.0.home.0.load(Ordering::Relaxed)
    }

    /// Ends the depot, when its caches are gone: every block must be home. Gives back the piece
    /// that it was made within.
    ///
    /// # Errors
    /// [`NotHome`] if a cache still lives or a block is missing. The piece is lost then, for
    /// somebody may still use its bytes.
    pub fn close(self) -> Result<Option<Piece>, NotHome> {
        let stock = match Arc::try_unwrap(self.0) {
            Ok(stock) => stock,
            Err(shared) => {
                let caches = Arc::strong_count(&shared) - 1;
                return Err(shared.missing(caches));
            }
        };
        if stock.home.0.load(Ordering::Relaxed) == stock.blocks.count {
            return Ok(stock.piece);
        }
        Err(stock.missing(0))
    }
}

/// The end of the list of blocks.
const NONE: u32 = u32::MAX;

/// A value with its cache line to itself, and the line that is fetched along with it.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// The blocks that are home, as a list through `next`, and what else the caches share.
///
/// A stack without locks (Treiber), which moves whole batches. `head` holds the first block in its
/// low half and counts exchanges in its high half. A batch is pushed by linking it up, which
/// nobody else sees, and swapping `head`. A batch is popped by reading `head`, walking down
/// as many links, and swapping `head` for what comes after: if the swap succeeds, the count
/// says that nothing was pushed or popped since `head` was read, and links of blocks in the list
/// change only by that; so the walk saw the true list. If anything did happen, the walk may have
/// read links of blocks that were on their way elsewhere: every value is the number of a block
/// or the end, the walk is bounded, and it is repeated. The count would have to go round its
/// 2^32 values between one read and its swap to deceive.
///
/// Orderings: a push releases its links and what its worker wrote to the blocks; a pop acquires
/// on reading `head`. A pop need not release: every change of `head` is a read-modify-write, so
/// all later ones belong to the release sequence of each push before, and an acquire of any
/// of them sees the links of all. Without the acquire a walk could read a link from before the
/// push that it found in `head`.
#[derive(Debug)]
pub(super) struct Stock {
    head: Line<AtomicU64>,
    /// Blocks in the list: raised before a push and lowered after a pop, so never below 0.
    home: Line<AtomicU32>,
    next: Box<[AtomicU32]>,
    pub(super) blocks: Blocks,
    piece: Option<Piece>,
    #[cfg(debug_assertions)]
    pub(super) ledger: Arc<Ledger>,
}

/// What a pop saw: the head, how many blocks from it on, and the one below them.
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

impl Stock {
    /// Brings blocks home.
    pub(super) fn push(&self, batch: &[u32]) {
        let (Some(&first), Some(&last)) = (batch.first(), batch.last()) else { return };
        for (&block, &below) in batch.iter().zip(batch.iter().skip(1)) {
            // Relaxed: published by the swap below.
            self.set_below(block, below);
        }
        // Relaxed: a count; the list is what is exact.
        self.home.0.fetch_add(batch.len() as u32, Ordering::Relaxed);
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

    /// Notes what lies below a block in the list. Relaxed: see who asks.
    fn set_below(&self, block: u32, below: u32) {
        if let Some(next) = self.next.get(block as usize) {
            next.store(below, Ordering::Relaxed);
        }
    }

    /// Takes up to `room.len()` blocks; how many.
    pub(super) fn pop(&self, room: &mut [u32]) -> usize {
        loop {
            let walk = self.walk(room);
            if walk.count == 0 {
                return 0;
            }
            if self.unlink(&walk) {
                self.home.0.fetch_sub(walk.count as u32, Ordering::Relaxed);
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

    /// Takes what was walked off the list, if nothing happened since.
    fn unlink(&self, walk: &Walk) -> bool {
        let new = advanced(walk.head, walk.below);
        // Relaxed: the walk has acquired, and need not release; see above.
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        self.head.0.compare_exchange(walk.head, new, order.0, order.1).is_ok()
    }

    /// The account of what is not in the list.
    fn missing(&self, caches: usize) -> NotHome {
        let count = self.blocks.count;
        let out = count - self.home.0.load(Ordering::Relaxed).min(count);
        NotHome {
            count,
            out,
            caches,
            #[cfg(debug_assertions)]
            held: self.ledger.held(),
            #[cfg(not(debug_assertions))]
            held: std_alloc::string::String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_was_overtaken_takes_nothing() {
        let depot = Depot::new(3, 64).expect("a size");
        let stock = &depot.0;
        let mut room = [0; 1];
        let walk = stock.walk(&mut room);
        assert_eq!((room, walk.count, walk.below), ([0], 1, 1));
        // Meanwhile another worker takes two blocks and brings the first one home: the head is
        // the same block again, but the one below it is no longer in the list.
        let mut others = [0; 2];
        assert_eq!((stock.pop(&mut others), others), (2, [0, 1]));
        stock.push(&[0]);
        assert!(!stock.unlink(&walk), "block 1 would have been given twice");

        assert_eq!((stock.pop(&mut room), room), (1, [0]));
        assert_eq!((stock.pop(&mut room), room), (1, [2]));
        assert_eq!(stock.pop(&mut room), 0);
    }

    #[test]
    fn the_count_of_exchanges_goes_round_without_touching_the_block() {
        let last = (u64::from(u32::MAX) << 32) | 5;
        assert_eq!(advanced(last, 7), 7);
        assert_eq!(first_of(advanced(last, NONE)), NONE);
    }
}
