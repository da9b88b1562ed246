//! [`Machine`]: the model of a machine, wherever it is read from.

use serde::Serialize;

use super::cpus::Cpus;
use super::devices::Device;
use crate::ids::Ids;

/// What a machine has: sockets, nodes, cores, caches, NICs. CPUs that are switched off are only in
/// [`Machine::cpus`].
///
/// ```
/// use doorbell_tune::{Machine, Root};
///
/// let machine = Machine::read(&Root::system())?;
/// for node in &machine.nodes {
///     println!("node {}: CPUs {}, {} bytes", node.id, node.cpus, node.memory_bytes);
/// }
/// # Ok::<(), doorbell_tune::MachineError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// The processor's name; `None` if the machine does not say.
    pub processor: Option<String>,
    /// Its CPUs.
    pub cpus: Cpus,
    /// Sockets, ascending.
    pub packages: Vec<Package>,
    /// NUMA nodes, ascending; at least one.
    pub nodes: Vec<Node>,
    /// Nodes with memory that this program may use.
    pub memory_nodes: Ids,
    /// Cores, in the order of their first CPUs.
    pub cores: Vec<Core>,
    /// Data caches, sorted by level and then by first CPU.
    pub caches: Vec<Cache>,
    /// NICs and RDMA devices, sorted by name.
    pub devices: Vec<Device>,
    /// What was left out or assumed because the machine does not say it or contradicts itself, for
    /// people.
    pub notes: Vec<String>,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Package {
    /// The kernel's number.
    pub id: usize,
    /// Its CPUs.
    pub cpus: Ids,
}

/// A NUMA node: memory, and the CPUs next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The kernel's number.
    pub id: usize,
    /// Its CPUs; empty for memory that belongs to no socket.
    pub cpus: Ids,
    /// Its memory, bytes; 0 if its slots are empty or the machine does not say.
    pub memory_bytes: u64,
    /// Distance to each node, in the order of [`Machine::nodes`]: 10 is this node, 20 is twice as
    /// far (ACPI, System Locality Information Table). Empty if the machine does not say.
    pub distances: Vec<u64>,
}

/// A physical core: one or more CPUs that share its execution units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Its socket.
    pub package: usize,
    /// Its NUMA node.
    pub node: usize,
    /// Its hardware threads.
    pub cpus: Ids,
    /// True for the slower cores of a machine with two kinds of cores.
    pub slow: bool,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Its level; 1 is next to the core.
    pub level: u8,
    /// Its size, bytes.
    pub bytes: u64,
    /// The CPUs that share it.
    pub cpus: Ids,
}

impl Machine {
    /// The node with this number.
    #[must_use]
    pub fn node(&self, id: usize) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The nodes without memory; empty if the machine does not say how much memory any node has.
    #[must_use]
    pub fn empty_nodes(&self) -> Ids {
        let empty = self.nodes.iter().filter(|node| node.memory_bytes == 0);
        let empty: Ids = empty.map(|node| node.id).collect();
        if empty.len() == self.nodes.len() { Ids::default() } else { empty }
    }

    /// The device with this name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Distance from the CPUs of node `from` to the memory of node `to`; 10 within a node. If the
    /// machine does not say, it is 20 between different nodes.
    #[must_use]
    pub fn distance(&self, from: usize, to: usize) -> u64 {
        let usual = if from == to { 10 } else { 20 };
        let place = self.nodes.iter().position(|node| node.id == to);
        let known = place.and_then(|place| self.node(from)?.distances.get(place).copied());
        known.unwrap_or(usual)
    }
}
