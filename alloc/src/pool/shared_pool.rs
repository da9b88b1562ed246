//! [`SharedPool`]: the free blocks behind the caches of several workers.

use std_alloc::sync::Arc;

use super::block_pool::BlockPool;
use super::blocks::{Blocks, LeakedBlocks};
use super::free_list::FreeList;
use crate::arena::Piece;
use crate::arith::SizeError;

/// A pool of blocks that several workers use, each through a cache of its own.
///
/// A cache is a [`BlockPool`]: to take and to put there touches nothing that another worker
/// touches. Only an empty or a full cache exchanges blocks with the shared pool: half of what it
/// can hold, in a few atomic steps without a lock. A block may be put into another cache than the
/// one it was taken from. All memory is allocated when the pool and its caches are made.
///
/// A cache is bounded, and other workers cannot reach the blocks in it. For one worker always to
/// get `n` blocks, the pool needs `n` plus the sizes of all other caches.
///
/// ```
/// use doorbell_alloc::SharedPool;
///
/// let pool = SharedPool::new(256, 2048)?;
/// let (mut one, mut two) = (pool.cache(1, 32), pool.cache(2, 32));
/// let block = one.take().ok_or("the pool has 256 blocks")?;
/// two.put(block); // a worker may free a block that another one took
/// drop((one, two)); // a cache returns its blocks when it is dropped
/// pool.close()?; // an error if a block is missing
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SharedPool(Arc<FreeList>);

impl SharedPool {
    /// A pool of `count` blocks of `block_size` bytes, all free. The region must hold
    /// `count * block_size` bytes.
    ///
    /// # Errors
    /// As for [`BlockPool::new`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn new(count: u32, block_size: usize) -> Result<Self, SizeError> {
        Ok(Self(Arc::new(FreeList::full(Blocks::new(0, count, block_size)?, None))))
    }

    /// A pool of as many blocks of `block_size` bytes as `piece` holds. Offsets of its blocks count
    /// from the start of the region.
    ///
    /// # Errors
    /// As for [`BlockPool::over`].
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn within(piece: Piece, block_size: usize) -> Result<Self, SizeError> {
        let blocks = Blocks::within(&piece, block_size)?;
        Ok(Self(Arc::new(FreeList::full(blocks, Some(piece)))))
    }

    /// An empty cache for one worker that holds at most `size` blocks; `size` is raised to 1 and
    /// lowered to the number of blocks. Assertions print `owner` to name the worker.
    #[must_use]
    pub fn cache(&self, owner: u32, size: u32) -> BlockPool {
        BlockPool::cache(self.0.clone(), owner, size)
    }

    /// Free blocks now, without those in caches. Other threads may change it at any moment.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.0.len()
    }

    /// Ends the pool after its caches were dropped, and returns the piece it was made in.
    ///
    /// # Errors
    /// [`LeakedBlocks`] if a cache is still alive or a block was not put back. The piece is then
    /// lost, because somebody may still use its bytes.
    pub fn close(self) -> Result<Option<Piece>, LeakedBlocks> {
        let list = match Arc::try_unwrap(self.0) {
            Ok(list) => list,
            Err(shared) => {
                let caches = Arc::strong_count(&shared) - 1;
                return Err(shared.leaked(caches));
            }
        };
        if list.len() == list.blocks.count {
            return Ok(list.piece);
        }
        Err(list.leaked(0))
    }
}
