# What `tune check` mends, on a real kernel with two nodes, as root: each condition is made bad, seen,
# applied, seen to be fine, undone, and then holds what it held before. TUNE is the program's path.
# Ends with 0 if all did.

state=$(mktemp -d)/tune.state
tune=("$TUNE")
options=()
wrong=0

# fault NAME TEXT...: one thing that is not as it should be.
fault() {
    echo "FAULT: $*"
    wrong=1
}

# severity NAME: what the check says.
severity() {
    "${tune[@]}" check --only "$1" --json "${options[@]}" |
        grep -o '"severity": *"[a-z]*"' | cut -d'"' -f4
}

# held FILE...: what the files hold.
held() {
    grep -H '' "$@" 2>&1
}

# applied NAME FILE...: applies, and undoes to what the files held, twice the same.
applied() {
    local name=$1 before
    shift
    before=$(held "$@")
    "${tune[@]}" check --apply --only "$name" --state "$state" "${options[@]}" \
        > "$state.out" 2>&1 || fault "$name: apply ended with $?: $(cat "$state.out")"
    found=$(severity "$name")
    [ "$(held "$@")" != "$before" ] || fault "$name: still $before"
    "$TUNE" check --undo --state "$state" > "$state.out" 2>&1 ||
        fault "$name: undo ended with $?: $(cat "$state.out")"
    [ "$(held "$@")" = "$before" ] || fault "$name: was $before, and is $(held "$@")"
    [ "$("$TUNE" check --undo --state "$state")" = "nothing to undo" ] ||
        fault "$name: could be undone twice"
}

# cycle NAME SEVERITY FINE FILE...: a condition that was made, and what it is when mended.
cycle() {
    local name=$1 bad=$2 fine=$3 found
    shift 3
    found=$(severity "$name")
    [ "$found" = "$bad" ] || fault "$name: $found when made, not $bad"
    applied "$name" "$@"
    [ "$found" = "$fine" ] || fault "$name: $found when applied, not $fine"
    echo "$name: $bad, applied, $fine, undone"
}

# with NAME SEVERITY VALUE FILE: the same, for a value in one file.
with() {
    echo "$3" > "$4" || fault "$1: $4 does not take $3"
    cycle "$1" "$2" fine "$4"
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

# Without the right to lock, and with little leave to.
(
    ulimit -l 64
    tune=(setpriv --bounding-set -ipc_lock "$TUNE")
    cycle memlock bad note /etc/security/limits.d/60-doorbell.conf
    exit $wrong
) || wrong=1

# Swap in memory is enough to have some.
truncate -s 64M "$state.swap" && mkswap -q "$state.swap" &&
    modprobe loop && swapon "$(losetup -f --show "$state.swap")" || fault "swap: cannot be had"
with swap note 60 /proc/sys/vm/swappiness

# Workers on the second node; every interrupt may go there.
options=(--cores 2-3)
affinities=(/proc/irq/[0-9]*/smp_affinity_list)
for file in "${affinities[@]}"; do echo 3 > "$file"; done 2> /dev/null
cycle irq_affinity bad fine "${affinities[@]}"
options=()

# A group of this shell's own.
echo "+cpu +memory +hugetlb" > /sys/fs/cgroup/cgroup.subtree_control && mkdir $group &&
    echo $$ > $group/cgroup.procs || fault "groups: cannot be had"
with cgroup_cpu bad "50000 100000" $group/cpu.max
with cgroup_memory note 1073741824 $group/memory.max
with cgroup_hugetlb bad 2097152 $group/hugetlb.2MB.max

# All at once, as a person would; the kernel's command line stays as it is, so some is bad still.
files=("${pools[@]}" $thp/enabled $thp/defrag /proc/sys/kernel/numa_balancing
    /proc/sys/vm/zone_reclaim_mode $group/cpu.max $group/hugetlb.2MB.max)
before=$(held "${files[@]}")
"$TUNE" check --apply > "$state.out" 2>&1
[ $? = 1 ] || fault "all: $(cat "$state.out")"
for name in hugepages thp_defrag numa_balancing zone_reclaim cgroup_cpu cgroup_hugetlb; do
    [ "$(severity $name)" = fine ] || fault "all: $name is $(severity $name)"
done
"$TUNE" check --undo || fault "all: undo ended with $?"
[ "$(held "${files[@]}")" = "$before" ] || fault "all: was $before, and is $(held "${files[@]}")"
echo "all at once: applied, undone"

exit $wrong
