//! The caches of one shared pool: in one thread, compared with a set, and in several threads.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use doorbell_alloc::{BlockPool, SharedPool};

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
fn caches_give_each_block_once_and_lose_none() {
    for seed in 1..=200_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let count = 1 + random.below(100) as u32;
        let pool = SharedPool::new(count, 64).unwrap();
        let sizes: Vec<u32> = (0..1 + random.below(4)).map(|_| random.below(20) as u32).collect();
        let caches = sizes.iter().enumerate();
        let mut caches: Vec<_> = caches.map(|(i, &size)| pool.cache(i as u32, size)).collect();
        let mut held: Vec<u32> = Vec::new();
        let mut out = BTreeSet::new();
        let bias = 1 + random.below(9);
        for _ in 0..1000 {
            let which = random.below(caches.len() as u64) as usize;
            if random.below(10) < bias {
                match caches[which].take() {
                    Some(block) => {
                        assert!(block < count && out.insert(block), "seed {seed}: {block} twice");
                        held.push(block);
                    }
                    // Then all free blocks are in other caches.
                    None => assert_eq!((pool.available(), caches[which].available()), (0, 0)),
                }
            } else if !held.is_empty() {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                out.remove(&block);
                caches[which].put(block);
            }
            let cached: u32 = caches.iter().map(BlockPool::available).sum();
            let sum = pool.available() + cached + out.len() as u32;
            assert_eq!(sum, count, "seed {seed}: blocks were lost or given twice");
            for (cache, &size) in caches.iter().zip(&sizes) {
                assert!(cache.available() <= size.clamp(1, count), "seed {seed}: beyond its bound");
            }
        }
        held.into_iter().for_each(|block| caches[0].put(block));
        drop(caches);
        assert_eq!(pool.close(), Ok(None), "seed {seed}");
    }
}

#[test]
fn the_block_put_last_is_taken_next_and_the_longest_unused_are_returned() {
    let pool = SharedPool::new(16, 64).unwrap();
    let mut cache = pool.cache(0, 4);
    let blocks: Vec<u32> = (0..16).map(|_| cache.take().unwrap()).collect();
    assert_eq!(cache.take(), None);
    for &block in &blocks[..5] {
        cache.put(block);
    }
    // The fifth found a full cache, which returned the first two.
    assert_eq!((cache.available(), pool.available()), (3, 2));
    for &block in [4, 3, 2].map(|index| &blocks[index]) {
        assert_eq!(cache.take(), Some(block));
    }
    let mut returned = [cache.take().unwrap(), cache.take().unwrap()];
    returned.sort_unstable();
    let mut first = [blocks[0], blocks[1]];
    first.sort_unstable();
    assert_eq!(returned, first);
}

#[test]
fn workers_that_free_each_others_blocks_never_hold_the_same_one() {
    const WORKERS: u32 = 4;
    const COUNT: u32 = 64;
    let rounds = if cfg!(miri) { 300 } else { 100_000 };
    let pool = SharedPool::new(COUNT, 64).unwrap();
    // Who holds each block, 0 for nobody. Each worker writes its own number and must find it again.
    let holders: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..WORKERS).map(|_| std::sync::mpsc::channel::<u32>()).unzip();
    thread::scope(|scope| {
        for (worker, inbox) in receivers.into_iter().enumerate() {
            let mut cache = pool.cache(worker as u32, 1 + worker as u32 * 3);
            let next = senders[(worker + 1) % WORKERS as usize].clone();
            let holders = &holders;
            scope.spawn(move || {
                let me = worker as u32 + 1;
                // Relaxed on purpose: the test is whether the pool orders these.
                let hold = |block: u32, from: u32, to: u32| {
                    let before = holders[block as usize].swap(to, Ordering::Relaxed);
                    assert_eq!(before, from, "block {block} has two holders");
                };
                for round in 0..rounds {
                    if let Some(block) = cache.take() {
                        hold(block, 0, me);
                        if round % 3 == 0 {
                            // The neighbour frees it.
                            let _ = next.send(block);
                        } else {
                            hold(block, me, 0);
                            cache.put(block);
                        }
                    }
                    while let Ok(block) = inbox.try_recv() {
                        holders[block as usize].store(0, Ordering::Relaxed);
                        cache.put(block);
                    }
                }
                drop(next);
                for block in inbox {
                    holders[block as usize].store(0, Ordering::Relaxed);
                    cache.put(block);
                }
            });
        }
        drop(senders);
    });
    assert_eq!(pool.close(), Ok(None));
}

#[test]
fn exchanges_of_few_blocks_between_many_workers_never_give_one_twice() {
    const WORKERS: u32 = 4;
    // Few blocks, so that each returns quickly: this breaks a stack that does not count exchanges.
    const COUNT: u32 = 3;
    let rounds = if cfg!(miri) { 300 } else { 300_000 };
    let pool = SharedPool::new(COUNT, 64).unwrap();
    let holders: Vec<AtomicU32> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    let start = Barrier::new(WORKERS as usize);
    thread::scope(|scope| {
        for worker in 1..=WORKERS {
            let (mut cache, holders, start) = (pool.cache(worker, 1), &holders, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..rounds {
                    // The cache holds one block, so each round exchanges one with the pool.
                    let taken = [cache.take(), cache.take()];
                    for block in taken.into_iter().flatten() {
                        let before = holders[block as usize].swap(worker, Ordering::Relaxed);
                        assert_eq!(before, 0, "block {block} has two holders");
                    }
                    for block in taken.into_iter().flatten() {
                        holders[block as usize].store(0, Ordering::Relaxed);
                        cache.put(block);
                    }
                }
            });
        }
    });
    assert_eq!(pool.close(), Ok(None));
}

#[test]
fn taking_putting_and_exchanging_allocate_nothing() {
    let pool = SharedPool::new(1000, 64).unwrap();
    let (mut one, mut two) = (pool.cache(1, 16), pool.cache(2, 7));
    let mut held = Vec::with_capacity(1000);
    let before = ALLOCATIONS.get();
    assert_ne!(before, 0, "the counter works");
    for _ in 0..3 {
        while let Some(block) = one.take() {
            held.push(block);
        }
        assert!(held.len() >= 1000 - 7);
        held.drain(..).for_each(|block| two.put(block));
    }
    assert_eq!(ALLOCATIONS.get(), before);
}

#[test]
fn missing_blocks_are_counted_and_named_at_the_end() {
    let pool = SharedPool::new(8, 64).unwrap();
    let mut cache = pool.cache(7, 4);
    let block = cache.take().unwrap();
    let line = line!() - 1;
    drop(cache);
    let missing = pool.close().unwrap_err();
    assert_eq!((missing.out(), missing.count()), (1, 8));
    let holder = format!("block {block}: owner 7 took it at {}:{line}:", file!());
    assert_eq!(missing.to_string().contains(&holder), cfg!(debug_assertions), "{missing}");

    let pool = SharedPool::new(8, 64).unwrap();
    let _cache = pool.cache(0, 4);
    let text = pool.close().unwrap_err().to_string();
    assert!(text.contains("1 caches are still alive"), "{text}");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "was put twice or too soon: by owner 2")]
fn a_block_put_by_two_workers_asserts() {
    let pool = SharedPool::new(8, 64).unwrap();
    let (mut one, mut two) = (pool.cache(1, 4), pool.cache(2, 4));
    let block = one.take().unwrap();
    one.put(block);
    two.put(block);
}
