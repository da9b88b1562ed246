//! Echo on any device: a server whose workers share one receive queue, and a client that sends
//! messages and checks the answers.
//!
//! ```text
//! echo server --addr 127.0.0.1 --port 7471 --workers 2
//! echo client --addr 127.0.0.1 --port 7471 --count 100000 --size 64
//! ```

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use doorbell::alloc::Mapping;
use doorbell::provider::Provider;
use doorbell::worker::{
    Config, DownReason, Handler, Message, Outbox, PeerId, SendError, SharedRecv, Verdict, Worker,
};
use doorbell::{Device, Dialer, Fabric, Listener, Program};

/// How long a connection may take. The kernel repeats a lost request after four seconds.
const DIAL: Duration = Duration::from_secs(20);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Echo server and client.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Send every message back.
    Server(Server),
    /// Send messages and check the answers.
    Client(Client),
}

#[derive(Args, Clone)]
struct Place {
    /// Address to listen on, or to connect to.
    #[arg(long, default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Port.
    #[arg(long, default_value_t = 7471)]
    port: u16,
    /// Device, such as soft0 or rxe0; by default DOORBELL_DEVICE, else the one that owns the
    /// address.
    #[arg(long)]
    device: Option<String>,
}

#[derive(Args)]
struct Server {
    #[command(flatten)]
    place: Place,
    /// Number of workers, which share one receive queue.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// End after this many connections have ended; 0 means never.
    #[arg(long, default_value_t = 0)]
    connections: u64,
}

#[derive(Args)]
struct Client {
    #[command(flatten)]
    place: Place,
    /// Number of messages.
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Bytes of each, from 8 to the size of a block.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// Number of messages in flight at a time.
    #[arg(long, default_value_t = 16)]
    window: u64,
}

fn main() -> ExitCode {
    let result = match Cli::parse().role {
        Role::Server(server) => {
            let place = server.place.clone();
            run(&place, server)
        }
        Role::Client(client) => {
            let place = client.place.clone();
            run(&place, client)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(place: &Place, program: impl Program<Output = Result<(), Failure>>) -> Result<(), Failure> {
    Device::choose(place.device.as_deref(), Some(place.addr))?.run(program)
}

/// The server's handler: replies in the block that the message came in.
#[derive(Default)]
struct Echo {
    messages: u64,
    gone: u64,
}

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        self.messages += 1;
        Verdict::Reply { len: message.len() }
    }

    fn on_peer_down(&mut self, _peer: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.gone += 1;
    }
}

impl Program for Server {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let config = Config::DEFAULT;
        let addr = SocketAddr::new(self.place.addr, self.place.port);
        let mut listener = Listener::bind(&fabric, addr)?;
        let shared = SharedRecv::new(&fabric, Mapping::huge(config.recv_bytes())?, &config)?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for _ in 0..self.workers {
                let memory = Mapping::huge(config.send_bytes())?;
                let (mut worker, intake) =
                    Worker::new(&fabric, &shared, memory, Echo::default(), &config)?;
                listener.feed(intake);
                let stop = &stop;
                workers.push(scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if worker.turn() == 0 {
                            thread::yield_now();
                        }
                    }
                    (worker.handler().messages, worker.handler().gone)
                }));
            }
            if let Some(addr) = listener.local_addr() {
                println!("listening on {addr}");
            }
            let served = self.serve(&mut listener);
            stop.store(true, Ordering::Relaxed);
            for (n, worker) in workers.into_iter().enumerate() {
                let (messages, peers) = worker.join().map_err(|_| "a worker panicked")?;
                println!("worker {n}: {messages} messages, {peers} peers");
            }
            served
        })
    }
}

impl Server {
    /// The control plane: accepts connections until enough of them have ended.
    fn serve<F: Fabric>(&self, listener: &mut Listener<F>) -> Result<(), Failure> {
        while self.connections == 0 || listener.ended() < self.connections {
            listener.step(Duration::from_millis(20))?;
        }
        // Let the workers send their last acknowledgements before they stop.
        thread::sleep(Duration::from_millis(50));
        Ok(())
    }
}

/// The client's handler: checks that answers are complete, correct and in order.
#[derive(Default)]
struct Check {
    peer: Option<PeerId>,
    answered: u64,
    wrong: u64,
    down: Option<DownReason>,
    size: usize,
}

impl<P: Provider> Handler<P> for Check {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        let mut want = vec![0; self.size];
        fill(&mut want, self.answered);
        self.wrong += u64::from(message.bytes() != want);
        self.answered += 1;
        Verdict::Done
    }

    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, P>) {
        self.down = Some(why);
    }
}

/// Writes the payload of message `n`: its number, then bytes computed from it.
fn fill(bytes: &mut [u8], n: u64) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = if i < 8 { n.to_le_bytes()[i] } else { (n as usize + i) as u8 };
    }
}

impl Program for Client {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let config = Config::DEFAULT;
        if self.size < 8 || self.size > config.block_bytes as usize {
            return Err(format!("size {}: 8 to {} bytes", self.size, config.block_bytes).into());
        }
        let addr = SocketAddr::new(self.place.addr, self.place.port);
        let shared = SharedRecv::new(&fabric, Mapping::huge(config.recv_bytes())?, &config)?;
        let check = Check { size: self.size, ..Check::default() };
        let memory = Mapping::huge(config.send_bytes())?;
        let (mut worker, intake) = Worker::new(&fabric, &shared, memory, check, &config)?;
        let mut dialer = Dialer::new(&fabric)?;
        dialer.dial(addr, &intake, DIAL)?;
        worker.turn();
        let peer = worker.handler().peer.ok_or("the peer did not come up")?;
        let start = Instant::now();
        self.exchange(&mut worker, &mut dialer, peer)?;
        let (took, check) = (start.elapsed(), worker.handler());
        println!("{} of {} answers right in {took:.2?}", check.answered - check.wrong, self.count);
        if check.wrong > 0 {
            return Err(format!("{} answers were wrong", check.wrong).into());
        }
        worker.outbox().close(peer);
        for _ in 0..100 {
            worker.turn();
            dialer.step(Duration::from_millis(1))?;
        }
        Ok(())
    }
}

impl Client {
    /// Sends all messages, with at most `window` of them unanswered, and waits for the answers.
    fn exchange<F: Fabric>(
        &self,
        worker: &mut Worker<F, Check>,
        dialer: &mut Dialer<F>,
        peer: PeerId,
    ) -> Result<(), Failure> {
        let mut bytes = vec![0; self.size];
        let (mut sent, mut idle) = (0, 0u64);
        while worker.handler().answered < self.count {
            while sent < self.count && sent < worker.handler().answered + self.window {
                fill(&mut bytes, sent);
                match worker.outbox().send(peer, &bytes) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full | SendError::NoBlock) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            idle = if worker.turn() > 0 { 0 } else { idle + 1 };
            if idle % 1024 == 1023 {
                // No answer for a while: check whether the server has gone.
                dialer.step(Duration::from_millis(1))?;
                thread::yield_now();
            }
            if let Some(why) = worker.handler().down {
                return Err(format!("the connection ended: {why:?}").into());
            }
        }
        Ok(())
    }
}
