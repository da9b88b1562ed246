# The kernel's NVMe initiator with the target of examples/nvmf, run by bash as root beside rxe0. NVMF
# is the target's path. Each check is one test. With LONG=1 it is silent for two minutes and kills the
# target ten times (nvmf-wire.sh takes the link away):
#
#   cargo build -p doorbell-nvmf --features verbs
#   cargo xtask vm run -- env LONG=1 NVMF=target/debug/nvmf bash xtask/vm/nvmf.sh

. xtask/vm/up.sh
. xtask/vm/harness.sh

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
address=192.168.77.1
nqn=nqn.2026-11.rs.doorbell:vm
log=$scratch/target
silent=8 kills=2
[ -n "${LONG:-}" ] && silent=125 kills=10
where=(-t rdma -a $address -s 4420)

# start STORE...: starts a target, and waits until it listens. If it never does, shows where in the
# kernel its threads are.
start() {
    : > "$log"
    "$NVMF" target --device rxe0 --addr $address --nqn $nqn "$@" > "$log" 2>&1 &
    target=$!
    await 300 grep -q '^listening on' "$log" || { cat "$log" /proc/$target/task/*/stack; return 1; }
}

# stop: ends the target, which must end well without having seen a breach.
stop() {
    kill -TERM $target && wait $target && cat "$log" && grep -q ' 0 breaches' "$log"
}

discover() {
    timeout 60 nvme discover "${where[@]}" | tee "$scratch/found" && grep -q "$nqn" "$scratch/found"
}

disk() {
    [ -b /dev/nvme0n1 ]
}

# connect OPTION...: connects, and waits for the disk.
connect() {
    timeout 300 nvme connect "${where[@]}" -n $nqn --nr-io-queues=2 "$@" && await 300 disk &&
        grep -q '^3$' /sys/class/nvme/nvme0/queue_count
}

disconnect() {
    timeout 60 nvme disconnect -n $nqn && ! disk
}

queries() {
    nvme id-ctrl /dev/nvme0 | grep 'Doorbell' && nvme smart-log /dev/nvme0 | grep -i host_read &&
        nvme list-ns /dev/nvme0 && nvme get-feature /dev/nvme0 -f 7 &&
        nvme fw-log /dev/nvme0 && nvme error-log /dev/nvme0 | head -n 3
}

files() {
    mkdir -p "$scratch/disk" && mkfs.ext4 -q -F /dev/nvme0n1 && mount /dev/nvme0n1 "$scratch/disk" &&
        cp -r engine/soft "$scratch/disk/tree" && umount "$scratch/disk" &&
        echo 3 > /proc/sys/vm/drop_caches && mount /dev/nvme0n1 "$scratch/disk" &&
        diff -r engine/soft "$scratch/disk/tree" && umount "$scratch/disk" &&
        fsck.ext4 -f -n /dev/nvme0n1
}

# all_verified JOB...: fio's jobs, each of which begins with its --name, write and find what they wrote.
all_verified() {
    timeout -k 5 600 fio --name=global --filename=/dev/nvme0n1 --ioengine=libaio --direct=1 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 "$@"
}

# verified OPTION...: the same with one job.
verified() {
    all_verified --name=verify "$@"
}

# all_sizes: in order and at random, the smallest, usual and largest blocks, one and 64 at once.
all_sizes() {
    local job=() op block depth
    for op in write randwrite; do
        for block in 512 4k 128k; do
            for depth in 1 64; do
                job+=(--name=$op-$block-$depth --stonewall --rw=$op --bs=$block --iodepth=$depth)
                job+=(--number_ios=80 --size=16M)
            done
        done
    done
    all_verified "${job[@]}"
}

discards() {
    dd if=/dev/urandom of=/dev/nvme0n1 bs=64k count=16 oflag=direct && blkdiscard /dev/nvme0n1 &&
        cmp -n 1048576 /dev/nvme0n1 /dev/zero &&
        dd if=/dev/urandom of=/dev/nvme0n1 bs=64k count=16 oflag=direct &&
        blkdiscard -z /dev/nvme0n1 && cmp -n 1048576 /dev/nvme0n1 /dev/zero
}

# A target that was told of 3 seconds ends a host after 6 without a sign of life.
silence() {
    sleep $silent
    cat /sys/class/nvme/nvme0/state
    grep -q live /sys/class/nvme/nvme0/state && dd if=/dev/nvme0n1 of=/dev/null bs=4k count=1 &&
        ! dmesg | grep -q 'starting error recovery'
}

# writes: fio writes and verifies again and again, until there is a file.
writes() {
    until [ -e "$scratch/enough" ]; do
        verified --rw=randwrite --bs=32k --iodepth=16 --size=4M --fsync=16 --rate_iops=16 || return 1
    done
}

# kill -9 in the middle of verified writes: the kernel connects again, and what it heard of is there.
killed() {
    writes &
    local writer=$! number ended
    for ((number = 1; number <= kills; number++)); do
        sleep 2
        kill -0 $writer || { echo "fio ended before kill $number"; return 1; }
        kill -KILL $target
        wait $target
        ended=$SECONDS
        start --file "$scratch/image" || return 1
        echo "it listens again $((SECONDS - ended)) s after kill $number"
    done
    : > "$scratch/enough"
    wait $writer
}

modprobe nvme-rdma
check "nvmf starts in memory" 0 start --memory 64M
check "nvme discover finds it" 0 discover
check "nvme connect gets two queues" 0 connect
check "nvme asks about it" 0 queries
check "a file system keeps a tree" 0 files
check "fio at random, all sizes" 0 verified --rw=randwrite --bsrange=512-128k --iodepth=32 --size=8M
check "fio in order and at random, 512 bytes to 128 KiB, depth 1 and 64" 0 all_sizes
check "blkdiscard leaves zeros" 0 discards
check "nvme disconnect" 0 disconnect
check "nvmf ends well" 0 stop
check "nvmf starts on a file" 0 start --file "$scratch/image" --size 64M
check "nvme connect with a short keep-alive" 0 connect -k 3 --reconnect-delay=1
check "$silent seconds of silence with signs of life" 0 silence
check "kill -9 of the target, $kills times" 0 killed
check "fio on the same connection" 0 verified --rw=randwrite --bs=4k --iodepth=8 --size=1M
check "nvme disconnect from the file" 0 disconnect
check "nvmf ends well again" 0 stop
result
