use crate::machine::Machine;

const CPU: &str = "/sys/devices/system/cpu";

#[test]
fn workers_on_cores_that_others_use_are_named() {
    let machine = Machine::quiet().with(&format!("{CPU}/isolated"), "2-5").cores("4-7");
    let is = machine.says("isolcpus", "bad");
    assert!(is.contains("workers run on 6-7"), "{is}");
    let mend = &machine.finding("isolcpus")["mend"][0];
    assert_eq!(mend["kernel"], "isolcpus=managed_irq,domain,4-7");
}

#[test]
fn a_machine_where_no_core_is_set_apart_is_told_which_could_be() {
    let machine = Machine::quiet()
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
        assert_eq!(machine.finding(name)["mend"][0]["kernel"], parameter);
    }
}

#[test]
fn what_needs_a_restart_is_advice_and_changes_nothing() {
    let machine = Machine::quiet().with(&format!("{CPU}/isolated"), "2").cores("2-3");
    let before = machine.holds();
    let applied = machine.tune(&["--apply", "--only", "isolcpus"]);
    assert_eq!(applied.status.code(), Some(1), "it is as bad as before");
    let text = String::from_utf8(applied.stdout).unwrap();
    assert!(text.contains("# on the kernel's command line: isolcpus="), "{text}");
    assert_eq!(machine.holds(), before);
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
}

#[test]
fn a_machine_of_two_cores_cannot_spare_one() {
    let machine = Machine::quiet().with(&format!("{CPU}/online"), "0-1");
    machine.with(&format!("{CPU}/isolated"), "").says("isolcpus", "absent");
}

#[test]
fn ticks_on_workers_are_bad() {
    let machine = Machine::quiet().with(&format!("{CPU}/nohz_full"), "2-4");
    assert!(machine.says("nohz_full", "bad").contains("workers run on 5-7"));
}

#[test]
fn callbacks_on_workers_are_bad_and_go_with_the_ticks() {
    let machine = Machine::quiet().with("/proc/cmdline", "quiet");
    machine.says("rcu_nocbs", "fine");
    let machine = machine.with(&format!("{CPU}/nohz_full"), "(null)");
    machine.says("rcu_nocbs", "bad");
    machine.with("/proc/cmdline", "rcu_nocbs").says("rcu_nocbs", "fine");
}

#[test]
fn a_governor_that_lowers_the_clock_is_bad() {
    let file = format!("{CPU}/cpu5/cpufreq/scaling_governor");
    let machine = Machine::quiet().with(&file, "powersave");
    let is = machine.says("governor", "bad");
    assert!(is.contains("cpu5") && is.contains("powersave") && is.contains("1 of 8"), "{is}");
    machine.mends("governor", "bad");
}

#[test]
fn deep_sleep_on_a_workers_core_is_bad() {
    let machine = Machine::quiet().with(&format!("{CPU}/cpu3/cpuidle/state2/disable"), "0");
    let is = machine.says("cstates", "bad");
    assert!(is.contains("C6 takes 133 us") && is.contains("cpu3"), "{is}");
    machine.mends("cstates", "bad");
    // Held open by a program, which the kernel counts in microseconds.
    machine.bytes("/dev/cpu_dma_latency", &2_i32.to_ne_bytes()).says("cstates", "fine");
}

#[test]
fn deep_sleep_elsewhere_is_nobodys_business() {
    Machine::quiet()
        .with(&format!("{CPU}/cpu1/cpuidle/state2/disable"), "0")
        .says("cstates", "fine");
}

#[test]
fn a_program_beside_a_worker_is_bad_and_its_thread_is_switched_off() {
    let mut machine = Machine::quiet();
    for (cpu, pair) in [(0, "0,4"), (1, "1,5"), (2, "2,6"), (3, "3,7")] {
        for cpu in [cpu, cpu + 4] {
            let folder = format!("{CPU}/cpu{cpu}");
            machine = machine.with(&format!("{folder}/topology/thread_siblings_list"), pair);
            machine = machine.with(&format!("{folder}/online"), "1");
        }
    }
    // Beside 3 runs 7, which is a worker's too; beside 2 runs 6, which is anybody's.
    let machine = machine.with(&format!("{CPU}/isolated"), "2-3,7");
    let is = machine.says("smt", "bad");
    assert!(is.contains("2,6 and 3,7"), "{is}");
    machine.mends("smt", "bad");
    let machine = machine.with(&format!("{CPU}/isolated"), "");
    machine.says("smt", "note");
}

#[test]
fn the_watchdog_and_the_statistics_are_worth_knowing() {
    Machine::quiet().with("/proc/sys/kernel/nmi_watchdog", "1").mends("watchdog", "note");
    Machine::quiet().with("/proc/sys/vm/stat_interval", "1").mends("stat_interval", "note");
    Machine::quiet().with("/proc/sys/vm/stat_interval", "60").says("stat_interval", "fine");
}

#[test]
fn a_machine_of_more_than_1024_cpus_is_judged_alike() {
    let machine = Machine::quiet()
        .with(&format!("{CPU}/online"), "0-2047")
        .with(&format!("{CPU}/cpu1500/cpufreq/scaling_governor"), "powersave")
        .cores("1500");
    assert!(machine.says("isolcpus", "bad").contains("1500"));
    machine.mends("governor", "bad");
}
