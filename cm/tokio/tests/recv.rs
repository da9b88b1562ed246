//! Messages that tasks receive: order, back-pressure, and each kind of end.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use common::{LONG, any, options, until, within};
use doorbell::prelude::*;
use doorbell::worker::SendError;
use doorbell_tokio::{AsyncWorker, Connection, Failed, Options, Recipient, Service};

/// The environment variable that makes the test program a peer.
const PEER: &str = "DOORBELL_TEST_RECV_PEER";

/// The receives of `options`: a peer never has more messages that nobody has taken.
const RECEIVES: u64 = 32;

struct Ends {
    client: AsyncWorker,
    server: AsyncWorker,
    connection: Connection,
    accepted: Connection,
    addr: SocketAddr,
}

/// Two connected workers whose messages all go to tasks.
async fn ends(options: &Options) -> Ends {
    let nic = SoftDevice::open().unwrap();
    let server = AsyncWorker::start(&nic, (), options).unwrap();
    let client = AsyncWorker::start(&nic, (), options).unwrap();
    let addr = within(server.listen(any())).await.unwrap();
    let connection = within(client.connect(addr, LONG)).await.unwrap();
    let accepted = within(server.accept()).await.unwrap();
    Ends { client, server, connection, accepted, addr }
}

/// Sends numbers, and counts what the worker has accepted.
fn send_numbers(connection: &Connection, count: u64) -> Arc<AtomicU64> {
    let (connection, sent) = (connection.clone(), Arc::<AtomicU64>::default());
    let counts = sent.clone();
    tokio::spawn(async move {
        for number in 0..count {
            connection.send(&number.to_le_bytes()).await.unwrap();
            counts.fetch_add(1, Ordering::SeqCst);
        }
    });
    sent
}

async fn takes(connection: &Connection, number: u64) {
    let bytes = within(connection.recv()).await.unwrap();
    assert_eq!(bytes.as_deref(), Some(&number.to_le_bytes()[..]), "{number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_task_gets_ten_thousand_messages_in_order() {
    const COUNT: u64 = 10_000;
    let Ends { connection, accepted, .. } = ends(&options(8)).await;
    let sent = send_numbers(&connection, COUNT);
    for number in 0..COUNT {
        takes(&accepted, number).await;
        let waiting = sent.load(Ordering::SeqCst).saturating_sub(number + 1);
        assert!(waiting <= RECEIVES, "{waiting} messages wait");
        if number % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The sender stops at its credit, and goes on as the task takes messages.
#[tokio::test]
async fn a_task_that_takes_nothing_stops_its_peer() {
    const COUNT: u64 = 500;
    let Ends { connection, accepted, .. } = ends(&options(8)).await;
    let sent = send_numbers(&connection, COUNT);
    // It stops when no more is accepted for a while.
    let mut before = 0;
    within(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = sent.load(Ordering::SeqCst);
            if now > 0 && now == before {
                break;
            }
            before = now;
        }
    })
    .await;
    assert!(before <= RECEIVES, "{before} messages were accepted");
    assert_eq!(accepted.unread() as u64, before);
    // The other direction has its own credit.
    for number in 0..100_u64 {
        within(accepted.send(&number.to_le_bytes())).await.unwrap();
        takes(&connection, number).await;
    }
    for number in 0..COUNT {
        takes(&accepted, number).await;
    }
}

#[tokio::test]
async fn a_dropped_recv_loses_nothing() {
    const COUNT: u64 = 2000;
    let Ends { connection, accepted, .. } = ends(&options(8)).await;
    let once = &mut Context::from_waker(Waker::noop());
    // Two wait. The first is told of the message, and is dropped.
    {
        let mut first = Box::pin(accepted.recv());
        let mut second = pin!(accepted.recv());
        assert!(first.as_mut().poll(once).is_pending());
        assert!(second.as_mut().poll(once).is_pending());
        within(connection.send(b"one")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(first);
        assert_eq!(within(second).await, Ok(Some(b"one".to_vec())));
    }
    send_numbers(&connection, COUNT);
    let mut next = 0_u64;
    within(async {
        while next < COUNT {
            let mut recv = Box::pin(accepted.recv());
            match recv.as_mut().poll(once) {
                std::task::Poll::Ready(got) => {
                    assert_eq!(got, Ok(Some(next.to_le_bytes().to_vec())));
                    next += 1;
                }
                std::task::Poll::Pending => {
                    tokio::task::yield_now().await;
                    drop(recv);
                }
            }
        }
    })
    .await;
}

/// Sends five messages to whoever connects, and waits to be killed.
#[tokio::test]
async fn peer_process() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    let nic = SoftDevice::open().unwrap();
    let server = AsyncWorker::start(&nic, (), &options(4)).unwrap();
    println!("\nlistening on {}", server.listen(any()).await.unwrap());
    std::io::stdout().flush().unwrap();
    let client = server.accept().await.unwrap();
    for number in 0..5_u64 {
        client.send(&number.to_le_bytes()).await.unwrap();
    }
    server.ended().await;
}

#[tokio::test]
async fn what_a_killed_peer_has_sent_comes_before_its_end() {
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", "peer_process", "--nocapture"]).env(PEER, "1").stdout(Stdio::piped());
    let mut peer = peer.spawn().unwrap();
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines().map_while(Result::ok);
    let addr = { lines }.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    let nic = SoftDevice::open().unwrap();
    let client = AsyncWorker::start(&nic, (), &options(4)).unwrap();
    let connection = within(client.connect(addr.unwrap().parse().unwrap(), LONG)).await.unwrap();
    takes(&connection, 0).await;
    takes(&connection, 1).await;
    until(|| connection.unread() == 3).await;
    peer.kill().unwrap();
    peer.wait().unwrap();
    until(|| connection.down().is_some()).await;
    for number in 2..5 {
        takes(&connection, number).await;
    }
    for _ in 0..2 {
        let end = within(connection.recv()).await;
        assert!(
            matches!(end, Err(Failed::PeerDown(why)) if why != DownReason::Finished),
            "{end:?}"
        );
    }
    within(client.close()).await.unwrap();
}

/// Each way in which a peer finishes: a task gets what is left, and then the end.
#[tokio::test]
async fn a_peer_that_has_finished_is_the_end() {
    for way in ["finish_sending", "close", "drop"] {
        let Ends { client, server, connection, accepted, .. } = ends(&options(8)).await;
        for number in 0..6_u64 {
            within(connection.send(&number.to_le_bytes())).await.unwrap();
        }
        let (mut connection, mut client) = (Some(connection), Some(client));
        match way {
            "finish_sending" => {
                within(connection.as_ref().unwrap().finish_sending()).await.unwrap();
            }
            "close" => within(client.take().unwrap().close()).await.unwrap(),
            _ => drop(connection.take()),
        }
        for number in 0..6 {
            takes(&accepted, number).await;
        }
        for _ in 0..2 {
            assert_eq!(within(accepted.recv()).await, Ok(None), "{way}");
        }
        within(server.close()).await.unwrap();
    }
}

#[tokio::test]
async fn one_side_finishes_and_still_takes_messages() {
    let Ends { connection, accepted, .. } = ends(&options(8)).await;
    within(connection.send(b"question")).await.unwrap();
    within(connection.finish_sending()).await.unwrap();
    let refused = Err(Failed::NotSent(SendError::FinishedSending));
    assert_eq!(within(connection.send(b"more")).await, refused);
    assert_eq!(within(accepted.recv()).await, Ok(Some(b"question".to_vec())));
    assert_eq!(within(accepted.recv()).await, Ok(None));
    // More than the credit, so it comes back although this side says nothing.
    send_numbers(&accepted, 200);
    for number in 0..200 {
        takes(&connection, number).await;
    }
    within(accepted.finish_sending()).await.unwrap();
    assert_eq!(within(connection.recv()).await, Ok(None));
    until(|| connection.down().is_some() && accepted.down().is_some()).await;
    assert_eq!(connection.down(), Some(DownReason::Finished));
    assert_eq!(accepted.down(), Some(DownReason::Finished));
}

/// The worker keeps the blocks of messages that nobody has taken. Its end does not wait for them,
/// and a task can still take the messages.
#[tokio::test]
async fn the_end_of_the_worker_leaves_what_had_come() {
    let long = Options { drain: LONG * 60, ..options(8) };
    let Ends { server, connection, accepted, .. } = ends(&long).await;
    for number in 0..4_u64 {
        within(connection.send(&number.to_le_bytes())).await.unwrap();
    }
    until(|| accepted.unread() == 4).await;
    within(server.close()).await.unwrap();
    for number in 0..4 {
        takes(&accepted, number).await;
    }
    let end = within(accepted.recv()).await;
    assert!(matches!(end, Err(Failed::PeerDown(DownReason::Closed))), "{end:?}");
    assert_eq!(within(connection.recv()).await, Ok(None));
}

/// Blocks of messages that nobody took go back when their connection is dropped.
#[tokio::test]
async fn a_dropped_connection_gives_its_blocks_back() {
    let Ends { client, server, connection, accepted, addr } = ends(&options(8)).await;
    for _ in 0..40 {
        let mut other = within(client.connect(addr, LONG)).await;
        while other.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await; // until an earlier one is gone
            other = within(client.connect(addr, LONG)).await;
        }
        let other = other.unwrap();
        let unread = within(server.accept()).await.unwrap();
        for number in 0..4_u64 {
            within(other.send(&number.to_le_bytes())).await.unwrap();
        }
        until(|| unread.unread() == 4).await;
        drop(unread);
        until(|| other.down().is_some()).await;
    }
    send_numbers(&connection, 100);
    for number in 0..100 {
        takes(&accepted, number).await;
    }
}

/// Leaves all messages to tasks, and counts them.
struct Counts(Arc<AtomicU64>);

impl Service for Counts {
    fn message(&mut self, _: PeerId, _: &[u8]) -> Recipient {
        self.0.fetch_add(1, Ordering::SeqCst);
        Recipient::Task
    }
}

/// Of connections that ended before a task accepted them, the last ones with messages are left: as
/// many as the worker has peers.
#[tokio::test]
async fn connections_that_nobody_accepts_do_not_pile_up() {
    const ENDED: u64 = 40;
    const PEERS: u64 = 4;
    let nic = SoftDevice::open().unwrap();
    let seen = Arc::<AtomicU64>::default();
    let server = AsyncWorker::start(&nic, Counts(seen.clone()), &options(4)).unwrap();
    let client = AsyncWorker::start(&nic, (), &options(4)).unwrap();
    let addr = within(server.listen(any())).await.unwrap();
    let mut up = Vec::new();
    for number in 0..ENDED + PEERS {
        let mut made = within(client.connect(addr, LONG)).await;
        while made.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await; // until an earlier one is gone
            made = within(client.connect(addr, LONG)).await;
        }
        let made = made.unwrap();
        // Every second one ends without a message.
        if number % 2 == 1 || number >= ENDED {
            within(made.send(&number.to_le_bytes())).await.unwrap();
        }
        up.extend((number >= ENDED).then_some(made));
    }
    // All peers of the worker are up, so the others are down.
    until(|| seen.load(Ordering::SeqCst) == ENDED / 2 + PEERS).await;
    // The driver looks at what the worker reports before it looks at the second request.
    for _ in 0..2 {
        within(server.listen(any())).await.unwrap();
    }
    let mut left = Vec::new();
    while left.last() != Some(&(ENDED + PEERS - 1)) {
        let accepted = within(server.accept()).await.unwrap();
        let bytes = within(accepted.recv()).await.unwrap().unwrap();
        left.push(u64::from_le_bytes(bytes.try_into().unwrap()));
    }
    assert_eq!(left, [33, 35, 37, 39, 40, 41, 42, 43]);
}
