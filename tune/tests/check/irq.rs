use crate::machine::Machine;

#[test]
fn an_interrupt_on_a_workers_core_is_bad_and_moved() {
    let machine = Machine::healthy().with("/proc/irq/31/smp_affinity_list", "0-7");
    let is = machine.says("irq_affinity", "bad");
    assert!(is.contains("1 of 2") && is.contains("/proc/irq/31"), "{is}");
    machine.fixes("irq_affinity", "bad");
}

#[test]
fn the_effective_affinity_counts() {
    let machine = Machine::healthy().with("/proc/irq/31/smp_affinity_list", "0-7");
    let machine = machine.with("/proc/irq/31/effective_affinity_list", "1");
    machine.says("irq_affinity", "fine");
    let machine = machine
        .with("/proc/irq/31/effective_affinity_list", "6")
        .with("/sys/kernel/irq/31/actions", "nvme0q7");
    assert!(machine.says("irq_affinity", "bad").contains("/proc/irq/31 (nvme0q7) goes to 6"));
    // The effective affinity stays until the next interrupt.
    machine.fixes("irq_affinity", "bad");
}

#[test]
fn an_interrupt_without_a_handler_is_ignored() {
    let machine = Machine::healthy().with("/proc/irq/2/smp_affinity_list", "0-7");
    machine.with("/sys/kernel/irq/2/actions", "").says("irq_affinity", "fine");
}

#[test]
fn without_reserved_cores_interrupts_may_go_anywhere() {
    let machine = Machine::healthy().with("/sys/devices/system/cpu/isolated", "");
    machine.says("irq_affinity", "absent");
    Machine::healthy().cores("0-7").says("irq_affinity", "absent");
}

#[test]
fn irqbalance_is_bad_unless_the_workers_cores_are_isolated() {
    let machine = Machine::healthy().with("/proc/812/comm", "irqbalance");
    assert!(machine.says("irqbalance", "note").contains("process 812"));
    let machine = machine.cores("1-2");
    machine.says("irqbalance", "bad");
    assert_eq!(machine.finding("irqbalance")["fix"][0]["stop"], "irqbalance");
}

#[test]
fn services_are_not_stopped_for_a_recorded_machine() {
    let machine = Machine::healthy().with("/proc/812/comm", "irqbalance");
    let script = machine.tune(&["--fix", "--only", "irqbalance"]).stdout;
    let ran = machine.shell(&String::from_utf8(script).unwrap(), &[]);
    let text = String::from_utf8(ran.stderr).unwrap();
    assert!(text.contains("is not this machine"), "{text}");
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
}
