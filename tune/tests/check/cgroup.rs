use crate::machine::Machine;

const GROUP: &str = "/sys/fs/cgroup/system.slice/engine.service";
const ABOVE: &str = "/sys/fs/cgroup/system.slice";

#[test]
fn a_quota_of_time_is_bad() {
    let machine = Machine::healthy().with(&format!("{GROUP}/cpu.max"), "50000 100000");
    assert!(machine.says("cgroup_cpu", "bad").contains("50000 100000"));
    machine.fixes("cgroup_cpu", "bad");
}

#[test]
fn a_quota_of_a_group_above_counts() {
    let machine = Machine::healthy().with(&format!("{ABOVE}/cpu.max"), "50000 100000");
    assert!(machine.says("cgroup_cpu", "bad").contains("/system.slice/cpu.max"));
    machine.fixes("cgroup_cpu", "bad");
}

#[test]
fn quotas_of_all_groups_are_removed() {
    let machine = Machine::healthy()
        .with(&format!("{GROUP}/cpu.max"), "50000 100000")
        .with(&format!("{ABOVE}/cpu.max"), "70000 100000");
    machine.fixes("cgroup_cpu", "bad");
}

#[test]
fn a_limit_on_memory_is_bad_when_it_is_near() {
    let machine = Machine::healthy().with(&format!("{GROUP}/memory.max"), "10000000");
    machine.fixes("cgroup_memory", "note");
    let machine = machine.with(&format!("{GROUP}/memory.current"), "9500000");
    machine.fixes("cgroup_memory", "bad");
}

#[test]
fn a_limit_below_the_wanted_huge_pages_is_bad() {
    let machine = Machine::healthy().with(&format!("{GROUP}/hugetlb.2MB.max"), "2097152");
    machine.fixes("cgroup_hugetlb", "bad");
    // The two nodes need 64 pages each, and the limit is for both.
    let both = |bytes: &str| Machine::healthy().with(&format!("{GROUP}/hugetlb.2MB.max"), bytes);
    both("268435456").says("cgroup_hugetlb", "note");
    assert!(both("268435455").says("cgroup_hugetlb", "bad").contains("all nodes are 268435456"));
    let one = both("134217728").without("/sys/devices/system/node/node1");
    one.says("cgroup_hugetlb", "note");
    let reserved = Machine::healthy().with(&format!("{GROUP}/hugetlb.2MB.rsvd.max"), "0");
    reserved.says("cgroup_hugetlb", "bad");
    let giant = Machine::healthy().with(&format!("{GROUP}/hugetlb.1GB.max"), "0");
    giant.fixes("cgroup_hugetlb", "note");
}

#[test]
fn workers_outside_of_the_groups_cores_are_bad() {
    let machine = Machine::healthy().with(&format!("{GROUP}/cpuset.cpus.effective"), "0-5");
    assert!(machine.says("cpuset", "bad").contains("workers would run on 6-7"));
    machine.cores("4-5").says("cpuset", "note");
}

#[test]
fn version_1_has_a_tree_for_each_controller() {
    let machine = Machine::healthy()
        .with("/proc/self/cgroup", "4:memory:/box\n3:cpuset:/box\n2:cpu,cpuacct:/box\n0::/")
        .with("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1")
        .with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    machine.says("cgroup_cpu", "fine");
    machine.says("cgroup_memory", "fine");
    machine.says("cgroup_hugetlb", "absent");
    let machine = machine.with("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "20000");
    machine.fixes("cgroup_cpu", "bad");
}

#[test]
fn a_container_sees_its_own_group_at_the_top() {
    let machine = Machine::healthy()
        .with("/proc/self/cgroup", "0::/not/seen/from/here")
        .with("/sys/fs/cgroup/cpu.max", "200000 100000");
    assert!(machine.says("cgroup_cpu", "bad").contains("/sys/fs/cgroup/cpu.max"));
}

#[test]
fn a_machine_without_groups_has_no_limits() {
    let machine = Machine::healthy().without("/proc/self/cgroup");
    for name in ["cgroup_cpu", "cgroup_memory", "cgroup_hugetlb", "cpuset"] {
        machine.says(name, "absent");
    }
    machine.with("/proc/self/cgroup", "nonsense").says("cgroup_cpu", "unknown");
}
