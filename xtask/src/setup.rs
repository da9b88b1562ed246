//! Sets up what the virtual machine and the bare build need besides system packages: virtme-ng, a
//! kernel with RDMA modules, a compiler for other targets. All of it lies in `target/doorbell` and
//! is made again if it is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::exec::{Limit, Sink, capture, must, stream};
use crate::packages::{self, Need, with_fresh_lists};
use crate::place::{self, program};
use crate::unpack::{lock, unpack};

/// The release of virtme-ng these commands were written against.
const VIRTME: &str = "1.42";

/// Drivers that a machine with one RDMA device never uses. Loading them takes a third of an
/// emulated boot.
const UNUSED_DRIVERS: &str = "aesni_intel,ahci,crct10dif_pclmul,evdev,ghash_clmulni_intel,\
    i2c_i801,iTCO_wdt,kvm_amd,kvm_intel,lpc_ich,pcspkr,powernow_k8,psmouse,serio_raw,sr_mod";

/// The parts of a machine that can boot.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// The kernel's image; its modules lie beside it, where virtme-ng looks for them.
    pub(crate) kernel: PathBuf,
    /// The folder of the program `vng`.
    pub(crate) programs: PathBuf,
    /// True if this kernel boots here with hardware virtualization.
    pub(crate) kvm: bool,
}

impl Parts {
    /// `vng` with the arguments that every machine has in common.
    pub(crate) fn vng(&self) -> Command {
        let mut vng = program(self.programs.join("vng"));
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = self.programs.display();
        vng.env("PATH", format!("{programs}:{path}:/usr/local/sbin:/usr/sbin:/sbin"));
        vng.args(["--force-9p", "--user", "root", "--run"]).arg(Path::new(&self.kernel));
        vng.args(["--append", &format!("modprobe.blacklist={UNUSED_DRIVERS}")]);
        // At its start a kernel counts timer interrupts, and stops if too few come. On a busy host
        // an emulated timer is late.
        vng.args(["--append", "no_timer_check"]);
        if !self.kvm {
            vng.arg("--disable-kvm");
        }
        vng
    }
}

/// Fetches everything that any command needs.
pub(crate) fn all() -> Outcome<()> {
    packages::ensure(&[Need::Verbs, Need::Numa, Need::Compare, Need::Peers, Need::Tests])?;
    packages::ensure(&[Need::Recorded])?;
    machine()?;
    crate::bare::fetch()?;
    println!("setup: all is there");
    Ok(())
}

/// Fetches what the virtual machine needs.
pub(crate) fn machine() -> Outcome<Parts> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(format!("the virtual machine is x86_64, this is {}", std::env::consts::ARCH));
    }
    packages::ensure(&[Need::Machine])?;
    let _lock = lock()?;
    let programs = virtme()?;
    let kernel = kernel()?;
    let kvm = kvm(&kernel, &programs)?;
    Ok(Parts { kernel, programs, kvm })
}

/// Installs virtme-ng in a Python environment of its own; returns the folder of its programs.
fn virtme() -> Outcome<PathBuf> {
    let home = place::state().join("venv");
    let programs = home.join("bin");
    let vng = programs.join("vng");
    // The script names its Python by path, so it stops working if its folder is moved.
    let first_line = format!("#!{}", programs.join("python").display());
    if fs::read_to_string(&vng).is_ok_and(|text| text.starts_with(&first_line)) {
        return Ok(programs);
    }
    println!("setup: virtme-ng {VIRTME} into {}", shown(&home));
    must(program(python()?).args(["-m", "venv", "--clear"]).arg(&home))?;
    let wanted = format!("virtme-ng=={VIRTME}");
    must(program(programs.join("python")).args(["-m", "pip", "install", "-q", &wanted]))?;
    Ok(programs)
}

/// A Python that can make an environment: the distribution's, else the first on the path.
fn python() -> Outcome<&'static str> {
    let able = |python: &&str| {
        let question = ["-c", "import venv, ensurepip"];
        capture(program(python).args(question)).is_ok_and(|done| done.ok)
    };
    ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(able)
        .ok_or_else(|| "no python3 here has the modules venv and ensurepip".to_owned())
}

/// Unpacks the distribution's stock kernel without installing it; returns the path of its image.
fn kernel() -> Outcome<PathBuf> {
    let home = place::state().join("vm");
    if let Some(image) = image_in(&home) {
        return Ok(image);
    }
    let names = with_fresh_lists(kernel_packages)?;
    println!("setup: {} into {}", names.join(" "), shown(&home));
    unpack(&names, &home, |folder| {
        let image = image_in(folder).ok_or("the kernel package holds no boot/vmlinuz-*")?;
        must(program("depmod").arg("-b").arg(folder).arg(release(&image)))?;
        Ok(())
    })?;
    image_in(&home).ok_or_else(|| format!("no kernel in {}", home.display()))
}

fn image_in(home: &Path) -> Option<PathBuf> {
    let images = place::entries(&home.join("boot"));
    images.into_iter().find(|path| !release(path).is_empty())
}

/// `6.1.0-1-amd64` of `…/vmlinuz-6.1.0-1-amd64`, empty for any other file.
fn release(image: &Path) -> String {
    let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.strip_prefix("vmlinuz-").unwrap_or_default().to_owned()
}

/// The packages that hold the newest stock kernel and its modules.
fn kernel_packages() -> Outcome<Vec<String>> {
    for (newest, modules) in [
        ("linux-image-amd64", &[][..]),
        ("linux-image-generic", &["linux-modules-", "linux-modules-extra-"][..]),
    ] {
        let report = capture(program("apt-cache").args(["depends", newest]))?.text;
        let Some(image) = image_dependency(&report) else { continue };
        let release = image.trim_start_matches("linux-image-").to_owned();
        let beside = modules.iter().map(|prefix| format!("{prefix}{release}"));
        return Ok(std::iter::once(image.to_owned()).chain(beside).collect());
    }
    Err("the package archive knows no linux-image-amd64 or linux-image-generic".to_owned())
}

fn image_dependency(report: &str) -> Option<&str> {
    let named = |line: &'_ str| line.trim().starts_with("Depends: linux-image-");
    report.lines().find(|line| named(line))?.trim().strip_prefix("Depends: ")
}

/// True if KVM boots this kernel. KVM may exist and still refuse or hang, so this tries it, once
/// for each pair of host and guest kernel.
fn kvm(kernel: &Path, programs: &Path) -> Outcome<bool> {
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !Path::new("/dev/kvm").exists() {
        return Ok(false);
    }
    let key = format!("host {} guest {}:", host.trim(), release(kernel));
    let memory = place::state().join("kvm");
    let known = fs::read_to_string(&memory).unwrap_or_default();
    if let Some(answer) = known.strip_prefix(&key) {
        return Ok(answer.trim() == "works");
    }
    let parts = Parts { kernel: kernel.to_path_buf(), programs: programs.to_path_buf(), kvm: true };
    let mut vng = parts.vng();
    vng.args(["--cpus", "1", "--memory", "1G", "--", "true"]);
    // A machine that hangs prints nothing more.
    let limit = Limit::Silent(Duration::from_secs(60));
    let ended = stream(&mut vng, Sink::Kept, limit, &|| false)?;
    let works = ended.status.is_some_and(|status| status.success());
    let answer = if works { "works" } else { "does not boot" };
    println!("setup: /dev/kvm {answer}{}", if works { "" } else { ", emulating instead" });
    place::write(&memory, &format!("{key} {answer}\n"))?;
    Ok(works)
}

/// A path below the repository, without the repository's.
fn shown(path: &Path) -> String {
    path.strip_prefix(place::root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_the_dependency_not_the_recommendation() {
        let report = "linux-image-amd64\n  Recommends: linux-image-x\n  \
                      Depends: linux-image-6.1.0-9-amd64\n";
        assert_eq!(image_dependency(report), Some("linux-image-6.1.0-9-amd64"));
        assert_eq!(image_dependency("N: Unable to locate package\n"), None);
    }

    #[test]
    fn a_release_is_read_from_an_image_only() {
        assert_eq!(release(Path::new("a/boot/vmlinuz-6.1.0-9-amd64")), "6.1.0-9-amd64");
        assert_eq!(release(Path::new("a/boot/System.map-6.1.0-9-amd64")), "");
    }
}
