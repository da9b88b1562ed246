use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::machine::{Machine, output_text};

const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
const STATE: &str = "/var/lib/doorbell/tune.state";

/// A machine with two bad settings.
fn two_wrong() -> Machine {
    let modes = "[always] defer defer+madvise madvise never";
    Machine::healthy().with(DEFRAG, modes).with(BALANCING, "1")
}

#[test]
fn on_a_healthy_machine_everything_is_fine() {
    let machine = Machine::healthy();
    let output = machine.tune(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let report: Value = serde_json::from_slice(&machine.tune(&["--json"]).stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.len() >= 25);
    for finding in findings {
        assert_eq!(finding["severity"], "fine", "{finding:#}");
    }
}

#[test]
fn the_exit_code_gives_the_worst_severity() {
    let bad = Machine::healthy().with(BALANCING, "1");
    assert_eq!(bad.tune(&[]).status.code(), Some(1));
    assert_eq!(bad.tune(&["--only", "swap"]).status.code(), Some(0));
    let unread = Machine::healthy().with(BALANCING, "1").with("/proc/stat", "nonsense");
    assert_eq!(unread.tune(&["--only", "steal"]).status.code(), Some(2));
    assert_eq!(unread.tune(&[]).status.code(), Some(1), "bad comes before unknown");
    assert_eq!(Machine::empty().tune(&[]).status.code(), Some(2));
}

#[test]
fn a_wrong_name_or_core_is_an_error_that_lists_the_valid_ones() {
    let machine = Machine::healthy();
    let output = machine.tune(&["--only", "none-such"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        output_text(&output).contains("choose from hugepages, memlock"),
        "{}",
        output_text(&output)
    );
    let output = machine.tune(&["--cores", "6-9"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output_text(&output).contains("cores 8-9 are not online"), "{}", output_text(&output));
}

#[test]
fn a_finding_is_printed_with_its_explanation_and_fix() {
    let output = two_wrong().tune(&["--only", "numa_balancing"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "bad             numa_balancing  /proc/sys/kernel/numa_balancing contains `1`",
        "should be       kernel.numa_balancing is 0",
        "costs           about 1 to 2 us a fault",
        "fix             echo 0 > /proc/sys/kernel/numa_balancing",
        "1 bad, 0 could not check",
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn apply_prints_the_script_and_checks_again() {
    let machine = two_wrong();
    let before = machine.contents();
    let applied = machine.tune(&["--apply"]);
    assert_eq!(applied.status.code(), Some(0), "{}", output_text(&applied));
    let text = String::from_utf8(applied.stdout).unwrap();
    let shown = text.find("put /proc/sys/kernel/numa_balancing 0").unwrap();
    assert!(shown < text.find("0 bad").unwrap(), "{text}");
    assert_eq!(machine.text(BALANCING), "0\n");
    let undone = machine.tune(&["--undo"]);
    let text = String::from_utf8(undone.stdout).unwrap();
    assert_eq!(text, format!("restored {BALANCING}\nrestored {DEFRAG}\n"), "last change first");
    assert_eq!(machine.contents(), before);
}

#[test]
fn undo_after_two_applies_restores_the_first_values() {
    let machine = two_wrong();
    let before = machine.contents();
    machine.tune(&["--apply", "--only", "numa_balancing"]);
    fs::write(machine.path(BALANCING), "2\n").unwrap();
    machine.tune(&["--apply"]);
    assert_eq!(machine.text(BALANCING), "0\n");
    assert!(machine.tune(&["--undo"]).status.success());
    assert_eq!(machine.contents(), before);
}

#[test]
fn a_script_that_fails_halfway_can_be_undone() {
    // A folder in place of the file: it exists but cannot be written.
    let machine = two_wrong().without(BALANCING).with(&format!("{BALANCING}/x"), "1");
    let before = machine.contents();
    let script = String::from_utf8(machine.tune(&["--fix"]).stdout).unwrap();
    let script = script.replace("exit $failed", &format!("put {BALANCING} 0\nexit $failed"));
    let ran = machine.shell(&script, &[]);
    assert_eq!(ran.status.code(), Some(1), "{}", output_text(&ran));
    assert_ne!(machine.contents(), before);
    machine.tune(&["--undo"]);
    assert_eq!(machine.text(DEFRAG), "[always] defer defer+madvise madvise never\n");
}

#[test]
fn values_that_cannot_be_restored_stay_in_the_state_file() {
    let machine = two_wrong();
    let before = machine.contents();
    machine.tune(&["--apply"]);
    // A folder in place of the file: for now it cannot be written.
    fs::remove_file(machine.path(DEFRAG)).unwrap();
    fs::create_dir(machine.path(DEFRAG)).unwrap();
    let undone = machine.tune(&["--undo"]);
    assert_eq!(undone.status.code(), Some(2), "{}", output_text(&undone));
    assert!(
        output_text(&undone).contains(&format!("not restored: {DEFRAG}")),
        "{}",
        output_text(&undone)
    );
    assert_eq!(machine.text(BALANCING), "1\n");
    fs::remove_dir(machine.path(DEFRAG)).unwrap();
    assert!(machine.tune(&["--undo"]).status.success());
    assert_eq!(machine.contents(), before);
}

#[test]
fn values_that_a_restart_has_reset_are_not_restored() {
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let machine = two_wrong().with(boot_id, "one");
    machine.tune(&["--apply"]);
    let machine = machine.with(boot_id, "two");
    let undone = machine.tune(&["--undo"]);
    assert!(
        output_text(&undone).contains(&format!("a restart has reset {DEFRAG}")),
        "{}",
        output_text(&undone)
    );
    assert_eq!(machine.text(BALANCING), "0\n");
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
}

#[test]
fn a_file_that_survives_a_restart_is_restored_after_it() {
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let limits = "Max locked memory         65536                65536                bytes";
    let machine = Machine::healthy().with("/proc/self/limits", limits).with(boot_id, "one");
    machine.tune(&["--apply"]);
    let file = machine.path("/etc/security/limits.d/60-doorbell.conf");
    assert!(file.exists());
    let machine = machine.with(boot_id, "two");
    assert!(machine.tune(&["--undo"]).status.success());
    assert!(!file.exists());
}

#[test]
fn nothing_is_changed_if_the_state_cannot_be_saved() {
    let machine = two_wrong().with("/var/lib/doorbell", "a file where a folder should be");
    let before = machine.contents();
    let applied = machine.tune(&["--apply"]);
    assert_eq!(applied.status.code(), Some(2), "{}", output_text(&applied));
    assert!(output_text(&applied).contains("is left alone"));
    assert_eq!(machine.contents(), before);
}

#[test]
fn a_state_file_with_a_foreign_line_is_refused() {
    let machine = two_wrong();
    machine.tune(&["--apply"]);
    let text = format!("{}nonsense\n", machine.text(STATE));
    let machine = machine.with(STATE, text.trim_end());
    let undone = machine.tune(&["--undo"]);
    assert_eq!(undone.status.code(), Some(2));
    assert!(output_text(&undone).contains("line 3"), "{}", output_text(&undone));
    assert_eq!(machine.text(BALANCING), "0\n", "nothing was restored");
}

#[test]
fn the_state_file_may_be_elsewhere() {
    let machine = two_wrong();
    let before = machine.contents();
    let state = machine.path("/else where/state");
    let state = state.to_str().unwrap();
    machine.tune(&["--apply", "--state", state]);
    assert!(!machine.path(STATE).exists());
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
    assert!(machine.tune(&["--undo", "--state", state]).status.success());
    assert_eq!(machine.contents(), before);
}

#[test]
fn the_state_file_may_be_a_bare_name() {
    let machine = two_wrong();
    let before = machine.contents();
    let here = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tune"));
        command.arg("check").arg("--root").arg(machine.path("/")).args(args);
        command.current_dir(machine.path("/etc")).output().unwrap()
    };
    let applied = here(&["--apply", "--state", "tune.state"]);
    assert!(applied.status.success(), "{}", output_text(&applied));
    assert!(machine.path("/etc/tune.state").is_file(), "{}", output_text(&applied));
    let undone = here(&["--undo", "--state", "tune.state"]);
    assert!(undone.status.success(), "{}", output_text(&undone));
    assert_eq!(machine.contents(), before);
}

/// Two workers on cores 2 and 6, with 200 MiB of node 1 together.
pub(crate) const PLAN: &str = "version = 1\nhousekeeping = \"0-1\"\nmemory = \"bind\"\nnotes = []\n
[[worker]]\ncpu = 2\nnode = 1\nmemory_node = 1\nmemory_bytes = 104857600\nsrq = 0\n
[[worker]]\ncpu = 6\nnode = 1\nmemory_node = 1\nmemory_bytes = 104857600\nsrq = 0\n";

#[test]
fn a_plan_sets_cores_and_huge_pages() {
    let isolated = "/sys/devices/system/cpu/isolated";
    let machine = Machine::healthy().with("/plan.toml", PLAN).with(isolated, "2-5");
    let plan = machine.path("/plan.toml");
    let only = "isolcpus,hugepages";
    let output = machine.tune(&["--plan", plan.to_str().unwrap(), "--json", "--only", only]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [pages, cores] = report["findings"].as_array().unwrap().as_slice() else {
        panic!("{report:#}");
    };
    assert_eq!(pages["severity"], "bad", "{pages:#}");
    assert_eq!(pages["is"], "node1 has 64, 60 of them free (100 wanted on each)");
    assert_eq!(cores["fix"][0]["kernel"], "isolcpus=managed_irq,domain,2,6", "{cores:#}");
}
