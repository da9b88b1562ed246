#!/bin/sh
# Written by `tune check --boot`; it will overwrite changes.
ROOT=${ROOT:-}
STATE=
# ROOT is the folder with the machine's files, empty for this machine. STATE is the file that saves
# the previous values for `tune check --undo`; if it is empty, none are saved.
failed=0

# Values in /proc and /sys last until the machine restarts.
start=-
if [ -r "$ROOT/proc/sys/kernel/random/boot_id" ]; then
    read -r start < "$ROOT/proc/sys/kernel/random/boot_id"
fi

# keep KIND NAME BEFORE: appends a line to STATE.
keep() {
    [ -n "$STATE" ] || return 0
    case ${STATE%/*} in
    "$STATE" | "") ;; # a bare name is in this folder, /NAME in the root
    *) [ -d "${STATE%/*}" ] || mkdir -p "${STATE%/*}" ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$start" "$1" "$2" "$3" >> "$STATE"
}

# put FILE VALUE: saves the value of FILE, then writes VALUE to it.
put() {
    file=$1
    value=$2
    before=absent
    if [ -e "$ROOT$file" ]; then
        # Two digits for each byte, joined without spaces.
        set -- $(od -An -vtx1 "$ROOT$file")
        IFS=
        before="had:$*"
        unset IFS
    fi
    if ! keep file "$file" "$before"; then
        echo "$file is left alone: its value cannot be saved in $STATE" >&2
        failed=1
    elif ! printf '%s\n' "$value" > "$ROOT$file"; then
        echo "$file did not take $value" >&2
        case $file in
        /proc/irq/*) ;; # the kernel does not let some interrupts be moved
        *) failed=1 ;;
        esac
    fi
}

# stop SERVICE: if it runs, saves that, then stops it.
stop() {
    if [ -n "$ROOT" ]; then
        echo "$1 is left alone: $ROOT is not this machine" >&2
    elif ! command -v systemctl > /dev/null; then
        echo "$1 is left alone: there is no systemctl here; stop it the way it was started" >&2
        failed=1
    elif systemctl is-active --quiet "$1"; then
        keep service "$1" active && systemctl stop "$1" || failed=1
    fi
}

# each PATTERN VALUE [NEXT NUMBER]: writes VALUE to each file that matches PATTERN; with NEXT, only
# to those with a file called NEXT in the same folder that contains more than NUMBER.
each() {
    if [ -z "$2" ]; then
        echo "$1 is left alone: doorbell-tune.env has no value for it" >&2
        return
    fi
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ -z "${3:-}" ] || [ "$(cat "${path%/*}/$3")" -gt "$4" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# at_least PATTERN NUMBER WHOLE: writes NUMBER to each file that matches PATTERN and contains less,
# for the nodes in MEMORY_NODES, or for all if that is empty. WHOLE is the file of a machine that has
# none of these.
at_least() {
    files=
    pools=
    for path in .$1; do
        [ ! -e "$path" ] || pools=some
        node=${path#*/node/node}
        node=${node%%/*}
        case " ${MEMORY_NODES:-$node} " in
        *" $node "*) [ ! -e "$path" ] || files="$files $path" ;;
        esac
    done
    if [ -n "$pools" ] && [ -z "$files" ]; then
        echo "doorbell-tune: no node of MEMORY_NODES=$MEMORY_NODES is here" >&2
        return
    fi
    for path in ${files:-.$3}; do
        [ -e "$path" ] || continue
        if [ "$(cat "$path")" -lt "$2" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# Patterns are relative to this folder.
cd "$ROOT/" || exit 1


HUGEPAGES=${HUGEPAGES:-64}
MEMORY_NODES=${MEMORY_NODES:-}
HOUSEKEEPING=${HOUSEKEEPING:-}

# hugepages: each node with memory has pages of 2 MiB reserved (--hugepages says how many). Why: a
#   region in small pages needs 512 times as many translations, in the core and in the NIC
at_least '/sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB/nr_hugepages' "$HUGEPAGES" /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages

# thp: transparent huge pages are for programs that ask for them (madvise). Why: with `never` there
#   is no substitute for reserved pages; with `always` khugepaged moves any program's memory while
#   it runs
each /sys/kernel/mm/transparent_hugepage/enabled "madvise"

# thp_defrag: a page fault waits for compaction only in memory that asked for huge pages (madvise).
#   Why: with `always` any first touch may wait until memory is reclaimed and pages are moved
each /sys/kernel/mm/transparent_hugepage/defrag "madvise"

# governor: the CPU frequency governor is performance. Why: others lower the clock when a core seems
#   idle, and raise it late when load comes
each '/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor' "performance"

# cstates: no sleep state takes more than 10 us to leave. Why: a worker that waits for an event also
#   waits until its core has left the sleep state
each '/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/disable' "1" latency 10

# irq_affinity: no interrupt goes to a worker's core. Why: an interrupt stops the worker, and its
#   handler evicts the worker's cache lines
each '/proc/irq/[0-9]*/smp_affinity_list' "$HOUSEKEEPING"

# irqbalance: irqbalance does not run, or the workers' cores are isolated. Why: it spreads
#   interrupts over all cores again, whatever was configured
stop irqbalance

# clocksource: the kernel reads time from the core's own counter (tsc). Why: with other sources,
#   each clock_gettime(2) is a system call or reads a device
each /sys/devices/system/clocksource/clocksource0/current_clocksource "tsc"

exit $failed
