use std::fs;

use serde_json::Value;

use crate::machine::{Machine, told};

const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const STATE: &str = "/var/lib/doorbell/tune.state";

/// Two things wrong, each in a file.
fn two_wrong() -> Machine {
    let modes = "[always] defer defer+madvise madvise never";
    Machine::quiet().with(DEFRAG, modes).with(BALANCING, "1")
}

#[test]
fn nothing_is_bad_on_a_machine_that_is_well() {
    let machine = Machine::quiet();
    let output = machine.tune(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let report: Value = serde_json::from_slice(&machine.tune(&["--json"]).stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.len() >= 25);
    for finding in findings {
        assert_eq!(finding["severity"], "fine", "{finding:#}");
    }
}

#[test]
fn the_exit_code_is_for_scripts() {
    let bad = Machine::quiet().with(BALANCING, "1");
    assert_eq!(bad.tune(&[]).status.code(), Some(1));
    assert_eq!(bad.tune(&["--only", "swap"]).status.code(), Some(0));
    let unread = Machine::quiet().with(BALANCING, "1").with("/proc/stat", "nonsense");
    assert_eq!(unread.tune(&["--only", "steal"]).status.code(), Some(2));
    assert_eq!(unread.tune(&[]).status.code(), Some(1), "what is bad is certain");
    assert_eq!(Machine::empty().tune(&[]).status.code(), Some(2));
}

#[test]
fn a_wrong_name_or_core_is_told_with_those_there_are() {
    let machine = Machine::quiet();
    let output = machine.tune(&["--only", "none-such"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("there are hugepages, memlock"), "{}", told(&output));
    let output = machine.tune(&["--cores", "6-9"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("cores 8-9 do not run"), "{}", told(&output));
}

#[test]
fn a_finding_says_all_that_is_asked_of_it() {
    let output = two_wrong().tune(&["--only", "numa_balancing"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "bad             numa_balancing  /proc/sys/kernel/numa_balancing holds `1`",
        "should be       kernel.numa_balancing is 0",
        "costs           about 1 to 2 us a fault",
        "mend            echo 0 > /proc/sys/kernel/numa_balancing",
        "1 bad, 0 could not check",
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn apply_shows_the_script_and_checks_again() {
    let machine = two_wrong();
    let before = machine.holds();
    let applied = machine.tune(&["--apply"]);
    assert_eq!(applied.status.code(), Some(0), "{}", told(&applied));
    let text = String::from_utf8(applied.stdout).unwrap();
    let shown = text.find("put /proc/sys/kernel/numa_balancing 0").unwrap();
    assert!(shown < text.find("0 bad").unwrap(), "{text}");
    assert_eq!(machine.text(BALANCING), "0\n");
    let undone = machine.tune(&["--undo"]);
    let told = String::from_utf8(undone.stdout).unwrap();
    assert_eq!(told, format!("restored {BALANCING}\nrestored {DEFRAG}\n"), "last change first");
    assert_eq!(machine.holds(), before);
}

#[test]
fn applied_twice_is_undone_to_the_beginning() {
    let machine = two_wrong();
    let before = machine.holds();
    machine.tune(&["--apply", "--only", "numa_balancing"]);
    fs::write(machine.path(BALANCING), "2\n").unwrap();
    machine.tune(&["--apply"]);
    assert_eq!(machine.text(BALANCING), "0\n");
    assert!(machine.tune(&["--undo"]).status.success());
    assert_eq!(machine.holds(), before);
}

#[test]
fn after_a_script_that_failed_half_way_the_rest_is_undone() {
    // A folder in place of a file: it is there, and takes nothing.
    let machine = two_wrong().without(BALANCING).with(&format!("{BALANCING}/x"), "1");
    let before = machine.holds();
    let script = String::from_utf8(machine.tune(&["--fix"]).stdout).unwrap();
    let script = script.replace("exit $failed", &format!("put {BALANCING} 0\nexit $failed"));
    let ran = machine.shell(&script, &[]);
    assert_eq!(ran.status.code(), Some(1), "{}", told(&ran));
    assert_ne!(machine.holds(), before);
    machine.tune(&["--undo"]);
    assert_eq!(machine.text(DEFRAG), "[always] defer defer+madvise madvise never\n");
}

#[test]
fn what_cannot_be_restored_stays_to_be_tried_again() {
    let machine = two_wrong();
    let before = machine.holds();
    machine.tune(&["--apply"]);
    // For a while the file cannot be written.
    fs::remove_file(machine.path(DEFRAG)).unwrap();
    fs::create_dir(machine.path(DEFRAG)).unwrap();
    let undone = machine.tune(&["--undo"]);
    assert_eq!(undone.status.code(), Some(2), "{}", told(&undone));
    assert!(told(&undone).contains(&format!("not restored: {DEFRAG}")), "{}", told(&undone));
    assert_eq!(machine.text(BALANCING), "1\n");
    fs::remove_dir(machine.path(DEFRAG)).unwrap();
    assert!(machine.tune(&["--undo"]).status.success());
    assert_eq!(machine.holds(), before);
}

#[test]
fn what_a_restart_has_reset_is_not_restored() {
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let machine = two_wrong().with(boot_id, "one");
    machine.tune(&["--apply"]);
    let machine = machine.with(boot_id, "two");
    let undone = machine.tune(&["--undo"]);
    assert!(told(&undone).contains(&format!("a restart has reset {DEFRAG}")), "{}", told(&undone));
    assert_eq!(machine.text(BALANCING), "0\n");
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
}

#[test]
fn a_file_that_outlives_a_restart_is_restored_after_it() {
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let limits = "Max locked memory         65536                65536                bytes";
    let machine = Machine::quiet().with("/proc/self/limits", limits).with(boot_id, "one");
    machine.tune(&["--apply"]);
    let file = machine.path("/etc/security/limits.d/60-doorbell.conf");
    assert!(file.exists());
    let machine = machine.with(boot_id, "two");
    assert!(machine.tune(&["--undo"]).status.success());
    assert!(!file.exists());
}

#[test]
fn where_nothing_can_be_kept_nothing_is_changed() {
    let machine = two_wrong().with("/var/lib/doorbell", "a file where a folder should be");
    let before = machine.holds();
    let applied = machine.tune(&["--apply"]);
    assert_eq!(applied.status.code(), Some(2), "{}", told(&applied));
    assert!(told(&applied).contains("is left alone"));
    assert_eq!(machine.holds(), before);
}

#[test]
fn a_state_file_of_another_hand_is_refused_whole() {
    let machine = two_wrong();
    machine.tune(&["--apply"]);
    let text = format!("{}nonsense\n", machine.text(STATE));
    let machine = machine.with(STATE, text.trim_end());
    let undone = machine.tune(&["--undo"]);
    assert_eq!(undone.status.code(), Some(2));
    assert!(told(&undone).contains("line 3"), "{}", told(&undone));
    assert_eq!(machine.text(BALANCING), "0\n", "nothing was restored");
}

#[test]
fn the_state_file_may_be_elsewhere() {
    let machine = two_wrong();
    let before = machine.holds();
    let state = machine.path("/else where/state");
    let state = state.to_str().unwrap();
    machine.tune(&["--apply", "--state", state]);
    assert!(!machine.path(STATE).exists());
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
    assert!(machine.tune(&["--undo", "--state", state]).status.success());
    assert_eq!(machine.holds(), before);
}

/// Workers on cores 2 and 6, with 200 MiB of node 1 in all.
const PLAN: &str = "version = 1\nhousekeeping = \"0-1\"\nmemory = \"bind\"\nnotes = []\n
[[worker]]\ncpu = 2\nnode = 1\nmemory_node = 1\nmemory_bytes = 104857600\nsrq = 0\n
[[worker]]\ncpu = 6\nnode = 1\nmemory_node = 1\nmemory_bytes = 104857600\nsrq = 0\n";

#[test]
fn a_plan_says_what_is_wanted() {
    let isolated = "/sys/devices/system/cpu/isolated";
    let machine = Machine::quiet().with("/plan.toml", PLAN).with(isolated, "2-5");
    let plan = machine.path("/plan.toml");
    let only = "isolcpus,hugepages";
    let output = machine.tune(&["--plan", plan.to_str().unwrap(), "--json", "--only", only]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [pages, cores] = report["findings"].as_array().unwrap().as_slice() else {
        panic!("{report:#}");
    };
    assert_eq!(pages["severity"], "bad", "{pages:#}");
    assert_eq!(pages["is"], "node1 has 64, 60 of them free (100 wanted on each)");
    assert_eq!(cores["mend"][0]["kernel"], "isolcpus=managed_irq,domain,2,6", "{cores:#}");
}
