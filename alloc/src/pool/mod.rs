//! Fixed blocks of a region, handed out by index: [`BlockPool`] for one owner, [`SharedPool`] for
//! several workers, each of which draws on it through a cache of its own.

mod blocks;
#[cfg(debug_assertions)]
mod tracker;

mod free_list;

mod block_pool;
mod shared_pool;

pub use self::block_pool::BlockPool;
pub use self::blocks::LeakedBlocks;
pub use self::shared_pool::SharedPool;
