use std::fs;
use std::path::Path;

use crate::machine::{Machine, told};

fn kept(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("boot");
    fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn the_files_in_the_repository_are_those_that_are_written_now() {
    let machine = Machine::empty();
    let folder = machine.path("/boot");
    let wrote = machine.tune(&["--boot", folder.to_str().unwrap()]);
    assert!(wrote.status.success(), "{}", told(&wrote));
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let now = machine.text(&format!("/boot/{name}"));
        assert!(now == kept(&name), "boot/{name} is stale: tune check --boot tune/boot");
        files += 1;
    }
    let here = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("boot")).unwrap().count();
    assert_eq!(files, here, "a file in tune/boot that is not written any more");
}

/// Everything wrong that a machine's start can mend.
fn neglected() -> Machine {
    let cpu = "/sys/devices/system/cpu";
    let thp = "/sys/kernel/mm/transparent_hugepage";
    Machine::quiet()
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
fn the_script_for_the_start_mends_what_the_table_finds() {
    let machine = neglected();
    assert_eq!(machine.tune(&[]).status.code(), Some(1));
    let ran = machine.shell(&kept("doorbell-tune.sh"), &[("HOUSEKEEPING", "0-1")]);
    assert!(ran.status.success(), "{}", told(&ran));
    let after = machine.tune(&[]);
    assert_eq!(after.status.code(), Some(0), "{}", told(&after));
    let read = |file: &str| machine.text(&format!("/sys/devices/system/{file}"));
    assert_eq!(
        read("node/node1/hugepages/hugepages-2048kB/nr_hugepages"),
        "99\n",
        "enough already"
    );
    assert_eq!(read("cpu/cpu7/cpuidle/state1/disable"), "0\n", "2 us are not too deep");
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n", "a restart is the undo");
}

#[test]
fn without_housekeeping_cores_interrupts_stay_where_they_are() {
    let machine = neglected();
    let ran = machine.shell(&kept("doorbell-tune.sh"), &[]);
    assert!(ran.status.success(), "{}", told(&ran));
    assert_eq!(machine.text("/proc/irq/31/smp_affinity_list"), "0-7\n");
    assert!(told(&ran).contains("is left alone"));
}

#[test]
fn for_one_machine_the_files_have_its_values() {
    let machine = Machine::quiet().cores("4-7").hugepages(100);
    let folder = machine.path("/boot");
    let wrote = machine.tune(&["--boot", folder.to_str().unwrap()]);
    assert!(wrote.status.success(), "{}", told(&wrote));
    let variables = machine.text("/boot/doorbell-tune.env");
    assert!(variables.contains("\nHUGEPAGES=100\n"), "{variables}");
    assert!(variables.contains("\nHOUSEKEEPING=0-3\n"), "{variables}");
    let cmdline = machine.text("/boot/cmdline.txt");
    for line in ["isolcpus=managed_irq,domain,4-7", "nohz_full=4-7", "irqaffinity=0-3"] {
        assert!(cmdline.lines().any(|found| found == line), "{line} is not in {cmdline}");
    }
}
