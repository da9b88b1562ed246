# What `tune check` fixes, on a real kernel with two nodes, run by bash as root. TUNE is the program's
# path. Each condition is made bad, seen, applied, seen to be fine, undone, and then holds what it
# held before; each is one test.
#
# To add a condition, add a line at the end of its like: `cycle NAME SEVERITY FINE FILE…` once it is
# made, or `with NAME SEVERITY VALUE FILE` for one value in one file.

. xtask/vm/harness.sh

state=$scratch/state/tune.state
tune=("$TUNE")
options=()

# severity NAME: what the check says.
severity() {
    "${tune[@]}" check --only "$1" --json "${options[@]}" |
        grep -o '"severity": *"[a-z]*"' | cut -d'"' -f4
}

# held FILE...: what the files hold.
held() {
    grep -H '' "$@" 2>&1
}

# same WHAT ONE OTHER: both are the same, or else says so.
same() {
    [ "$2" = "$3" ] || { echo "$1: $2, not $3"; false; }
}

# fixed NAME SEVERITY FINE FILE...: from bad to fine and back to what the files held, once.
fixed() {
    local name=$1 bad=$2 fine=$3 before good=yes
    shift 3
    same "when made" "$(severity "$name")" "$bad" || good=
    before=$(held "$@")
    "${tune[@]}" check --apply --only "$name" --state "$state" "${options[@]}" || good=
    same "when applied" "$(severity "$name")" "$fine" || good=
    [ "$(held "$@")" != "$before" ] || { echo "still $before"; good=; }
    "$TUNE" check --undo --state "$state" || good=
    same "when undone" "$(held "$@")" "$before" || good=
    same "undone again" "$("$TUNE" check --undo --state "$state")" "nothing to undo" || good=
    [ "$good" ]
}

cycle() {
    check "tune check fixes $1" 0 fixed "$@"
}

with() {
    echo "$3" > "$4"
    cycle "$1" "$2" fine "$4"
}

# Workers on the second node, and every interrupt that can be sent there is sent there.
interrupts() {
    local files=(/proc/irq/[0-9]*/smp_affinity_list) file
    for file in "${files[@]}"; do echo 3 > "$file"; done 2> /dev/null
    options=(--cores 2-3)
    fixed irq_affinity bad fine "${files[@]}"
    local code=$?
    options=()
    return $code
}

# Without the right to lock, and with little leave to.
little_memlock() {
    (
        ulimit -l 64
        tune=(setpriv --bounding-set -ipc_lock "$TUNE")
        fixed memlock bad note /etc/security/limits.d/60-doorbell.conf
    )
}

# Swap in a file in memory is enough to have some.
some_swap() {
    truncate -s 64M "$scratch/swap" && mkswap -q "$scratch/swap" && modprobe loop &&
        swapon "$(losetup -f --show "$scratch/swap")"
}

# A control group for this shell.
own_group() {
    echo "+cpu +memory +hugetlb" > /sys/fs/cgroup/cgroup.subtree_control && mkdir $group &&
        echo $$ > $group/cgroup.procs
}

# All at once, as a person would. The kernel's command line stays as it is, so some is bad still.
all_at_once() {
    local files=("${pools[@]}" $thp/enabled $thp/defrag /proc/sys/kernel/numa_balancing
        /proc/sys/vm/zone_reclaim_mode $group/cpu.max $group/hugetlb.2MB.max)
    local before name good=yes
    before=$(held "${files[@]}")
    "$TUNE" check --apply --state "$state"
    same "exit code" $? 1 || good=
    for name in hugepages thp_defrag numa_balancing zone_reclaim cgroup_cpu cgroup_hugetlb; do
        same "$name" "$(severity $name)" fine || good=
    done
    "$TUNE" check --undo --state "$state" || good=
    same "when undone" "$(held "${files[@]}")" "$before" || good=
    [ "$good" ]
}

pools=(/sys/devices/system/node/node[01]/hugepages/hugepages-2048kB/nr_hugepages)
thp=/sys/kernel/mm/transparent_hugepage
group=/sys/fs/cgroup/tune-check

for pool in "${pools[@]}"; do echo 1 > "$pool"; done
cycle hugepages bad fine "${pools[@]}"
with thp note always $thp/enabled
with thp_defrag bad always $thp/defrag
with numa_balancing bad 1 /proc/sys/kernel/numa_balancing
with zone_reclaim bad 1 /proc/sys/vm/zone_reclaim_mode
with stat_interval note 1 /proc/sys/vm/stat_interval
with mtu note 1500 /sys/class/net/d0/mtu
check "tune check fixes memlock" 0 little_memlock
check "some swap" 0 some_swap
with swap note 60 /proc/sys/vm/swappiness
check "tune check fixes irq_affinity" 0 interrupts
check "a control group" 0 own_group
with cgroup_cpu bad "50000 100000" $group/cpu.max
with cgroup_memory note 1073741824 $group/memory.max
with cgroup_hugetlb bad 2097152 $group/hugetlb.2MB.max
check "tune check fixes all at once" 0 all_at_once

result
