//! Arranges a machine for printing and drawing: which part is inside which.

use doorbell_tune::{Cache, Core, Device, Machine, Node};

/// A socket and its nodes.
pub(super) struct PackageBox<'a> {
    pub(super) id: usize,
    pub(super) nodes: Vec<NodeBox<'a>>,
}

/// A node with its devices, and with its cores of one package.
pub(super) struct NodeBox<'a> {
    pub(super) node: &'a Node,
    /// True if it is in an earlier package too, with its devices.
    pub(super) again: bool,
    /// Cores in groups that share a last-level cache, with the cache if it is shared.
    pub(super) groups: Vec<(Option<&'a Cache>, Vec<&'a Core>)>,
    pub(super) devices: Vec<&'a Device>,
}

/// Packages with their nodes. A node can be in several: then each has its own cores of it.
pub(super) fn packages(machine: &Machine) -> Vec<PackageBox<'_>> {
    let mut placed = Vec::new();
    let mut boxes = Vec::new();
    for package in &machine.packages {
        let mut nodes = Vec::new();
        for node in &machine.nodes {
            let inside = |core: &&Core| core.node == node.id && core.package == package.id;
            let cores: Vec<&Core> = machine.cores.iter().filter(inside).collect();
            if !cores.is_empty() || !node.cpus.and(&package.cpus).is_empty() {
                nodes.push(node_box(machine, node, cores, placed.contains(&node.id)));
            }
        }
        placed.extend(nodes.iter().map(|node| node.node.id));
        boxes.push(PackageBox { id: package.id, nodes });
    }
    boxes
}

fn node_box<'a>(
    machine: &'a Machine,
    node: &'a Node,
    cores: Vec<&'a Core>,
    again: bool,
) -> NodeBox<'a> {
    let last = machine.caches.iter().map(|cache| cache.level).max();
    let caches: Vec<&Cache> =
        machine.caches.iter().filter(|cache| Some(cache.level) == last).collect();
    let mut groups: Vec<(Option<&Cache>, Vec<&Core>)> = Vec::new();
    for core in cores {
        let shared = caches.iter().find(|cache| {
            let first = core.cpus.first();
            cache.cpus.len() > core.cpus.len() && first.is_some_and(|cpu| cache.cpus.contains(cpu))
        });
        let shared = shared.copied();
        match groups.iter_mut().find(|(cache, _)| *cache == shared) {
            Some((_, cores)) => cores.push(core),
            None => groups.push((shared, vec![core])),
        }
    }
    let beside = |device: &&Device| device.node == Some(node.id) && !again;
    let devices = machine.devices.iter().filter(beside).collect();
    NodeBox { node, again, groups, devices }
}

/// Nodes without a CPU, which have only memory.
pub(super) fn nodes_apart(machine: &Machine) -> impl Iterator<Item = &Node> {
    machine.nodes.iter().filter(|node| node.cpus.is_empty())
}

/// Devices on no known node.
pub(super) fn devices_apart(machine: &Machine) -> impl Iterator<Item = &Device> {
    machine.devices.iter().filter(|device| device.node.is_none())
}

/// A core by its hardware threads, such as `3+35`.
pub(super) fn name(core: &Core) -> String {
    core.cpus.iter().map(|cpu| cpu.to_string()).collect::<Vec<_>>().join("+")
}

/// True if one of a core's threads is isolated.
pub(super) fn is_isolated(machine: &Machine, core: &Core) -> bool {
    !core.cpus.and(&machine.cpus.isolated).is_empty()
}

/// True if this program may use no thread of the core.
pub(super) fn is_closed(machine: &Machine, core: &Core) -> bool {
    core.cpus.and(&machine.cpus.usable).is_empty()
}

/// The memory of a node, which is said once.
pub(super) fn memory(machine: &Machine, node: &NodeBox<'_>) -> String {
    let (again, node) = (node.again, node.node);
    match node.memory_bytes {
        _ if again => "the same".to_owned(),
        0 if machine.empty_nodes().contains(node.id) => "no memory".to_owned(),
        0 => "memory not known".to_owned(),
        bytes => size(bytes),
    }
}

/// A size in GiB, MiB or KiB.
pub(super) fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0x4000_0000.. => (0x4000_0000, "GiB"),
        0x10_0000.. => (0x10_0000, "MiB"),
        _ => (0x400, "KiB"),
    };
    let tenths = (bytes as f64 / f64::from(unit) * 10.0).round() / 10.0;
    format!("{tenths} {name}")
}
