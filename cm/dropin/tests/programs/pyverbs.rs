//! rdma-core's own tests, which Debian's package `python3-pyverbs` brings along, over the drop-in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pairs;

/// Where the package puts them, some of them packed.
const SHIPPED: &str = "/usr/share/doc/rdma-core/tests";
/// Debian builds the module for its own Python.
const PYTHON: &str = "/usr/bin/python3";
/// Tests of a vendor's devices, and of graphics cards.
const NOT_OURS: [&str; 3] = ["test_mlx5", "test_efa", "test_cuda"];
/// Fewer cases must not succeed. The others are skipped for what `ibv_devinfo -v` denies, or
/// because the device has no interface below /sys.
const SUCCEED: usize = 111;

/// Copies the tests that are of no vendor, unpacked.
fn unpack(to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(SHIPPED).unwrap() {
        let from = entry.unwrap().path();
        let name = from.file_name().unwrap().to_str().unwrap();
        if NOT_OURS.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        match name.strip_suffix(".gz") {
            Some(plain) => {
                let output = Command::new("gzip").arg("-dc").arg(&from).output().unwrap();
                assert!(output.status.success(), "{name}");
                fs::write(to.join(plain), output.stdout).unwrap();
            }
            None => drop(fs::copy(&from, to.join(name)).unwrap()),
        }
    }
}

/// The cases that ended that way.
fn count(text: &str, end: &str) -> usize {
    // A case that prints something has its end in a line of its own.
    text.lines().filter(|line| line.ends_with(end)).count()
}

/// Unpacks the tests, and returns the folder, whose name must be `tests`; `None` if the package is
/// not installed, which is said.
fn unpacked(inside: &str) -> Option<PathBuf> {
    let found = Command::new(PYTHON).args(["-c", "import pyverbs"]).output();
    if !found.is_ok_and(|output| output.status.success()) || !Path::new(SHIPPED).is_dir() {
        println!("skipped: python3-pyverbs is not installed");
        return None;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(inside).join("tests");
    unpack(&folder);
    Some(folder)
}

/// The device that a program of these tests takes.
const DEVICE: [&str; 5] = ["--dev", "soft0", "--gid", "0", "-v"];

#[test]
fn the_tests_of_rdma_core_succeed_or_are_skipped() {
    let Some(folder) = unpacked("all") else { return };
    let program = folder.join("run_tests.py");
    let args = [&[PYTHON, program.to_str().unwrap()], &DEVICE[..]].concat();
    let Some(text) = pairs::run(&args) else { return };
    let (ok, skipped) = (count(&text, "ok"), text.matches("... skipped ").count());
    println!("{ok} succeeded, {skipped} were skipped");
    assert!(ok >= SUCCEED, "{ok} succeeded, {skipped} were skipped: {text}");
}

/// The tests of librdmacm ask for the address of a network interface below /sys, which this device
/// has not. This tells them one, and changes nothing else.
const WITH_ADDRESS: &str = r#"
import os, runpy, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.dirname(here))
from tests.base import RDMATestCase
def tell(self, dev, port, idx):
    self.args.append([dev, port, idx, "127.0.0.1", None])
RDMATestCase._get_ip_mac = tell
runpy.run_path(os.path.join(here, "run_tests.py"), run_name="__main__")
"#;

/// Both sides are children of a process that has opened the device: each opens it anew.
#[test]
fn the_tests_of_librdmacm_succeed_with_an_address() {
    let Some(folder) = unpacked("librdmacm") else { return };
    let program = folder.join("with_address.py");
    fs::write(&program, WITH_ADDRESS).unwrap();
    let args = [&[PYTHON, program.to_str().unwrap()], &DEVICE[..], &["-k", "rdmacm"]].concat();
    // One sends to a side that posts its receive late, and retries five times only.
    let early = "RNR retry exceeded";
    let Some(text) = pairs::run_again_if(&args, early) else { return };
    assert_eq!(count(&text, "ok"), 10, "{text}");
}
