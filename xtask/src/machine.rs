//! One virtual machine: the stock kernel over this machine's file system, with the RDMA device
//! rxe0, for the time of one script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Outcome;
use crate::args::quoted;
use crate::exec::{Ended, Limit, Sink, stream};
use crate::place;
use crate::setup::Parts;

/// The hardware of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Processors.
    pub(crate) cpus: u32,
    /// Memory, in MiB.
    pub(crate) memory_mib: u32,
    /// Two NUMA nodes with half of both each.
    pub(crate) numa: bool,
    /// Huge pages of 2 MiB.
    pub(crate) hugepages: u32,
    /// A machine that exceeds it is ended.
    pub(crate) limit: Limit,
    /// Words for the kernel's command line, such as `idle=poll`; empty for none.
    pub(crate) append: String,
    /// The interface below rxe0.
    pub(crate) port: Port,
}

/// The network interface under rxe0.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    /// An interface without a wire: its peers are programs of this machine, at 192.168.77.1.
    Alone,
    /// One end of a wire to another machine.
    Wire {
        /// The interface's address.
        address: &'static str,
        /// Its hardware address, by which the machine finds it.
        mac: &'static str,
        /// `listen=…` or `connect=…` for QEMU.
        socket: String,
        /// The share of packets that this end loses, in `tc`'s format; empty for none.
        loss: String,
    },
}

/// A folder that host and machines share during one run. It is removed with this value.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Its path, on the host and in every machine.
    pub(crate) folder: PathBuf,
}

impl Shared {
    /// Makes a folder that no other run uses.
    pub(crate) fn new() -> Outcome<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number must be unique, nothing is published with it.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = place::vm_out().join(format!(".run-{}-{number}", id()));
        place::make(&folder)?;
        Ok(Self { folder })
    }

    /// True if a machine has left a file of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.folder.join(name).exists()
    }

    /// The exit code a machine has left in a file of that name.
    pub(crate) fn exit_code(&self, name: &str) -> Option<u8> {
        fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A leftover costs a few bytes in the target folder.
        fs::remove_dir_all(&self.folder).unwrap_or_default();
    }
}

/// One script in one machine.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// The machine.
    pub(crate) machine: &'a Machine,
    /// Its folder.
    pub(crate) shared: &'a Shared,
    /// `command`, `server` or `client`: the function of `xtask/vm/up.sh` that runs the line and
    /// leaves its exit code in the shared folder.
    pub(crate) role: &'static str,
    /// A line of shell.
    pub(crate) line: &'a str,
    /// Where its output goes.
    pub(crate) sink: Sink<'a>,
}

impl Job<'_> {
    /// Boots, runs the line, and returns its exit code and the kept output. `stop` ends the machine
    /// early.
    pub(crate) fn run(&self, parts: &Parts, stop: &dyn Fn() -> bool) -> Outcome<(u8, String)> {
        let script = self.shared.folder.join(format!("{}.sh", self.role));
        place::write(&script, &self.script())?;
        let is_up = || self.shared.has(&format!("{}.up", self.role));
        let mut ended = self.boot(parts, &script, stop)?;
        if ended.status.is_some() && !is_up() && ended.text.is_empty() {
            // The kernel ended before it ran anything: an emulated one may do so on a busy host.
            println!("      the {} machine ended as it started: it starts again", self.role);
            ended = self.boot(parts, &script, stop)?;
        }
        let up = is_up();
        if let Some(code) = self.shared.exit_code(&format!("{}.exit", self.role)) {
            return Ok((code, ended.text));
        }
        let why = match (ended.status, up) {
            (None, _) if stop() => format!("the {} machine was ended with the other", self.role),
            (None, _) => format!("the {} machine was ended: {}", self.role, self.machine.limit),
            (Some(_), true) => format!("the {} machine died while its command ran", self.role),
            (Some(_), false) => format!("the {} machine did not come up", self.role),
        };
        Err(if ended.text.is_empty() { why } else { format!("{why}\n{}", ended.text) })
    }

    fn boot(&self, parts: &Parts, script: &Path, stop: &dyn Fn() -> bool) -> Outcome<Ended> {
        let mut vng = parts.vng();
        self.machine.describe(&mut vng);
        vng.arg("--rwdir").arg(place::vm_out());
        vng.args(["--", "/bin/bash"]).arg(script);
        stream(&mut vng, self.sink, self.machine.limit, stop)
    }

    fn script(&self) -> String {
        let root = place::root();
        let (address, mac, loss) = match &self.machine.port {
            Port::Alone => ("192.168.77.1", "", ""),
            Port::Wire { address, mac, loss, .. } => (*address, *mac, loss.as_str()),
        };
        let mut text = String::new();
        for (name, value) in [
            ("vm_folder", self.shared.folder.display().to_string()),
            ("vm_role", self.role.to_owned()),
            ("vm_address", address.to_owned()),
            ("vm_mac", mac.to_owned()),
            ("vm_loss", loss.to_owned()),
            ("vm_hugepages", self.machine.hugepages.to_string()),
        ] {
            text.push_str(&format!("{name}={}\n", quoted(&value)));
        }
        let ours = |name: &str| name.starts_with("DOORBELL_") || name.starts_with("RUST_");
        for (name, value) in std::env::vars().filter(|(name, _)| ours(name)) {
            text.push_str(&format!("export {name}={}\n", quoted(&value)));
        }
        let up = quoted(&root.join("xtask/vm/up.sh").display().to_string());
        let root = quoted(&root.display().to_string());
        let line = quoted(self.line);
        text.push_str(&format!("cd {root}\n. {up}\nup\nas_{} {line}\n", self.role));
        text
    }
}

impl Machine {
    fn describe(&self, vng: &mut Command) {
        vng.args(["--cpus", &self.cpus.to_string()]);
        vng.args(["--memory", &format!("{}M", self.memory_mib)]);
        if self.numa {
            let (half, memory) = (self.cpus / 2, self.memory_mib / 2);
            for (first, last) in [(0, half - 1), (half, self.cpus - 1)] {
                vng.args(["--numa", &format!("{memory}M,cpus={first}-{last}")]);
            }
            // A page of 1 GiB on node 1, for the tests of alloc. Later no whole GiB may be free.
            vng.args(["--append", "hugepagesz=1G hugepages=1:1"]);
        }
        if !self.append.is_empty() {
            vng.args(["--append", &self.append]);
        }
        if let Port::Wire { mac, socket, .. } = &self.port {
            vng.arg(format!(
                "-o=-netdev socket,id=n0,{socket} -device virtio-net-pci,netdev=n0,mac={mac}"
            ));
        }
    }
}
