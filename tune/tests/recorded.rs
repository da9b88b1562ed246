//! Machines that hwloc recorded for its own tests: the same cores, nodes and packages as hwloc's
//! `lstopo`, or a note that says why not, and a plan for two workers.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use doorbell_tune::{Machine, Memory, Plan, Request, Root};

/// A folder with a machine in each folder below it.
const VARIABLE: &str = "DOORBELL_RECORDED";

/// Fewer would mean that the archive has changed.
const MACHINES_MIN: usize = 40;

/// How many objects of a kind hwloc finds, whether or not the cpuset allows their use.
fn by_hwloc(root: &Path, kind: &str) -> usize {
    let output = Command::new("lstopo-no-graphics")
        .args(["--disallowed", "--only", kind])
        .env("HWLOC_FSROOT", root)
        .env("HWLOC_THISSYSTEM", "0")
        // Not what it finds out about the processor that runs this test.
        .env("HWLOC_COMPONENTS", "linux,stop")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().filter(|line| line.contains("L#")).count()
}

/// The folder with `sys` in it.
fn root(folder: &Path) -> PathBuf {
    let mut folder = folder.to_owned();
    while !folder.join("sys").is_dir() {
        folder = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    }
    folder
}

/// What differs without a note that says so.
fn differences(machine: &Machine, root: &Path) -> Vec<String> {
    let noted = |word: &str| machine.notes.iter().any(|note| note.contains(word));
    let mut differ = Vec::new();
    for (kind, ours, notes) in [
        ("pu", machine.cpus.online.len(), &[][..]),
        ("core", machine.cores.len(), &["share a core"]),
        ("numanode", machine.nodes.len(), &["neither CPUs nor memory"]),
        ("package", machine.packages.len(), &["share a package", "about packages"]),
    ] {
        let theirs = by_hwloc(root, kind);
        if ours != theirs && !notes.iter().any(|note| noted(note)) {
            differ.push(format!("{ours} of kind {kind}, {theirs} by hwloc, and no note"));
        }
    }
    differ
}

/// What is wrong with a plan for two workers, if there are CPUs for two.
fn faults(machine: &Machine) -> Vec<String> {
    if machine.cpus.usable.len() < 2 {
        return Vec::new();
    }
    let request = Request {
        workers: 2,
        device: None,
        housekeeping: 0,
        siblings: true,
        memory_bytes: 64 << 20,
        memory: Memory::Bind,
    };
    let plan = match Plan::make(machine, &request) {
        Ok(plan) => plan,
        Err(error) => return vec![error.to_string()],
    };
    let fine = plan.workers.iter().all(|worker| {
        machine.node(worker.node).is_some_and(|node| node.cpus.contains(worker.cpu))
            && machine.memory_nodes.contains(worker.memory_node)
            && machine.node(worker.memory_node).is_some()
            && machine.cpus.usable.contains(worker.cpu)
    });
    if fine { Vec::new() } else { vec![format!("{plan:?}")] }
}

#[test]
fn machines_that_hwloc_recorded_are_read_as_hwloc_does() {
    let Some(folder) = env::var_os(VARIABLE) else {
        return println!("skipped: `cargo xtask test --only recorded` fetches the machines");
    };
    let mut machines: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    machines.sort();
    assert!(machines.len() >= MACHINES_MIN, "{machines:?}");
    let mut wrong = Vec::new();
    for folder in machines {
        let root = root(&folder);
        let found = match Machine::from_files(&Root::at(&root)) {
            Ok(machine) => [differences(&machine, &root), faults(&machine)].concat(),
            Err(error) => vec![error.to_string()],
        };
        wrong.extend(found.iter().map(|what| format!("{}: {what}", folder.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
