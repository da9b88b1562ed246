//! A recorded machine: a folder with the few files that matter. It starts out healthy, so that a
//! test only sets what is bad.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_tune::Root;
use doorbell_tune::check::{self, Host, Wants};
use serde_json::Value;

/// The PCI function of the RDMA device, and the bridge above it.
pub(crate) const FUNCTION: &str = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
pub(crate) const BRIDGE: &str = "/sys/devices/pci0000:3a/0000:3a:00.0";
pub(crate) const PORT: &str = "/sys/class/infiniband/mlx5_0/ports/1";

/// A recorded machine. Its folder is removed when it is dropped.
pub(crate) struct Machine {
    folder: PathBuf,
    wants: Wants,
}

impl Drop for Machine {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// Every file and link of a machine, with its contents.
pub(crate) type Contents = BTreeMap<PathBuf, Vec<u8>>;

impl Machine {
    /// Two nodes, eight cores of which the last six are the workers', a NIC; everything is fine.
    pub(crate) fn healthy() -> Machine {
        let machine = Machine::empty();
        machine.cpus().memory().devices().rest()
    }

    /// A machine without any file.
    pub(crate) fn empty() -> Machine {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the number only has to be unique.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The name has a space and characters that mean something in a pattern.
        let name = format!("a [machine] {}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        Machine { folder, wants: Wants::default() }
    }

    fn cpus(mut self) -> Machine {
        let cpu = "/sys/devices/system/cpu";
        for (name, list) in [("online", "0-7"), ("isolated", "2-7"), ("nohz_full", "2-7")] {
            self = self.with(&format!("{cpu}/{name}"), list);
        }
        for id in 0..8 {
            let folder = format!("{cpu}/cpu{id}");
            self = self
                .with(&format!("{folder}/topology/thread_siblings_list"), &id.to_string())
                .with(&format!("{folder}/cpufreq/scaling_governor"), "performance");
            for (state, name, us, off) in [(0, "POLL", 0, 0), (1, "C1", 2, 0), (2, "C6", 133, 1)] {
                let folder = format!("{folder}/cpuidle/state{state}");
                self = self
                    .with(&format!("{folder}/name"), name)
                    .with(&format!("{folder}/latency"), &us.to_string())
                    .with(&format!("{folder}/disable"), &off.to_string());
            }
        }
        self.with("/proc/cmdline", "quiet isolcpus=2-7 nohz_full=2-7 rcu_nocbs=2-7")
            .with("/proc/sys/kernel/nmi_watchdog", "0")
            .with("/proc/sys/vm/stat_interval", "10")
            .with("/proc/irq/24/smp_affinity_list", "0-1")
            .with("/proc/1/comm", "systemd")
    }

    fn memory(mut self) -> Machine {
        for node in 0..2 {
            let folder = format!("/sys/devices/system/node/node{node}/hugepages");
            self = self
                .with(&format!("{folder}/hugepages-2048kB/nr_hugepages"), "64")
                .with(&format!("{folder}/hugepages-2048kB/free_hugepages"), "60");
        }
        let table = "Limit                     Soft Limit           Hard Limit           Units\n\
                     Max locked memory         unlimited            unlimited            bytes";
        self.with("/sys/devices/system/node/has_memory", "0-1")
            .with("/proc/self/limits", table)
            .with("/proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-7")
            .with("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
            .with(
                "/sys/kernel/mm/transparent_hugepage/defrag",
                "always defer defer+madvise [madvise] never",
            )
            .with("/proc/sys/kernel/numa_balancing", "0")
            .with("/proc/sys/vm/zone_reclaim_mode", "0")
            .with("/proc/sys/vm/swappiness", "60")
            .with("/etc/security/limits.d/README", "")
            .with("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority")
    }

    fn devices(self) -> Machine {
        let group = "/sys/kernel/iommu_groups/7";
        self.bytes(&format!("{BRIDGE}/config"), &config(0, 0))
            .bytes(&format!("{FUNCTION}/config"), &config(1 << 4, 0))
            .with(&format!("{FUNCTION}/numa_node"), "1")
            .with(&format!("{FUNCTION}/current_link_width"), "16")
            .with(&format!("{FUNCTION}/current_link_speed"), "16.0 GT/s PCIe")
            .with(&format!("{FUNCTION}/max_link_width"), "16")
            .with(&format!("{FUNCTION}/max_link_speed"), "16.0 GT/s PCIe")
            .with(&format!("{group}/type"), "identity")
            .link(&format!("{FUNCTION}/iommu_group"), "../../../../kernel/iommu_groups/7")
            .link(
                "/sys/bus/pci/devices/0000:3b:00.0",
                "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0",
            )
            .link(&format!("{FUNCTION}/infiniband/mlx5_0/device"), "../../../0000:3b:00.0")
            .link(
                "/sys/class/infiniband/mlx5_0",
                "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/mlx5_0",
            )
            .with(&format!("{PORT}/state"), "4: ACTIVE")
            .with(&format!("{PORT}/link_layer"), "Ethernet")
            .with(&format!("{PORT}/gid_attrs/ndevs/0"), "ens1np0")
            .with(&format!("{PORT}/hw_counters/out_of_buffer"), "0")
            .with("/sys/class/net/ens1np0/mtu", "9000")
    }

    fn rest(self) -> Machine {
        let clock = "/sys/devices/system/clocksource/clocksource0";
        let group = "/sys/fs/cgroup/system.slice/engine.service";
        self.with(&format!("{clock}/current_clocksource"), "tsc")
            .with(&format!("{clock}/available_clocksource"), "tsc hpet acpi_pm")
            .with("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu constant_tsc nonstop_tsc")
            .with("/proc/stat", "cpu  1000 0 200 8000 0 0 0 0 0 0")
            .with("/proc/self/cgroup", "0::/system.slice/engine.service")
            .with(&format!("{group}/cpu.max"), "max 100000")
            .with(&format!("{group}/memory.max"), "max")
            .with(&format!("{group}/memory.current"), "1000000")
            .with(&format!("{group}/hugetlb.2MB.max"), "max")
            .with(&format!("{group}/cpuset.cpus.effective"), "0-7")
    }

    /// Adds a file, with the line end that the kernel writes.
    pub(crate) fn with(self, file: &str, text: &str) -> Machine {
        self.bytes(file, format!("{text}\n").as_bytes())
    }

    pub(crate) fn bytes(self, file: &str, bytes: &[u8]) -> Machine {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    pub(crate) fn link(self, file: &str, target: &str) -> Machine {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    /// Removes a file, a link or a whole folder.
    pub(crate) fn without(self, file: &str) -> Machine {
        let path = self.path(file);
        match path.symlink_metadata().unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
        self
    }

    /// Sets the workers' cores.
    pub(crate) fn cores(mut self, list: &str) -> Machine {
        self.wants.cores = Some(list.parse().unwrap());
        self
    }

    /// Sets how many huge pages each node should have.
    pub(crate) fn hugepages(mut self, pages: u64) -> Machine {
        self.wants.hugepages = pages;
        self
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file.trim_start_matches('/'))
    }

    pub(crate) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    /// Runs `tune check` with these arguments.
    pub(crate) fn tune(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tune"));
        command.arg("check").arg("--root").arg(&self.folder).args(words);
        if self.wants.hugepages != Wants::default().hugepages {
            command.args(["--hugepages", &self.wants.hugepages.to_string()]);
        }
        if let Some(cores) = &self.wants.cores {
            command.args(["--cores", &cores.to_string()]);
        }
        command.output().unwrap()
    }

    /// The finding of one check.
    pub(crate) fn finding(&self, name: &str) -> Value {
        let root = Root::at(&self.folder);
        let host = Host::read(&root, &self.wants).unwrap();
        let report = check::run(&host, &[name.to_owned()]);
        serde_json::to_value(&report.findings[0]).unwrap()
    }

    /// Asserts the severity of a check; returns what it found.
    #[track_caller]
    pub(crate) fn says(&self, name: &str, severity: &str) -> String {
        let finding = self.finding(name);
        assert_eq!(finding["severity"], severity, "{finding:#}");
        assert_eq!(finding["name"], name);
        finding["is"].as_str().unwrap().to_owned()
    }

    /// Asserts the severity of a check, fixes it with the printed script, and undoes that exactly.
    #[track_caller]
    pub(crate) fn fixes(&self, name: &str, severity: &str) {
        self.fixes_to(name, severity, "fine");
    }

    #[track_caller]
    pub(crate) fn fixes_to(&self, name: &str, severity: &str, then: &str) {
        self.says(name, severity);
        let before = self.contents();
        let script = self.tune(&["--fix", "--only", name]);
        assert!(script.status.success(), "{}", output_text(&script));
        let ran = self.shell(&String::from_utf8(script.stdout).unwrap(), &[]);
        assert!(ran.status.success(), "{}", output_text(&ran));
        self.says(name, then);
        assert_ne!(self.contents(), before, "{name} changed nothing");
        let undone = self.tune(&["--undo"]);
        assert!(undone.status.success(), "{}", output_text(&undone));
        assert_eq!(self.contents(), before);
        self.says(name, severity);
        let again = self.tune(&["--undo"]);
        assert_eq!(again.stdout, b"nothing to undo\n", "{}", output_text(&again));
        assert!(again.status.success());
    }

    /// Runs a script with this machine as its root.
    pub(crate) fn shell(&self, script: &str, variables: &[(&str, &str)]) -> Output {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).env("ROOT", &self.folder).env_remove("STATE");
        shell.envs(variables.iter().copied()).output().unwrap()
    }

    pub(crate) fn contents(&self) -> Contents {
        let mut files = Contents::new();
        collect(&self.folder, &mut files);
        files
    }
}

fn collect(folder: &Path, files: &mut Contents) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            files.insert(path, target.into_os_string().into_encoded_bytes());
        } else if path.is_dir() {
            collect(&path, files);
        } else {
            let bytes = fs::read(&path).unwrap();
            files.insert(path, bytes);
        }
    }
}

/// Everything that a command printed.
pub(crate) fn output_text(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}: {}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// The configuration space of a PCI Express function with these two registers.
pub(crate) fn config(device_control: u16, access_control: u16) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let mut put = |at: usize, value: u16| bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    put(0x06, 1 << 4); // has capabilities; the first is
    put(0x34, 0x40); // power management, followed by
    put(0x40, 0x6001);
    put(0x60, 0x0010); // PCI Express, the last
    put(0x68, device_control);
    put(0x100, 0x0001); // advanced error reporting, followed by
    put(0x102, 0x1481);
    put(0x148, 0x000D); // access control services, the last
    put(0x14A, 0x0001);
    put(0x14E, access_control);
    bytes
}
