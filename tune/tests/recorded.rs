//! Machines that hwloc recorded for its own tests: the same cores, nodes and packages as hwloc's
//! `lstopo`, or a note that says why not, and a plan for two workers. Prints a table of them.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use doorbell_tune::{Ids, Machine, Memory, Plan, Request, Root};

/// A folder with a machine in each folder below it. `cargo xtask recorded` sets it.
const VARIABLE: &str = "DOORBELL_RECORDED";

/// What is compared: hwloc's name of it, and words of the notes that explain a difference.
const KINDS: [(&str, &[&str]); 4] = [
    ("pu", &[]),
    ("core", &["share a core"]),
    ("numanode", &["neither CPUs nor memory"]),
    ("package", &["share a package", "about packages"]),
];

/// The kernel's numbers of the objects of a kind, by hwloc, whether or not the cpuset allows their
/// use.
fn by_hwloc(root: &Path, kind: &str) -> Vec<Option<usize>> {
    let output = Command::new("lstopo-no-graphics")
        .args(["--disallowed", "--only", kind])
        .env("HWLOC_FSROOT", root)
        .env("HWLOC_THISSYSTEM", "0")
        // Not what it finds out about the processor that runs this test.
        .env("HWLOC_COMPONENTS", "linux,stop")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let number = |line: &str| {
        let (_, rest) = line.split_once("P#")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    text.lines().filter(|line| line.contains("L#")).map(number).collect()
}

/// The folder with `sys` in it.
fn root(folder: &Path) -> PathBuf {
    let mut folder = folder.to_owned();
    while !folder.join("sys").is_dir() {
        folder = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    }
    folder
}

/// A line of the table.
struct Row {
    name: String,
    /// CPUs, cores, nodes and packages, as they are here.
    ours: [usize; 4],
    /// The same by hwloc.
    theirs: [usize; 4],
    /// CPU and memory node of each worker of a plan for two.
    plan: String,
    /// Notes that explain the differences.
    reasons: Vec<String>,
    /// Differences without a reason, and plans that make no sense.
    faults: Vec<String>,
}

impl Row {
    fn of(name: String, machine: &Machine, root: &Path) -> Row {
        let ours = [
            machine.cpus.online.len(),
            machine.cores.len(),
            machine.nodes.len(),
            machine.packages.len(),
        ];
        let theirs = KINDS.map(|(kind, _)| by_hwloc(root, kind).len());
        let (mut reasons, mut faults) = (Vec::new(), Vec::new());
        for (n, (kind, words)) in KINDS.into_iter().enumerate() {
            if ours[n] == theirs[n] {
                continue;
            }
            let explains = |note: &&String| words.iter().any(|word| note.contains(word));
            match machine.notes.iter().find(explains) {
                Some(note) => reasons.push(note.clone()),
                None => faults.push(format!("{kind} differs, and no note says why")),
            }
        }
        let plan = match plan(machine, root) {
            Ok(plan) => plan,
            Err(fault) => {
                faults.push(fault);
                "-".to_owned()
            }
        };
        Row { name, ours, theirs, plan, reasons, faults }
    }

    fn line(&self) -> String {
        let counts = |of: [usize; 4]| of.map(|count| count.to_string()).join(" ");
        let verdict = match (&self.faults[..], &self.reasons[..]) {
            ([], []) => "agrees".to_owned(),
            ([], reasons) => format!("differs: {}", reasons.join("; ")),
            (faults, _) => format!("WRONG: {}", faults.join("; ")),
        };
        let (ours, theirs) = (counts(self.ours), counts(self.theirs));
        format!("{:36} {ours:16} {theirs:16} {:18} {verdict}", self.name, self.plan)
    }
}

/// A plan for two workers, as a cell of the table; or what is wrong with it. Where only one CPU may
/// be used, one worker.
fn plan(machine: &Machine, root: &Path) -> Result<String, String> {
    let request = Request {
        workers: machine.cpus.usable.len().min(2),
        device: None,
        housekeeping: 0,
        siblings: true,
        memory_bytes: 64 << 20,
        memory: Memory::Bind,
    };
    let plan = Plan::make(machine, &request).map_err(|error| error.to_string())?;
    // Of the nodes that hwloc lists, the memory of GPUs is none.
    let nodes: BTreeSet<usize> = by_hwloc(root, "numanode").into_iter().flatten().collect();
    for worker in &plan.workers {
        let node = machine.node(worker.node).ok_or("a worker is on no node")?;
        if !node.cpus.contains(worker.cpu) || !machine.cpus.usable.contains(worker.cpu) {
            return Err(format!("CPU {} is not a usable one of its node", worker.cpu));
        }
        let (memory, known) = (worker.memory_node, machine.node(worker.memory_node).is_some());
        if !known || !nodes.contains(&memory) || !machine.memory_nodes.contains(memory) {
            return Err(format!("node {memory} gives no memory"));
        }
    }
    if let Some(shared) = needless(machine, &plan) {
        return Err(shared);
    }
    let cells = plan.workers.iter().map(|of| format!("{} (node {})", of.cpu, of.memory_node));
    Ok(cells.collect::<Vec<_>>().join(" "))
}

/// Workers that share a core although another one of their node is free, or a module although
/// another one of their last-level cache is.
fn needless(machine: &Machine, plan: &Plan) -> Option<String> {
    let [one, two] = &plan.workers[..] else { return None };
    let last = machine.caches.iter().map(|cache| cache.level).max();
    let (large, small): (Vec<_>, Vec<_>) =
        machine.caches.iter().partition(|cache| Some(cache.level) == last);
    let node = &machine.node(one.node)?.cpus;
    let near = large.iter().find(|cache| cache.cpus.contains(one.cpu));
    let near = near.map_or(node, |cache| &cache.cpus);
    let is_needless = |(shared, among): &(&Ids, &Ids)| {
        let both = shared.contains(one.cpu) && shared.contains(two.cpu);
        both && !machine.cpus.usable.and(among).without(shared).is_empty()
    };
    let cores = machine.cores.iter().map(|core| (&core.cpus, node));
    let mut sets = cores.chain(small.iter().map(|cache| (&cache.cpus, near)));
    let (shared, _) = sets.find(is_needless)?;
    Some(format!("CPUs {} and {} share much: both are among {shared}", one.cpu, two.cpu))
}

#[test]
fn machines_that_hwloc_recorded_are_read_as_hwloc_does() {
    let Some(folder) = env::var_os(VARIABLE) else {
        return println!("skipped: `cargo xtask recorded` fetches the machines");
    };
    let mut machines: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    machines.sort();
    assert!(!machines.is_empty(), "the folder has no machine in it");
    println!("CPUs, cores, nodes and packages, ours and hwloc's; CPU and memory of two workers");
    let mut rows = Vec::new();
    let mut wrong = Vec::new();
    for folder in machines {
        let (root, name) = (root(&folder), folder.file_name().unwrap().to_string_lossy());
        match Machine::from_files(&Root::at(&root)) {
            Ok(machine) => {
                let row = Row::of(name.into_owned(), &machine, &root);
                println!("{}", row.line());
                rows.push(row);
            }
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    let count = |is: fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    println!(
        "{} machines: {} agree with hwloc, {} differ and say why, {} are wrong",
        rows.len() + wrong.len(),
        count(|row| row.faults.is_empty() && row.reasons.is_empty()),
        count(|row| row.faults.is_empty() && !row.reasons.is_empty()),
        count(|row| !row.faults.is_empty()) + wrong.len()
    );
    let lines = rows.iter().filter(|row| !row.faults.is_empty()).map(Row::line);
    wrong.extend(lines);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
