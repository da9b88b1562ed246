# The kernel's initiator and the target NVMF on two machines whose wire loses packets: `target ADDRESS
# PORT` serves until the other machine is done, `initiator ADDRESS PORT` writes and verifies, first on
# that wire, and then while the wire loses everything until the kernel has noticed, CUTS times. SHARED is
# a folder below target/doorbell/vm-out, which both machines can write:
#
#   cargo build -p doorbell-nvmf --features verbs
#   both="SHARED=$PWD/target/doorbell/vm-out/wire NVMF=target/debug/nvmf bash xtask/vm/nvmf-wire.sh"
#   cargo xtask vm pair --loss 1% --limit 3000 -- env $both target 192.168.78.1 4420 ::: \
#       env $both initiator 192.168.78.1 4420
#
# The interface stays up: on rxe 6.1 nothing connects any more after the connection manager has sent
# something while the interface was down.

set -eu
. xtask/vm/up.sh

side=$1 address=$2 port=$3 cuts=${CUTS:-4}
nqn=nqn.2026-11.rs.doorbell:wire
mkdir -p "$SHARED"
done=$SHARED/nvmf-done listens=$SHARED/nvmf-listens
log=$(mktemp)

disk() {
    [ -b /dev/nvme0n1 ]
}

serve() {
    rm -f "$done"
    "$NVMF" target --device rxe0 --addr "$address" --port "$port" --nqn $nqn --memory 16M \
        > "$log" 2>&1 &
    local target=$!
    await 300 grep -q '^listening on' "$log" || cat "$log"
    : > "$listens"
    await 2800 test -e "$done"
    kill -TERM $target
    wait $target
    cat "$log"
    grep -q ' 0 breaches' "$log"
}

# verified OPTION...: fio writes, and finds what it has written.
verified() {
    timeout -k 5 900 fio --name=verify --filename=/dev/nvme0n1 --ioengine=libaio --direct=1 \
        --rw=randwrite --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 "$@"
}

# recoveries: how often the kernel has lost the target.
recoveries() {
    dmesg | grep -c 'starting error recovery' || true
}

lost_more_than() {
    [ "$(recoveries)" -gt "$1" ]
}

live() {
    grep -q live /sys/class/nvme/nvme0/state
}

# loses SHARE: from now on the wire loses that share of what this machine sends.
loses() {
    tc qdisc replace dev "$interface" root netem loss "$1"
}

# cut: the wire goes in the middle of verified writes, and comes back.
cut() {
    local before fio
    before=$(recoveries)
    verified --bs=4k --iodepth=16 --size=512k --rate_iops=16 &
    fio=$!
    sleep 2
    loses 100%
    await 120 lost_more_than "$before"
    loses 1%
    await 120 live
    wait $fio
}

use() {
    trap ': > "$done"; rm -f "$listens"' EXIT
    modprobe nvme-rdma
    await 300 test -e "$listens"
    interface=$(rdma link show rxe0/1 | sed 's/.*netdev \([^ ]*\).*/\1/')
    # A sign of life that the wire loses is sent again after four seconds.
    nvme connect -t rdma -a "$address" -s "$port" -n $nqn --nr-io-queues=2 -k 30 --reconnect-delay=1
    await 30 disk
    verified --bsrange=512-128k --iodepth=32 --size=2M
    tc -s qdisc show dev "$interface" | grep 'dropped [1-9]'
    local number
    for ((number = 1; number <= cuts; number++)); do
        cut
        echo "cut $number of $cuts: the kernel has lost the target $(recoveries) times, and is back"
    done
    nvme disconnect -n $nqn
    echo "all of it came back as it was written"
}

if [ "$side" = target ]; then
    serve
else
    use
fi
