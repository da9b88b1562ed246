//! Reads a machine from the kernel's files (Documentation/ABI/stable/sysfs-devices-system-cpu).

use std::collections::HashSet;

use super::cpus::{Cpus, FOLDER as CPU, siblings};
use super::model::{Cache, Machine};
use super::{devices, join, nodes, packages};
use crate::ids::Ids;
use crate::root::{ReadError, Root};

pub(super) fn read(root: &Root) -> Result<Machine, ReadError> {
    let mut notes = Vec::new();
    let cpus = Cpus::read(root)?;
    let nodes = nodes::read(root, &cpus.online, &mut notes);
    let packages = packages::read(root, &cpus.online, &mut notes);
    let sets = cores(root, &cpus.online, &mut notes);
    let slow = slow(root, &cpus.online);
    let cores = join::cores(sets, &packages, &nodes, &slow, &mut notes);
    let ids: Vec<usize> = nodes.iter().map(|node| node.id).collect();
    Ok(Machine {
        processor: processor(root),
        packages,
        caches: caches(root, &cpus.online),
        devices: devices::read(root, &ids),
        memory_nodes: nodes::memory_nodes(root, &nodes),
        cpus,
        nodes,
        cores,
        notes,
    })
}

pub(super) fn processor(root: &Root) -> Option<String> {
    root.field("/proc/cpuinfo", "model name")
}

/// The CPUs of each core.
fn cores(root: &Root, online: &Ids, notes: &mut Vec<String>) -> Vec<Ids> {
    let modules = has_modules(root);
    let core_id = |cpu| root.value::<i64>(&format!("{CPU}/cpu{cpu}/topology/core_id"));
    let mut seen = vec![false; online.iter().max().map_or(0, |last| last + 1)];
    let (mut cores, mut alone) = (Vec::new(), Vec::new());
    for cpu in online.iter() {
        if seen[cpu] {
            continue;
        }
        let folder = format!("{CPU}/cpu{cpu}/topology");
        let Some(found) = siblings(root, &folder, ["core_cpus", "thread_siblings"]) else {
            alone.push(cpu);
            continue;
        };
        let apart = |other| modules && core_id(other) != core_id(cpu);
        let beside = found.and(online);
        let beside = beside.iter().filter(|other| !seen[*other] && !apart(*other));
        let cpus: Ids = beside.chain([cpu]).collect();
        cpus.iter().for_each(|cpu| seen[cpu] = true);
        cores.push(cpus);
    }
    cores.extend(join::a_core_each(&alone.into_iter().collect(), notes));
    cores
}

/// True for AMD processors of modules, families 15h and 16h: for these the kernel lists the cores
/// of a module as threads of one core.
fn has_modules(root: &Root) -> bool {
    let is = |key, value: &str| root.field("/proc/cpuinfo", key).is_some_and(|text| text == value);
    is("vendor_id", "AuthenticAMD") && (is("cpu family", "21") || is("cpu family", "22"))
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
    let shared = [format!("{folder}/shared_cpu_map"), format!("{folder}/shared_cpu_list")];
    let cpus = root.set(&shared[0], &shared[1])?.and(online);
    Some(Cache { level, bytes: kib * 1024, cpus })
}
