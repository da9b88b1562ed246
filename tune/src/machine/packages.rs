//! Packages, from the kernel's files.

use std::collections::HashMap;

use super::cpus::{FOLDER as CPU, siblings};
use super::join;
use super::model::Package;
use crate::ids::Ids;
use crate::root::Root;

/// What a CPU's files say about its package: the number, and the CPUs in it.
#[derive(PartialEq, Eq, Hash)]
struct Said {
    number: Option<usize>,
    cpus: Option<Ids>,
}

/// Packages by the CPUs in them. On s390 several have the same number, so that alone does not tell
/// them apart.
pub(super) fn read(root: &Root, online: &Ids, notes: &mut Vec<String>) -> Vec<Package> {
    let mut groups: HashMap<Said, Vec<usize>> = HashMap::new();
    for cpu in online.iter() {
        let folder = format!("{CPU}/cpu{cpu}/topology");
        // -1, if the machine does not say, is not a `usize`.
        let number = root.value(&format!("{folder}/physical_package_id"));
        let cpus = siblings(root, &folder, ["package_cpus", "core_siblings"]);
        let cpus = cpus.map(|cpus| cpus.and(online));
        groups.entry(Said { number, cpus }).or_default().push(cpu);
    }
    let mut found = Vec::new();
    let mut by_number: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    let mut disputed = Vec::new();
    for (said, cpus) in groups {
        match said.cpus {
            Some(beside) if *beside.as_slice() == cpus[..] => found.push((said.number, beside)),
            Some(_) => {
                disputed.extend(&cpus);
                by_number.entry(said.number).or_default().extend(cpus);
            }
            None if said.number.is_some() => by_number.entry(said.number).or_default().extend(cpus),
            None => {}
        }
    }
    found.extend(by_number.into_iter().map(|(number, cpus)| (number, cpus.into_iter().collect())));
    if !disputed.is_empty() {
        let cpus: Ids = disputed.into_iter().collect();
        notes.push(format!(
            "the files of CPUs {cpus} contradict each other about packages: their number counts"
        ));
    }
    join::packages(found, online, notes)
}
