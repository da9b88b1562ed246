//! The machines, and what is special about each.

use super::{Nic, Recorded, Shape, Threads};

pub(super) const EMPTY: Shape = Shape {
    name: "",
    processor: "",
    packages: 1,
    nodes_per_package: 1,
    cores_per_node: 1,
    threads: Threads::Far,
    cores_per_l3: 1,
    l3_kib: 32768,
    node_mib: 65536,
    distances: (12, 32),
    isolated: "",
    offline: "",
    empty: &[],
};

const NIC: Nic = Nic {
    net: "eth0",
    rdma: Some("mlx5_0"),
    bus: 0x3b,
    node: Some(0),
    width: 16,
    width_max: 16,
    speed: "16.0",
};

/// Two sockets of 16 cores with two threads, a NIC each; the second NIC in a slot that is too
/// narrow. Cores 8 to 15 of each socket are isolated. CPU 31 is switched off, its sibling is not.
pub(crate) fn two_sockets() -> Recorded {
    let shape = Shape {
        name: "two-sockets",
        processor: "Two Sockets 6330",
        packages: 2,
        cores_per_node: 16,
        cores_per_l3: 16,
        distances: (10, 21),
        isolated: "8-15,24-30,40-47,56-63",
        offline: "31",
        ..EMPTY
    };
    let machine = shape.write();
    machine.write("/sys/fs/cgroup/cpuset.cpus.effective", "0-30,32-63");
    machine.nic(&NIC);
    let second =
        Nic { net: "eth1", rdma: Some("mlx5_1"), bus: 0xaf, node: Some(1), width: 8, ..NIC };
    machine.nic(&second);
    machine
}

/// Two AMD sockets of four nodes each, eight cores to a node, four to a cache. The NIC is on node
/// 5; node 6 has no memory.
pub(crate) fn amd() -> Recorded {
    let shape = Shape {
        name: "amd",
        processor: "AMD EPYC 7543",
        packages: 2,
        nodes_per_package: 4,
        cores_per_node: 8,
        cores_per_l3: 4,
        empty: &[6],
        ..EMPTY
    };
    let machine = shape.write();
    machine.nic(&Nic { node: Some(5), bus: 0xc1, ..NIC });
    machine
}

/// A laptop: four fast cores of two threads, eight slow ones of one; one node, which it does not
/// name; a network interface that does not name its node either.
pub(crate) fn laptop() -> Recorded {
    let shape = Shape {
        name: "laptop",
        processor: "Laptop P and E",
        cores_per_node: 8,
        threads: Threads::Near,
        cores_per_l3: 8,
        l3_kib: 12288,
        node_mib: 16384,
        ..EMPTY
    };
    let machine = shape.write();
    // The upper four cores become eight slow ones of one thread.
    for cpu in 8..16 {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        let (list, mask) = (cpu.to_string(), format!("{:08x}", 1_u32 << cpu));
        machine.write(&format!("{folder}/topology/core_cpus_list"), &list);
        machine.write(&format!("{folder}/topology/core_cpus"), &mask);
        machine.write(&format!("{folder}/topology/core_id"), (cpu + 16).to_string());
        for index in 0..3 {
            machine.write(&format!("{folder}/cache/index{index}/shared_cpu_list"), &list);
            machine.write(&format!("{folder}/cache/index{index}/shared_cpu_map"), &mask);
        }
    }
    // hwloc tells the kinds apart by this.
    for (cpus, khz) in [(0..8, "5000000"), (8..16, "3800000")] {
        for cpu in cpus {
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq");
            machine.write(&format!("{folder}/cpuinfo_max_freq"), khz);
        }
    }
    machine.write("/sys/devices/cpu_core/cpus", "0-7");
    machine.write("/sys/devices/cpu_atom/cpus", "8-15");
    machine.remove("/sys/devices/system/node");
    let nic = Nic {
        net: "wlp0s20f3",
        rdma: None,
        bus: 0x02,
        node: None,
        width: 1,
        width_max: 1,
        speed: "5.0",
    };
    machine.nic(&nic);
    machine
}

/// A container on the machine with two sockets: its control group has CPUs 4 to 7 and 20 to 23,
/// and their siblings.
pub(crate) fn container() -> Recorded {
    let machine = two_sockets();
    let cpus = "4-7,20-23,36-39,52-55";
    machine.write(
        "/proc/self/status",
        format!("Name:\ttune\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1"),
    );
    machine.write("/proc/self/cgroup", "0::/");
    machine.write("/sys/fs/cgroup/cpuset.cpus.effective", cpus);
    machine
}

/// Eight nodes and 512 CPUs.
pub(crate) fn eight_nodes() -> Recorded {
    let shape = Shape {
        name: "eight-nodes",
        processor: "Eight Nodes",
        packages: 2,
        nodes_per_package: 4,
        cores_per_node: 32,
        cores_per_l3: 8,
        ..EMPTY
    };
    let machine = shape.write();
    machine.nic(&Nic { node: Some(7), bus: 0xe1, ..NIC });
    machine
}

/// Two sockets of 384 cores with two threads: 1536 CPUs.
pub(crate) fn many() -> Recorded {
    let shape = Shape {
        name: "many",
        processor: "Many Cores",
        packages: 2,
        cores_per_node: 384,
        cores_per_l3: 16,
        isolated: "1000-1199",
        ..EMPTY
    };
    let machine = shape.write();
    machine.write("/sys/fs/cgroup/cpuset.cpus.effective", "0-1535");
    machine.nic(&Nic { node: Some(1), bus: 0xe1, ..NIC });
    machine
}
