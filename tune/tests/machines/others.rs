//! Machines whose kernel says less than a usual one, or says it otherwise.

use doorbell_tune::Ids;

use super::kinds::EMPTY;
use super::write::mask;
use super::{Recorded, Shape, Threads};

const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";

/// Two packages, each a node of four cores with two threads: CPUs 0 to 15.
const SMALL: Shape = Shape {
    name: "small",
    processor: "Small",
    packages: 2,
    cores_per_node: 4,
    threads: Threads::Near,
    cores_per_l3: 4,
    node_mib: 4096,
    distances: (10, 21),
    ..EMPTY
};

fn topology(cpu: usize) -> String {
    format!("{CPU}/cpu{cpu}/topology")
}

/// A list and a mask of the same CPUs or nodes.
fn both(machine: &Recorded, files: [&str; 2], ids: &Ids) {
    machine.write(files[0], ids.to_string());
    machine.write(files[1], mask(ids));
}

/// A node apart from those of the shape, without CPUs.
fn memory_node(machine: &Recorded, node: usize, kib: u64) {
    let folder = format!("{NODE}/node{node}");
    let (list, map) = (format!("{folder}/cpulist"), format!("{folder}/cpumap"));
    both(machine, [&list, &map], &Ids::default());
    machine.write(&format!("{folder}/meminfo"), format!("Node {node} MemTotal: {kib} kB"));
}

fn distances(machine: &Recorded, rows: &[(usize, &str)]) {
    for (node, row) in rows {
        machine.write(&format!("{NODE}/node{node}/distance"), row);
    }
}

/// An Itanium with an old kernel: masks but no lists, also none of CPUs and nodes that are online;
/// package numbers in steps; CPU 5 switched off, by its own file alone; node 2 is memory only.
pub(crate) fn old_kernel() -> Recorded {
    let machine = Shape { name: "old-kernel", ..SMALL }.write();
    for name in ["online", "possible", "present", "offline", "isolated", "nohz_full"] {
        machine.remove(&format!("{CPU}/{name}"));
    }
    for cpu in 0..16 {
        let folder = topology(cpu);
        machine.rename(&format!("{folder}/core_cpus"), &format!("{folder}/thread_siblings"));
        machine.rename(&format!("{folder}/package_cpus"), &format!("{folder}/core_siblings"));
        machine.remove(&format!("{folder}/core_cpus_list"));
        let package = (cpu / 8 * 65536).to_string();
        machine.write(&format!("{folder}/physical_package_id"), package);
        for index in 0..4 {
            machine.remove(&format!("{CPU}/cpu{cpu}/cache/index{index}/shared_cpu_list"));
        }
    }
    machine.remove(&topology(5));
    machine.write(&format!("{CPU}/cpu5/online"), "0");
    memory_node(&machine, 2, 1_048_576);
    for node in 0..3 {
        machine.remove(&format!("{NODE}/node{node}/cpulist"));
    }
    machine.remove(&format!("{NODE}/online"));
    machine.remove(&format!("{NODE}/possible"));
    distances(&machine, &[(0, "10 21 14"), (1, "21 10 14"), (2, "14 14 10")]);
    machine.remove("/proc/self");
    machine
}

/// A kernel that ends its lists with a zero byte.
pub(crate) fn zero_bytes() -> Recorded {
    let machine = Shape { name: "zero-bytes", ..SMALL }.write();
    machine.write(&format!("{CPU}/isolated"), "6-7");
    let cpus = ["online", "present", "isolated"].map(|name| format!("{CPU}/{name}"));
    for file in cpus.into_iter().chain([format!("{NODE}/online")]) {
        let text = machine.root().read(&file).unwrap();
        machine.write(&file, format!("{text}\n\0"));
    }
    machine
}

/// AMD processors of modules: the kernel lists the two cores of a module as threads of one core.
pub(crate) fn modules() -> Recorded {
    let machine = Shape { name: "modules", ..SMALL }.write();
    for cpu in 0..16 {
        machine.write(&format!("{}/core_id", topology(cpu)), (cpu % 8).to_string());
    }
    // hwloc must be told which kind of processor this is.
    machine.write("/proc/hwloc-nofile-info", "OSName: Linux\nArchitecture: x86_64");
    machine.write(
        "/proc/cpuinfo",
        (0..16)
            .map(|cpu| {
                format!(
                    "processor\t: {cpu}\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\n\
                     model\t\t: 1\nmodel name\t: Modules\n\n"
                )
            })
            .collect::<String>(),
    );
    machine
}

/// Two GPUs with memory that the kernel lists as nodes 254 and 255. They are nearer to node 0 than
/// node 1 is, and node 0 has no memory of its own.
pub(crate) fn gpu_memory() -> Recorded {
    let machine = Shape { name: "gpu-memory", empty: &[0], ..SMALL }.write();
    for (node, gpu) in [(254, "0004:04:00.0"), (255, "0035:03:00.0")] {
        memory_node(&machine, node, 16 << 20);
        machine.write(
            &format!("/proc/driver/nvidia/gpus/{gpu}/numa_status"),
            format!("Node:      {node}\nStatus:    online\nSize:      400000000"),
        );
    }
    machine.write(&format!("{NODE}/online"), "0-1,254-255");
    machine.write(&format!("{NODE}/possible"), "0-255");
    distances(
        &machine,
        &[(0, "10 40 20 20"), (1, "40 10 20 20"), (254, "20 20 10 30"), (255, "20 20 30 10")],
    );
    machine.write("/proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0-1,254-255");
    machine
}

/// Nodes 0 and 1 have CPUs and no memory, nodes 3 and 4 have memory and no CPUs, node 2 has
/// neither.
pub(crate) fn memory_apart() -> Recorded {
    let machine = Shape { name: "memory-apart", empty: &[0, 1], ..SMALL }.write();
    memory_node(&machine, 2, 0);
    memory_node(&machine, 3, 1 << 20);
    memory_node(&machine, 4, 1 << 20);
    machine.write(&format!("{NODE}/online"), "0-4");
    machine.write(&format!("{NODE}/possible"), "0-4");
    distances(
        &machine,
        &[
            (0, "10 40 11 30 12"),
            (1, "40 10 11 12 30"),
            (2, "11 11 10 20 20"),
            (3, "30 12 20 10 40"),
            (4, "12 30 20 40 10"),
        ],
    );
    machine.write("/proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t3-4");
    machine
}

/// Firmware that puts all CPUs on each of two nodes.
pub(crate) fn nodes_overlap() -> Recorded {
    let machine = Shape { name: "nodes-overlap", ..SMALL }.write();
    for node in 0..2 {
        let folder = format!("{NODE}/node{node}");
        let all = (0..16).collect();
        both(&machine, [&format!("{folder}/cpulist"), &format!("{folder}/cpumap")], &all);
    }
    machine
}

/// An s390: its packages have the same number, and it has no nodes.
pub(crate) fn books() -> Recorded {
    let machine = Shape { name: "books", ..SMALL }.write();
    for cpu in 0..16 {
        let folder = topology(cpu);
        machine.write(&format!("{folder}/physical_package_id"), "0");
        machine.write(&format!("{folder}/book_id"), (cpu / 8 + 1).to_string());
        machine.write(&format!("{folder}/drawer_id"), "0");
    }
    machine.remove(NODE);
    machine.write("/proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t0");
    machine
}

/// A machine that names neither cores nor packages nor nodes, nor how much memory it has.
pub(crate) fn silent() -> Recorded {
    let machine = Shape { name: "silent", ..SMALL }.write();
    for cpu in 0..16 {
        let folder = topology(cpu);
        for name in ["core_cpus", "core_cpus_list", "package_cpus", "physical_package_id"] {
            machine.remove(&format!("{folder}/{name}"));
        }
        machine.write(&format!("{folder}/cluster_id"), "-1");
    }
    machine.remove(NODE);
    machine.remove("/proc/meminfo");
    machine.remove("/proc/self");
    machine
}

/// Node 0 is offline, so no node lists the CPUs of its package.
pub(crate) fn node_offline() -> Recorded {
    let machine = Shape { name: "node-offline", ..SMALL }.write();
    machine.remove(&format!("{NODE}/node0"));
    machine.write(&format!("{NODE}/online"), "1");
    machine.write("/proc/self/status", "Cpus_allowed_list:\t0-15\nMems_allowed_list:\t1");
    distances(&machine, &[(1, "10")]);
    machine
}

/// CPU 8 says that CPUs 0 and 8 share a package, the others of its package disagree.
pub(crate) fn packages_disputed() -> Recorded {
    let machine = Shape { name: "packages-disputed", ..SMALL }.write();
    machine.write(&format!("{}/package_cpus", topology(8)), mask(&[0, 8].into_iter().collect()));
    machine
}

/// A batch system's cpuset with CPUs 2 to 5 and memory of node 1, shown below `mount`. No status
/// was recorded.
pub(crate) fn cpuset(mount: &str, line: &str, files: [&str; 2]) -> Recorded {
    let machine = Shape { name: "cpuset", ..SMALL }.write();
    machine.remove("/proc/self");
    machine.write("/proc/self/cpuset", "/batch/7");
    machine.write("/proc/mounts", format!("proc /proc proc rw 0 0\n{line}"));
    machine.write(&format!("{mount}/{}", files[0]), "0-15");
    machine.write(&format!("{mount}/{}", files[1]), "0-1");
    machine.write(&format!("{mount}/batch/{}", files[0]), "2-5");
    machine.write(&format!("{mount}/batch/{}", files[1]), "1");
    machine
}
