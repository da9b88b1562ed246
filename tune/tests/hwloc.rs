//! hwloc and the kernel's files must describe a machine the same way. hwloc reads a recorded
//! machine from HWLOC_FSROOT, which it reads only once, so it needs a process of its own for each.
#![cfg(feature = "numa")]
#![expect(clippy::unwrap_used, reason = "a test")]

mod machines;

use std::path::Path;
use std::process::Command;

use doorbell_tune::{Cpus, Device, Machine};
use hwlocality::Topology;
use hwlocality::topology::builder::{BuildFlags, TypeFilter};
use hwlocality::topology::export::xml::XMLExportFlags;
use machines::{Recorded, others};

/// Not a test: [`recorded_xml`] runs it in another process with these variables set.
#[test]
fn export() {
    let Some(file) = std::env::var_os("TUNE_TEST_XML") else {
        return println!("skipped: other tests run this one, in a process of its own");
    };
    let topology = Topology::builder()
        .with_flags(BuildFlags::INCLUDE_DISALLOWED)
        .unwrap()
        .with_io_type_filter(TypeFilter::KeepImportant)
        .unwrap()
        .build()
        .unwrap();
    topology.export_xml_file(Some(Path::new(&file)), XMLExportFlags::empty()).unwrap();
}

/// Records the machine as `lstopo FILE.xml` would, and reads that back.
fn recorded_xml(recorded: &Recorded) -> Machine {
    let file = recorded.folder().join("machine.xml");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "export"])
        .env("HWLOC_FSROOT", recorded.folder())
        // Otherwise hwloc would query the processor that runs this test.
        .env("HWLOC_COMPONENTS", "-x86")
        .env("TUNE_TEST_XML", &file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Machine::from_xml(&file).unwrap()
}

/// The machine without the parts that such a file cannot contain.
fn comparable(machine: Machine) -> Machine {
    let Cpus { online, offline, .. } = machine.cpus;
    let cpus = Cpus { online, offline, ..Cpus::default() };
    let devices =
        machine.devices.into_iter().map(|device| Device { link: None, ..device }).collect();
    Machine { cpus, devices, notes: Vec::new(), ..machine }
}

/// All but the silent machine, in whose place hwloc counts the processors that run this test.
#[test]
fn both_agree_on_machines_that_say_little() {
    for recorded in [
        others::old_kernel(),
        others::zero_bytes(),
        others::modules(),
        others::gpu_memory(),
        others::memory_apart(),
        others::nodes_overlap(),
        others::books(),
        others::node_offline(),
    ] {
        let by_files = comparable(Machine::from_files(&recorded.root()).unwrap());
        let by_hwloc = comparable(recorded_xml(&recorded));
        assert_eq!(by_hwloc, by_files, "{}", recorded.folder().display());
    }
}

#[test]
fn both_agree_on_every_recorded_machine() {
    for recorded in [
        machines::two_sockets(),
        machines::amd(),
        machines::laptop(),
        machines::container(),
        machines::eight_nodes(),
    ] {
        let by_files = comparable(Machine::from_files(&recorded.root()).unwrap());
        let by_hwloc = comparable(recorded_xml(&recorded));
        assert_eq!(by_hwloc, by_files, "{}", recorded.folder().display());
    }
}

#[test]
fn both_agree_on_1536_cpus() {
    let recorded = machines::many();
    let by_files = comparable(Machine::from_files(&recorded.root()).unwrap());
    assert_eq!(comparable(recorded_xml(&recorded)), by_files);
}

#[test]
fn a_plan_from_recorded_xml_is_the_same_as_from_files() {
    let recorded = machines::amd();
    recorded_xml(&recorded);
    let folder = recorded.folder().to_str().unwrap();
    let file = format!("{folder}/machine.xml");
    let plan = |by: [&str; 2]| {
        let words = [&["plan", "--workers", "24", "--device", "mlx5_0"], &by[..]].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_tune")).args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(plan(["--xml", &file]), plan(["--root", folder]));
}

#[test]
fn other_files_are_an_error() {
    let error = Machine::from_xml(Path::new("/proc/cpuinfo")).unwrap_err().to_string();
    assert!(error.contains("/proc/cpuinfo") && error.contains("lstopo"), "{error}");
}
