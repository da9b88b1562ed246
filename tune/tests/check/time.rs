use crate::machine::Machine;

const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0";

#[test]
fn a_clock_that_reads_a_device_is_bad() {
    let machine = Machine::healthy().with(&format!("{CLOCK}/current_clocksource"), "hpet");
    machine.fixes("clocksource", "bad");
    let machine = machine.with(&format!("{CLOCK}/available_clocksource"), "hpet acpi_pm");
    assert!(machine.says("clocksource", "bad").contains("offers hpet acpi_pm"));
    let fix = &machine.finding("clocksource")["fix"];
    assert!(fix[0]["advice"].is_string() && fix[1].is_null(), "tsc is not offered: {fix}");
}

#[test]
fn a_paravirtual_clock_is_a_note() {
    let machine = Machine::healthy().with(&format!("{CLOCK}/current_clocksource"), "kvm-clock");
    machine.fixes("clocksource", "note");
}

#[test]
fn a_counter_that_drifts_or_stops_is_bad() {
    let machine = Machine::healthy().with("/proc/cpuinfo", "flags\t\t: fpu constant_tsc");
    assert_eq!(machine.says("tsc", "bad"), "no nonstop_tsc");
    machine.with("/proc/cpuinfo", "Features\t: fp asimd").says("tsc", "absent");
}

#[test]
fn stolen_time_is_judged_by_its_share() {
    for (stolen, severity) in [(0, "fine"), (1, "fine"), (20, "note"), (200, "bad")] {
        let line = format!("cpu  6000 0 4000 900000 7 0 0 {stolen} 0 0");
        Machine::healthy().with("/proc/stat", &line).says("steal", severity);
    }
    Machine::healthy().with("/proc/stat", "cpu  1 2 3").says("steal", "unknown");
}
