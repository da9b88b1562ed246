//! Every future ends when a peer or the worker does, and says why.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use common::{
    ECHO, LONG, NEVER, PANIC, Pair, Peer, Seen, any, options, pair, pair_with, until, within,
};
use doorbell::prelude::*;
use doorbell_tokio::{AsyncWorker, Connection, Failed, Options};
use tokio::task::JoinSet;

/// The environment variable that makes the test program a peer.
const PEER: &str = "DOORBELL_TEST_PEER";

/// Requests that nobody answers, more than there are jobs.
fn ask_in_vain(connection: &Connection) -> JoinSet<Failed> {
    let mut asked = JoinSet::new();
    for _ in 0..12 {
        let connection = connection.clone();
        asked.spawn(async move { connection.request(&[NEVER], LONG).await.unwrap_err() });
    }
    asked
}

/// All of them end, and for one of these reasons.
async fn end_with(mut asked: JoinSet<Failed>, reason: impl Fn(&Failed) -> bool) {
    let mut ended = 0;
    while let Some(failed) = within(asked.join_next()).await {
        let failed = failed.unwrap();
        assert!(reason(&failed), "{failed:?}");
        ended += 1;
    }
    assert_eq!(ended, 12);
}

fn is_down(failed: &Failed) -> bool {
    matches!(failed, Failed::PeerDown(_))
}

/// Serves until it is killed.
#[tokio::test]
async fn peer_process() {
    if std::env::var_os(PEER).is_none() {
        return;
    }
    let nic = SoftDevice::open().unwrap();
    let server = AsyncWorker::start(&nic, Peer(Seen::default()), &options(4)).unwrap();
    println!("\nlistening on {}", server.listen(any()).await.unwrap());
    std::io::stdout().flush().unwrap();
    server.ended().await;
}

#[tokio::test]
async fn a_killed_peer_ends_what_waits_for_it() {
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", "peer_process", "--nocapture"]).env(PEER, "1").stdout(Stdio::piped());
    let mut peer = peer.spawn().unwrap();
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines().map_while(Result::ok);
    let addr = { lines }.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    let addr: SocketAddr = addr.unwrap().parse().unwrap();

    let nic = SoftDevice::open().unwrap();
    let client = AsyncWorker::start(&nic, (), &options(8)).unwrap();
    let connection = within(client.connect(addr, LONG)).await.unwrap();
    assert_eq!(within(connection.request(&[ECHO, 7], LONG)).await, Ok(vec![ECHO, 7]));
    let asked = ask_in_vain(&connection);
    within(async {
        // It has the requests.
        while connection.request(&[ECHO], Duration::from_millis(1)).await.is_ok() {}
    })
    .await;
    peer.kill().unwrap();
    peer.wait().unwrap();
    end_with(asked, is_down).await;
    until(|| connection.down().is_some()).await;
    assert!(is_down(&within(connection.send(b"x")).await.unwrap_err()));
    within(client.close()).await.unwrap();
}

#[tokio::test]
async fn a_panic_of_the_peers_service_ends_what_waits_for_it() {
    let Pair { client, server, connection, accepted, .. } = pair(32).await;
    let asked = ask_in_vain(&connection);
    tokio::task::yield_now().await;
    let back = accepted.clone();
    let back = tokio::spawn(async move { back.request(&[NEVER], LONG).await });
    let failed = within(connection.request(&[PANIC], LONG)).await.unwrap_err();
    assert!(is_down(&failed), "{failed:?}");
    end_with(asked, is_down).await;
    // The side that panicked says so, to each of its futures.
    let said = "the worker has ended: run worker 0: it panicked: asked to panic; standard error \
                says where";
    let failed = within(back).await.unwrap().unwrap_err();
    assert_eq!(failed.to_string(), said);
    assert_eq!(within(accepted.send(b"x")).await.unwrap_err().to_string(), said);
    assert_eq!(within(server.accept()).await.unwrap_err().to_string(), said);
    let error = within(server.connect(any(), LONG)).await.unwrap_err();
    assert!(error.to_string().contains(said), "{error}");
    assert_eq!(within(server.close()).await.unwrap_err().to_string(), said);
    within(client.close()).await.unwrap();
}

#[tokio::test]
async fn the_end_of_the_worker_ends_its_futures() {
    let Pair { client, server, connection, accepted, seen, .. } = pair(8).await;
    let asked = ask_in_vain(&connection);
    let accepts = client.clone();
    let accepts = tokio::spawn(async move { accepts.accept().await });
    until(|| seen.requests() >= 8).await;
    within(client.clone().close()).await.unwrap();
    end_with(asked, |failed| is_down(failed) || matches!(failed, Failed::Ended(_))).await;
    let said = "the worker has ended: the program closed it";
    assert_eq!(within(accepts).await.unwrap().unwrap_err().to_string(), said);
    for _ in 0..20 {
        let failed = within(connection.request(&[ECHO], LONG)).await.unwrap_err();
        assert_eq!(failed.to_string(), said);
    }
    // The peer got a goodbye.
    until(|| accepted.down() == Some(DownReason::Finished)).await;
    within(server.close()).await.unwrap();
}

/// What was accepted before the end arrives, although the peer takes it late.
#[tokio::test]
async fn what_was_sent_before_the_end_arrives() {
    let pair = pair_with(&Options { drain: LONG, ..options(8) }).await;
    let Pair { client, connection, seen, .. } = &pair;
    seen.hold.store(true, Ordering::SeqCst);
    // The peer has promised receives for more. It takes the first message, and nothing after it
    // while its thread stays there: otherwise it could take all of them at once.
    for number in 0..4_u64 {
        within(connection.send(&number.to_le_bytes())).await.unwrap();
        until(|| seen.held.load(Ordering::SeqCst)).await;
    }
    let close = tokio::spawn(client.clone().close());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!close.is_finished());
    seen.hold.store(false, Ordering::SeqCst);
    within(close).await.unwrap().unwrap();
    until(|| seen.messages() == 4).await;
}

/// A future that nobody polls keeps its job, and the end reaches those that wait for it.
#[tokio::test]
async fn the_end_ends_what_waits_for_a_job() {
    let pair = pair(1).await;
    let Pair { client, connection, .. } = &pair;
    let mut kept = Box::pin(connection.request(&[NEVER], LONG));
    let once = &mut Context::from_waker(Waker::noop());
    assert!(kept.as_mut().poll(once).is_pending());
    let waits = connection.clone();
    let waits = tokio::spawn(async move { waits.request(&[ECHO], LONG).await });
    tokio::task::yield_now().await;
    within(client.clone().close()).await.unwrap();
    assert!(matches!(within(waits).await.unwrap(), Err(Failed::Ended(_))));
    assert!(within(kept).await.is_err());
}

#[tokio::test]
async fn the_last_handle_ends_the_worker() {
    let Pair { client, server, connection, accepted, seen_back, .. } = pair(8).await;
    drop(client);
    // A connection is a handle.
    assert_eq!(within(connection.request(&[ECHO], LONG)).await, Ok(vec![ECHO]));
    drop(connection);
    until(|| accepted.down().is_some()).await;
    // The worker has dropped its service.
    until(|| Arc::strong_count(&seen_back.requests) == 1).await;
    within(server.close()).await.unwrap();
}

/// The driver goes with its runtime; futures elsewhere end.
#[tokio::test]
async fn the_end_of_the_tokio_runtime_ends_the_worker() {
    let build =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let tokio = build().unwrap();
    let pair = tokio.spawn(pair(8));
    let Pair { client, connection, server: _server, accepted: _accepted, .. } =
        within(pair).await.unwrap();
    let asked = ask_in_vain(&connection);
    let connecting = client.clone();
    tokio.shutdown_background();
    end_with(asked, |failed| is_down(failed) || matches!(failed, Failed::Ended(_))).await;
    assert!(within(client.accept()).await.is_err());
    assert!(within(connecting.connect(any(), LONG)).await.is_err());
    assert!(within(connection.send(b"x")).await.is_err());
}

#[tokio::test]
async fn a_core_that_does_not_exist_is_the_reason_of_the_end() {
    let nic = SoftDevice::open().unwrap();
    let options = Options { core: Some(1023), ..options(4) };
    let worker = AsyncWorker::start(&nic, (), &options).unwrap();
    let ended = within(worker.ended()).await;
    assert!(ended.to_string().contains("core 1023"), "{ended}");
    assert!(!ended.was_asked());
}
