//! Measures what the crossing between a task and its worker costs:
//!
//! ```sh
//! cargo run --release -p doorbell-tokio --example crossing
//! ```
//!
//! One worker is connected to itself, so two cores are enough. It makes requests one after the
//! other: from its own handler, then from a task of tokio while it spins, then from a task while it
//! sleeps between two requests. Each kind has its turn in each round, so that a busy machine slows
//! all of them down; the medians are over the rounds.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell::prelude::*;
use doorbell::rpc::{self, Calls, Incoming};
use doorbell::{Idle, clock_ns};
use doorbell_tokio::{AsyncWorker, Options, Service};

/// Rounds, the requests of each kind in a round, and those before that are not measured.
const ROUNDS: usize = 15;
const REQUESTS: u32 = 2000;
const WARM: u32 = 500;

/// Bytes of a request and of its answer.
const BYTES: usize = 32;

const LONG: Duration = Duration::from_secs(60);

type Failure = Box<dyn Error>;

/// Answers requests with what they hold.
struct Echo;

impl Service for Echo {
    fn request(&mut self, _: PeerId, _room: &mut [u8], len: usize) -> Option<usize> {
        Some(len)
    }
}

/// Asks itself.
struct Alone {
    calls: Calls,
    left: u32,
    began: Option<Instant>,
    took: Duration,
    stop: Stop,
}

impl Alone {
    fn ask<P: Provider>(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let deadline = Some(out.now() + LONG.as_nanos() as u64);
        if self.calls.call(out, peer, &[7; BYTES], 0, deadline).is_err() {
            self.stop.stop();
        }
    }
}

impl<P: Provider> Handler<P> for Alone {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        // Both ends of the connection are up here: the first one asks.
        if self.left == 0 {
            self.left = WARM + REQUESTS;
            self.ask(peer, out);
        }
    }

    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let peer = message.peer();
        match self.calls.incoming(out, &message) {
            Incoming::Call(payload) => {
                let len = payload.len();
                let written = rpc::answer(&mut message, |_| len);
                return written.map_or(Verdict::Done, |len| Verdict::Reply { len });
            }
            Incoming::Answer { .. } => {
                self.left -= 1;
                if self.left == REQUESTS {
                    self.began = Some(Instant::now());
                }
                if self.left > 0 {
                    self.ask(peer, out);
                } else {
                    self.took = self.began.map_or(LONG, |began| began.elapsed());
                    self.stop.stop();
                }
            }
            Incoming::Late | Incoming::Foreign => {}
        }
        Verdict::Done
    }
}

/// Nanoseconds of half a round trip, from the worker's own handler.
fn alone(nic: &SoftDevice, core: Option<usize>) -> Result<f64, Failure> {
    let mut runtime = Runtime::new(nic, &Config::DEFAULT);
    let calls = Calls::new(1, BYTES, 0);
    let stop = runtime.stopper();
    runtime.add(Alone { calls, left: 0, began: None, took: LONG, stop })?;
    runtime.on_cores(core);
    let addr = runtime.listen(any())?;
    runtime.dial(addr)?;
    runtime.run()?;
    Ok(half(runtime.workers()[0].handler().took))
}

/// The same from a task.
fn from_a_task(nic: &SoftDevice, core: Option<usize>, idle: Idle) -> Result<f64, Failure> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio.block_on(async {
        let options = Options { core, idle: Some(idle), ..Options::DEFAULT };
        let worker = AsyncWorker::start(nic, Echo, &options)?;
        let addr = worker.listen(any()).await?;
        let connection = worker.connect(addr, LONG).await?;
        let _other_end = worker.accept().await?;
        let mut began = Instant::now();
        for left in (0..WARM + REQUESTS).rev() {
            connection.request(&[7; BYTES], LONG).await?;
            if left == REQUESTS {
                began = Instant::now();
            }
        }
        let took = began.elapsed();
        worker.close().await?;
        Ok(half(took))
    })
}

fn half(took: Duration) -> f64 {
    took.as_nanos() as f64 / f64::from(REQUESTS) / 2.0
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn main() -> Result<(), Failure> {
    let nic = SoftDevice::open()?;
    let cores = std::thread::available_parallelism()?.get();
    let core = (cores > 1).then_some(cores - 1);
    let names = ["worker alone", "from a task, worker spins", "from a task, worker sleeps"];
    let mut taken = [const { Vec::new() }; 3];
    let begin = clock_ns();
    for _ in 0..ROUNDS {
        taken[0].push(alone(&nic, core)?);
        taken[1].push(from_a_task(&nic, core, Idle::Spin)?);
        taken[2].push(from_a_task(&nic, core, Idle::Sleep { spin: 200 })?);
    }
    println!("{ROUNDS} rounds of {REQUESTS} requests of {BYTES} bytes, {cores} cores");
    println!("half round trip, in ns      median     least      most");
    for (name, taken) in names.iter().zip(&mut taken) {
        taken.sort_by(f64::total_cmp);
        let [median, least, most] = [taken[ROUNDS / 2], taken[0], taken[ROUNDS - 1]];
        println!("{name:26} {median:8.0} {least:9.0} {most:9.0}");
    }
    println!("in {} s", (clock_ns() - begin) / 1_000_000_000);
    Ok(())
}
