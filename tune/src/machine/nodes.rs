//! NUMA nodes, from the kernel's files (Documentation/ABI/stable/sysfs-devices-node).

use super::cpuset;
use super::join;
use super::model::Node;
use crate::ids::Ids;
use crate::root::Root;

const NODE: &str = "/sys/devices/system/node";

/// The nodes. A kernel without NUMA counts as having one node with everything in it.
pub(super) fn read(root: &Root, online: &Ids, notes: &mut Vec<String>) -> Vec<Node> {
    let ids = ids(root);
    let gpus = gpus(root);
    let mut nodes: Vec<Node> = Vec::new();
    let (mut placed, mut doubled, mut on_gpu) = (Ids::default(), Vec::new(), Vec::new());
    for id in ids.iter() {
        let node = node(root, id, online);
        if !node.cpus.and(&placed).is_empty() {
            doubled.push(id);
        } else if gpus.contains(id) && node.cpus.is_empty() {
            on_gpu.push(id);
        } else {
            placed = placed.or(&node.cpus);
            nodes.push(node);
        }
    }
    for (left, why) in [(doubled, "they list CPUs of other nodes"), (on_gpu, "memory of a GPU")] {
        if !left.is_empty() {
            let left: Ids = left.into_iter().collect();
            notes.push(format!("left out nodes {left}: {why}"));
        }
    }
    let mut nodes = join::without_empty(nodes, notes);
    if nodes.is_empty() {
        let memory_bytes = memory(root, "/proc/meminfo");
        nodes.push(Node { id: 0, cpus: online.clone(), memory_bytes, distances: Vec::new() });
    }
    distances(root, &ids, &mut nodes);
    if nodes.iter().all(|node| node.memory_bytes == 0) {
        notes.push("the machine does not say how much memory its nodes have".to_owned());
    }
    nodes
}

fn ids(root: &Root) -> Ids {
    let listed = root.ids(&format!("{NODE}/online")).filter(|ids| !ids.is_empty());
    // Old kernels have no list.
    listed.unwrap_or_else(|| {
        let names = root.entries(NODE);
        names.iter().filter_map(|name| name.strip_prefix("node")?.parse::<usize>().ok()).collect()
    })
}

/// Nodes that are memory of a GPU, according to its driver.
fn gpus(root: &Root) -> Ids {
    const GPUS: &str = "/proc/driver/nvidia/gpus";
    let node = |gpu: &String| root.field(&format!("{GPUS}/{gpu}/numa_status"), "Node");
    root.entries(GPUS).iter().filter_map(|gpu| node(gpu)?.parse::<usize>().ok()).collect()
}

fn node(root: &Root, id: usize, online: &Ids) -> Node {
    let folder = format!("{NODE}/node{id}");
    let cpus = root.set(&format!("{folder}/cpumap"), &format!("{folder}/cpulist"));
    Node {
        id,
        cpus: cpus.unwrap_or_default().and(online),
        memory_bytes: memory(root, &format!("{folder}/meminfo")),
        distances: Vec::new(),
    }
}

/// Reads the distances between `nodes`, which are some of those that are online.
fn distances(root: &Root, online: &Ids, nodes: &mut [Node]) {
    // A single node needs no distances.
    if nodes.len() < 2 {
        return;
    }
    let kept: Ids = nodes.iter().map(|node| node.id).collect();
    for node in nodes {
        let text = root.text(&format!("{NODE}/node{}/distance", node.id)).unwrap_or_default();
        let all: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
        if all.len() == online.len() {
            let near = online.iter().zip(all).filter(|(to, _)| kept.contains(*to));
            node.distances = near.map(|(_, distance)| distance).collect();
        }
    }
}

/// Nodes with memory that are in this program's cpuset.
pub(super) fn memory_nodes(root: &Root, nodes: &[Node]) -> Ids {
    let full = join::with_memory(nodes);
    let allowed = root.field("/proc/self/status", "Mems_allowed_list");
    let allowed = allowed.and_then(|text| text.parse::<Ids>().ok()).or_else(|| cpuset::nodes(root));
    allowed.map_or_else(|| full.clone(), |allowed| allowed.and(&full))
}

fn memory(root: &Root, file: &str) -> u64 {
    meminfo(root, file, "MemTotal:").unwrap_or(0)
}

/// Memory of a node that is free or that the kernel can free, because it only caches files, bytes;
/// `None` if the machine does not say.
pub(crate) fn free(root: &Root, node: usize) -> Option<u64> {
    let sum = |file: &str| {
        let free = meminfo(root, file, "MemFree:")?;
        let cached = ["Active(file):", "Inactive(file):", "SReclaimable:"];
        let cached = cached.iter().filter_map(|key| meminfo(root, file, key));
        Some(cached.fold(free, u64::saturating_add))
    };
    sum(&format!("{NODE}/node{node}/meminfo")).or_else(|| sum("/proc/meminfo"))
}

/// The figure in a line of `meminfo`, such as `[Node 0 ]MemTotal: 123 kB`, in bytes.
fn meminfo(root: &Root, file: &str, key: &str) -> Option<u64> {
    let text = root.text(file)?;
    let (_, rest) = text.lines().find_map(|line| line.split_once(key))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn memory_that_caches_files_counts_as_free() {
        let name = format!("doorbell-tune-free-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let root = Root::at(&folder);
        assert_eq!(free(&root, 0), None);
        let node = folder.join("sys/devices/system/node/node0");
        fs::create_dir_all(&node).unwrap();
        fs::create_dir_all(folder.join("proc")).unwrap();
        fs::write(folder.join("proc/meminfo"), "MemFree: 1 kB\nActive(file): 2 kB\n").unwrap();
        let text = "Node 0 MemTotal: 9 kB\nNode 0 MemFree: 1 kB\nNode 0 Active: 64 kB\n\
                    Node 0 Active(file): 2 kB\nNode 0 Inactive(file): 4 kB\n\
                    Node 0 SReclaimable: 8 kB\nNode 0 SUnreclaim: 16 kB\n";
        fs::write(node.join("meminfo"), text).unwrap();
        assert_eq!(free(&root, 0), Some(15 << 10));
        // A kernel without nodes has the machine's figures alone.
        assert_eq!(free(&root, 1), Some(3 << 10));
        fs::remove_dir_all(folder).unwrap();
    }
}
