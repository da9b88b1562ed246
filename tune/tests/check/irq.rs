use crate::machine::Machine;

#[test]
fn an_interrupt_on_a_workers_core_is_bad_and_sent_elsewhere() {
    let machine = Machine::quiet().with("/proc/irq/31/smp_affinity_list", "0-7");
    let is = machine.says("irq_affinity", "bad");
    assert!(is.contains("1 of 2") && is.contains("/proc/irq/31"), "{is}");
    machine.mends("irq_affinity", "bad");
}

#[test]
fn where_an_interrupt_really_goes_decides() {
    let machine = Machine::quiet().with("/proc/irq/31/smp_affinity_list", "0-7");
    let machine = machine.with("/proc/irq/31/effective_affinity_list", "1");
    machine.says("irq_affinity", "fine");
    let machine = machine
        .with("/proc/irq/31/effective_affinity_list", "6")
        .with("/sys/kernel/irq/31/actions", "nvme0q7");
    assert!(machine.says("irq_affinity", "bad").contains("/proc/irq/31 (nvme0q7) goes to 6"));
    // Which stays until the next interrupt comes.
    machine.mends("irq_affinity", "bad");
}

#[test]
fn an_interrupt_without_a_handler_never_comes() {
    let machine = Machine::quiet().with("/proc/irq/2/smp_affinity_list", "0-7");
    machine.with("/sys/kernel/irq/2/actions", "").says("irq_affinity", "fine");
}

#[test]
fn without_cores_set_apart_interrupts_are_where_they_may_be() {
    let machine = Machine::quiet().with("/sys/devices/system/cpu/isolated", "");
    machine.says("irq_affinity", "absent");
    Machine::quiet().cores("0-7").says("irq_affinity", "absent");
}

#[test]
fn irqbalance_is_bad_unless_it_knows_the_workers_cores() {
    let machine = Machine::quiet().with("/proc/812/comm", "irqbalance");
    assert!(machine.says("irqbalance", "note").contains("process 812"));
    let machine = machine.cores("1-2");
    machine.says("irqbalance", "bad");
    assert_eq!(machine.finding("irqbalance")["mend"][0]["stop"], "irqbalance");
}

#[test]
fn a_service_of_another_machine_is_left_alone() {
    let machine = Machine::quiet().with("/proc/812/comm", "irqbalance");
    let script = machine.tune(&["--fix", "--only", "irqbalance"]).stdout;
    let ran = machine.shell(&String::from_utf8(script).unwrap(), &[]);
    let text = String::from_utf8(ran.stderr).unwrap();
    assert!(text.contains("is not this machine"), "{text}");
    assert_eq!(machine.tune(&["--undo"]).stdout, b"nothing to undo\n");
}
