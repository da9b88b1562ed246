//! How a plan is made of a machine.

use thiserror::Error;

use crate::ids::Ids;
use crate::machine::{Core, Machine};
use crate::place::Memory;
use crate::plan::{Plan, VERSION, Worker};

/// A huge page of the usual size, in bytes.
const HUGE_PAGE: u64 = 2 << 20;

/// The device that is built in: it is memory, and has no place.
const SOFT: &str = "soft0";

/// What a plan is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Workers, each on a core of its own.
    pub workers: usize,
    /// The device they serve, by name; none, or `soft0`, if none is to be near.
    pub device: Option<String>,
    /// Cores left to everything else.
    pub housekeeping: usize,
    /// True if two workers may share a core, when nothing else is left.
    pub siblings: bool,
    /// Memory of each worker, in bytes.
    pub memory_bytes: u64,
    /// How strictly it comes from the workers' nodes.
    pub memory: Memory,
}

/// Why there is no such plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MakeError {
    /// None was asked for.
    #[error("a plan for no worker was asked for; ask for one at least")]
    NoWorker,
    /// There is no such device.
    #[error("there is no device `{name}` here; there are: {}", known.join(", "))]
    NoDevice {
        /// The name.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// There is no memory that this program may use.
    #[error("this program may use no node that has memory; see cpuset.mems in cpuset(7)")]
    NoMemory,
    /// There is not that much to run on.
    #[error(
        "{workers} workers were asked for, and there are CPUs for {room}: this program may use \
         CPUs {usable}{}, {housekeeping} of their cores are for housekeeping{}; ask for fewer, or \
         see {}",
        gone(offline),
        if *siblings { "" } else { ", and two workers do not share a core" },
        if *siblings { "--housekeeping" } else { "--siblings and --housekeeping" }
    )]
    TooMany {
        /// Workers asked for.
        workers: usize,
        /// Workers there is room for.
        room: usize,
        /// CPUs this program may use.
        usable: Ids,
        /// CPUs that are switched off.
        offline: Ids,
        /// Cores kept free.
        housekeeping: usize,
        /// Whether two workers might share a core.
        siblings: bool,
    },
}

fn gone(offline: &Ids) -> String {
    if offline.is_empty() { String::new() } else { format!(" (CPUs {offline} are switched off)") }
}

impl Plan {
    /// Plans: cores nearest to the device first, isolated before others, fast before slow, those
    /// that share a cache together; one worker to a core. Neighbours on one node share a receive
    /// queue in pairs. The first cores that are not isolated are left to everything else.
    ///
    /// # Errors
    /// The machine has no such device, or not that many cores.
    pub fn make(machine: &Machine, request: &Request) -> Result<Plan, MakeError> {
        if request.workers == 0 {
            return Err(MakeError::NoWorker);
        }
        let device_node = device_node(machine, request)?;
        let (kept, free) = split(machine, request.housekeeping);
        let home = device_node.unwrap_or_else(|| roomiest(machine, &free));
        let places = places(machine, &free, home, request.siblings);
        if places.len() < request.workers {
            return Err(MakeError::TooMany {
                workers: request.workers,
                room: places.len(),
                usable: machine.cpus.usable.clone(),
                offline: machine.cpus.offline.clone(),
                housekeeping: kept.len(),
                siblings: request.siblings,
            });
        }
        let workers = workers(machine, &places[..request.workers], request.memory_bytes)?;
        let housekeeping = kept.iter().flat_map(|core| core.cpus.iter()).collect::<Ids>();
        let mut plan = Plan {
            version: VERSION,
            device: request.device.clone(),
            device_node,
            housekeeping: housekeeping.and(&machine.cpus.usable),
            memory: request.memory,
            notes: Vec::new(),
            workers,
        };
        plan.notes = notes(machine, &plan);
        Ok(plan)
    }
}

/// The device's node, if it has one.
fn device_node(machine: &Machine, request: &Request) -> Result<Option<usize>, MakeError> {
    let Some(name) = request.device.as_deref().filter(|name| *name != SOFT) else {
        return Ok(None);
    };
    match machine.device(name) {
        Some(device) => Ok(device.node),
        None => {
            let known = machine.devices.iter().map(|device| device.name.clone());
            let known = known.chain([SOFT.to_owned()]).collect();
            Err(MakeError::NoDevice { name: name.to_owned(), known })
        }
    }
}

/// Cores for housekeeping, and the others; of both only those that may be used.
fn split(machine: &Machine, housekeeping: usize) -> (Vec<&Core>, Vec<&Core>) {
    let isolated = |core: &Core| !core.cpus.and(&machine.cpus.isolated).is_empty();
    let mut usable: Vec<&Core> = machine
        .cores
        .iter()
        .filter(|core| !core.cpus.and(&machine.cpus.usable).is_empty())
        .collect();
    // Stable: the first CPUs, to which most machines send their interrupts, first.
    usable.sort_by_key(|core| isolated(core));
    let free = usable.split_off(housekeeping.min(usable.len()));
    (usable, free)
}

/// The node with the most isolated cores, else with the most.
fn roomiest(machine: &Machine, free: &[&Core]) -> usize {
    let room = |id| {
        let here = free.iter().filter(|core| core.node == id);
        let isolated = here.clone().filter(|core| machine.cpus.isolated.contains(first(core)));
        (isolated.count(), here.count())
    };
    let ids = machine.nodes.iter().map(|node| node.id);
    // The first of those that are equal.
    ids.rev().max_by_key(|id| room(*id)).unwrap_or(0)
}

fn first(core: &Core) -> usize {
    core.cpus.first().unwrap_or(0)
}

/// A CPU a worker could have.
struct Place {
    cpu: usize,
    node: usize,
    isolated: bool,
    slow: bool,
    /// The first CPU of those it shares its last cache with.
    cache: usize,
    /// How many workers have its core already.
    shared: usize,
}

/// Every CPU a worker could have, the best first.
fn places(machine: &Machine, free: &[&Core], home: usize, siblings: bool) -> Vec<Place> {
    let last = machine.caches.iter().map(|cache| cache.level).max();
    let caches: Vec<&Ids> = machine
        .caches
        .iter()
        .filter(|cache| Some(cache.level) == last)
        .map(|cache| &cache.cpus)
        .collect();
    let mut places = Vec::new();
    for core in free {
        let mut cpus: Vec<usize> = core.cpus.and(&machine.cpus.usable).iter().collect();
        cpus.sort_by_key(|cpu| !machine.cpus.isolated.contains(*cpu));
        cpus.truncate(if siblings { cpus.len() } else { 1 });
        let cache = caches.iter().find(|cpus| cpus.contains(first(core)));
        let cache = cache.and_then(|cpus| cpus.first()).unwrap_or(first(core));
        places.extend(cpus.into_iter().enumerate().map(|(shared, cpu)| Place {
            cpu,
            node: core.node,
            isolated: machine.cpus.isolated.contains(cpu),
            slow: core.slow,
            cache,
            shared,
        }));
    }
    places.sort_by_key(|place| {
        let far = machine.distance(place.node, home);
        (place.shared, far, place.node, !place.isolated, place.slow, place.cache, place.cpu)
    });
    places
}

fn workers(machine: &Machine, places: &[Place], bytes: u64) -> Result<Vec<Worker>, MakeError> {
    let mut workers: Vec<Worker> = Vec::with_capacity(places.len());
    for place in places {
        let near = |node: &usize| (machine.distance(place.node, *node), *node);
        let memory_node =
            machine.memory_nodes.iter().min_by_key(near).ok_or(MakeError::NoMemory)?;
        let srq = match workers[..] {
            [] => 0,
            // The last one shares with the one before it, or its node ends here.
            [.., ref one, ref last] if one.srq == last.srq => last.srq + 1,
            [.., ref last] if last.node != place.node => last.srq + 1,
            [.., ref last] => last.srq,
        };
        let (cpu, node) = (place.cpu, place.node);
        workers.push(Worker { cpu, node, memory_node, memory_bytes: bytes, srq });
    }
    Ok(workers)
}

/// What a person should know of a plan.
fn notes(machine: &Machine, plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    let name = plan.device.as_deref().unwrap_or(SOFT);
    if plan.device_node.is_none() && name != SOFT && machine.nodes.len() > 1 {
        notes.push(format!("the machine does not say which node {name} is on"));
    }
    let cpus_of = |is: &dyn Fn(&Worker) -> bool| {
        let found = plan.workers.iter().filter(|worker| is(worker));
        found.map(|worker| worker.cpu).collect::<Ids>()
    };
    let far = cpus_of(&|worker| plan.device_node.is_some_and(|node| node != worker.node));
    let core_of =
        |cpu: usize| machine.cores.iter().find(move |core: &&Core| core.cpus.contains(cpu));
    let slow = cpus_of(&|worker| core_of(worker.cpu).is_some_and(|core| core.slow));
    let planned = plan.cpus();
    let shared = cpus_of(&|worker| {
        core_of(worker.cpu).is_some_and(|core| core.cpus.and(&planned).len() > 1)
    });
    let away = cpus_of(&|worker| worker.node != worker.memory_node);
    for (ids, what) in [
        (far, format!("are of another node than {name}: no nearer core is left")),
        (slow, "are of the slower kind: no other core is left".to_owned()),
        (shared, "share a core with another worker: no other core is left".to_owned()),
        (away, "have their memory on another node: their own has none to give".to_owned()),
    ] {
        if !ids.is_empty() {
            notes.push(format!("CPUs {ids} {what}"));
        }
    }
    let empty = machine.nodes.iter().filter(|node| node.memory_bytes == 0);
    let empty: Ids = empty.map(|node| node.id).collect();
    if !empty.is_empty() {
        notes.push(format!("nodes without memory: {empty}"));
    }
    if !machine.cpus.offline.is_empty() {
        notes.push(format!("CPUs switched off: {}", machine.cpus.offline));
    }
    for (node, bytes) in plan.memory_by_node() {
        let pages = bytes.div_ceil(HUGE_PAGE);
        notes.push(format!(
            "memory of node {node}: {pages} huge pages of 2 MiB; echo {pages} > \
             /sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
        ));
    }
    notes
}
