# The checks of the virtual machine with two nodes, run by bash. The variables NUMA and MEMLOCK are
# the paths of alloc's test programs, or unset if they could not be built: that has been counted as
# a failure. The tests change the pools of huge pages, and run in control groups that are made here.
#
# To add a check, add a line at the end: `harness NAME LIMIT COMMAND…` or `check NAME LIMIT COMMAND…`.

. xtask/vm/up.sh
. xtask/vm/harness.sh

export DOORBELL_NUMA=1

# The group of version 1: a hierarchy of its own for the controllers that the tests need.
group_one() {
    one=$scratch/one
    mkdir "$one" && mount -t cgroup -o memory,hugetlb,cpuset cgroup "$one" &&
        mkdir "$one/doorbell" &&
        echo 0-3 > "$one/doorbell/cpuset.cpus" &&
        echo 0-1 > "$one/doorbell/cpuset.mems" &&
        export DOORBELL_GROUP=$one/doorbell
}

has_controllers() {
    grep memory /sys/fs/cgroup/cgroup.controllers | grep hugetlb | grep -q cpuset
}

# The group of version 2, in the hierarchy that every system has. It gets the controllers when the
# other is gone, and that is when nothing is charged to it any more.
group_two() {
    local top=/sys/fs/cgroup
    echo 0 > "$one/doorbell/memory.force_empty"
    rmdir "$one/doorbell" && umount "$one" && await 30 has_controllers &&
        echo "+memory +hugetlb +cpuset" > $top/cgroup.subtree_control &&
        mkdir $top/doorbell &&
        export DOORBELL_GROUP=$top/doorbell
}

# The tests share the machine's pools: one after the other.
alone=--test-threads=1

if [ -n "${NUMA:-}" ]; then
    check "a control group of version 1" 10 group_one
    harness "alloc in a group of version 1" 120 "$NUMA" $alone a_groups
    check "a control group of version 2" 60 group_two
    harness "alloc with two nodes" 300 "$NUMA" $alone
    echo 0 > /sys/devices/system/cpu/cpu3/online
    harness "alloc with an offline processor" 120 "$NUMA" $alone memory_asked
    echo 1 > /sys/devices/system/cpu/cpu3/online
fi

if [ -n "${MEMLOCK:-}" ]; then
    harness "alloc with 64 KiB of lockable memory" 60 "$MEMLOCK"
fi

result
