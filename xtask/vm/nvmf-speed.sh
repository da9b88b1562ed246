# Compares the target of examples/nvmf with the kernel's nvmet-rdma: the same initiator, the same rxe0,
# the same backing, in turn. Run by bash as root in the virtual machine:
#
#   cargo build --release -p doorbell-nvmf --features verbs
#   cargo xtask vm run --append idle=poll -- bash xtask/vm/nvmf-speed.sh [ROUNDS [SECONDS]]
#
# With idle=poll a processor that has nothing to do polls, as on machines that are set up for low latency.
# Without, the host stops an emulated processor that sleeps, and takes milliseconds to start it again.
#
# For each backing (memory, and a file on ext4 in a RAM disk), operation and depth it prints the
# medians of both and their ratio. PERF=1 adds a profile of the processor during a run of each, and
# CALLS=1 the system calls of the target for each command at depth 1.

. xtask/vm/harness.sh

rounds=${1:-5} seconds=${2:-3}
nvmf=${NVMF:-target/release/nvmf}
address=192.168.77.1
ours=nqn.2026-11.rs.doorbell:speed
theirs=nqn.2026-11.rs.doorbell:nvmet
megabytes=32

await() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || { echo "this did not come: $*"; exit 1; }
        sleep 0.1
    done
}

must() {
    "$@" || { echo "failed: $*"; exit 1; }
}

# backing: two RAM disks, one with ext4 and a written file for each target.
backing() {
    must modprobe brd rd_nr=2 rd_size=$((megabytes * 3 * 1024))
    must mkfs.ext4 -q -F /dev/ram1
    must mkdir -p "$scratch/files"
    must mount /dev/ram1 "$scratch/files"
    for side in ours theirs; do
        must dd if=/dev/zero of="$scratch/files/$side" bs=1M count=$megabytes status=none
    done
    sync
}

# kernel_target: nvmet with the RAM disk and the file, at port 4421.
kernel_target() {
    local root=/sys/kernel/config/nvmet number
    mountpoint -q /sys/kernel/config || must mount -t configfs none /sys/kernel/config
    must modprobe nvmet-rdma
    must mkdir $root/subsystems/$theirs $root/ports/1
    echo 1 > $root/subsystems/$theirs/attr_allow_any_host
    for number in 1 2; do
        local space=$root/subsystems/$theirs/namespaces/$number device=/dev/ram0
        [ $number = 2 ] && device=$scratch/files/theirs
        must mkdir $space
        echo -n "$device" > $space/device_path
        echo 0 > $space/buffered_io
        echo 1 > $space/enable || must false
    done
    echo rdma > $root/ports/1/addr_trtype
    echo ipv4 > $root/ports/1/addr_adrfam
    echo $address > $root/ports/1/addr_traddr
    echo 4421 > $root/ports/1/addr_trsvcid
    must ln -s $root/subsystems/$theirs $root/ports/1/subsystems/$theirs
}

our_target() {
    "$nvmf" target --device rxe0 --addr $address --nqn $ours --memory ${megabytes}M \
        --file "$scratch/files/ours" > "$scratch/target" 2>&1 &
    target=$!
    await 60 grep -q '^listening on' "$scratch/target"
}

# job NAME DEVICE OPERATION DEPTH: one job of fio's file, after the one before it.
job() {
    printf '[%s]\nstonewall\nfilename=%s\nrw=%s\niodepth=%s\n' "$@" >> "$scratch/jobs"
}

jobs() {
    local round depth op space name
    printf '[global]\nioengine=libaio\ndirect=1\nbs=4k\ntime_based\nruntime=%s\nsize=%sM\n' \
        $seconds $megabytes > "$scratch/jobs"
    for ((round = 0; round < rounds; round++)); do
        for space in 1 2; do
            for depth in 1 32; do
                for op in randread randwrite; do
                    name=$space,$op,$depth
                    job $name,ours "$(disk $ours)n$space" $op $depth
                    job $name,theirs "$(disk $theirs)n$space" $op $depth
                done
            done
        done
    done
}

# disk NQN: the controller's device.
disk() {
    grep -l -x -s "$1" /sys/class/nvme/*/subsysnqn | cut -d / -f 5 | sed 's,^,/dev/,'
}

there() {
    [ -b "$(disk $ours)n2" ] && [ -b "$(disk $theirs)n2" ]
}

medians() {
    awk -F ';' '
        { n[$3]++; value[$3, n[$3]] = $8 + $49; lat[$3, n[$3]] = $40 + $81; total[$3] = n[$3] }
        function median(table, key,    i, j, t, count, list) {
            count = total[key]
            for (i = 1; i <= count; i++) list[i] = table[key, i]
            for (i = 1; i <= count; i++) for (j = i + 1; j <= count; j++)
                if (list[j] < list[i]) { t = list[i]; list[i] = list[j]; list[j] = t }
            return list[int((count + 1) / 2)]
        }
        END {
            split("memory file", name, " ")
            printf "| backing | operation | depth | nvmf, per s | nvmet, per s | ratio |\n"
            printf "|---|---|---|---|---|---|\n"
            for (space = 1; space <= 2; space++) for (d = 1; d <= 32; d += 31)
                for (o = 1; o <= 2; o++) {
                    op = o == 1 ? "randread" : "randwrite"
                    key = space "," op "," d
                    a = median(value, key ",ours"); b = median(value, key ",theirs")
                    printf "| %s | %s | %d | %d | %d | %.2f |\n", name[space], op, d, a, b, a / b
                }
        }' "$1"
}

# profile NAME DEVICE OPERATION DEPTH: where the processors are during a run.
profile() {
    echo "== $1: $3, depth $4"
    fio --name="$1" --filename="$2" --ioengine=libaio --direct=1 --bs=4k --rw="$3" --iodepth="$4" \
        --time_based --runtime=6 --size=${megabytes}M > /dev/null &
    sleep 2
    perf record -a -g -e cpu-clock -F 500 -o "$scratch/perf" -- sleep 3 > /dev/null 2>&1
    perf report -i "$scratch/perf" --no-children -g none --sort comm,dso,symbol --stdio 2> /dev/null |
        grep -v '^#' | grep -v '^$' | head -n "${LINES_SHOWN:-45}"
    wait $!
}

# calls DEVICE OPERATION: the system calls of the target for each command at depth 1, by number.
calls() {
    local trace=/sys/kernel/tracing device=${1#/dev/} before after
    # With multipath the path counts, not the device above it.
    local stat=(/sys/block/"${device%n*}"c*n"${device##*n}"/stat)
    [ -e "${stat[0]}" ] || stat=(/sys/block/"$device"/stat)
    mountpoint -q $trace || must mount -t tracefs none $trace
    ls /proc/$target/task > $trace/set_event_pid
    echo 32768 > $trace/buffer_size_kb
    fio --name=calls --filename="$1" --ioengine=libaio --direct=1 --bs=4k --rw="$2" --iodepth=1 \
        --time_based --runtime=6 --size=${megabytes}M > /dev/null &
    sleep 3
    before=$(awk '{ print $1 + $5 }' "${stat[0]}")
    echo 1 > $trace/events/raw_syscalls/sys_enter/enable
    sleep 2
    echo 0 > $trace/events/raw_syscalls/sys_enter/enable
    after=$(awk '{ print $1 + $5 }' "${stat[0]}")
    echo "$device, $2: $((after - before)) commands, and these calls for each"
    sed -n 's/.*sys_enter: NR \([0-9]*\) .*/\1/p' $trace/trace |
        awk -v commands=$((after - before)) '{ n[$1]++ }
            END { for (call in n) printf "  %5.2f of number %d\n", n[call] / commands, call }' |
        sort -rn
    echo > $trace/trace
    wait $!
}

must modprobe nvme-rdma
backing
kernel_target
our_target
must nvme connect -t rdma -a $address -s 4420 -n $ours --nr-io-queues=2 > /dev/null
must nvme connect -t rdma -a $address -s 4421 -n $theirs --nr-io-queues=2 > /dev/null
await 30 there
jobs
fio --output-format=terse --terse-version=3 "$scratch/jobs" > "$scratch/terse" || cat "$scratch/terse"
medians "$scratch/terse"
if [ -n "${PERF:-}" ]; then
    for depth in 1 32; do
        profile nvmf "$(disk $ours)n1" "${PERF_OP:-randread}" $depth
        profile nvmet "$(disk $theirs)n1" "${PERF_OP:-randread}" $depth
    done
fi
if [ -n "${CALLS:-}" ]; then
    for space in 1 2; do
        calls "$(disk $ours)n$space" randread
        calls "$(disk $ours)n$space" randwrite
    done
fi
nvme disconnect -n $ours > /dev/null
nvme disconnect -n $theirs > /dev/null
kill -TERM $target && wait $target
cat "$scratch/target"
