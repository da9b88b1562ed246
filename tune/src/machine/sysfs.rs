//! Reads a machine from the kernel's files (Documentation/ABI/stable/sysfs-devices-node and
//! sysfs-devices-system-cpu).

use std::collections::{HashMap, HashSet};

use super::cpus::Cpus;
use super::devices;
use super::model::{Cache, Core, Machine, Node, Package};
use crate::ids::Ids;
use crate::root::{ReadError, Root};

const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";

pub(super) fn read(root: &Root) -> Result<Machine, ReadError> {
    let cpus = Cpus::read(root)?;
    let nodes = nodes(root, &cpus.online);
    let cores = cores(root, &cpus.online, &nodes);
    let ids: Vec<usize> = nodes.iter().map(|node| node.id).collect();
    Ok(Machine {
        processor: processor(root),
        packages: packages(&cores),
        caches: caches(root, &cpus.online),
        devices: devices::read(root, &ids),
        memory_nodes: memory_nodes(root, &nodes),
        cpus,
        nodes,
        cores,
    })
}

/// Nodes with memory that are in this program's cpuset.
pub(super) fn memory_nodes(root: &Root, nodes: &[Node]) -> Ids {
    let full = nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id).collect();
    let allowed = root.field("/proc/self/status", "Mems_allowed_list");
    match allowed.and_then(|text| text.parse::<Ids>().ok()) {
        Some(allowed) => allowed.and(&full),
        None => full,
    }
}

pub(super) fn processor(root: &Root) -> Option<String> {
    root.field("/proc/cpuinfo", "model name")
}

/// The nodes. A kernel without NUMA counts as having one node with everything in it.
fn nodes(root: &Root, online: &Ids) -> Vec<Node> {
    let ids = root.ids(&format!("{NODE}/online")).unwrap_or_default();
    if ids.is_empty() {
        let memory_bytes = memory(root, "/proc/meminfo");
        return vec![Node { id: 0, cpus: online.clone(), memory_bytes, distances: Vec::new() }];
    }
    let node = |id| {
        let folder = format!("{NODE}/node{id}");
        // A single node needs no distances.
        let far = (ids.len() > 1).then(|| root.text(&format!("{folder}/distance"))).flatten();
        let distances = far.unwrap_or_default();
        Node {
            id,
            cpus: root.ids(&format!("{folder}/cpulist")).unwrap_or_default().and(online),
            memory_bytes: memory(root, &format!("{folder}/meminfo")),
            distances: distances.split_whitespace().flat_map(str::parse).collect(),
        }
    };
    ids.iter().map(node).collect()
}

fn memory(root: &Root, file: &str) -> u64 {
    meminfo(root, file, "MemTotal:").unwrap_or(0)
}

/// Free memory of a node, bytes; `None` if the machine does not say.
pub(crate) fn free(root: &Root, node: usize) -> Option<u64> {
    meminfo(root, &format!("{NODE}/node{node}/meminfo"), "MemFree:")
        .or_else(|| meminfo(root, "/proc/meminfo", "MemFree:"))
}

/// The figure in a line of `meminfo`, such as `[Node 0 ]MemTotal: 123 kB`, in bytes.
fn meminfo(root: &Root, file: &str, key: &str) -> Option<u64> {
    let text = root.text(file)?;
    let (_, rest) = text.lines().find_map(|line| line.split_once(key))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn cores(root: &Root, online: &Ids, nodes: &[Node]) -> Vec<Core> {
    let slow = slow(root, online);
    let node_of: HashMap<usize, usize> =
        nodes.iter().flat_map(|node| node.cpus.iter().map(|cpu| (cpu, node.id))).collect();
    let mut seen = vec![false; online.iter().max().map_or(0, |last| last + 1)];
    let mut cores = Vec::new();
    for cpu in online.iter() {
        if seen[cpu] {
            continue;
        }
        let folder = format!("{CPU}/cpu{cpu}/topology");
        // Kernels before 5.3 use the second name.
        let siblings = root
            .ids(&format!("{folder}/core_cpus_list"))
            .or_else(|| root.ids(&format!("{folder}/thread_siblings_list")));
        let own: Ids = [cpu].into_iter().collect();
        let cpus = siblings.unwrap_or_default().and(online).or(&own);
        cpus.iter().for_each(|cpu| seen[cpu] = true);
        cores.push(Core {
            // -1, if the machine does not say, is not a `usize`.
            package: root.value(&format!("{folder}/physical_package_id")).unwrap_or(0),
            node: node_of.get(&cpu).copied().unwrap_or(0),
            slow: slow.contains(cpu),
            cpus,
        });
    }
    cores
}

/// The CPUs of the slower kind, on a machine with two kinds.
pub(super) fn slow(root: &Root, online: &Ids) -> Ids {
    // On Intel each kind has an event-counting device of its own.
    if let Some(slow) = root.ids("/sys/devices/cpu_atom/cpus") {
        return slow;
    }
    let capacity = |cpu| root.value::<u64>(&format!("{CPU}/cpu{cpu}/cpu_capacity"));
    if online.first().and_then(capacity).is_none() {
        return Ids::default();
    }
    let most = online.iter().filter_map(capacity).max();
    online.iter().filter(|cpu| capacity(*cpu) < most).collect()
}

fn packages(cores: &[Core]) -> Vec<Package> {
    let ids: Ids = cores.iter().map(|core| core.package).collect();
    let cpus = |id| {
        let here = cores.iter().filter(|core| core.package == id);
        here.flat_map(|core| core.cpus.iter()).collect()
    };
    ids.iter().map(|id| Package { id, cpus: cpus(id) }).collect()
}

/// Lists each cache once, although every CPU that shares it has files for it.
fn caches(root: &Root, online: &Ids) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    let mut seen: HashSet<(usize, String)> = HashSet::new();
    for cpu in online.iter() {
        for index in root.entries(&format!("{CPU}/cpu{cpu}/cache")) {
            if seen.contains(&(cpu, index.clone())) {
                continue;
            }
            let folder = format!("{CPU}/cpu{cpu}/cache/{index}");
            if let Some(cache) = cache(root, &folder, online) {
                seen.extend(cache.cpus.iter().map(|cpu| (cpu, index.clone())));
                caches.push(cache);
            }
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.cpus.first()));
    caches
}

fn cache(root: &Root, folder: &str, online: &Ids) -> Option<Cache> {
    let level = root.value(&format!("{folder}/level"))?;
    if root.text(&format!("{folder}/type"))? == "Instruction" {
        return None;
    }
    let size = root.text(&format!("{folder}/size"))?;
    let kib: u64 = size.strip_suffix('K')?.parse().ok()?;
    let cpus = root.ids(&format!("{folder}/shared_cpu_list"))?.and(online);
    Some(Cache { level, bytes: kib * 1024, cpus })
}
