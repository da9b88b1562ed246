//! The block pool, compared with a set; what it does when misused; and that it does not allocate.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};

use doorbell_alloc::{BlockPool, SizeError};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates
// nothing, for the counter is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise about `ptr` and `layout` is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// xorshift64: the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn any_run_of_takes_and_puts_agrees_with_a_set() {
    for seed in 1..=200_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = 1 + random.below(130) as u32;
        let mut pool = BlockPool::new(count, 1 + random.below(5000) as usize).unwrap();
        let mut free: BTreeSet<u32> = (0..count).collect();
        let mut held: Vec<u32> = Vec::new();
        // Some runs mostly take and empty the pool, others mostly put.
        let bias = 1 + random.below(9);
        for _ in 0..1000 {
            if random.below(10) < bias {
                let next = pool.next();
                match pool.take() {
                    Some(index) => {
                        assert_eq!(next, Some(index), "seed {seed}");
                        assert!(free.remove(&index), "seed {seed}: {index} given twice");
                        held.push(index);
                    }
                    None => assert!(next.is_none() && free.is_empty(), "seed {seed}: lost blocks"),
                }
            } else if !held.is_empty() {
                let index = held.swap_remove(random.below(held.len() as u64) as usize);
                pool.put(index);
                assert!(free.insert(index));
                // The block put last is the one taken next.
                assert_eq!(pool.take(), Some(index), "seed {seed}");
                pool.put(index);
            }
            assert_eq!(pool.available() as usize, free.len(), "seed {seed}");
        }
    }
}

/// Each block is taken as often as any other, and none before its turn.
#[test]
fn blocks_in_turn_are_taken_in_the_order_in_which_they_were_put() {
    for seed in 1..=200_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = 1 + random.below(40) as u32;
        let mut pool = BlockPool::new(count, 64).unwrap();
        // Also if some are out already.
        let mut held: Vec<u32> =
            (0..random.below(u64::from(count) + 1)).map_while(|_| pool.take()).collect();
        let mut free: VecDeque<u32> = (held.len() as u32..count).collect();
        pool = pool.in_turn();
        let bias = 1 + random.below(9);
        for _ in 0..1000 {
            if random.below(10) < bias {
                assert_eq!(pool.next(), free.front().copied(), "seed {seed}");
                let index = pool.take();
                assert_eq!(index, free.pop_front(), "seed {seed}");
                held.extend(index);
            } else if !held.is_empty() {
                let index = held.swap_remove(random.below(held.len() as u64) as usize);
                pool.put(index);
                free.push_back(index);
            }
            assert_eq!(pool.available() as usize, free.len(), "seed {seed}");
        }
        held.into_iter().for_each(|index| pool.put(index));
        assert_eq!(pool.close(), Ok(None), "seed {seed}");
    }
}

#[test]
fn blocks_tile_the_region() {
    let pool = BlockPool::over(10_000, 768).unwrap();
    assert_eq!((pool.count(), pool.block_size(), pool.bytes()), (13, 768, 9984));
    for index in 0..pool.count() {
        let offset = pool.offset(index).unwrap();
        assert_eq!(offset, index as usize * 768);
        assert_eq!(pool.index_of(offset), Some(index));
        assert_eq!(pool.index_of(offset + 1), None);
    }
    assert_eq!(pool.index_of(pool.bytes()), None);
    assert_eq!(pool.index_of(usize::MAX), None);
    assert_eq!(pool.index_of((u32::MAX as usize + 1) * 768), None);
}

#[test]
fn impossible_sizes_are_refused() {
    assert_eq!(BlockPool::new(0, 64).unwrap_err(), SizeError::Zero);
    assert_eq!(BlockPool::new(64, 0).unwrap_err(), SizeError::Zero);
    let overflow = SizeError::Overflow { count: u32::MAX as usize, size: usize::MAX };
    assert_eq!(BlockPool::new(u32::MAX, usize::MAX).unwrap_err(), overflow);
    assert_eq!(BlockPool::over(63, 64).unwrap_err(), SizeError::NoBlockFits { len: 63, size: 64 });
}

#[test]
fn taking_and_putting_allocate_nothing() {
    let before_pool = ALLOCATIONS.get();
    let mut pool = BlockPool::new(1000, 64).unwrap();
    let before = ALLOCATIONS.get();
    assert_ne!(before, before_pool, "the counter works");
    for _ in 0..3 {
        while pool.take().is_some() {}
        (0..1000).for_each(|index| pool.put(index));
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
#[should_panic(expected = "block 4 is not of a pool of 4")]
fn a_foreign_index_asserts() {
    let mut pool = BlockPool::new(4, 64).unwrap();
    assert!(pool.take().is_some());
    pool.put(4);
}

#[test]
fn a_foreign_index_has_no_offset() {
    assert_eq!(BlockPool::new(4, 64).unwrap().offset(4), None);
}

#[test]
#[should_panic(expected = "block 0 was put into a full pool")]
fn a_put_into_a_full_pool_asserts() {
    BlockPool::new(4, 64).unwrap().put(0);
}

#[test]
fn missing_blocks_are_an_error_at_the_end() {
    let mut pool = BlockPool::new(4, 64).unwrap();
    let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
    pool.put(first);
    let line = line!() - 2;
    let missing = pool.close().unwrap_err();
    assert_eq!((missing.out(), missing.count()), (1, 4));
    let text = missing.to_string();
    assert!(text.starts_with("1 of 4 blocks were not put back"), "{text}");
    let holder = format!("block {second}: owner 0 took it at {}:{line}:", file!());
    assert_eq!(text.contains(&holder), cfg!(debug_assertions), "{text}");

    let mut pool = BlockPool::new(4, 64).unwrap();
    let block = pool.take().unwrap();
    pool.put(block);
    assert_eq!(pool.close(), Ok(None));
}

/// The message of the assertion in `misuse`, if there is one.
#[cfg(debug_assertions)]
fn assertion(misuse: impl FnOnce() + std::panic::UnwindSafe) -> Option<String> {
    let panic = std::panic::catch_unwind(misuse).err()?;
    panic.downcast::<String>().ok().map(|text| *text)
}

#[test]
#[cfg(debug_assertions)]
fn assertions_name_the_caller_and_the_previous_user() {
    type Misuse = fn(&mut BlockPool, u32);
    let cases: [(&str, Misuse); 5] = [
        ("put twice", |pool, block| {
            pool.put(block);
            pool.put(block);
        }),
        ("posted twice", |pool, block| {
            pool.posted(block);
            pool.posted(block);
        }),
        ("put while posted", |pool, block| {
            pool.posted(block);
            pool.put(block);
        }),
        ("posted while free", |pool, block| {
            pool.put(block);
            pool.posted(block);
        }),
        ("completed, never posted", |pool, block| pool.completed(block)),
    ];
    for (what, misuse) in cases {
        let text = assertion(move || {
            let mut pool = BlockPool::new(4, 64).unwrap();
            let (block, _) = (pool.take().unwrap(), pool.take().unwrap());
            misuse(&mut pool, block);
        });
        let text = text.unwrap_or_else(|| panic!("{what} was not found"));
        assert!(text.starts_with("block 0 was "), "{what}: {text}");
        // Two places in this file: the misuse, and the operation before it.
        let places: BTreeSet<&str> =
            text.match_indices(file!()).map(|(at, _)| &text[at..at + file!().len() + 4]).collect();
        assert_eq!(places.len(), 2, "{what}: {text}");
    }
}

#[test]
fn a_block_may_be_posted_and_completed_any_number_of_times() {
    let mut pool = BlockPool::new(1, 64).unwrap();
    for _ in 0..3 {
        let block = pool.take().unwrap();
        for _ in 0..2 {
            pool.posted(block);
            pool.completed(block);
        }
        pool.put(block);
    }
    assert_eq!(pool.close(), Ok(None));
}
