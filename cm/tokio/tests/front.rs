//! Connections, sends and requests between two workers.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::{ECHO, LONG, NEVER, Pair, any, options, pair, pair_with, until, within};
use doorbell::prelude::*;
use doorbell::worker::SendError;
use doorbell_tokio::{AsyncWorker, Connection, Failed};
use tokio::task::JoinSet;

/// One look at a future.
fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A request with a number gets its own answer.
async fn asks(connection: &Connection, number: u32) {
    let request = [&[ECHO][..], &number.to_le_bytes()].concat();
    assert_eq!(within(connection.request(&request, LONG)).await, Ok(request), "{number}");
}

#[tokio::test]
async fn both_sides_ask_and_send() {
    let pair = pair(4).await;
    let Pair { connection, accepted, seen, seen_back, .. } = &pair;
    for round in 0..200_u32 {
        asks(connection, round).await;
        asks(accepted, round).await;
        within(connection.send(&u64::from(round).to_le_bytes())).await.unwrap();
        within(accepted.send(&u64::from(round).to_le_bytes())).await.unwrap();
    }
    until(|| seen.messages() == 200 && seen_back.messages() == 200).await;
    assert_eq!((seen.requests(), seen_back.requests()), (200, 200));
    assert_eq!(seen.disorder.load(Ordering::SeqCst), 0);
}

/// More requests than jobs, receives, credit and send blocks: each waits, and none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_at_a_time_get_their_own_answers() {
    for jobs in [1000, 7] {
        let pair = pair(jobs).await;
        let Pair { connection, seen, .. } = &pair;
        let mut all = JoinSet::new();
        for number in 0..1000 {
            let connection = connection.clone();
            all.spawn(async move { asks(&connection, number).await });
        }
        while let Some(done) = within(all.join_next()).await {
            done.unwrap();
        }
        assert_eq!(seen.requests(), 1000, "{jobs} jobs");
    }
}

/// A peer that takes nothing stops the sender; later everything arrives, in order.
#[tokio::test]
async fn sends_wait_for_a_peer_that_takes_nothing() {
    let pair = pair(4).await;
    let Pair { connection, seen, .. } = &pair;
    seen.hold.store(true, Ordering::SeqCst);
    let connection = connection.clone();
    let sends = tokio::spawn(async move {
        for number in 0..300_u64 {
            connection.send(&number.to_le_bytes()).await.unwrap();
        }
    });
    until(|| seen.held.load(Ordering::SeqCst)).await;
    // All that fits is sent soon. It cannot be all.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!sends.is_finished());
    seen.hold.store(false, Ordering::SeqCst);
    within(sends).await.unwrap();
    until(|| seen.messages() == 300).await;
    assert_eq!(seen.disorder.load(Ordering::SeqCst), 0);
}

/// A short message needs no send block. It waits all the same, behind a long one that does.
#[tokio::test]
async fn sends_that_wait_together_keep_their_order() {
    let mut few_blocks = options(64);
    few_blocks.config =
        Config { send_blocks: 2, window: 32, recv_blocks: 128, ..few_blocks.config };
    let pair = pair_with(&few_blocks).await;
    let Pair { connection, seen, .. } = &pair;
    seen.hold.store(true, Ordering::SeqCst);
    let mut sends = Vec::new();
    for number in 0..64_u64 {
        let bytes = number.to_le_bytes().repeat(if number % 8 < 4 { 20 } else { 1 });
        let mut send = Box::pin(async move { connection.send(&bytes).await });
        assert!(poll(send.as_mut()).is_pending());
        sends.push(send);
    }
    until(|| seen.held.load(Ordering::SeqCst)).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    seen.hold.store(false, Ordering::SeqCst);
    for send in sends {
        within(send).await.unwrap();
    }
    until(|| seen.messages() == 64).await;
    assert_eq!(seen.disorder.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_deadline_ends_a_request_wherever_it_is() {
    let pair = pair(1).await;
    let Pair { connection, .. } = &pair;
    let soon = Duration::from_millis(20);
    // Without an answer.
    assert_eq!(within(connection.request(&[NEVER], soon)).await, Err(Failed::DeadlinePassed));
    asks(connection, 1).await;
    // While it waits for a job: the only one is with a request that nobody answers.
    {
        let mut first = pin!(connection.request(&[NEVER], LONG));
        assert!(poll(first.as_mut()).is_pending());
        assert_eq!(within(connection.request(&[ECHO], soon)).await, Err(Failed::DeadlinePassed));
    }
    asks(connection, 2).await;
    // While it waits for room at the peer, behind others that wait longer.
    let pair = self::pair(20).await;
    let Pair { connection, seen, .. } = &pair;
    seen.hold.store(true, Ordering::SeqCst);
    let mut others = Vec::new();
    for number in 0..12 {
        let mut other = Box::pin(asks(connection, number));
        assert!(poll(other.as_mut()).is_pending());
        others.push(other);
    }
    until(|| seen.held.load(Ordering::SeqCst)).await;
    for _ in 0..20 {
        let result = within(connection.request(&[ECHO], Duration::from_millis(2))).await;
        assert_eq!(result, Err(Failed::DeadlinePassed));
    }
    seen.hold.store(false, Ordering::SeqCst);
    for other in others {
        within(other).await;
    }
}

/// With one job, a slot that is not freed stops everything.
#[tokio::test]
async fn a_dropped_future_frees_its_slot_in_each_state() {
    let pair = pair(1).await;
    let Pair { connection, seen, seen_back, accepted, .. } = &pair;
    for round in 0..20 {
        // Never polled.
        drop(connection.request(&[ECHO], LONG));
        // Called, and never answered.
        let before = seen.requests();
        let mut called = Box::pin(connection.request(&[NEVER], LONG));
        assert!(poll(called.as_mut()).is_pending());
        until(|| seen.requests() > before).await;
        // Waiting for a job.
        let mut waiting = Box::pin(connection.request(&[ECHO], LONG));
        assert!(poll(waiting.as_mut()).is_pending());
        drop(waiting);
        drop(called);
        asks(connection, round).await;
        // On its way to the worker, whose thread is held in its own service.
        seen_back.hold.store(true, Ordering::SeqCst);
        let holder = accepted.clone();
        let held = tokio::spawn(async move { holder.request(&[ECHO], LONG).await });
        until(|| seen_back.held.load(Ordering::SeqCst)).await;
        let mut sent = Box::pin(connection.send(b"dropped"));
        assert!(poll(sent.as_mut()).is_pending());
        drop(sent);
        seen_back.hold.store(false, Ordering::SeqCst);
        within(held).await.unwrap().unwrap();
        asks(connection, round).await;
        // Answered, and not polled since.
        let before = seen.requests();
        let mut answered = Box::pin(connection.request(&[ECHO], LONG));
        assert!(poll(answered.as_mut()).is_pending());
        until(|| seen.requests() > before).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(answered);
        asks(connection, round).await;
    }
    assert_eq!(seen.messages(), 0, "a send that was dropped before the worker saw it");
}

/// Jobs that wait for room, and are dropped or not.
#[tokio::test]
async fn a_dropped_future_leaves_the_queue_of_a_peer_without_room() {
    let pair = pair(40).await;
    let Pair { connection, seen, .. } = &pair;
    for round in 0..10 {
        seen.hold.store(true, Ordering::SeqCst);
        let mut requests = Vec::new();
        for number in 0..40 {
            let connection = connection.clone();
            let mut request = Box::pin(async move { asks(&connection, number).await });
            assert!(poll(request.as_mut()).is_pending());
            requests.push(Some(request));
        }
        until(|| seen.held.load(Ordering::SeqCst)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        for (number, request) in requests.iter_mut().enumerate() {
            if !(number + round).is_multiple_of(3) {
                *request = None;
            }
        }
        seen.hold.store(false, Ordering::SeqCst);
        for request in requests.into_iter().flatten() {
            within(request).await;
        }
    }
}

#[tokio::test]
async fn what_is_too_long_is_not_sent() {
    let pair = pair(1).await;
    let Pair { connection, seen, .. } = &pair;
    let too_long = Err(Failed::NotSent(SendError::TooLong));
    assert_eq!(connection.send(&[0; 257]).await, too_long);
    assert_eq!(connection.request(&[ECHO; 249], LONG).await.map(drop), too_long);
    let longest = vec![ECHO; 248];
    assert_eq!(within(connection.request(&longest, LONG)).await, Ok(longest));
    within(connection.send(&[0; 256])).await.unwrap();
    until(|| seen.messages() == 1).await;
}

#[tokio::test]
async fn connections_are_refused_given_up_and_made_again() {
    let pair = pair(2).await;
    let Pair { client, server, connection, accepted, addr, .. } = pair;
    let nobody = Listener::bind(&SoftDevice::open().unwrap(), any()).unwrap().local_addr().unwrap();
    let error = within(client.connect(nobody, LONG)).await.unwrap_err();
    assert!(error.to_string().contains("nobody listens there"), "{error}");
    // Given up in the middle.
    for _ in 0..20 {
        let mut connect = Box::pin(client.connect(addr, LONG));
        assert!(poll(connect.as_mut()).is_pending());
        tokio::task::yield_now().await;
        drop(connect);
    }
    // A connection whose handles are gone is closed, and the peer learns of it.
    drop(connection);
    until(|| accepted.down().is_some()).await;
    assert_eq!(accepted.down(), Some(DownReason::Finished));
    assert_eq!(accepted.send(b"x").await, Err(Failed::PeerDown(DownReason::Finished)));
    // More than the worker's four peers, so the others must be gone.
    for round in 0..10 {
        let connection = within(async {
            loop {
                match client.connect(addr, LONG).await {
                    Ok(connection) => break connection,
                    Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
        let connection = connection.await;
        asks(&connection, round).await;
        // Those of before are accepted too, and end.
        while within(within(server.accept()).await.unwrap().request(&[ECHO], LONG)).await.is_err() {
        }
    }
}

/// A dialed connection whose peer has ended it at once is the result of that dial only. The test's
/// thread does not let the driver run between the peer's answer and its end.
#[tokio::test]
async fn a_dialed_connection_is_never_accepted() {
    let nic = SoftDevice::open().unwrap();
    let client = AsyncWorker::start(&nic, (), &options(4)).unwrap();
    let addr = within(client.listen(any())).await.unwrap();
    let config = options(4).config;
    let memory = |bytes| Mapping::plain(bytes).unwrap();
    let shared = SharedRecv::new(&nic, memory(config.recv_bytes()), &config).unwrap();
    let (_worker, intake) =
        Worker::new(&nic, &shared, memory(config.send_bytes()), Nothing, &config).unwrap();
    let mut listener = Listener::bind(&nic, any()).unwrap();
    listener.feed(intake);
    let to = listener.local_addr().unwrap();
    let dialing = client.clone();
    let dial = tokio::spawn(async move { dialing.connect(to, LONG).await });
    within(async {
        while !listener.step(Duration::ZERO).unwrap() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(listener);
    if let Ok(dialed) = within(dial).await.unwrap() {
        until(|| dialed.down().is_some()).await;
    }
    let other = AsyncWorker::start(&nic, (), &options(4)).unwrap();
    let connection = within(other.connect(addr, LONG)).await.unwrap();
    let accepted = within(client.accept()).await.unwrap();
    within(connection.send(b"hello")).await.unwrap();
    assert_eq!(within(accepted.recv()).await, Ok(Some(b"hello".to_vec())));
}

/// Takes no messages.
struct Nothing;

impl<P: Provider> Handler<P> for Nothing {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
}

#[test]
fn what_cannot_be_is_refused_at_the_start() {
    let nic = SoftDevice::open().unwrap();
    let error = AsyncWorker::start(&nic, (), &options(4)).unwrap_err();
    assert!(error.to_string().contains("start a worker for tokio"), "{error}");
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = tokio.enter();
    let error = AsyncWorker::start(&nic, (), &options(0)).unwrap_err();
    assert!(error.to_string().contains("jobs is 0"), "{error}");
    let mut half = tokio::runtime::Builder::new_current_thread();
    for half in [half.enable_io().build(), tokio::runtime::Builder::new_current_thread().build()] {
        let half = half.unwrap();
        let _inside = half.enter();
        let started =
            catch_unwind(AssertUnwindSafe(|| AsyncWorker::start(&nic, (), &options(4)).map(drop)));
        assert!(started.is_err(), "without time it cannot wait");
    }
}
