# The kernel's initiator and the target NVMF on two machines whose wire loses packets: `target ADDRESS
# PORT` serves until the other machine is done, `initiator ADDRESS PORT` writes and verifies. SHARED is
# a folder below target/doorbell/vm-out, which both machines can write:
#
#   both="SHARED=$PWD/target/doorbell/vm-out/wire NVMF=target/debug/nvmf bash xtask/vm/nvmf-wire.sh"
#   cargo xtask vm pair --loss 1% -- env $both target 192.168.78.1 4420 ::: \
#       env $both initiator 192.168.78.1 4420

set -eu
. xtask/vm/up.sh

side=$1 address=$2 port=$3
nqn=nqn.2026-11.rs.doorbell:wire
mkdir -p "$SHARED"
done=$SHARED/nvmf-done
log=$(mktemp)

disk() {
    [ -b /dev/nvme0n1 ]
}

serve() {
    rm -f "$done"
    "$NVMF" target --device rxe0 --addr "$address" --port "$port" --nqn $nqn --memory 16M \
        > "$log" 2>&1 &
    local target=$!
    await 500 test -e "$done"
    kill -TERM $target
    wait $target
    cat "$log"
    grep -q ' 0 breaches' "$log"
}

use() {
    trap ': > "$done"' EXIT
    modprobe nvme-rdma
    nvme connect -t rdma -a "$address" -s "$port" -n $nqn --nr-io-queues=2
    await 30 disk
    fio --name=verify --filename=/dev/nvme0n1 --ioengine=libaio --direct=1 --rw=randwrite \
        --bsrange=512-128k --iodepth=32 --size=8M --verify=crc32c --do_verify=1 --verify_fatal=1 \
        --verify_state_save=0
    nvme disconnect -n $nqn
}

if [ "$side" = target ]; then
    serve
else
    use
fi
