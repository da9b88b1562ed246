use crate::machine::Machine;

const CPU: &str = "/sys/devices/system/cpu";

#[test]
fn workers_on_cores_that_are_not_isolated_are_bad() {
    let machine = Machine::healthy().with(&format!("{CPU}/isolated"), "2-5").cores("4-7");
    let is = machine.says("isolcpus", "bad");
    assert!(is.contains("workers run on 6-7"), "{is}");
    let fix = &machine.finding("isolcpus")["fix"][0];
    assert_eq!(fix["kernel"], "isolcpus=managed_irq,domain,4-7");
}

#[test]
fn without_reserved_cores_the_fix_names_some() {
    let machine = Machine::healthy()
        .with(&format!("{CPU}/isolated"), "")
        .with(&format!("{CPU}/nohz_full"), "(null)")
        .with(&format!("{CPU}/cpu0/topology/thread_siblings_list"), "0,4")
        .with("/proc/cmdline", "quiet");
    for (name, parameter) in [
        ("isolcpus", "isolcpus=managed_irq,domain,1-3,5-7"),
        ("nohz_full", "nohz_full=1-3,5-7"),
        ("rcu_nocbs", "rcu_nocbs=1-3,5-7"),
    ] {
        machine.says(name, "bad");
        assert_eq!(machine.finding(name)["fix"][0]["kernel"], parameter);
    }
}

#[test]
fn fixes_that_need_a_restart_are_only_advice() {
    let machine = Machine::healthy().with(&format!("{CPU}/isolated"), "2").cores("2-3");
    let before = machine.contents();
    let applied = machine.tune(&["--apply", "--only", "isolcpus"]);
    assert_eq!(applied.status.code(), Some(1), "it is still bad");
    let text = String::from_utf8(applied.stdout).unwrap();
    assert!(text.contains("# on the kernel's command line: isolcpus="), "{text}");
    assert_eq!(machine.contents(), before);
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
}

#[test]
fn a_machine_with_two_cores_cannot_reserve_any() {
    let machine = Machine::healthy().with(&format!("{CPU}/online"), "0-1");
    machine.with(&format!("{CPU}/isolated"), "").says("isolcpus", "absent");
}

#[test]
fn ticks_on_workers_are_bad() {
    let machine = Machine::healthy().with(&format!("{CPU}/nohz_full"), "2-4");
    assert!(machine.says("nohz_full", "bad").contains("workers run on 5-7"));
}

#[test]
fn rcu_callbacks_on_workers_are_bad_unless_there_are_no_ticks() {
    let machine = Machine::healthy().with("/proc/cmdline", "quiet");
    machine.says("rcu_nocbs", "fine");
    let machine = machine.with(&format!("{CPU}/nohz_full"), "(null)");
    machine.says("rcu_nocbs", "bad");
    machine.with("/proc/cmdline", "rcu_nocbs").says("rcu_nocbs", "fine");
}

#[test]
fn a_governor_that_lowers_the_clock_is_bad() {
    let file = format!("{CPU}/cpu5/cpufreq/scaling_governor");
    let machine = Machine::healthy().with(&file, "powersave");
    let is = machine.says("governor", "bad");
    assert!(is.contains("cpu5") && is.contains("powersave") && is.contains("1 of 8"), "{is}");
    machine.fixes("governor", "bad");
}

#[test]
fn deep_sleep_on_a_workers_core_is_bad() {
    let machine = Machine::healthy().with(&format!("{CPU}/cpu3/cpuidle/state2/disable"), "0");
    let is = machine.says("cstates", "bad");
    assert!(is.contains("C6 takes 133 us") && is.contains("cpu3"), "{is}");
    machine.fixes("cstates", "bad");
    // A program holds the file open; the value is in microseconds.
    machine.bytes("/dev/cpu_dma_latency", &2_i32.to_ne_bytes()).says("cstates", "fine");
}

#[test]
fn deep_sleep_on_other_cores_is_fine() {
    Machine::healthy()
        .with(&format!("{CPU}/cpu1/cpuidle/state2/disable"), "0")
        .says("cstates", "fine");
}

#[test]
fn a_busy_sibling_of_a_worker_is_bad_and_switched_off() {
    let mut machine = Machine::healthy();
    for (cpu, pair) in [(0, "0,4"), (1, "1,5"), (2, "2,6"), (3, "3,7")] {
        for cpu in [cpu, cpu + 4] {
            let folder = format!("{CPU}/cpu{cpu}");
            machine = machine.with(&format!("{folder}/topology/thread_siblings_list"), pair);
            machine = machine.with(&format!("{folder}/online"), "1");
        }
    }
    // CPU 7, the sibling of 3, is a worker's too; 6, the sibling of 2, is for any program.
    let machine = machine.with(&format!("{CPU}/isolated"), "2-3,7");
    let is = machine.says("smt", "bad");
    assert!(is.contains("2,6 and 3,7"), "{is}");
    machine.fixes("smt", "bad");
    let machine = machine.with(&format!("{CPU}/isolated"), "");
    machine.says("smt", "note");
}

#[test]
fn watchdog_and_statistics_are_notes() {
    Machine::healthy().with("/proc/sys/kernel/nmi_watchdog", "1").fixes("watchdog", "note");
    Machine::healthy().with("/proc/sys/vm/stat_interval", "1").fixes("stat_interval", "note");
    Machine::healthy().with("/proc/sys/vm/stat_interval", "60").says("stat_interval", "fine");
}

#[test]
fn machines_with_more_than_1024_cpus_are_checked() {
    let machine = Machine::healthy()
        .with(&format!("{CPU}/online"), "0-2047")
        .with(&format!("{CPU}/cpu1500/cpufreq/scaling_governor"), "powersave")
        .cores("1500");
    assert!(machine.says("isolcpus", "bad").contains("1500"));
    machine.fixes("governor", "bad");
}
