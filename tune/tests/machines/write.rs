//! Writes a machine's files as the kernel does: lists, which this crate reads, and masks, for
//! hwloc.

use doorbell_tune::Ids;

use super::{Nic, Recorded, Shape};

impl Shape {
    /// Writes the machine.
    pub(crate) fn write(&self) -> Recorded {
        let machine = Recorded::new(self.name);
        let all = self.cores() * self.cpus(0).len();
        let present: Ids = (0..all).collect();
        let offline: Ids = self.offline.parse().unwrap();
        let online = present.without(&offline);
        self.cpu_folder(&machine, &present, &online);
        let per_package = self.nodes_per_package * self.cores_per_node;
        for package in 0..self.packages {
            let cores = package * per_package..(package + 1) * per_package;
            let beside = self.cpus_of(cores.clone());
            for core in cores {
                for cpu in self.cpus_of([core]).iter() {
                    self.cpu(&machine, (package, &beside), core, cpu);
                }
            }
        }
        self.node_folder(&machine);
        let isolated: Ids = self.isolated.parse().unwrap();
        let allowed = online.without(&isolated);
        let nodes: Ids = (0..self.nodes()).collect();
        machine.write(
            "/proc/self/status",
            format!("Name:\ttune\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t{nodes}"),
        );
        machine.write("/proc/self/cgroup", "0::/user.slice");
        machine.write("/proc/meminfo", "MemTotal: 1048576 kB");
        machine.write(
            "/proc/cpuinfo",
            online
                .iter()
                .map(|cpu| format!("processor\t: {cpu}\nmodel name\t: {}\n\n", self.processor))
                .collect::<String>(),
        );
        machine
    }

    fn cpu_folder(&self, machine: &Recorded, present: &Ids, online: &Ids) {
        let folder = "/sys/devices/system/cpu";
        machine.write(&format!("{folder}/possible"), present.to_string());
        machine.write(&format!("{folder}/present"), present.to_string());
        machine.write(&format!("{folder}/online"), online.to_string());
        machine.write(&format!("{folder}/offline"), self.offline);
        machine.write(&format!("{folder}/isolated"), self.isolated);
        machine.write(&format!("{folder}/nohz_full"), self.isolated);
        for cpu in present.iter() {
            let runs = if online.contains(cpu) { "1" } else { "0" };
            machine.write(&format!("{folder}/cpu{cpu}/online"), runs);
        }
    }

    fn cpu(&self, machine: &Recorded, package: (usize, &Ids), core: usize, cpu: usize) {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        let (package, beside) = package;
        let siblings = self.cpus_of([core]);
        let topology = format!("{folder}/topology");
        machine.write(&format!("{topology}/physical_package_id"), package.to_string());
        machine.write(&format!("{topology}/core_id"), core.to_string());
        machine.write(&format!("{topology}/core_cpus_list"), siblings.to_string());
        machine.write(&format!("{topology}/core_cpus"), mask(&siblings));
        machine.write(&format!("{topology}/package_cpus"), mask(beside));
        let first = core / self.cores_per_l3 * self.cores_per_l3;
        let shared = self.cpus_of(first..first + self.cores_per_l3);
        let caches = [
            (1, "Data", 48, &siblings),
            (1, "Instruction", 32, &siblings),
            (2, "Unified", 2048, &siblings),
        ];
        for (index, (level, kind, kib, ids)) in caches.into_iter().enumerate() {
            cache(machine, &format!("{folder}/cache/index{index}"), (level, kind, kib), ids);
        }
        if self.l3_kib > 0 {
            cache(machine, &format!("{folder}/cache/index3"), (3, "Unified", self.l3_kib), &shared);
        }
    }

    fn node_folder(&self, machine: &Recorded) {
        let nodes: Ids = (0..self.nodes()).collect();
        machine.write("/sys/devices/system/node/online", nodes.to_string());
        machine.write("/sys/devices/system/node/possible", nodes.to_string());
        for node in nodes.iter() {
            let folder = format!("/sys/devices/system/node/node{node}");
            let cpus = self.cpus_of(node * self.cores_per_node..(node + 1) * self.cores_per_node);
            machine.write(&format!("{folder}/cpulist"), cpus.to_string());
            machine.write(&format!("{folder}/cpumap"), mask(&cpus));
            let kib = if self.empty.contains(&node) { 0 } else { self.node_mib * 1024 };
            machine.write(&format!("{folder}/meminfo"), format!("Node {node} MemTotal: {kib} kB"));
            let distances: Vec<String> =
                nodes.iter().map(|to| self.distance(node, to).to_string()).collect();
            machine.write(&format!("{folder}/distance"), distances.join(" "));
        }
    }

    fn distance(&self, from: usize, to: usize) -> u64 {
        let package = |node| node / self.nodes_per_package;
        match (from == to, package(from) == package(to)) {
            (true, _) => 10,
            (_, true) => self.distances.0,
            _ => self.distances.1,
        }
    }
}

fn cache(machine: &Recorded, folder: &str, what: (u8, &str, u64), ids: &Ids) {
    let (level, kind, kib) = what;
    machine.write(&format!("{folder}/level"), level.to_string());
    machine.write(&format!("{folder}/type"), kind);
    machine.write(&format!("{folder}/size"), format!("{kib}K"));
    machine.write(&format!("{folder}/shared_cpu_list"), ids.to_string());
    machine.write(&format!("{folder}/shared_cpu_map"), mask(ids));
}

/// The kernel's mask format (cpuset(7)): words of 32 bits in hexadecimal, highest first.
pub(super) fn mask(ids: &Ids) -> String {
    let words = ids.iter().max().map_or(1, |last| last / 32 + 1);
    let mut mask = vec![0_u32; words];
    ids.iter().for_each(|id| mask[id / 32] |= 1 << (id % 32));
    mask.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

impl Recorded {
    /// Adds a NIC as the kernel does: a PCI function, and the entries below it.
    pub(crate) fn nic(&self, nic: &Nic) {
        let address = format!("0000:{:02x}:00.0", nic.bus);
        let device = format!("devices/pci0000:{:02x}/{address}", nic.bus);
        let folder = format!("/sys/{device}");
        self.link(&format!("/sys/bus/pci/devices/{address}"), &format!("../../../{device}"));
        let node = nic.node.map_or("-1".to_owned(), |node| node.to_string());
        let cpus = nic.node.map(|node| format!("/sys/devices/system/node/node{node}/cpu"));
        for (name, whole) in [("list", "online"), ("map", "")] {
            let text =
                cpus.as_ref().map(|file| self.root().read(&format!("{file}{name}")).unwrap());
            if let Some(text) =
                text.or_else(|| self.root().text(&format!("/sys/devices/system/cpu/{whole}")))
            {
                let file = if name == "list" { "local_cpulist" } else { "local_cpus" };
                self.write(&format!("{folder}/{file}"), text);
            }
        }
        for (name, text) in [
            ("numa_node", node.as_str()),
            ("class", "0x020000"),
            ("vendor", "0x15b3"),
            ("device", "0x1017"),
            ("revision", "0x00"),
            ("subsystem_vendor", "0x15b3"),
            ("subsystem_device", "0x0007"),
            ("current_link_width", &nic.width.to_string()),
            ("max_link_width", &nic.width_max.to_string()),
            ("current_link_speed", &format!("{} GT/s PCIe", nic.speed)),
            ("max_link_speed", &format!("{} GT/s PCIe", nic.speed)),
        ] {
            self.write(&format!("{folder}/{name}"), text);
        }
        let classes = [("net", Some(nic.net)), ("infiniband", nic.rdma)];
        for (class, name) in classes {
            let Some(name) = name else { continue };
            self.write(&format!("{folder}/{class}/{name}/uevent"), "");
            self.link(&format!("{folder}/{class}/{name}/device"), &format!("../../../{address}"));
            let target = format!("../../{device}/{class}/{name}");
            self.link(&format!("/sys/class/{class}/{name}"), &target);
        }
        self.write(&format!("{folder}/net/{}/address", nic.net), "02:00:00:00:00:01");
    }
}
