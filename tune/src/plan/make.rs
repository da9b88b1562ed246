//! Makes a plan for a machine.

use std::collections::HashMap;
use std::fmt;

use thiserror::Error;

use super::file::{Plan, VERSION, Worker};
use crate::ids::Ids;
use crate::machine::{Core, Machine};
use crate::place::Memory;

/// Size of a huge page, bytes.
const HUGE_PAGE: u64 = 2 << 20;

/// The built-in device, which is memory and so is not near to any node.
const SOFT: &str = "soft0";

/// What a plan is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of workers, each on a core of its own.
    pub workers: usize,
    /// Name of the device to be near to; `None` or `soft0` if there is none.
    pub device: Option<String>,
    /// Number of cores that are left for everything else.
    pub housekeeping: usize,
    /// True if two workers may share a core when no other is left.
    pub siblings: bool,
    /// Memory of each worker, bytes.
    pub memory_bytes: u64,
    /// How strictly it comes from the workers' nodes.
    pub memory: Memory,
}

/// Why no plan could be made.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MakeError {
    /// No worker was asked for.
    #[error("a plan needs at least one worker")]
    NoWorker,
    /// There is no such device.
    #[error("there is no device `{name}` here; there are: {}", known.join(", "))]
    NoDevice {
        /// The name asked for.
        name: String,
        /// The devices that the machine has.
        known: Vec<String>,
    },
    /// This program may use no memory.
    #[error("this program may use no node that has memory; see cpuset.mems in cpuset(7)")]
    NoMemory,
    /// There are too few CPUs.
    #[error(
        "{workers} workers were asked for, but there are CPUs for only {room}: this program may \
         use CPUs {usable}{}, {housekeeping} of their cores are for housekeeping{}; ask for fewer, \
         or see {}",
        switched_off(offline),
        if *siblings { "" } else { ", and two workers do not share a core" },
        if *siblings { "--housekeeping" } else { "--siblings and --housekeeping" }
    )]
    TooMany {
        /// Number of workers asked for.
        workers: usize,
        /// Number of workers that there are CPUs for.
        room: usize,
        /// CPUs that this program may use.
        usable: Ids,
        /// CPUs that are switched off.
        offline: Ids,
        /// Number of cores for housekeeping.
        housekeeping: usize,
        /// Whether two workers could share a core.
        siblings: bool,
    },
}

impl fmt::Debug for MakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn switched_off(offline: &Ids) -> String {
    if offline.is_empty() { String::new() } else { format!(" (CPUs {offline} are switched off)") }
}

impl Plan {
    /// Makes a plan: one worker on each core. It takes the cores nearest to the device first,
    /// isolated ones before others, fast ones before slow ones, and those that share a cache
    /// together. Of cores that share a smaller cache too, such as those of an AMD module, it takes
    /// one of each before a second one. Each two workers that follow each other on a node share a
    /// receive queue. The first cores that are not isolated are left for everything else.
    ///
    /// # Errors
    /// The machine has no such device, or too few cores.
    pub fn make(machine: &Machine, request: &Request) -> Result<Plan, MakeError> {
        if request.workers == 0 {
            return Err(MakeError::NoWorker);
        }
        let device_node = device_node(machine, request)?;
        let (kept, free) = split(machine, request.housekeeping);
        let home = device_node.unwrap_or_else(|| roomiest(machine, &free));
        let places = places(machine, (&kept, &free), home, request.siblings);
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

/// The node of the device, if it has one.
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

/// Splits the usable cores into those for housekeeping and the others.
fn split(machine: &Machine, housekeeping: usize) -> (Vec<&Core>, Vec<&Core>) {
    let isolated = |core: &Core| !core.cpus.and(&machine.cpus.isolated).is_empty();
    let mut usable: Vec<&Core> = machine
        .cores
        .iter()
        .filter(|core| !core.cpus.and(&machine.cpus.usable).is_empty())
        .collect();
    // The sort is stable, so the first CPUs, which on most machines take the interrupts, come
    // first.
    usable.sort_by_key(|core| isolated(core));
    let free = usable.split_off(housekeeping.min(usable.len()));
    (usable, free)
}

/// The node with the most isolated cores, or with the most cores if that is a tie.
fn roomiest(machine: &Machine, free: &[&Core]) -> usize {
    let room = |id| {
        let here = free.iter().filter(|core| core.node == id);
        let isolated = here.clone().filter(|core| machine.cpus.isolated.contains(first(core)));
        (isolated.count(), here.count())
    };
    let ids = machine.nodes.iter().map(|node| node.id);
    // Reversed, so that a tie goes to the first node.
    ids.rev().max_by_key(|id| room(*id)).unwrap_or(0)
}

fn first(core: &Core) -> usize {
    core.cpus.first().unwrap_or(0)
}

/// A CPU that a worker could run on.
struct Place {
    cpu: usize,
    node: usize,
    isolated: bool,
    slow: bool,
    /// The first CPU of those that share its last-level cache.
    cache: usize,
    /// How many CPUs of its core come before it.
    shared: usize,
    /// How many cores of its module come before its own.
    beside: usize,
    /// True if no node lists the CPU, so that its nearest memory is not known.
    astray: bool,
}

/// Every CPU that a worker could run on, the best first. `kept` cores are for something else.
fn places(
    machine: &Machine,
    (kept, free): (&[&Core], &[&Core]),
    home: usize,
    siblings: bool,
) -> Vec<Place> {
    let last = machine.caches.iter().map(|cache| cache.level).max();
    let modules = modules(machine, last);
    let mut taken: HashMap<usize, usize> = HashMap::new();
    for core in kept {
        *taken.entry(module(&modules, core)).or_default() += 1;
    }
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
        let others = taken.entry(module(&modules, core)).or_default();
        let beside = *others;
        *others += 1;
        places.extend(cpus.into_iter().enumerate().map(|(shared, cpu)| Place {
            cpu,
            node: core.node,
            isolated: machine.cpus.isolated.contains(cpu),
            slow: core.slow,
            cache,
            shared,
            beside,
            astray: machine.node(core.node).is_none_or(|node| !node.cpus.contains(cpu)),
        }));
    }
    places.sort_by_key(|place| {
        let far = machine.distance(place.node, home);
        let near = (place.shared, place.astray, far, place.node);
        (near, !place.isolated, place.slow, place.cache, place.beside, place.cpu)
    });
    places
}

/// The CPUs of each module: cores that share a cache other than the last-level one. The cores of
/// an AMD module share execution units, too.
fn modules(machine: &Machine, last: Option<u8>) -> Vec<&Ids> {
    let smaller = machine.caches.iter().rev().filter(|cache| Some(cache.level) != last);
    smaller.map(|cache| &cache.cpus).collect()
}

/// The first CPU of the core's module, or of the core itself. Caches of a higher level come first.
fn module(modules: &[&Ids], core: &Core) -> usize {
    let cpus = modules.iter().find(|cpus| cpus.contains(first(core)));
    cpus.and_then(|cpus| cpus.first()).unwrap_or(first(core))
}

fn workers(machine: &Machine, places: &[Place], bytes: u64) -> Result<Vec<Worker>, MakeError> {
    let mut workers: Vec<Worker> = Vec::with_capacity(places.len());
    for place in places {
        let near = |node: &usize| (machine.distance(place.node, *node), *node);
        let memory_node =
            machine.memory_nodes.iter().min_by_key(near).ok_or(MakeError::NoMemory)?;
        let srq = match workers[..] {
            [] => 0,
            // The queue of the last worker already has two, or the node changes here.
            [.., ref one, ref last] if one.srq == last.srq => last.srq + 1,
            [.., ref last] if last.node != place.node => last.srq + 1,
            [.., ref last] => last.srq,
        };
        let (cpu, node) = (place.cpu, place.node);
        workers.push(Worker { cpu, node, memory_node, memory_bytes: bytes, srq });
    }
    Ok(workers)
}

/// Remarks for people about a plan.
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
    let empty = machine.empty_nodes();
    if !empty.is_empty() {
        notes.push(format!("nodes without memory: {empty}"));
    }
    if !machine.cpus.offline.is_empty() {
        notes.push(format!("CPUs switched off: {}", machine.cpus.offline));
    }
    notes.extend(machine.notes.iter().cloned());
    for (node, bytes) in plan.memory_by_node() {
        let pages = bytes.div_ceil(HUGE_PAGE);
        notes.push(format!(
            "memory of node {node}: {pages} huge pages of 2 MiB; `tune check --plan FILE --only \
             hugepages --apply` reserves them if fewer are there"
        ));
    }
    notes
}
