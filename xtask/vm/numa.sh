# The checks of the virtual machine with two nodes, run by bash. The variables NUMA, MAPPING and
# MEMLOCK are the paths of alloc's test programs, RUN that of tune's, TUNE and DOORBELL_BENCH those
# of the commands. A variable is unset if its program could not be built; the caller has counted
# that as a failure. The tests change the pools of huge pages, and run in control groups that this
# script makes.
#
# To add a check, add a line at the end: `harness NAME LIMIT COMMAND…` or `check NAME LIMIT COMMAND…`.

. xtask/vm/up.sh
. xtask/vm/harness.sh

copy NUMA MAPPING MEMLOCK RUN TUNE DOORBELL_BENCH
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
    rmdir "$one/doorbell" && umount "$one" && await 300 has_controllers &&
        echo "+memory +hugetlb +cpuset" > $top/cgroup.subtree_control &&
        mkdir $top/doorbell &&
        export DOORBELL_GROUP=$top/doorbell
}

# A plan that a processor has left is refused with its name, and a new one leaves it out.
offline_processor() {
    local plan=$scratch/plan.toml online=/sys/devices/system/cpu/cpu3/online
    "$TUNE" plan --workers 3 --out "$plan" && "$TUNE" run --plan "$plan" -- true || return 1
    echo 0 > $online
    "$TUNE" run --plan "$plan" -- true 2> "$scratch/refused"
    local code=$?
    "$TUNE" plan --workers 3 2> "$scratch/smaller"
    "$TUNE" plan --workers 2 > "$scratch/new"
    "$TUNE" topology > "$scratch/tree"
    echo 1 > $online
    cat "$scratch/refused" "$scratch/smaller" "$scratch/new" "$scratch/tree"
    [ $code = 125 ] && grep -q "asked to run on CPUs 1-3, got 1-2" "$scratch/refused" &&
        grep -q "CPUs 3 are switched off" "$scratch/smaller" &&
        grep -q "CPUs switched off: 3" "$scratch/new" &&
        ! grep -q "cpu = 3" "$scratch/new" &&
        grep -q "CPUs switched off: 3" "$scratch/tree"
}

# Memory of the process that serves is bound to the plan's node.
serves_there() {
    local other
    other=$(pgrep -P "$bench" | head -n 1)
    [ -n "$other" ] && grep " bind:1 " "/proc/$other/numa_maps" | grep -q " N1="
}

# Both sides of a benchmark under a plan have its cores, which they look for themselves, and memory
# of its node, by the kernel's own account.
bench_by_plan() {
    local plan=$scratch/bench.toml bench
    # Two workers with one core for housekeeping: the second node has room for both.
    "$TUNE" plan --workers 2 --out "$plan" && cat "$plan" || return 1
    "$DOORBELL_BENCH" latency --size 8 --duration 30 --plan "$plan" --json - \
        > "$scratch/bench.json" &
    bench=$!
    await 300 serves_there && wait $bench &&
        tr -d ' \n' < "$scratch/bench.json" | grep -q '"cores":\[2,3\]'
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

# Elsewhere nobody keeps huge pages free.
if [ -n "${MAPPING:-}" ]; then
    pool=/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
    echo 64 > $pool
    harness "alloc with free huge pages" 120 "$MAPPING"
    echo 0 > $pool
fi

if [ -n "${RUN:-}" ]; then
    harness "tune run with two nodes" 120 "$RUN"
fi

if [ -n "${TUNE:-}" ]; then
    check "a plan and an offline processor" 60 offline_processor
fi

if [ -n "${TUNE:-}" ] && [ -n "${DOORBELL_BENCH:-}" ]; then
    check "doorbell-bench by a plan" 120 bench_by_plan
fi

# Last: it leaves the machine with swap, and in a group of its own.
if [ -n "${TUNE:-}" ]; then
    harness "tune check" 300 bash xtask/vm/check.sh
fi

result
