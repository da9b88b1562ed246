#!/bin/bash
# The drop-in beside the device alone, and UCX over the drop-in beside UCX's own shared memory. In
# the row "signalled" each send of the device alone completes, as each send of ib_send_lat does. The
# row "least" has a library that only copies each message and sets a flag (examples/floor.rs), beside
# the device alone: about what ib_send_lat and the transfers take. Its pause fits near cores; FLOOR_PAUSE sets it.
#
#   cm/dropin/speed.sh [ROUNDS]
#
# Builds both, and runs each pair of programs in turn, ROUNDS times (5 unless told otherwise), on
# the two cores of CORES (0,1 unless set). Prints the medians, the median of the rounds' ratios, and
# the range of these. A virtual machine may move its cores near to each other and far: a probe before
# and after each pair tells, and rounds of one kind stand in a row of their own. LIB and BENCH name
# built files, which are then not built: the folder with `doorbell`, its library and
# `examples/libfloor.so`, and `doorbell-bench`. A machine with other work gives ratios, no figures.

set -u
cd "$(dirname "$0")/../.." || exit 1
rounds=${1:-5}
IFS=, read -r here there <<< "${CORES:-0,1}"
port=18600

if [ -z "${LIB:-}" ]; then
    cargo build --quiet --profile dropin -p doorbell-dropin --lib --bins --example floor || exit 1
    LIB=target/dropin
fi
if [ -z "${BENCH:-}" ]; then
    cargo build --quiet --release -p doorbell-bench || exit 1
    BENCH=target/release/doorbell-bench
fi

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# both CLIENT_ADDRESS COMMAND...: runs a server and, when it listens, its client; what that prints.
both() {
    local address=$1 server
    shift
    timeout -k 1 90 taskset -c "$there" "$@" > "$scratch/server" 2>&1 &
    server=$!
    sleep 1
    timeout -k 1 90 taskset -c "$here" "$@" "$address" 2> "$scratch/client"
    wait "$server"
}

# perftest PROGRAM COLUMN SIZE COUNT [START...]: a number of the last line of figures. START begins
# the command that runs it, by the drop-in unless there is one.
perftest() {
    local program=$1 column=$2 size=$3 count=$4
    shift 4
    [ $# -gt 0 ] || set -- "$LIB/doorbell" run --
    port=$((port + 1))
    both localhost "$@" "$program" -d soft0 -x 0 -F -p $port -s "$size" -n "$count" |
        awk -v size="$size" -v column="$column" '$1 == size { print $column }' | tail -1
}

# bench COLUMN SIZE WORDS...: a number of the device alone.
bench() {
    local column=$1 size=$2
    shift 2
    "$BENCH" "$@" --size "$size" --cores "$here,$there" --duration 0.5 |
        awk -v size="$size" -v column="$column" '$1 == size { print $column; exit }'
}

# ucx COLUMN TRANSPORT WORDS...: a number of ucx_perftest. posix needs no device.
ucx() {
    local column=$1 transport=$2 over=(env)
    shift 2
    port=$((port + 1))
    [ "$transport" = posix ] || over=(env UCX_NET_DEVICES=soft0:1 "$LIB/doorbell" run --)
    UCX_TLS=$transport,self UCX_WARN_UNUSED_ENV_VARS=n \
        both 127.0.0.1 "${over[@]}" ucx_perftest -p $port "$@" |
        awk -v column="$column" '$1 == "Final:" { print $column }'
}

# Whether the cores are near now: NEAR, FAR or, if they moved meanwhile, MIX.
cores() {
    "$BENCH" latency --size 8 --cores "$here,$there" --duration 0.05 | awk '$1 == 8 { print $11; exit }'
}

# One round of a row: the figure of the drop-in, then that of what is beside it. perftest's latency
# is in microseconds, its rate in MiB/s; the benchmark's are in nanoseconds and GB/s.
measure() {
    case $1 in
        ib_send_lat)
            perftest ib_send_lat 5 8 50000 | awk '{ print $1 * 1000 }'
            bench 2 8 latency --bare ;;
        least)
            [ -f "$LIB/examples/libfloor.so" ] || return
            local preload="$LIB/examples/libfloor.so:$LIB/libdoorbell_dropin.so"
            rm -f "$scratch/floor"
            perftest ib_send_lat 5 8 50000 env FLOOR="$scratch/floor" LD_PRELOAD="$preload" |
                awk '{ print $1 * 1000 }'
            bench 2 8 latency --bare ;;
        signalled)
            perftest ib_send_lat 5 8 50000 | awk '{ print $1 * 1000 }'
            bench 2 8 latency --bare --signal-every 1 ;;
        ib_send_bw | ib_write_bw | ib_read_bw)
            local op=${1#ib_}
            perftest "$1" 4 65536 20000 | awk '{ print $1 * 1048576 / 1e9 }'
            bench 4 65536 bandwidth --op "${op%_bw}" ;;
        "ucx tag_lat" | "ucx ucp_put_lat" | "ucx ucp_get")
            for transport in rc_v posix; do
                ucx 3 $transport -t "${1#ucx }" -s 8 -n 50000 | awk '{ print $1 * 1000 }'
            done ;;
        "ucx tag_bw")
            for transport in rc_v posix; do
                ucx 7 $transport -t tag_bw -s 65536 -n 10000 | awk '{ print $1 * 1048576 / 1e9 }'
            done ;;
    esac
}

# row NAME UNIT AIM: all rounds. An aim is "<= RATIO" or ">= RATIO", or nothing.
row() {
    local name=$1 unit=$2 aim=${3:-} round before after pair kind
    after=$(cores)
    for round in $(seq "$rounds"); do
        before=$after
        pair=$(measure "$name" | paste -sd' ')
        after=$(cores)
        [ "$before" = "$after" ] || before=MIX
        echo "$before $pair"
    done > "$scratch/rounds"
    for kind in NEAR FAR MIX; do
        awk -v kind=$kind '$1 == kind { print $2, $3 }' "$scratch/rounds" > "$scratch/kind"
        [ -s "$scratch/kind" ] && summary "$name" "$kind" "$unit" "$aim" < "$scratch/kind"
    done
}

# summary NAME KIND UNIT AIM: the rounds of one kind.
summary() {
    awk -v name="$1" -v kind="$2" -v unit="$3" -v aim="$4" '
        function median(list, n,    i, j, t) {
            for (i = 1; i < n; i++) for (j = i + 1; j <= n; j++)
                if (list[j] < list[i]) { t = list[i]; list[i] = list[j]; list[j] = t }
            return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
        }
        NF == 2 && $2 > 0 { n++; own[n] = $1; other[n] = $2; ratio[n] = $1 / $2 }
        END {
            if (n == 0) { printf "%-15s told no figures\n", name; exit }
            middle = median(ratio, n)
            split(aim, part, " ")
            says = aim == "" ? "-" : (part[1] == "<=" ? middle <= part[2] : middle >= part[2]) \
                ? "met" : "missed"
            printf "%-15s %-5s %6d %9.4g %9.4g %-4s %7.2f  %5.2f to %-5.2f %-7s %s\n", name, \
                kind, n, median(own, n), median(other, n), unit, middle, ratio[1], ratio[n], aim, says
        }'
}

printf "%-15s %-5s %6s %9s %9s %-4s %7s  %14s %-7s\n" \
    program cores rounds drop-in beside unit ratio range aim
row ib_send_lat ns "<= 1.3"
row signalled ns
row least ns
row ib_send_bw GB/s ">= 0.7"
row ib_write_bw GB/s ">= 0.7"
row ib_read_bw GB/s ">= 0.7"
if command -v ucx_perftest > /dev/null; then
    row "ucx tag_lat" ns
    row "ucx ucp_put_lat" ns
    row "ucx ucp_get" ns
    row "ucx tag_bw" GB/s
fi
