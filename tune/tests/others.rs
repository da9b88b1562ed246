//! Machines whose kernel says less than a usual one, or says it otherwise: what is read, what is
//! noted, and where two workers go.
#![expect(clippy::unwrap_used, reason = "a test")]

mod machines;

use std::process::Command;

use doorbell_tune::{Ids, Machine, Memory, Plan, Request};
use machines::{Recorded, others};

fn ids(text: &str) -> Ids {
    text.parse().unwrap()
}

fn read(recorded: &Recorded) -> Machine {
    Machine::read(&recorded.root()).unwrap()
}

/// Numbers of cores, nodes and packages.
fn counts(machine: &Machine) -> [usize; 3] {
    [machine.cores.len(), machine.nodes.len(), machine.packages.len()]
}

/// A plan for two workers, with what must be true on each machine.
fn plan(machine: &Machine) -> Plan {
    let request = Request {
        workers: 2,
        device: None,
        housekeeping: 1,
        siblings: false,
        memory_bytes: 64 << 20,
        memory: Memory::Bind,
    };
    let plan = Plan::make(machine, &request).unwrap();
    assert!(plan.cpus().without(&machine.cpus.usable).is_empty(), "{plan:?}");
    for worker in &plan.workers {
        let node = machine.node(worker.node).unwrap();
        assert!(node.cpus.contains(worker.cpu), "{plan:?}");
        assert!(machine.memory_nodes.contains(worker.memory_node), "{plan:?}");
    }
    assert!(machine.notes.iter().all(|note| plan.notes.contains(note)), "{plan:?}");
    plan
}

/// `tune topology` prints each note in a line.
fn printed(recorded: &Recorded, note: &str) {
    let folder = recorded.folder().to_str().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tune"))
        .args(["topology", "--root", folder])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line == format!("note: {note}")), "{text}");
}

#[test]
fn an_old_kernel_has_masks_only() {
    let recorded = others::old_kernel();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 3, 2]);
    assert_eq!((&machine.cpus.online, &machine.cpus.offline), (&ids("0-4,6-15"), &ids("5")));
    assert_eq!(machine.cores[2].cpus, ids("4"), "its sibling is switched off");
    assert_eq!((machine.packages[1].id, &machine.packages[1].cpus), (65536, &ids("8-15")));
    assert_eq!((&machine.nodes[1].cpus, machine.distance(1, 2)), (&ids("8-15"), 14));
    let l3: Vec<&Ids> =
        machine.caches.iter().filter(|cache| cache.level == 3).map(|cache| &cache.cpus).collect();
    assert_eq!(l3, [&ids("0-4,6-7"), &ids("8-15")]);
    assert_eq!(machine.memory_nodes, ids("0-2"));
    assert!(machine.notes.is_empty(), "{:?}", machine.notes);
    assert_eq!(plan(&machine).memory_nodes(), ids("1"));
}

#[test]
fn a_zero_byte_after_a_list_is_not_part_of_it() {
    let machine = read(&others::zero_bytes());
    assert_eq!(counts(&machine), [8, 2, 2]);
    assert_eq!((&machine.cpus.online, &machine.cpus.isolated), (&ids("0-15"), &ids("6-7")));
    plan(&machine);
}

#[test]
fn nodes_are_found_by_their_folders_if_the_list_is_not_one() {
    let recorded = others::zero_bytes();
    recorded.write("/sys/devices/system/node/online", "?");
    assert_eq!(counts(&read(&recorded)), [8, 2, 2]);
    recorded.write("/sys/devices/system/cpu/online", "?");
    assert_eq!(counts(&read(&recorded)), [8, 2, 2]);
}

#[test]
fn no_list_and_no_folder_of_a_cpu_is_an_error() {
    let recorded = others::zero_bytes();
    recorded.remove("/sys/devices/system/cpu");
    recorded.write("/sys/devices/system/cpu/online", "?");
    let error = Machine::read(&recorded.root()).unwrap_err().to_string();
    assert!(error.contains("cpu/online: it is not a list of CPUs"), "{error}");
}

#[test]
fn each_half_of_an_amd_module_is_a_core() {
    let recorded = others::modules();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [16, 2, 2]);
    assert_eq!(plan(&machine).cpus(), ids("8,10"), "a module each");
    // Later families have two threads in a core.
    let cpuinfo = recorded.root().read("/proc/cpuinfo").unwrap();
    recorded.write("/proc/cpuinfo", cpuinfo.replace("family\t: 21", "family\t: 23"));
    assert_eq!(counts(&read(&recorded)), [8, 2, 2]);
    recorded.write("/proc/cpuinfo", cpuinfo);
    // Newer kernels give both halves one number.
    for cpu in 0..16 {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_id");
        recorded.write(&file, (cpu / 2).to_string());
    }
    assert_eq!(counts(&read(&recorded)), [8, 2, 2]);
}

#[test]
fn workers_share_a_module_only_when_no_other_is_left() {
    let machine = read(&others::modules());
    let of = |workers, housekeeping| {
        let request = Request {
            workers,
            device: None,
            housekeeping,
            siblings: false,
            memory_bytes: 1,
            memory: Memory::Bind,
        };
        let plan = Plan::make(&machine, &request).unwrap();
        plan.workers.iter().map(|worker| worker.cpu).collect::<Vec<_>>()
    };
    assert_eq!(of(6, 0), [0, 2, 4, 6, 1, 3]);
    assert_eq!(of(5, 8), [8, 10, 12, 14, 9]);
    // CPU 11 shares its module with the program's other work, so it comes after CPUs 12 and 14.
    assert_eq!(of(3, 11), [12, 14, 11]);
}

#[test]
fn memory_of_a_gpu_is_no_node() {
    let recorded = others::gpu_memory();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 2, 2]);
    assert_eq!(machine.memory_nodes, ids("1"));
    assert_eq!(machine.nodes[0].distances, [10, 40], "without those of the GPUs");
    printed(&recorded, "left out nodes 254-255: memory of a GPU");
    // Workers beside node 0 get memory of node 1, not the nearer one of a GPU.
    recorded.write("/proc/self/status", "Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1,254-255");
    let plan = plan(&read(&recorded));
    assert_eq!((plan.workers[0].node, plan.memory_nodes()), (0, ids("1")));
}

#[test]
fn a_gpu_that_shares_the_memory_of_cpus_takes_none_away() {
    let recorded = others::gpu_memory();
    let file = "/proc/driver/nvidia/gpus/0004:04:00.0/numa_status";
    recorded.write(file, "Node:      1\nStatus:    online");
    assert_eq!(read(&recorded).memory_nodes, ids("1,254"));
}

#[test]
fn a_node_without_cpus_and_memory_is_left_out() {
    let recorded = others::memory_apart();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 4, 2]);
    assert_eq!(machine.nodes[0].distances, [10, 40, 30, 12]);
    assert_eq!((machine.distance(0, 4), machine.empty_nodes()), (12, ids("0-1")));
    printed(&recorded, "left out nodes 2: neither CPUs nor memory");
    let plan = plan(&machine);
    assert!(plan.workers.iter().all(|worker| (worker.node, worker.memory_node) == (1, 3)));
}

#[test]
fn nodes_with_the_same_cpus_count_once() {
    let recorded = others::nodes_overlap();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 1, 2]);
    assert_eq!(machine.memory_nodes, ids("0"));
    printed(&recorded, "left out nodes 1: they list CPUs of other nodes");
    plan(&machine);
}

#[test]
fn packages_with_the_same_number_are_told_apart() {
    let recorded = others::books();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 1, 2]);
    assert_eq!(machine.packages[1].cpus, ids("8-15"));
    assert_eq!((machine.packages[1].id, machine.cores[4].package), (1, 1));
    let note = "the machine numbers no package, or several alike: they are counted from 0 to 1";
    printed(&recorded, note);
    plan(&machine);
}

#[test]
fn what_is_assumed_of_a_silent_machine_is_noted() {
    let recorded = others::silent();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [16, 1, 1]);
    assert_eq!(machine.memory_nodes, ids("0"), "not known is not none");
    assert!(machine.empty_nodes().is_empty());
    for note in [
        "the machine does not say how much memory its nodes have",
        "the machine does not say which CPUs share a package: all do",
        "the machine does not say which CPUs share a core: CPUs 0-15 count as a core each",
    ] {
        printed(&recorded, note);
    }
    assert_eq!(machine.notes.len(), 3, "{:?}", machine.notes);
    plan(&machine);
}

#[test]
fn cpus_that_no_node_lists_come_last() {
    let recorded = others::node_offline();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 1, 2]);
    printed(&recorded, "no node lists CPUs 0-7: they count as on node 1");
    assert!(machine.cores.iter().all(|core| core.node == 1));
    assert_eq!(plan(&machine).cpus(), ids("8,10"));
}

#[test]
fn a_disputed_package_is_the_one_with_the_number() {
    let recorded = others::packages_disputed();
    let machine = read(&recorded);
    assert_eq!(counts(&machine), [8, 2, 2]);
    assert_eq!(machine.packages[1].cpus, ids("8-15"));
    let note = "the files of CPUs 8-15 contradict each other about packages: their number counts";
    printed(&recorded, note);
    plan(&machine);
}

#[test]
fn cpusets_are_found_wherever_they_are_mounted() {
    for (mount, line, files) in [
        ("/dev/cpuset", "none /dev/cpuset cpuset rw 0 0", ["cpus", "mems"]),
        ("/cg", "cpuset /cg cgroup rw,cpuset,noprefix 0 0", ["cpus", "mems"]),
        ("/cg", "cgroup /cg cgroup rw,cpuset 0 0", ["cpuset.cpus", "cpuset.mems"]),
        ("/cg2", "none /cg2 cgroup2 rw 0 0", ["cpuset.cpus.effective", "cpuset.mems.effective"]),
    ] {
        let recorded = others::cpuset(mount, line, files);
        let machine = read(&recorded);
        assert_eq!(counts(&machine), [8, 2, 2], "all of the machine is seen");
        assert_eq!((&machine.cpus.usable, &machine.memory_nodes), (&ids("2-5"), &ids("1")));
        let request = Request {
            workers: 1,
            device: None,
            housekeeping: 1,
            siblings: false,
            memory_bytes: 1,
            memory: Memory::Bind,
        };
        let plan = Plan::make(&machine, &request).unwrap();
        assert_eq!((plan.cpus(), plan.memory_nodes()), (ids("4"), ids("1")), "{line}");
    }
}
