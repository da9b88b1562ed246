#!/bin/sh
# Written by `tune check --boot`; a change here is lost with the next.
ROOT=${ROOT:-}
STATE=
# ROOT is the folder that holds the machine's files, empty for this machine. Where STATE is not
# empty, it is the file that keeps what was there before: `tune check --undo` restores it.
failed=0

# What /proc and /sys hold ends with this start of the machine.
start=-
if [ -r "$ROOT/proc/sys/kernel/random/boot_id" ]; then
    read -r start < "$ROOT/proc/sys/kernel/random/boot_id"
fi

# keep KIND NAME BEFORE: a line of STATE.
keep() {
    [ -n "$STATE" ] || return 0
    [ -d "${STATE%/*}" ] || mkdir -p "${STATE%/*}"
    printf '%s\t%s\t%s\t%s\n' "$start" "$1" "$2" "$3" >> "$STATE"
}

# put FILE VALUE: keeps what FILE holds, then writes VALUE.
put() {
    file=$1
    value=$2
    before=absent
    if [ -e "$ROOT$file" ]; then
        # Two digits for each byte; joined without the spaces between.
        set -- $(od -An -vtx1 "$ROOT$file")
        IFS=
        before="had:$*"
        unset IFS
    fi
    if ! keep file "$file" "$before"; then
        echo "$file is left alone: what it holds cannot be kept in $STATE" >&2
        failed=1
    elif ! printf '%s\n' "$value" > "$ROOT$file"; then
        echo "$file did not take $value" >&2
        case $file in
        /proc/irq/*) ;; # some interrupts are the kernel's own to place
        *) failed=1 ;;
        esac
    fi
}

# stop SERVICE: keeps that it runs, then stops it.
stop() {
    if [ -n "$ROOT" ]; then
        echo "$1 is left alone: $ROOT is not this machine" >&2
    elif ! command -v systemctl > /dev/null; then
        echo "$1 is left alone: there is no systemctl here; end it the way it was started" >&2
        failed=1
    elif systemctl is-active --quiet "$1"; then
        keep service "$1" active && systemctl stop "$1" || failed=1
    fi
}

# each PATTERN VALUE [BESIDE NUMBER]: puts VALUE into each file that PATTERN names; with BESIDE, into
# those beside which a file of that name holds more than NUMBER.
each() {
    if [ -z "$2" ]; then
        echo "$1 is left alone: doorbell-tune.env does not say what it should hold" >&2
        return
    fi
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ -z "${3:-}" ] || [ "$(cat "${path%/*}/$3")" -gt "$4" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# at_least PATTERN NUMBER: puts NUMBER into each file that PATTERN names and that holds less.
at_least() {
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ "$(cat "$path")" -lt "$2" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# Patterns are looked for from here.
cd "$ROOT/" || exit 1


HUGEPAGES=${HUGEPAGES:-64}
HOUSEKEEPING=${HOUSEKEEPING:-}

# hugepages: each node with memory has pages of 2 MiB set aside (--hugepages says how many): a
#   region in small pages needs 512 times the translations, in the core and in the NIC
at_least '/sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB/nr_hugepages' "$HUGEPAGES"

# thp: transparent huge pages are for those who ask (madvise): `never` takes the second-best pages
#   away; `always` lets khugepaged move any program's memory while it runs
each /sys/kernel/mm/transparent_hugepage/enabled "madvise"

# thp_defrag: a page fault does not wait for memory to be compacted, unless it asked (madvise): with
#   `always` any first touch may stop to reclaim and to move pages about
each /sys/kernel/mm/transparent_hugepage/defrag "madvise"

# governor: the CPU frequency governor is performance: others lower the clock when a core looks idle
#   and raise it after load has shown
each '/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor' "performance"

# cstates: no sleep state that takes more than 10 us to leave: a worker that waits for an event pays
#   the way out of the state its core has sunk into
each '/sys/devices/system/cpu/cpu[0-9]*/cpuidle/state[0-9]*/disable' "1" latency 10

# irq_affinity: no interrupt goes to a worker's core: an interrupt stops the worker, and its handler
#   takes the worker's cache lines
each '/proc/irq/[0-9]*/smp_affinity_list' "$HOUSEKEEPING"

# irqbalance: irqbalance does not run, or knows the workers' cores as isolated: it spreads
#   interrupts over all cores again, whatever was set before
stop irqbalance

# clocksource: the kernel reads time from the core's own counter (tsc): from others, each
#   clock_gettime(2) is a system call or asks a device
each /sys/devices/system/clocksource/clocksource0/current_clocksource "tsc"

exit $failed
