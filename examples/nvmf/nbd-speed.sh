#!/bin/bash
# Compares the gateway, with a target on soft behind it, with qemu-nbd: the same kind of file, the same
# client (fio's nbd engine), 4 KiB, in turn. Prints for each operation the medians of both, their ratio,
# and the processor time of all server processes for each request.
#
#   cargo build --release -p doorbell-nvmf
#   examples/nvmf/nbd-speed.sh [ROUNDS [SECONDS [DEPTH [FOLDER]]]]

rounds=${1:-9} seconds=${2:-1} depth=${3:-32} folder=${4:-/dev/shm}
nvmf=${NVMF:-target/release/nvmf} ops='read write randread randwrite'
work=$(mktemp -d -p "$folder")
trap 'kill $target $gateway $qemu 2> /dev/null; rm -rf "$work"' EXIT

must() {
    "$@" || { echo "failed: $*"; exit 1; }
}

# await FILE: waits until a server has made it.
await() {
    for ((tenths = 0; tenths < 300; tenths++)); do
        [ -e "$1" ] && return
        sleep 0.1
    done
    echo "there is no $1"
    exit 1
}

for side in ours theirs; do
    must dd if=/dev/zero of="$work/$side" bs=1M count=64 status=none
done
"$nvmf" target --device soft0 --port 0 --file "$work/ours" > "$work/target" &
target=$!
until grep -q '^listening' "$work/target"; do
    kill -0 $target || exit 1
    sleep 0.1
done
port=$(sed -n 's/.*127.0.0.1:\([0-9]*\).*/\1/p' "$work/target")
"$nvmf" gateway --device soft0 --port "$port" --unix "$work/ours.sock" > "$work/gateway" &
gateway=$!
qemu-nbd -k "$work/theirs.sock" -f raw -t -e 8 "$work/theirs" &
qemu=$!
await "$work/ours.sock"
await "$work/theirs.sock"

# ticks PID...: processor time of processes, in ticks of 10 ms.
ticks() {
    local sum=0 pid
    for pid; do
        sum=$((sum + $(awk '{ print $14 + $15 }' "/proc/$pid/stat")))
    done
    echo $sum
}

# run SIDE OPERATION: one run of fio; a line with requests a second and microseconds a request.
run() {
    local -a servers=($qemu)
    [ "$1" = ours ] && servers=($target $gateway)
    local before after
    before=$(ticks "${servers[@]}")
    fio --name=x --ioengine=nbd --uri="nbd+unix:///?socket=$work/$1.sock" --rw="$2" --bs=4k \
        --iodepth="$depth" --size=64M --time_based --runtime="$seconds" \
        --output-format=terse --terse-version=3 > "$work/fio" 2>&1 || { cat "$work/fio"; exit 1; }
    after=$(ticks "${servers[@]}")
    awk -F ';' -v ticks=$((after - before)) -v name="$2 $1" \
        'NF > 50 { print name, $8 + $49, ticks * 10000 * 4 / ($6 + $47) }' "$work/fio"
}

for ((round = 0; round < rounds; round++)); do
    for op in $ops; do
        run ours $op
        run theirs $op
    done
done > "$work/runs"
sort -k 1,2 -k 3n "$work/runs" | awk -v depth="$depth" -v ops="$ops" '
    function median(key) { return value[key, int((n[key] + 1) / 2)] }
    { key = $1 " " $2; value[key, ++n[key]] = $3; cost[key] += $4 }
    END {
        print "| operation | depth | gateway, per s | qemu-nbd, per s | ratio | CPU each, us | ratio |"
        print "|---|---|---|---|---|---|---|"
        count = split(ops, op, " ")
        for (i = 1; i <= count; i++) {
            a = op[i] " ours"; b = op[i] " theirs"
            printf "| %s | %d | %d | %d | %.2f | %.1f, %.1f | %.2f |\n", op[i], depth, median(a),
                median(b), median(a) / median(b), cost[a] / n[a], cost[b] / n[b], cost[b] / cost[a]
        }
    }'
