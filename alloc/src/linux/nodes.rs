//! NUMA nodes: sets of them, and which nodes can give memory to this process.

use core::fmt;
use std::string::ToString;

use super::machine::Machine;
use crate::reason::{NodeFault, Reason};

/// A set of nodes. The kernel supports at most 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NodeSet([u64; Self::WORDS]);

impl NodeSet {
    const WORDS: usize = 16;

    /// Nodes that fit in a set.
    pub(super) const CAPACITY: u32 = Self::WORDS as u32 * u64::BITS;

    /// A set of one node; `None` if the number is too high for any node.
    pub(super) fn one(node: u32) -> Option<Self> {
        let mut set = Self::default();
        set.insert(node).then_some(set)
    }

    /// Reads the kernel's list format: `0-1,3`. An empty text is the empty set.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut set = Self::default();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            for node in first..=last.min(Self::CAPACITY) {
                if !set.insert(node) {
                    return None;
                }
            }
        }
        Some(set)
    }

    /// Adds a node; false if the number is too high for any node.
    fn insert(&mut self, node: u32) -> bool {
        let Some(word) = self.0.get_mut((node / u64::BITS) as usize) else { return false };
        *word |= 1 << (node % u64::BITS);
        true
    }

    pub(super) fn has(self, node: u32) -> bool {
        let word = self.0.get((node / u64::BITS) as usize);
        word.is_some_and(|word| word >> (node % u64::BITS) & 1 == 1)
    }

    /// The nodes of the set.
    pub(super) fn iter(self) -> impl Iterator<Item = u32> {
        (0..Self::CAPACITY).filter(move |node| self.has(*node))
    }

    pub(super) fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The nodes that are in both sets.
    fn and(self, other: Self) -> Self {
        let mut both = self;
        both.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= other);
        both
    }

    /// The set as system calls take it: one bit for each node, the first node lowest.
    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut node, mut comma) = (0, "");
        while node < Self::CAPACITY {
            let first = node;
            while self.has(node) {
                node += 1;
            }
            match node - first {
                0 => {}
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{}", node - 1)?,
            }
            if node > first {
                comma = ",";
            }
            node += 1;
        }
        Ok(())
    }
}

/// What a machine says about its nodes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nodes {
    online: NodeSet,
    /// Nodes that have memory.
    memory: NodeSet,
    /// Nodes that this process may take memory from.
    allowed: NodeSet,
}

impl Nodes {
    /// Reads them. A kernel without NUMA has no such files; it counts as having node 0 alone.
    pub(super) fn read(machine: &Machine) -> Self {
        let list = |name: &str| {
            let folder = "/sys/devices/system/node";
            NodeSet::parse(&machine.text(&std::format!("{folder}/{name}"))?)
        };
        let online = list("online").or(NodeSet::one(0)).unwrap_or_default();
        let memory = list("has_memory").unwrap_or(online);
        let allowed = machine.status("Mems_allowed_list").and_then(|text| NodeSet::parse(&text));
        Self { online, memory, allowed: allowed.unwrap_or(online) }
    }

    /// The nodes that can give memory to this process.
    pub(super) fn usable(self) -> NodeSet {
        self.online.and(self.memory).and(self.allowed)
    }

    /// The nodes that memory bound to no node comes from, if those are not all nodes with memory.
    /// `policy` says whether this thread's memory policy counts.
    pub(super) fn confined(self, machine: &Machine, policy: bool) -> Option<NodeSet> {
        let all = self.online.and(self.memory);
        let bound = if policy { bound(machine) } else { None };
        let some = self.usable().and(bound.unwrap_or(all));
        (some != all && some.len() != 0).then_some(some)
    }

    /// Checks that a node can give memory to this process.
    pub(super) fn check(self, node: u32) -> Result<(), Reason> {
        let fault = if !self.online.has(node) {
            NodeFault::Offline
        } else if !self.memory.has(node) {
            NodeFault::NoMemory
        } else if !self.allowed.has(node) {
            NodeFault::NotAllowed
        } else {
            return Ok(());
        };
        Err(Reason::Node { node, fault, usable: self.usable().to_string() })
    }
}

/// The nodes that this thread's memory policy is bound to (`MPOL_BIND`, set_mempolicy(2)). The
/// first line of numa_maps (proc(5)) is about the program's code, which follows that policy:
/// `5581a000 bind:0-1 file=…`.
fn bound(machine: &Machine) -> Option<NodeSet> {
    let line = machine.first_line("/proc/thread-self/numa_maps");
    let line = line.or_else(|| machine.first_line("/proc/self/numa_maps"))?;
    let (mode, nodes) = line.split_whitespace().nth(1)?.split_once(':')?;
    // Flags follow the mode: `bind=static:0`.
    let is_bind = mode.split('=').next() == Some("bind");
    if is_bind { NodeSet::parse(nodes) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_format_is_read_and_written() {
        for text in ["", "0", "0-1", "0-1,3", "1,3,5-1023", "63-64"] {
            let set = NodeSet::parse(text).expect("a list");
            assert_eq!(set.to_string(), text);
        }
        assert_eq!(NodeSet::parse("0-3\n").map(NodeSet::len), Some(4));
        for text in ["x", "1-", "1024", "0-1024", "5-4294967295"] {
            assert_eq!(NodeSet::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_node_above_the_kernels_maximum_is_in_no_set() {
        let all = NodeSet::parse("0-1023").expect("a list");
        assert!(all.has(1023) && !all.has(1024) && !all.has(u32::MAX));
        assert_eq!(NodeSet::one(1024), None);
    }

    #[test]
    fn a_kernel_without_numa_has_node_0_alone() {
        let nodes = Nodes::read(&Machine::recorded("/nowhere/at/all"));
        assert_eq!(nodes.check(0), Ok(()));
        assert!(matches!(nodes.check(1), Err(Reason::Node { fault: NodeFault::Offline, .. })));
    }
}
