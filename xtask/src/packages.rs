//! The system packages that the commands need, in one table, and how they are installed.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::Outcome;
use crate::exec::{capture, must};
use crate::place::{has_program, program};

/// The purpose of a package. A command names the purposes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// To build with the feature `verbs`.
    Verbs,
    /// To build with the feature `numa`.
    Numa,
    /// To boot the virtual machine, and to use its device.
    Machine,
    /// To build the program that measures beside peers.
    Compare,
    /// To measure beside peers on this machine.
    Peers,
    /// Programs that tests and checks start.
    Tests,
    /// To count instructions.
    Counts,
    /// To compare recorded machines with hwloc.
    Recorded,
}

/// How to find a package where Debian's own list of packages does not show it.
enum Sign {
    Program(&'static str),
    File(&'static str),
}

struct Package {
    /// Its name in Debian and Ubuntu.
    name: &'static str,
    needs: &'static [Need],
    sign: Sign,
    why: &'static str,
}

const VERBS: &[Need] = &[Need::Verbs];
const NUMA: &[Need] = &[Need::Numa];
const BUILD: &[Need] = &[Need::Verbs, Need::Numa];
const MACHINE: &[Need] = &[Need::Machine];
/// Programs that run in the virtual machine, and over the drop-in on this one.
const PROGRAMS: &[Need] = &[Need::Machine, Need::Tests];
/// Libraries to measure beside, whose programs run over the drop-in.
const PEERS: &[Need] = &[Need::Peers, Need::Tests];
const HEADERS: &[Need] = &[Need::Verbs, Need::Compare];
const TESTS: &[Need] = &[Need::Tests];
const COUNTS: &[Need] = &[Need::Counts, Need::Tests];
const DISKS: &[Need] = &[Need::Tests, Need::Machine];
const RECORDED: &[Need] = &[Need::Recorded];

const fn package(
    needs: &'static [Need],
    name: &'static str,
    sign: Sign,
    why: &'static str,
) -> Package {
    Package { name, needs, sign, why }
}

/// The module that those tests use.
const PYVERBS: &str = "/usr/lib/python3/dist-packages/pyverbs/__init__.py";

/// Every system package. Add a line here, and the set-up of the commands that need it installs it.
const PACKAGES: &[Package] = &[
    package(
        VERBS,
        "libibverbs-dev",
        Sign::File("/usr/include/infiniband/verbs.h"),
        "headers of libibverbs",
    ),
    package(
        VERBS,
        "librdmacm-dev",
        Sign::File("/usr/include/rdma/rdma_cma.h"),
        "headers of librdmacm",
    ),
    package(HEADERS, "libclang-dev", Sign::Program("clang"), "reads C headers"),
    package(BUILD, "pkg-config", Sign::Program("pkg-config"), "finds the libraries"),
    package(NUMA, "libhwloc-dev", Sign::File("/usr/include/hwloc.h"), "topology"),
    package(NUMA, "libudev-dev", Sign::File("/usr/include/libudev.h"), "hwloc links it"),
    package(COUNTS, "valgrind", Sign::Program("valgrind"), "counts instructions"),
    package(TESTS, "util-linux", Sign::Program("taskset"), "runs a program on one core"),
    package(COUNTS, "binutils", Sign::Program("nm"), "lists the functions of a library"),
    package(TESTS, "openmpi-bin", Sign::Program("mpirun"), "starts ranks of the benchmark"),
    package(TESTS, "slurm-wlm", Sign::Program("slurmctld"), "starts ranks of the benchmark"),
    package(TESTS, "munge", Sign::Program("munged"), "Slurm needs it"),
    package(DISKS, "fio", Sign::Program("fio"), "writes to disks and checks them"),
    package(TESTS, "libnbd-bin", Sign::Program("nbdcopy"), "a client of the NBD gateway"),
    package(TESTS, "qemu-utils", Sign::Program("qemu-img"), "a client of the NBD gateway"),
    package(MACHINE, "nvme-cli", Sign::Program("nvme"), "connects the kernel to a target"),
    package(MACHINE, "e2fsprogs", Sign::Program("mkfs.ext4"), "makes a file system"),
    package(RECORDED, "hwloc-nox", Sign::Program("lstopo-no-graphics"), "reads recorded machines"),
    package(RECORDED, "bzip2", Sign::Program("bzip2"), "unpacks them"),
    package(MACHINE, "procps", Sign::Program("pgrep"), "finds the processes of a benchmark"),
    package(MACHINE, "mount", Sign::Program("losetup"), "makes swap and control groups"),
    package(MACHINE, "qemu-system-x86", Sign::Program("qemu-system-x86_64"), "the virtual machine"),
    package(MACHINE, "busybox-static", Sign::Program("busybox"), "its first program"),
    package(MACHINE, "file", Sign::Program("file"), "virtme-ng asks it about the kernel"),
    package(MACHINE, "kmod", Sign::Program("depmod"), "kernel modules"),
    package(
        MACHINE,
        "udev",
        Sign::File("/lib/systemd/systemd-udevd"),
        "names the ports that its output takes",
    ),
    package(MACHINE, "python3", Sign::Program("python3"), "runs virtme-ng"),
    package(MACHINE, "python3-venv", Sign::Program("python3"), "a place for virtme-ng of its own"),
    package(MACHINE, "iproute2", Sign::Program("rdma"), "makes the device, loses packets"),
    package(
        MACHINE,
        "ibverbs-providers",
        Sign::File("/etc/libibverbs.d/rxe.driver"),
        "the device's driver",
    ),
    package(PROGRAMS, "ibverbs-utils", Sign::Program("ibv_rc_pingpong"), "peers to talk to"),
    package(PROGRAMS, "rdmacm-utils", Sign::Program("rdma_server"), "peers to talk to"),
    package(PROGRAMS, "perftest", Sign::Program("ib_send_lat"), "peers to measure against"),
    package(TESTS, "qperf", Sign::Program("qperf"), "runs over the drop-in"),
    package(TESTS, "iperf3", Sign::Program("iperf3"), "runs over the drop-in"),
    package(TESTS, "python3-pyverbs", Sign::File(PYVERBS), "rdma-core's own tests"),
    package(MACHINE, "strace", Sign::Program("strace"), "counts doorbells"),
    package(MACHINE, "numactl", Sign::Program("numactl"), "shows the nodes"),
    package(PEERS, "ucx-utils", Sign::Program("ucx_perftest"), "a peer to measure beside"),
    package(PEERS, "libfabric-bin", Sign::Program("fi_pingpong"), "a peer to measure beside"),
];

/// Installs the missing packages for `needs`. Prints nothing if none is missing.
pub(crate) fn ensure(needs: &[Need]) -> Outcome<()> {
    // Lanes of steps begin at once, and two installations would lock each other out.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted =
        PACKAGES.iter().filter(|package| package.needs.iter().any(|need| needs.contains(need)));
    let debian = has_program("dpkg-query") && has_program("apt-get");
    let missing: Vec<&Package> = if debian {
        let known = installed(wanted.clone().map(|package| package.name))?;
        wanted.filter(|package| !known.iter().any(|name| name == package.name)).collect()
    } else {
        wanted.filter(|package| !shows(&package.sign)).collect()
    };
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !debian {
        return Err(format!(
            "this needs the following, and installs by itself on Debian and Ubuntu only:\n{}",
            list(&missing)
        ));
    }
    println!("setup: installing {}", names.join(" "));
    install(&names).map_err(|cause| format!("{cause}\nneeded are:\n{}", list(&missing)))
}

fn list(packages: &[&Package]) -> String {
    let line = |package: &&Package| format!("  {:<18} {}", package.name, package.why);
    packages.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn shows(sign: &Sign) -> bool {
    match sign {
        Sign::Program(name) => has_program(name),
        Sign::File(path) => Path::new(path).exists(),
    }
}

/// Those of `names` that Debian's list shows as installed.
pub(crate) fn installed<'a>(names: impl Iterator<Item = &'a str>) -> Outcome<Vec<String>> {
    let mut query = program("dpkg-query");
    query.args(["-W", "-f=${Package} ${db:Status-Status}\n"]).args(names);
    // The program fails if one name is unknown, and still prints the others.
    Ok(names_installed(&capture(&mut query)?.text))
}

fn names_installed(report: &str) -> Vec<String> {
    let name = |line: &str| line.strip_suffix(" installed").map(str::to_owned);
    report.lines().filter_map(name).collect()
}

fn install(names: &[&str]) -> Outcome<()> {
    let attempt = |apt: &mut Command| {
        apt.args(["install", "-y", "--no-install-recommends"]).args(names);
        must(apt).map(drop)
    };
    with_fresh_lists(|| attempt(&mut administrator("apt-get")?))
}

/// Runs a request to the package archive, and repeats it after updating the archive's lists: they
/// may be missing, or too old to know a package or its current address.
pub(crate) fn with_fresh_lists<T>(mut ask: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let first = match ask() {
        Ok(done) => return Ok(done),
        Err(cause) => cause,
    };
    let Ok(mut apt) = administrator("apt-get") else { return Err(first) };
    println!("setup: reading the package lists again");
    // One unreachable archive of several makes the update fail; the next attempt shows whether it
    // was needed.
    capture(apt.arg("update"))?;
    ask()
}

/// A program run as root, directly or by a `sudo` that does not prompt.
fn administrator(name: &str) -> Outcome<Command> {
    let mut command = if capture(program("id").arg("-u"))?.text.trim() == "0" {
        let mut command = program(name);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    } else if capture(program("sudo").args(["-n", "true"])).is_ok_and(|done| done.ok) {
        let mut command = program("sudo");
        command.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", name]);
        command
    } else {
        return Err("packages are missing, and installing them needs root".to_owned());
    };
    command.args(["-o", "DPkg::Lock::Timeout=300"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let report = "kmod installed\nstrace config-files\ndpkg-query: no packages found\n";
        assert_eq!(names_installed(report), ["kmod"]);
    }

    #[test]
    fn no_package_is_listed_twice() {
        for (index, package) in PACKAGES.iter().enumerate() {
            let earlier = PACKAGES[..index].iter();
            assert!(earlier.clone().all(|other| other.name != package.name), "{}", package.name);
        }
    }

    #[test]
    fn a_request_that_succeeds_is_not_repeated() {
        let mut calls = 0;
        let done = with_fresh_lists(|| {
            calls += 1;
            Ok::<i32, String>(calls)
        });
        assert_eq!(done, Ok(1));
    }

    #[test]
    fn missing_packages_are_listed_with_their_reason() {
        let text = list(&[&PACKAGES[0]]);
        assert!(text.contains("libibverbs-dev") && text.contains("headers"));
    }
}
