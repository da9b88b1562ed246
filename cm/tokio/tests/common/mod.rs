//! Two workers and what serves them.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::Idle;
use doorbell::prelude::*;
use doorbell_tokio::{AsyncWorker, Connection, Options, Recipient, Service};

/// Nothing moves for this long: a test has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A request that this begins with gets no answer, ends the worker, or gets one.
pub(crate) const NEVER: u8 = 0;
pub(crate) const PANIC: u8 = 1;
pub(crate) const ECHO: u8 = 2;

/// What the tests know of a [`Peer`].
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) requests: Arc<AtomicU64>,
    pub(crate) messages: Arc<AtomicU64>,
    /// Messages that did not come in the order of their numbers.
    pub(crate) disorder: Arc<AtomicU64>,
    /// The worker's thread stays in its next call until this is false.
    pub(crate) hold: Arc<AtomicBool>,
    /// It does so now.
    pub(crate) held: Arc<AtomicBool>,
}

impl Seen {
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::SeqCst)
    }

    fn wait(&self) {
        while self.hold.load(Ordering::SeqCst) {
            self.held.store(true, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(1));
        }
        self.held.store(false, Ordering::SeqCst);
    }
}

/// Echoes requests, and counts.
#[derive(Clone, Default)]
pub(crate) struct Peer(pub(crate) Seen);

impl Service for Peer {
    fn request(&mut self, _: PeerId, room: &mut [u8], len: usize) -> Option<usize> {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        self.0.wait();
        match room.first() {
            Some(&NEVER) => None,
            Some(&PANIC) => panic!("asked to panic"),
            _ => Some(len),
        }
    }

    fn message(&mut self, _: PeerId, bytes: &[u8]) -> Recipient {
        self.0.wait();
        let number = self.0.messages.fetch_add(1, Ordering::SeqCst);
        if bytes.first_chunk() != Some(&number.to_le_bytes()) {
            self.0.disorder.fetch_add(1, Ordering::SeqCst);
        }
        Recipient::Service
    }
}

/// Few blocks, so that a peer that does not take messages is soon without credit.
pub(crate) fn options(jobs: u32) -> Options {
    let config = Config {
        peers: 4,
        block_bytes: 256,
        recv_blocks: 32,
        send_blocks: 16,
        inline_bytes: 64,
        refill: 4,
        window: 8,
        ..Config::DEFAULT
    };
    Options { config, jobs, idle: Some(Idle::Sleep { spin: 200 }), ..Options::DEFAULT }
}

pub(crate) struct Pair {
    pub(crate) client: AsyncWorker,
    pub(crate) server: AsyncWorker,
    pub(crate) connection: Connection,
    pub(crate) accepted: Connection,
    /// What the server sees, and what the client does.
    pub(crate) seen: Seen,
    pub(crate) seen_back: Seen,
    pub(crate) addr: SocketAddr,
}

pub(crate) fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A connected pair, whose client has `jobs` jobs.
pub(crate) async fn pair(jobs: u32) -> Pair {
    pair_with(&options(jobs)).await
}

/// A connected pair with these options.
pub(crate) async fn pair_with(options: &Options) -> Pair {
    let nic = SoftDevice::open().unwrap();
    let of_server = Options { jobs: 16, ..options.clone() };
    let (seen, seen_back) = (Seen::default(), Seen::default());
    let server = AsyncWorker::start(&nic, Peer(seen.clone()), &of_server).unwrap();
    let client = AsyncWorker::start(&nic, Peer(seen_back.clone()), options).unwrap();
    let addr = within(server.listen(any())).await.unwrap();
    let connection = within(client.connect(addr, LONG)).await.unwrap();
    let accepted = within(server.accept()).await.unwrap();
    Pair { client, server, connection, accepted, seen, seen_back, addr }
}

/// The result of a future that must not hang.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("nothing moves")
}

/// Waits until something is so.
pub(crate) async fn until(so: impl Fn() -> bool) {
    within(async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
