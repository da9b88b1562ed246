use crate::machine::{Machine, PORT};

#[test]
fn without_a_device_soft0_is_named() {
    let machine = Machine::healthy().without("/sys/class/infiniband/mlx5_0");
    assert!(machine.says("rdma_device", "note").contains("soft0"));
    for name in ["mtu", "rnr_timer", "pcie_link", "pcie_relaxed", "iommu", "acs", "device_node"] {
        machine.says(name, "absent");
    }
}

#[test]
fn a_port_that_is_down_is_bad_unless_another_is_up() {
    let machine = Machine::healthy().with(&format!("{PORT}/state"), "1: DOWN");
    let is = machine.says("rdma_device", "bad");
    assert!(is.contains("mlx5_0 port 1 is 1: DOWN"), "{is}");
    let fix = machine.finding("rdma_device")["fix"][0]["advice"].to_string();
    assert!(fix.contains("ip link set ens1np0 up"), "{fix}");
    let second = PORT.replace("ports/1", "ports/2");
    machine.with(&format!("{second}/state"), "4: ACTIVE").says("rdma_device", "note");
}

#[test]
fn small_packets_are_a_note() {
    let machine = Machine::healthy().with("/sys/class/net/ens1np0/mtu", "1500");
    let is = machine.says("mtu", "note");
    assert!(is.contains("ens1np0: 1500"), "{is}");
    machine.fixes("mtu", "note");
    machine.with(&format!("{PORT}/link_layer"), "InfiniBand").says("mtu", "absent");
}

#[test]
fn a_risky_fix_is_applied_only_when_named() {
    let machine = Machine::healthy().with("/sys/class/net/ens1np0/mtu", "1500");
    let all = String::from_utf8(machine.tune(&["--fix"]).stdout).unwrap();
    assert!(!all.contains("put /sys/class/net"), "{all}");
}

#[test]
fn missing_receives_are_a_note() {
    let machine = Machine::healthy().with(&format!("{PORT}/hw_counters/out_of_buffer"), "17");
    assert!(machine.says("rnr_timer", "note").contains("out_of_buffer is 17"));
    machine.without(&format!("{PORT}/hw_counters")).says("rnr_timer", "absent");
}
