//! A server as a program runs it: workers, their tables, a listener that sends each connection to
//! the worker it is for, and a thread that provides memory for larger tables.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use doorbell::alloc::{Ask as Pages, MapRequest};
use doorbell::error::Code;
use doorbell::prelude::*;
use doorbell::worker::Handle;
use doorbell::{Why, clock_ns};

use crate::plant::Mistake;
use crate::server::{Ask, Server, Setup, Supply, block_bytes, rights};
use crate::table::Geometry;

/// How long the thread that provides memory waits before it looks whether the program ends.
const LOOK: Duration = Duration::from_millis(50);

/// What a server is asked to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Workers, each with a thread and a share of the keys.
    pub workers: u32,
    /// Homes of each worker's first table: a power of two.
    pub homes: u32,
    /// The most homes of a worker's table: a power of two.
    pub homes_max: u32,
    /// Bytes of a slot: a multiple of 64. Key and value have 32 bytes less.
    pub slot_bytes: u32,
    /// Clients at a time.
    pub clients: u32,
    /// A mistake that is planted.
    pub mistake: Option<Mistake>,
}

/// The limits of workers for blocks of that length and that many peers.
pub fn config(slot_bytes: u32, peers: u32, requests: u32) -> Config {
    let block_bytes = block_bytes(slot_bytes).next_multiple_of(64);
    let recv_blocks = (4 * peers).max(512);
    Config { peers, block_bytes, recv_blocks, requests, ..Config::DEFAULT }
}

/// A server that is ready to run.
pub struct Host<F: Fabric> {
    runtime: Runtime<F, Server<F::Region>>,
    nic: F,
    addr: SocketAddr,
    asks: Receiver<Ask>,
    offers: Vec<Sender<Option<F::Region>>>,
}

impl<F: Fabric> Host<F> {
    /// Makes the workers and listens.
    ///
    /// # Errors
    /// `Invalid`: numbers that make no table. `NoMemory`. The connection manager's refusal.
    pub fn new(nic: &F, addr: SocketAddr, options: &Options) -> Result<Host<F>, CmError> {
        let Options { workers, homes, homes_max, slot_bytes, clients, mistake } = *options;
        // The workers share a receive queue, which has receives for the clients of each.
        let peers = clients.saturating_mul(workers);
        let mut runtime = Runtime::new(nic, &config(slot_bytes, peers, 1));
        let (send_asks, asks) = channel();
        let mut offers = Vec::new();
        for number in 0..workers {
            let seed = RandomState::new().hash_one(number);
            let geometry = Geometry { generation: 1, seed, homes, slot_bytes };
            if !geometry.is_sound() || !homes_max.is_power_of_two() {
                let asked =
                    format!("a table of {homes} to {homes_max} slots of {slot_bytes} bytes");
                return Err(CmError::new(Code::Invalid, asked, "no table has these numbers").cure(
                    "take powers of two as numbers of slots, and a multiple of 64 bytes up to 64K",
                ));
            }
            let region = region(nic, &geometry)?;
            let (send_offers, take) = channel();
            let supply = Supply { asks: send_asks.clone(), offers: take };
            let setup = Setup { shard: (number, workers), homes_max, seed, mistake };
            let clock = Box::new(clock_ns);
            let server = Server::new(setup, (region, homes, slot_bytes), clock, supply);
            let refused = |why| CmError::new(Code::Invalid, "a table", format!("{why}"));
            runtime.add(server.map_err(refused)?)?;
            offers.push(send_offers);
        }
        let intakes = runtime.intakes().to_vec();
        let mut listener = Listener::bind(nic, addr)?;
        let bound = listener.local_addr().unwrap_or(addr);
        listener.on_request(move |request| {
            let worker = request.data().first().and_then(|n| intakes.get(usize::from(*n)));
            match worker {
                Some(worker) => Answer::accept().to_worker(worker),
                None => Answer::refuse("the server has fewer workers"),
            }
        });
        runtime.add_listener(listener);
        Ok(Host { runtime, nic: nic.clone(), addr: bound, asks, offers })
    }

    /// The address listened on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its workers, threads and end.
    pub fn runtime(&mut self) -> &mut Runtime<F, Server<F::Region>> {
        &mut self.runtime
    }

    /// Runs until the end.
    ///
    /// # Errors
    /// As for [`Runtime::run`].
    pub fn run(&mut self) -> Result<Why, CmError> {
        let Host { runtime, nic, asks, offers, .. } = self;
        let handles: Vec<Handle> = runtime.workers().iter().map(|worker| worker.handle()).collect();
        let stop = runtime.stopper();
        let (end, nic) = (stop.clone(), &*nic);
        thread::scope(|scope| {
            let asks = std::mem::replace(asks, channel().1);
            scope.spawn(move || supply(nic, &asks, offers, &handles, &stop));
            let result = runtime.run();
            end.stop();
            result
        })
    }
}

/// Maps and registers the memory of a table.
fn region<F: Fabric>(nic: &F, geometry: &Geometry) -> Result<F::Region, CmError> {
    // Shared: on the soft device a client then copies from it directly.
    let request = MapRequest::new(geometry.bytes()).pages(Pages::Huge2M).shared(true);
    let memory = request.map().map_err(|error| {
        let asked = format!("{} bytes for a table", geometry.bytes());
        CmError::new(Code::from_errno(error.errno()), asked, error.to_string())
    })?;
    Ok(nic.register(memory, rights())?)
}

/// Provides the memory that workers ask for, until the end.
fn supply<F: Fabric>(
    nic: &F,
    asks: &Receiver<Ask>,
    offers: &[Sender<Option<F::Region>>],
    handles: &[Handle],
    stop: &Stop,
) {
    while !stop.is_stopped() {
        let Ask { worker, geometry } = match asks.recv_timeout(LOOK) {
            Ok(ask) => ask,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let worker = worker as usize;
        if let (Some(offers), Some(handle)) = (offers.get(worker), handles.get(worker)) {
            let sent = offers.send(region(nic, &geometry).ok()).is_ok();
            let ends = || stop.is_stopped() || handle.has_ended();
            while sent && !ends() && !handle.submit(0) {
                thread::sleep(LOOK);
            }
        }
    }
}
