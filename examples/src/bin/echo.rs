//! Echo on any device: a server whose workers share one receive queue, and a client that sends
//! messages and checks the answers.
//!
//! ```text
//! echo server --addr 127.0.0.1 --port 7471 --workers 2
//! echo client --addr 127.0.0.1 --port 7471 --count 100000 --size 64
//! ```
//! SIGINT and SIGTERM end the server with its counters and exit code 0, and the client with an
//! error.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use doorbell::prelude::*;
use doorbell_examples::cli::{Failure, Place};

/// Echo server and client.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    role: Role,
    #[command(flatten)]
    place: Place,
}

#[derive(Subcommand)]
enum Role {
    /// Send every message back.
    Server(Server),
    /// Send messages and check the answers.
    Client(Client),
}

#[derive(Args)]
struct Server {
    /// Number of workers, which share one receive queue.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// End after this many connections have ended; 0 means never.
    #[arg(long, default_value_t = 0)]
    connections: u64,
}

#[derive(Args, Clone, Copy)]
struct Client {
    /// Number of messages.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Bytes of each, from 8 to the size of a block.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Number of messages in flight at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    window: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.place.clone().run(cli)
}

impl Program for Cli {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        match self.role {
            Role::Server(server) => server.run(&nic, &self.place),
            Role::Client(client) => client.run(&nic, &self.place),
        }
    }
}

impl Server {
    fn run<F: Fabric>(self, nic: &F, place: &Place) -> Result<(), Failure> {
        let mut runtime = Runtime::new(nic, &Config::DEFAULT);
        let ended = Arc::new(AtomicU64::new(0));
        for _ in 0..self.workers {
            let stop = runtime.stopper();
            let most = self.connections;
            runtime.add(Echo { messages: 0, peers: 0, ended: ended.clone(), most, stop })?;
        }
        println!("listening on {}", runtime.listen(place.addr())?);
        runtime.stop_on_signals()?;
        let result = runtime.run();
        for (n, worker) in runtime.workers().iter_mut().enumerate() {
            let Echo { messages, peers, .. } = worker.handler();
            println!("worker {n}: {messages} messages, {peers} peers");
        }
        result?;
        Ok(())
    }
}

/// The server's handler: replies in the block that the message came in.
struct Echo {
    messages: u64,
    peers: u64,
    /// Connections of all workers that have ended.
    ended: Arc<AtomicU64>,
    /// The server ends after this many.
    most: u64,
    stop: Stop,
}

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        self.messages += 1;
        Verdict::Reply { len: message.len() }
    }

    fn on_peer_down(&mut self, _peer: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.peers += 1;
        if self.ended.fetch_add(1, Ordering::Relaxed) + 1 == self.most {
            self.stop.stop();
        }
    }
}

impl Client {
    fn run<F: Fabric>(self, nic: &F, place: &Place) -> Result<(), Failure> {
        let block = Config::DEFAULT.block_bytes;
        if self.size < 8 || self.size > block as usize {
            return Err(format!("--size {}: 8 to {block} bytes", self.size).into());
        }
        let mut runtime = Runtime::new(nic, &Config::DEFAULT);
        runtime.add(Check::new(self, runtime.stopper()))?;
        runtime.dial(place.addr())?;
        runtime.stop_on_signals()?;
        let end = runtime.run()?;
        let Check { answered, wrong, took, down, refused, .. } = runtime.workers()[0].handler();
        println!("{} of {} answers right in {took:.2?}", *answered - *wrong, self.count);
        if *answered < self.count {
            return Err(match (refused, end, down) {
                (Some(error), ..) => format!("a message was not sent: {error}").into(),
                (None, Why::Signal(n), _) => format!("it ended too early: signal {n}").into(),
                (None, _, Some(why)) => format!("it ended too early: {why}").into(),
                (None, _, None) => "it ended too early".into(),
            });
        }
        if *wrong > 0 {
            return Err(format!("{wrong} answers were wrong").into());
        }
        Ok(())
    }
}

/// The client's handler: checks that answers are complete, correct and in order.
struct Check {
    plan: Client,
    sent: u64,
    answered: u64,
    wrong: u64,
    /// The next message.
    next: Vec<u8>,
    /// The answer that should come next.
    want: Vec<u8>,
    peer: Option<PeerId>,
    down: Option<DownReason>,
    /// Why a message could not be sent.
    refused: Option<SendError>,
    begin: Instant,
    took: Duration,
    stop: Stop,
}

impl Check {
    fn new(plan: Client, stop: Stop) -> Check {
        let bytes = vec![0; plan.size];
        let (sent, answered, wrong) = (0, 0, 0);
        let (mut next, want) = (bytes.clone(), bytes);
        fill(&mut next, 0);
        let (begin, took) = (Instant::now(), Duration::ZERO);
        let (peer, down, refused) = (None, None, None);
        Check { plan, sent, answered, wrong, next, want, peer, down, refused, begin, took, stop }
    }

    /// Sends as many messages as the window and the peer have room for.
    fn send<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let Some(peer) = self.peer else { return };
        while self.sent < self.plan.count && self.sent < self.answered + self.plan.window {
            match out.send(peer, &self.next) {
                Ok(()) => {
                    self.sent += 1;
                    fill(&mut self.next, self.sent);
                }
                Err(error) if error.is_back_pressure() => return, // again after a turn
                Err(SendError::NotConnected) => return,           // on_peer_down says why
                Err(error) => {
                    self.refused = Some(error);
                    return self.stop.stop();
                }
            }
        }
    }
}

impl<P: Provider> Handler<P> for Check {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        fill(&mut self.want, self.answered);
        self.wrong += u64::from(message.bytes() != self.want);
        self.answered += 1;
        self.send(out);
        if self.answered == self.plan.count {
            self.took = self.begin.elapsed();
            out.finish(message.peer()); // and on_peer_down stops
        }
        Verdict::Done
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        (self.peer, self.begin) = (Some(peer), Instant::now());
        self.send(out);
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, P>) {
        self.down = Some(why);
        self.stop.stop();
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.send(out);
    }
}

/// Writes the payload of message `n`: its number, then bytes computed from it.
fn fill(bytes: &mut [u8], n: u64) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = if i < 8 { n.to_le_bytes()[i] } else { (n as usize + i) as u8 };
    }
}
