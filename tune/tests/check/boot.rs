use std::fs;
use std::path::Path;

use crate::command::PLAN;
use crate::machine::{Machine, output_text};

fn stored(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("boot");
    fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn the_files_in_the_repository_are_current() {
    let machine = Machine::empty();
    let folder = machine.path("/boot");
    let wrote = machine.tune(&["--boot", folder.to_str().unwrap()]);
    assert!(wrote.status.success(), "{}", output_text(&wrote));
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let now = machine.text(&format!("/boot/{name}"));
        assert!(now == stored(&name), "boot/{name} is stale: tune check --boot tune/boot");
        files += 1;
    }
    let here = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("boot")).unwrap().count();
    assert_eq!(files, here, "tune/boot has a file that is no longer written");
}

/// A machine with everything wrong that the boot files fix.
fn unhealthy() -> Machine {
    let cpu = "/sys/devices/system/cpu";
    let thp = "/sys/kernel/mm/transparent_hugepage";
    Machine::healthy()
        .with("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "0")
        .with("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "99")
        .with(&format!("{thp}/enabled"), "[always] madvise never")
        .with(&format!("{thp}/defrag"), "[always] defer defer+madvise madvise never")
        .with(&format!("{cpu}/cpu7/cpufreq/scaling_governor"), "schedutil")
        .with(&format!("{cpu}/cpu7/cpuidle/state2/disable"), "0")
        .with("/proc/irq/31/smp_affinity_list", "0-7")
        .with("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
}

#[test]
fn the_boot_script_fixes_what_the_checks_find() {
    let machine = unhealthy();
    assert_eq!(machine.tune(&[]).status.code(), Some(1));
    let ran = machine.shell(&stored("doorbell-tune.sh"), &[("HOUSEKEEPING", "0-1")]);
    assert!(ran.status.success(), "{}", output_text(&ran));
    let after = machine.tune(&[]);
    assert_eq!(after.status.code(), Some(0), "{}", output_text(&after));
    let read = |file: &str| machine.text(&format!("/sys/devices/system/{file}"));
    assert_eq!(read("node/node1/hugepages/hugepages-2048kB/nr_hugepages"), "99\n", "it had enough");
    assert_eq!(read("cpu/cpu7/cpuidle/state1/disable"), "0\n", "2 us is not too long");
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n", "a restart undoes it");
}

#[test]
fn pages_are_reserved_on_the_nodes_of_the_plan() {
    let pages = |folder: &str| format!("{folder}/hugepages/hugepages-2048kB/nr_hugepages");
    let node = |node| pages(&format!("/sys/devices/system/node/node{node}"));
    let mut machine = Machine::healthy().with("/plan.toml", PLAN);
    for id in [0, 1, 10, 11] {
        machine = machine.with(&node(id), "0");
    }
    let (plan, folder) = (machine.path("/plan.toml"), machine.path("/boot"));
    let wrote =
        machine.tune(&["--plan", plan.to_str().unwrap(), "--boot", folder.to_str().unwrap()]);
    assert!(wrote.status.success(), "{}", output_text(&wrote));
    let variables = machine.text("/boot/doorbell-tune.env");
    let ran = machine.shell(&format!("{variables}{}", stored("doorbell-tune.sh")), &[]);
    assert!(ran.status.success(), "{}", output_text(&ran));
    let got = [0, 1, 10, 11].map(|id| machine.text(&node(id)).trim().to_owned());
    assert_eq!(got, ["0", "100", "0", "0"]);
}

#[test]
fn on_a_kernel_without_nodes_pages_are_reserved_for_the_machine() {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    for nodes in ["", "0"] {
        let machine = unhealthy().without("/sys/devices/system/node").with(file, "0");
        let ran = machine.shell(&stored("doorbell-tune.sh"), &[("MEMORY_NODES", nodes)]);
        assert!(ran.status.success(), "{}", output_text(&ran));
        assert_eq!(machine.text(file), "64\n");
    }
}

#[test]
fn for_nodes_that_are_not_here_no_pages_are_reserved() {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let machine = unhealthy().with(file, "0");
    let ran = machine.shell(&stored("doorbell-tune.sh"), &[("MEMORY_NODES", "7")]);
    assert!(ran.status.success(), "{}", output_text(&ran));
    assert_eq!(machine.text(file).trim(), "0");
    assert!(output_text(&ran).contains("no node of MEMORY_NODES=7 is here"));
}

#[test]
fn without_housekeeping_cores_interrupts_stay_where_they_are() {
    let machine = unhealthy();
    let ran = machine.shell(&stored("doorbell-tune.sh"), &[]);
    assert!(ran.status.success(), "{}", output_text(&ran));
    assert_eq!(machine.text("/proc/irq/31/smp_affinity_list"), "0-7\n");
    assert!(output_text(&ran).contains("is left alone"));
}

#[test]
fn files_for_one_machine_have_its_values() {
    let machine = Machine::healthy().cores("4-7").hugepages(100);
    let folder = machine.path("/boot");
    let wrote = machine.tune(&["--boot", folder.to_str().unwrap()]);
    assert!(wrote.status.success(), "{}", output_text(&wrote));
    let variables = machine.text("/boot/doorbell-tune.env");
    assert!(variables.contains("\nHUGEPAGES=100\n"), "{variables}");
    assert!(variables.contains("\nHOUSEKEEPING=0-3\n"), "{variables}");
    let cmdline = machine.text("/boot/cmdline.txt");
    for line in ["isolcpus=managed_irq,domain,4-7", "nohz_full=4-7", "irqaffinity=0-3"] {
        assert!(cmdline.lines().any(|found| found == line), "{line} is not in {cmdline}");
    }
}
