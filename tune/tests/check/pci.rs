use crate::machine::{BRIDGE, FUNCTION, Machine, config};

#[test]
fn a_slot_with_fewer_lanes_is_bad() {
    let machine = Machine::healthy().with(&format!("{FUNCTION}/current_link_width"), "8");
    let is = machine.says("pcie_link", "bad");
    assert!(is.contains("0000:3b:00.0 is x8 at 16 GT/s (could be x16"), "{is}");
    let slow = Machine::healthy().with(&format!("{FUNCTION}/current_link_speed"), "8.0 GT/s PCIe");
    slow.says("pcie_link", "bad");
}

#[test]
fn strict_ordering_is_a_note() {
    let machine = Machine::healthy().bytes(&format!("{FUNCTION}/config"), &config(!(1 << 4), 0));
    machine.says("pcie_relaxed", "note");
    let fix = machine.finding("pcie_relaxed")["fix"][0]["advice"].to_string();
    assert!(fix.contains("setpci -s 0000:3b:00.0"), "{fix}");
}

#[test]
fn translated_addresses_are_bad() {
    let kind = "/sys/kernel/iommu_groups/7/type";
    let machine = Machine::healthy().with(kind, "DMA-FQ");
    let is = machine.says("iommu", "bad");
    assert!(is.contains("group 7 is DMA-FQ"), "{is}");
    assert_eq!(machine.finding("iommu")["fix"][0]["kernel"], "iommu=pt");
    machine.without(&format!("{FUNCTION}/iommu_group")).says("iommu", "fine");
}

#[test]
fn a_redirecting_bridge_is_a_note() {
    for control in [1 << 2, 1 << 3] {
        let machine = Machine::healthy().bytes(&format!("{BRIDGE}/config"), &config(0, control));
        assert!(machine.says("acs", "note").contains("0000:3a:00.0"));
    }
    // The function itself is not checked.
    Machine::healthy().bytes(&format!("{FUNCTION}/config"), &config(0, 0xC)).says("acs", "fine");
}

#[test]
fn files_that_only_root_may_read_are_unknown() {
    for (folder, name) in [(FUNCTION, "pcie_relaxed"), (BRIDGE, "acs")] {
        let short = &config(0, 0)[..64];
        let machine = Machine::healthy().bytes(&format!("{folder}/config"), short);
        let is = machine.says(name, "unknown");
        assert!(is.contains("only the first 64 bytes"), "{is}");
        assert_eq!(machine.tune(&["--only", name]).status.code(), Some(2));
    }
}

#[test]
fn a_circular_list_of_capabilities_ends() {
    let mut round = config(0, 0);
    round[0x41] = 0x40;
    round[0x103] = 0x10;
    round[0x102] = 0x01;
    let machine = Machine::healthy()
        .bytes(&format!("{FUNCTION}/config"), &round)
        .bytes(&format!("{BRIDGE}/config"), &round);
    machine.says("pcie_relaxed", "fine");
    machine.says("acs", "fine");
}

#[test]
fn a_device_on_no_known_node_is_a_note_if_there_are_two_nodes() {
    let machine = Machine::healthy().with(&format!("{FUNCTION}/numa_node"), "-1");
    machine.says("device_node", "note");
    machine.without("/sys/devices/system/node/node1").says("device_node", "fine");
}
