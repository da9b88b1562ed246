//! The worker's thread allocates nothing for sends and requests.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use doorbell::Idle;
use doorbell::prelude::*;
use doorbell_tokio::{AsyncWorker, Options, Service};

thread_local! {
    /// This thread is a worker's, and its set-up is over.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

/// Allocations of such threads, and what is freed there.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count() {
    if COUNTS.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator does the work, as its callers promise it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The first byte: count from now on, or no more.
const BEGIN: u8 = 1;
const END: u8 = 2;
const NEVER: u8 = 3;

struct Counted;

impl Service for Counted {
    fn request(&mut self, _: PeerId, room: &mut [u8], len: usize) -> Option<usize> {
        match room.first() {
            Some(&BEGIN) => COUNTS.set(true),
            Some(&END) => COUNTS.set(false),
            Some(&NEVER) => return None,
            _ => {}
        }
        Some(len)
    }
}

/// Both workers count: each is the other's peer.
#[tokio::test]
async fn a_worker_allocates_nothing_for_its_jobs() {
    const LONG: Duration = Duration::from_secs(60);
    let nic = SoftDevice::open().unwrap();
    let config = Config { peers: 4, block_bytes: 512, recv_blocks: 64, ..Config::DEFAULT };
    let config = Config { refill: 8, window: 16, ..config };
    let idle = Some(Idle::Yield);
    let options = Options { config, jobs: 32, idle, ..Options::DEFAULT };
    let server = AsyncWorker::start(&nic, Counted, &options).unwrap();
    let client = AsyncWorker::start(&nic, Counted, &options).unwrap();
    let addr = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let connection = client.connect(addr, LONG).await.unwrap();
    let accepted = server.accept().await.unwrap();
    connection.request(&[BEGIN], LONG).await.unwrap();
    accepted.request(&[BEGIN], LONG).await.unwrap();
    for round in 0..20 {
        let mut all = tokio::task::JoinSet::new();
        for number in 0..100_usize {
            let (connection, accepted) = (connection.clone(), accepted.clone());
            all.spawn(async move {
                // Short and long, with answers and without, and some that are dropped.
                let bytes = vec![9; 8 + (number + round) % 490];
                assert_eq!(connection.request(&bytes, LONG).await.as_ref(), Ok(&bytes));
                accepted.send(&bytes).await.unwrap();
                // One for each send: of this task, or of another.
                assert!(connection.recv().await.unwrap().is_some());
                let soon = Duration::from_millis(1);
                connection.request(&[NEVER], soon).await.unwrap_err();
                let _ = tokio::time::timeout(soon, accepted.request(&[NEVER], LONG)).await;
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap();
        }
    }
    connection.request(&[END], LONG).await.unwrap();
    accepted.request(&[END], LONG).await.unwrap();
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
}
