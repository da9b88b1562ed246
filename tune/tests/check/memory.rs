use crate::machine::Machine;

const NODE_1: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

#[test]
fn too_few_huge_pages_on_a_node_are_bad_and_fixed() {
    let machine = Machine::healthy().with(NODE_1, "3");
    let is = machine.says("hugepages", "bad");
    assert!(is.contains("node1 has 3") && is.contains("node0 has 64"), "{is}");
    machine.fixes("hugepages", "bad");
}

#[test]
fn the_number_of_huge_pages_can_be_set() {
    let machine = Machine::healthy().hugepages(65);
    machine.fixes("hugepages", "bad");
    Machine::healthy().hugepages(0).says("hugepages", "fine");
}

#[test]
fn a_node_without_memory_needs_no_huge_pages() {
    let machine = Machine::healthy().with(NODE_1, "0");
    machine.with("/sys/devices/system/node/has_memory", "0").says("hugepages", "fine");
}

#[test]
fn a_page_of_1_gib_is_as_good() {
    let giant = NODE_1.replace("2048kB", "1048576kB");
    Machine::healthy().with(NODE_1, "0").with(&giant, "1").says("hugepages", "fine");
}

#[test]
fn huge_pages_in_use_by_others_are_a_note() {
    let machine = Machine::healthy().with(&NODE_1.replace("nr_", "free_"), "0");
    machine.says("hugepages", "note");
}

#[test]
fn a_kernel_without_nodes_has_one_pool() {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let machine = Machine::healthy().without("/sys/devices/system/node").with(pool, "1");
    machine.fixes("hugepages", "bad");
}

fn memlock(bytes: &str) -> Machine {
    let table =
        format!("Max locked memory         {bytes}                65536                bytes");
    Machine::healthy().with("/proc/self/limits", &table)
}

#[test]
fn a_memlock_of_64_kib_is_fixed_for_the_next_login() {
    let machine = memlock("65536");
    assert!(machine.says("memlock", "bad").contains("65536 bytes"));
    machine.fixes_to("memlock", "bad", "note");
}

#[test]
fn a_memlock_has_room_for_the_pages_of_all_nodes() {
    assert!(memlock("268435455").says("memlock", "bad").contains("all nodes are 268435456"));
    memlock("268435456").says("memlock", "note");
    memlock("134217728").without("/sys/devices/system/node/node1").says("memlock", "note");
}

#[test]
fn a_large_memlock_is_a_note_and_root_needs_none() {
    memlock("999999999").fixes_to("memlock", "note", "note");
    let root = || memlock("65536").with("/proc/self/status", "CapEff:\t0000000000004000");
    root().says("memlock", "fine");
    root().with("/proc/self/uid_map", "0 0 4294967295").says("memlock", "fine");
    // The capability of a user namespace, as in a rootless container, lifts no limit.
    root().with("/proc/self/uid_map", "0 100000 65536").says("memlock", "bad");
}

#[test]
fn other_lines_in_the_limits_file_are_handled() {
    let file = "/etc/security/limits.d/60-doorbell.conf";
    memlock("65536").with(file, "* - nofile 4096").fixes_to("memlock", "bad", "note");
    memlock("65536").with(file, "# ours\n* - memlock unlimited").says("memlock", "note");
}

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

#[test]
fn transparent_huge_pages_always_or_never_are_a_note() {
    for modes in ["[always] madvise never", "always madvise [never]"] {
        Machine::healthy().with(&format!("{THP}/enabled"), modes).fixes("thp", "note");
    }
}

#[test]
fn compaction_in_every_fault_is_bad() {
    let modes = "[always] defer defer+madvise madvise never";
    Machine::healthy().with(&format!("{THP}/defrag"), modes).fixes("thp_defrag", "bad");
    let modes = "always defer [defer+madvise] madvise never";
    Machine::healthy().with(&format!("{THP}/defrag"), modes).says("thp_defrag", "fine");
    Machine::healthy().without(THP).says("thp_defrag", "absent");
}

#[test]
fn numa_balancing_is_bad_with_more_than_one_node() {
    let machine = Machine::healthy().with("/proc/sys/kernel/numa_balancing", "1");
    machine.fixes("numa_balancing", "bad");
    machine.without("/sys/devices/system/node/node1").says("numa_balancing", "absent");
}

#[test]
fn zone_reclaim_is_bad() {
    Machine::healthy().with("/proc/sys/vm/zone_reclaim_mode", "1").fixes("zone_reclaim", "bad");
}

#[test]
fn swap_is_a_note() {
    let areas = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1000 0 -2";
    Machine::healthy().with("/proc/swaps", areas).fixes("swap", "note");
}
