//! Joins what was read of a machine, from the kernel's files or by hwloc: each core is in a package
//! and on a node. What the machine does not say is assumed, with a note.

use std::collections::HashMap;

use super::model::{Core, Node, Package};
use crate::ids::Ids;

/// The cores with these CPUs, each in its package and on its node.
pub(super) fn cores(
    sets: Vec<Ids>,
    packages: &[Package],
    nodes: &[Node],
    slow: &Ids,
    notes: &mut Vec<String>,
) -> Vec<Core> {
    let package_of = places(packages.iter().map(|package| (package.id, &package.cpus)));
    let node_of = places(nodes.iter().map(|node| (node.id, &node.cpus)));
    let home = nodes.iter().find(|node| !node.cpus.is_empty()).or(nodes.first());
    let home = home.map_or(0, |node| node.id);
    let mut homeless = Vec::new();
    let mut core = |cpus: Ids| {
        let first = cpus.first()?;
        let node = node_of.get(&first).copied();
        if node.is_none() {
            homeless.extend(cpus.iter());
        }
        Some(Core {
            package: package_of.get(&first).copied().unwrap_or(0),
            node: node.unwrap_or(home),
            slow: slow.contains(first),
            cpus,
        })
    };
    let mut cores: Vec<Core> = sets.into_iter().filter_map(&mut core).collect();
    cores.sort_by_key(|core| core.cpus.first());
    if !homeless.is_empty() {
        let cpus: Ids = homeless.into_iter().collect();
        notes.push(format!("no node lists CPUs {cpus}: they count as on node {home}"));
    }
    cores
}

fn places<'a>(sets: impl Iterator<Item = (usize, &'a Ids)>) -> HashMap<usize, usize> {
    sets.flat_map(|(id, cpus)| cpus.iter().map(move |cpu| (cpu, id))).collect()
}

/// The cores of a machine that names none: each CPU is one.
pub(super) fn a_core_each(cpus: &Ids, notes: &mut Vec<String>) -> Vec<Ids> {
    if !cpus.is_empty() {
        notes.push(format!(
            "the machine does not say which CPUs share a core: CPUs {cpus} count as a core each"
        ));
    }
    cpus.iter().map(|cpu| [cpu].into_iter().collect()).collect()
}

/// Packages with the kernel's numbers, ascending. If these do not tell the packages apart, they are
/// counted from 0 on. A machine that names no package has one.
pub(super) fn packages(
    mut found: Vec<(Option<usize>, Ids)>,
    online: &Ids,
    notes: &mut Vec<String>,
) -> Vec<Package> {
    if found.is_empty() {
        notes.push("the machine does not say which CPUs share a package: all do".to_owned());
        return vec![Package { id: 0, cpus: online.clone() }];
    }
    found.sort_by_key(|(number, cpus)| (*number, cpus.first()));
    let alike = |pair: &[(Option<usize>, Ids)]| pair[0].0.is_none() || pair[0].0 == pair[1].0;
    let counted = found.windows(2).any(alike);
    if counted {
        found.sort_by_key(|(_, cpus)| cpus.first());
        notes.push(format!(
            "the machine numbers no package, or several alike: they are counted from 0 to {}",
            found.len() - 1
        ));
    }
    let id =
        |place: usize, number: Option<usize>| if counted { place } else { number.unwrap_or(0) };
    let package = |(place, (number, cpus))| Package { id: id(place, number), cpus };
    found.into_iter().enumerate().map(package).collect()
}

/// Leaves out nodes that have neither CPUs nor memory, and the distances to them.
pub(super) fn without_empty(nodes: Vec<Node>, notes: &mut Vec<String>) -> Vec<Node> {
    let has = |node: &Node| !node.cpus.is_empty() || node.memory_bytes > 0;
    let kept: Vec<bool> = nodes.iter().map(has).collect();
    let empty: Ids = nodes.iter().filter(|node| !has(node)).map(|node| node.id).collect();
    if empty.is_empty() {
        return nodes;
    }
    notes.push(format!("left out nodes {empty}: neither CPUs nor memory"));
    let mut nodes: Vec<Node> = nodes.into_iter().filter(has).collect();
    for node in &mut nodes {
        let mut keep = kept.iter();
        node.distances.retain(|_| keep.next().is_none_or(|kept| *kept));
    }
    nodes
}

/// Nodes with memory; all nodes if the machine does not say how much memory any of them has.
pub(super) fn with_memory(nodes: &[Node]) -> Ids {
    let full = nodes.iter().filter(|node| node.memory_bytes > 0);
    let full: Ids = full.map(|node| node.id).collect();
    if full.is_empty() { nodes.iter().map(|node| node.id).collect() } else { full }
}
