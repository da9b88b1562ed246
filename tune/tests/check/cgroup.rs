use crate::machine::Machine;

const GROUP: &str = "/sys/fs/cgroup/system.slice/engine.service";
const ABOVE: &str = "/sys/fs/cgroup/system.slice";

#[test]
fn a_quota_of_time_is_bad() {
    let machine = Machine::quiet().with(&format!("{GROUP}/cpu.max"), "50000 100000");
    assert!(machine.says("cgroup_cpu", "bad").contains("50000 100000"));
    machine.mends("cgroup_cpu", "bad");
}

#[test]
fn a_quota_of_a_group_above_counts_as_well() {
    let machine = Machine::quiet().with(&format!("{ABOVE}/cpu.max"), "50000 100000");
    assert!(machine.says("cgroup_cpu", "bad").contains("/system.slice/cpu.max"));
    machine.mends("cgroup_cpu", "bad");
}

#[test]
fn every_quota_on_the_way_up_is_lifted() {
    let machine = Machine::quiet()
        .with(&format!("{GROUP}/cpu.max"), "50000 100000")
        .with(&format!("{ABOVE}/cpu.max"), "70000 100000");
    machine.mends("cgroup_cpu", "bad");
}

#[test]
fn a_limit_on_memory_is_bad_once_it_is_near() {
    let machine = Machine::quiet().with(&format!("{GROUP}/memory.max"), "10000000");
    machine.mends("cgroup_memory", "note");
    let machine = machine.with(&format!("{GROUP}/memory.current"), "9500000");
    machine.mends("cgroup_memory", "bad");
}

#[test]
fn a_limit_on_huge_pages_below_what_is_wanted_is_bad() {
    let machine = Machine::quiet().with(&format!("{GROUP}/hugetlb.2MB.max"), "2097152");
    machine.mends("cgroup_hugetlb", "bad");
    machine.with(&format!("{GROUP}/hugetlb.2MB.max"), "134217728").says("cgroup_hugetlb", "note");
    let reserved = Machine::quiet().with(&format!("{GROUP}/hugetlb.2MB.rsvd.max"), "0");
    reserved.says("cgroup_hugetlb", "bad");
    let giant = Machine::quiet().with(&format!("{GROUP}/hugetlb.1GB.max"), "0");
    giant.mends("cgroup_hugetlb", "note");
}

#[test]
fn workers_outside_of_the_groups_cores_are_bad() {
    let machine = Machine::quiet().with(&format!("{GROUP}/cpuset.cpus.effective"), "0-5");
    assert!(machine.says("cpuset", "bad").contains("workers would run on 6-7"));
    machine.cores("4-5").says("cpuset", "note");
}

#[test]
fn the_first_version_has_a_tree_for_each_controller() {
    let machine = Machine::quiet()
        .with("/proc/self/cgroup", "4:memory:/box\n3:cpuset:/box\n2:cpu,cpuacct:/box\n0::/")
        .with("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1")
        .with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
    machine.says("cgroup_cpu", "fine");
    machine.says("cgroup_memory", "fine");
    machine.says("cgroup_hugetlb", "absent");
    let machine = machine.with("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "20000");
    machine.mends("cgroup_cpu", "bad");
}

#[test]
fn a_container_sees_its_own_group_at_the_top() {
    let machine = Machine::quiet()
        .with("/proc/self/cgroup", "0::/not/seen/from/here")
        .with("/sys/fs/cgroup/cpu.max", "200000 100000");
    assert!(machine.says("cgroup_cpu", "bad").contains("/sys/fs/cgroup/cpu.max"));
}

#[test]
fn a_machine_without_groups_has_no_limits() {
    let machine = Machine::quiet().without("/proc/self/cgroup");
    for name in ["cgroup_cpu", "cgroup_memory", "cgroup_hugetlb", "cpuset"] {
        machine.says(name, "absent");
    }
    machine.with("/proc/self/cgroup", "nonsense").says("cgroup_cpu", "unknown");
}
