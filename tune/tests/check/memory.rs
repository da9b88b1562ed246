use crate::machine::Machine;

const NODE_1: &str = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages";

#[test]
fn a_node_with_too_few_huge_pages_is_named_and_given_them() {
    let machine = Machine::quiet().with(NODE_1, "3");
    let is = machine.says("hugepages", "bad");
    assert!(is.contains("node1 has 3") && is.contains("node0 has 64"), "{is}");
    machine.mends("hugepages", "bad");
}

#[test]
fn how_many_huge_pages_are_wanted_can_be_said() {
    let machine = Machine::quiet().hugepages(65);
    machine.mends("hugepages", "bad");
    Machine::quiet().hugepages(0).says("hugepages", "fine");
}

#[test]
fn a_node_without_memory_needs_no_huge_pages() {
    let machine = Machine::quiet().with(NODE_1, "0");
    machine.with("/sys/devices/system/node/has_memory", "0").says("hugepages", "fine");
}

#[test]
fn a_page_of_a_gibibyte_does_as_well() {
    let giant = NODE_1.replace("2048kB", "1048576kB");
    Machine::quiet().with(NODE_1, "0").with(&giant, "1").says("hugepages", "fine");
}

#[test]
fn huge_pages_that_others_hold_are_worth_knowing() {
    let machine = Machine::quiet().with(&NODE_1.replace("nr_", "free_"), "0");
    machine.says("hugepages", "note");
}

#[test]
fn a_kernel_without_nodes_has_one_pool() {
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    let machine = Machine::quiet().without("/sys/devices/system/node").with(pool, "1");
    machine.mends("hugepages", "bad");
}

fn memlock(bytes: &str) -> Machine {
    let table =
        format!("Max locked memory         {bytes}                65536                bytes");
    Machine::quiet().with("/proc/self/limits", &table)
}

#[test]
fn a_memlock_of_64_kib_is_lifted_for_the_next_login() {
    let machine = memlock("65536");
    assert!(machine.says("memlock", "bad").contains("65536 bytes"));
    machine.mends_to("memlock", "bad", "note");
}

#[test]
fn a_memlock_that_is_enough_is_worth_knowing_and_root_has_none() {
    memlock("999999999").mends_to("memlock", "note", "note");
    memlock("65536").with("/proc/self/status", "CapEff:\t0000000000004000").says("memlock", "fine");
}

#[test]
fn a_line_of_another_hand_is_left_in_its_file() {
    let file = "/etc/security/limits.d/60-doorbell.conf";
    memlock("65536").with(file, "* - nofile 4096").mends_to("memlock", "bad", "note");
    memlock("65536").with(file, "# ours\n* - memlock unlimited").says("memlock", "note");
}

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

#[test]
fn transparent_huge_pages_for_all_or_for_none_are_worth_knowing() {
    for modes in ["[always] madvise never", "always madvise [never]"] {
        Machine::quiet().with(&format!("{THP}/enabled"), modes).mends("thp", "note");
    }
}

#[test]
fn compaction_in_any_fault_is_bad() {
    let modes = "[always] defer defer+madvise madvise never";
    Machine::quiet().with(&format!("{THP}/defrag"), modes).mends("thp_defrag", "bad");
    let modes = "always defer [defer+madvise] madvise never";
    Machine::quiet().with(&format!("{THP}/defrag"), modes).says("thp_defrag", "fine");
    Machine::quiet().without(THP).says("thp_defrag", "absent");
}

#[test]
fn numa_balancing_is_bad_where_there_is_more_than_one_node() {
    let machine = Machine::quiet().with("/proc/sys/kernel/numa_balancing", "1");
    machine.mends("numa_balancing", "bad");
    machine.without("/sys/devices/system/node/node1").says("numa_balancing", "absent");
}

#[test]
fn clearing_a_full_node_first_is_bad() {
    Machine::quiet().with("/proc/sys/vm/zone_reclaim_mode", "1").mends("zone_reclaim", "bad");
}

#[test]
fn swap_is_worth_knowing() {
    let areas = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1000 0 -2";
    Machine::quiet().with("/proc/swaps", areas).mends("swap", "note");
}
