//! Workers where a plan puts them (`doorbell_tune::Plan`): each on its CPU, with memory of its
//! node, and with the receive queue that it shares with its neighbours. The plan comes from
//! `tune run`, or is made for this machine.
//!
//! ```text
//! plan server --workers 2 & sleep 1                            # a plan for this machine
//! tune run --plan plan.toml --with-housekeeping -- plan server # or one of `tune plan`
//! plan client --connections 2
//! ```
#![expect(clippy::expect_used, reason = "a panic of a handler ends the program")]

use std::collections::btree_map::{BTreeMap, Entry};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use doorbell::alloc::{Ask, MapRequest, Place as Node};
use doorbell::prelude::*;
use doorbell_examples::cli::{Failure, Place};
use doorbell_tune::{Machine, Memory, Plan, Request, Root};

/// An echo server whose workers are where a plan puts them.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    side: Side,
    #[command(flatten)]
    place: Place,
}

#[derive(Subcommand)]
enum Side {
    /// Serve until SIGINT or SIGTERM.
    Server {
        /// Workers of a plan that is made here.
        #[arg(long, default_value_t = 1)]
        workers: usize,
    },
    /// Send one message over each connection.
    Client {
        /// Connections; the server's workers get them in turn.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        connections: u64,
    },
}

/// The plan of `tune run`, or one for this machine.
fn plan(workers: usize, device: &str) -> Result<Plan, Failure> {
    if let Some(plan) = Plan::from_env()? {
        return Ok(plan);
    }
    let request = Request {
        workers,
        device: Some(device.to_owned()),
        housekeeping: 0,
        siblings: true,
        memory_bytes: 8 << 20,
        memory: Memory::Prefer,
    };
    Ok(Plan::make(&Machine::read(&Root::system())?, &request)?)
}

fn server<F: Fabric>(nic: &F, place: &Place, workers: usize) -> Result<(), Failure> {
    let plan = plan(workers, &nic.caps().device)?;
    plan.enter()?; // this thread, and all that it starts, stay on the plan's CPUs and nodes
    let mut runtime = Runtime::new(nic, &Config::DEFAULT);
    let mut queues = BTreeMap::new();
    for worker in &plan.workers {
        let sharers = plan.workers.iter().filter(|other| other.srq == worker.srq).count();
        let config = Config::DEFAULT.with_memory(worker.memory_bytes, sharers as u32);
        let node = Node::Prefer(worker.memory_node as u32);
        // Where the device lends, peers copy long messages straight from readable memory.
        let map = |bytes| {
            let request = MapRequest::new(bytes).pages(Ask::Huge2M).place(node);
            request.readable(nic.caps().lends).map()
        };
        let shared = match queues.entry(worker.srq) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(SharedRecv::new(nic, map(config.recv_bytes())?, &config)?)
            }
        };
        let memory = map(config.send_bytes())?;
        let (made, intake) = Worker::new(nic, shared, memory, Echo, &config)?;
        runtime.add_worker(made, intake);
    }
    runtime.on_cores(plan.workers.iter().map(|worker| worker.cpu));
    println!("listening on {}", runtime.listen(place.addr())?);
    runtime.stop_on_signals()?;
    runtime.run()?;
    for (worker, made) in plan.workers.iter().zip(runtime.workers()) {
        let (cpu, node, stats) = (worker.cpu, worker.memory_node, made.stats());
        println!("CPU {cpu}, memory of node {node}: {} messages", stats.received);
    }
    Ok(())
}

fn client<F: Fabric>(nic: &F, place: &Place, connections: u64) -> Result<(), Failure> {
    let mut runtime = Runtime::new(nic, &Config::DEFAULT);
    runtime.add(Client { left: connections, stop: runtime.stopper() })?;
    for _ in 0..connections {
        runtime.dial(place.addr())?;
    }
    runtime.run()?;
    match runtime.workers()[0].handler().left {
        0 => println!("{connections} answers"),
        left => return Err(format!("{left} answers are missing").into()),
    }
    Ok(())
}

impl Program for Cli {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        match self.side {
            Side::Server { workers } => server(&nic, &self.place, workers),
            Side::Client { connections } => client(&nic, &self.place, connections),
        }
    }
}

struct Echo;

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Reply { len: message.len() }
    }
}

struct Client {
    left: u64,
    stop: Stop,
}

impl<P: Provider> Handler<P> for Client {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        out.send(peer, b"hello").expect("a new peer has room");
    }

    fn on_message(&mut self, _: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        self.left -= 1;
        if self.left == 0 {
            self.stop.stop();
        }
        Verdict::Done
    }

    fn on_peer_down(&mut self, _: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.place.clone().run(cli)
}
