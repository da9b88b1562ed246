# One side of a pairing of wire.sh: `target ADDRESS PORT` serves NVMF until the other machine is done,
# `initiator ADDRESS PORT` uses the disk by the kernel's initiator. SHARED is a folder of both.

set -eu
. xtask/vm/up.sh

side=$1 address=$2 port=$3
nqn=nqn.2026-11.rs.doorbell:wire
done=$SHARED/nvmf-done
log=$(mktemp)

disk() {
    [ -b /dev/nvme0n1 ]
}

serve() {
    "$NVMF" target --device rxe0 --addr "$address" --port "$port" --nqn $nqn --memory 16M > "$log" 2>&1 &
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
