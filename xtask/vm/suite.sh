# The checks of the virtual machine, run by bash with rxe0 up at 192.168.77.1. The variables
# CONFORMANCE, VERBS_RXE, SCENARIOS, HOTPATH, ECHO, DOORBELL_BENCH and INTEROP are the paths of those
# programs.
# A variable is unset if its program could not be built; the caller has counted that as a failure.
#
# To add a check, add a line at the end: `check NAME LIMIT COMMAND…` or
# `pairing NAME TIMES SERVER… ::: CLIENT…`. Each check, and each single run of a pairing, counts as
# one test.

. xtask/vm/up.sh
. xtask/vm/harness.sh

copy CONFORMANCE VERBS_RXE SCENARIOS HOTPATH ECHO DOORBELL_BENCH INTEROP
keep_in_memory rdma_server rdma_client rping ucmatose udaddy mckey rstream cmtime rdma_xserver \
    rdma_xclient ibv_{rc,uc,ud,srq}_pingpong

# Here git would read the sources for minutes.
export DOORBELL_COMMIT=
address=192.168.77.1
port=7471
# Seconds after which a program hangs. On an emulated machine each takes 20 at most, and 60 if three
# such machines run at once.
limit=500

listens() {
    rdma resource show cm_id | grep -q "LISTEN.*:$port " || ss -Hltn "sport = :$port" | grep -q .
}

# True if the server listens or has ended already.
server_has_begun() {
    listens || ! kill -0 "$server" 2> /dev/null
}

# True if the receiver of a multicast group says that it has joined, or has ended already.
has_joined() {
    grep -q joined "$scratch/server" || ! kill -0 "$server" 2> /dev/null
}

# The condition on which the client begins. The server has to listen on $port.
begun=server_has_begun

# run_once SERVER... ::: CLIENT...: runs both and sets from_server and from_client to their exit codes.
# The client begins when $begun holds.
run_once() {
    local -a first=()
    while [ "$1" != ::: ]; do
        first+=("$1")
        shift
    done
    shift
    : > "$scratch/server"
    timeout -k 5 "$limit" "${first[@]}" > "$scratch/server" 2>&1 &
    server=$!
    if await $((limit - 10)) $begun; then
        timeout -k 5 "$limit" "$@" > "$scratch/client" 2>&1
        from_client=$?
    else
        echo "the server does not begin" > "$scratch/client"
        from_client=1
    fi
    wait "$server"
    from_server=$?
    echo "exit code $from_server of: ${first[*]}" > "$scratch/codes"
    echo "exit code $from_client of: $*" >> "$scratch/codes"
}

# pairing NAME TIMES SERVER... ::: CLIENT...: passes if both end with 0 within $limit seconds. After
# three failures, or a hang, the other runs are skipped: it must not take the time of all that follows.
pairing() {
    local name=$1 times=$2
    shift 2
    local run ok bad=0 from_server from_client
    for ((run = 1; run <= times; run++)); do
        run_once "$@"
        ok=yes
        if [ "$from_server$from_client" != 00 ]; then
            ok=no
            ((bad++))
        fi
        # One hang is enough, and the next shall take less time.
        case " $from_server $from_client " in
            *" 124 "* | *" 137 "*) bad=3 limit=100 ;;
        esac
        tell "$name, run $run of $times" "$ok" "$scratch/codes" "$scratch/client" "$scratch/server"
        if ((bad >= 3)); then
            for ((run++; run <= times; run++)); do
                skip "$name, run $run of $times" "three runs of this pairing have failed, or one hung"
            done
        fi
    done
}

# The index of the GID of rxe0 that is $address.
gid_index() {
    local folder=/sys/class/infiniband/rxe0/ports/1/gids
    local hex
    hex=$(printf '%02x%02x:%02x%02x' ${address//./ })
    grep -l "ffff:$hex" "$folder"/* 2> /dev/null | head -n 1 | sed 's|.*/||'
}

# Messages of a stream with batches of 32, and the write() calls of both sides together: on rxe a
# doorbell is one of those, so there may be one for sixteen messages at most. The calls include those
# before the first message, so a run in which the machine stood still is followed by a longer one.
doorbells() {
    local json=$scratch/rate.json calls messages duration
    for duration in 2 10 30; do
        timeout -k 5 300 strace -f -c -e trace=write -o "$scratch/strace" "$DOORBELL_BENCH" rate --device rxe0 \
            --addr $address --size 64 --batch 32 --duration $duration --json "$json" || return 1
        calls=$(awk '$NF == "write" { print $4 }' "$scratch/strace")
        messages=$(grep -o '"messages": *[0-9]*' "$json" | grep -o '[0-9]*$')
        echo "$messages messages, $calls write() calls"
        ((messages > 1000 && calls > 0 && calls * 16 <= messages)) && return 0
    done
    return 1
}

# With 64 KiB of lockable memory: one line, which names the cure, and an exit code that is not 0.
little_memlock() {
    (
        ulimit -l 64
        timeout -k 5 600 setpriv --bounding-set -ipc_lock \
            "$DOORBELL_BENCH" latency --device rxe0 --addr $address --size 64 --duration 1
    ) > "$scratch/memlock" 2>&1
    local code=$?
    cat "$scratch/memlock"
    [ "$code" != 0 ] && [ "$code" -lt 100 ] && [ "$(wc -l < "$scratch/memlock")" = 1 ] &&
        grep -q "ulimit -l" "$scratch/memlock"
}

# The peers with each other, without a program of ours: passes if one of three runs does. Once in
# some fifty boots rdma_client, which is then the first program that uses rxe0, waits for ever.
peers_alone() {
    local limit=150 run from_server from_client
    for run in 1 2 3; do
        run_once rdma_server -p $port ::: rdma_client -s $address -p $port
        cat "$scratch/codes" "$scratch/client" "$scratch/server"
        [ "$from_server$from_client" = 00 ] && return 0
    done
    return 1
}

# If this fails, the machine is at fault and not what follows.
check "rdma_server with rdma_client" 500 peers_alone

if [ -n "${CONFORMANCE:-}" ]; then
    DOORBELL_DEVICE=rxe0 harness "conformance on rxe0" 900 "$CONFORMANCE"
fi

if [ -n "${VERBS_RXE:-}" ]; then
    harness "verbs on rxe0" 900 "$VERBS_RXE"
fi

if [ -n "${SCENARIOS:-}" ]; then
    DOORBELL_DEVICE=rxe0 harness "scenarios of workers on rxe0" 900 "$SCENARIOS"
fi

if [ -n "${HOTPATH:-}" ]; then
    DOORBELL_DEVICE=rxe0 DOORBELL_ADDR=$address harness "looks at a control plane on rxe0" 900 \
        "$HOTPATH" forgotten
fi

if [ -n "${ECHO:-}" ]; then
    pairing "echo on rxe0" 1 \
        "$ECHO" server --device rxe0 --addr $address --connections 1 ::: \
        "$ECHO" client --device rxe0 --addr $address --count 2000
fi

if [ -n "${DOORBELL_BENCH:-}" ]; then
    check "one doorbell for sixteen messages, words of credit among them" 120 doorbells
    check "too little lockable memory" 600 little_memlock
fi

if [ -n "${INTEROP:-}" ]; then
    here=(--addr $address --port $port --limit $limit)
    pairing "interop rdma-server with rdma_client" 20 \
        "$INTEROP" rdma-server "${here[@]}" ::: \
        rdma_client -s $address -p $port
    pairing "rdma_server with interop rdma-client" 20 \
        rdma_server -s $address -p $port ::: \
        "$INTEROP" rdma-client "${here[@]}"
    pairing "interop rping-server with rping" 5 \
        "$INTEROP" rping-server "${here[@]}" ::: rping -c -V -C 10 -a $address -p $port
    pairing "rping with interop rping-client" 5 \
        rping -s -C 10 -a $address -p $port ::: "$INTEROP" rping-client "${here[@]}"
    pairing "interop rping-server with rping -q" 2 \
        "$INTEROP" rping-server "${here[@]}" ::: rping -c -q -V -C 10 -a $address -p $port
    pairing "rping -q with interop rping-client" 2 \
        rping -s -q -C 10 -a $address -p $port ::: "$INTEROP" rping-client "${here[@]}"
    pairing "interop rping-server with rping, 1000 times 65536 bytes" 1 \
        "$INTEROP" rping-server "${here[@]}" --size 65536 ::: \
        rping -c -V -S 65536 -C 1000 -a $address -p $port
    pairing "rping with interop rping-client, 1000 times 65536 bytes" 1 \
        rping -s -S 65536 -C 1000 -a $address -p $port ::: \
        "$INTEROP" rping-client "${here[@]}" --size 65536 --count 1000
    pairing "interop ucmatose-server with ucmatose" 5 \
        "$INTEROP" ucmatose-server "${here[@]}" ::: ucmatose -s $address -p $port
    pairing "ucmatose with interop ucmatose-client" 5 \
        ucmatose -b $address -p $port ::: "$INTEROP" ucmatose-client "${here[@]}"
    pairing "interop ucmatose-server with ucmatose -m" 2 \
        "$INTEROP" ucmatose-server "${here[@]}" ::: ucmatose -m -s $address -p $port
    pairing "ucmatose -m with interop ucmatose-client" 2 \
        ucmatose -m -b $address -p $port ::: "$INTEROP" ucmatose-client "${here[@]}"
    pairing "interop rdma-xserver with rdma_xclient" 5 \
        "$INTEROP" rdma-xserver "${here[@]}" ::: rdma_xclient -c r -s $address -p $port
    pairing "rdma_xserver with interop rdma-xclient" 5 \
        rdma_xserver -c r -p $port ::: "$INTEROP" rdma-xclient "${here[@]}"
    # Transfers smaller than a packet, of many, and across the halves of the peer's buffer.
    for load in "3 900 1" "5000 20 5" "200000 5 2"; do
        set -- $load
        pairing "interop rstream-server with rstream, $1 bytes" 2 \
            "$INTEROP" rstream-server "${here[@]}" --size $1 --count $2 --rounds $3 ::: \
            rstream -s $address -p $port -S $1 -C $2 -I $3 -T v
        pairing "rstream with interop rstream-client, $1 bytes" 2 \
            rstream -b $address -p $port -S $1 -C $2 -I $3 -T v ::: \
            "$INTEROP" rstream-client "${here[@]}" --size $1 --count $2 --rounds $3
    done
    pairing "interop cmtime-server with cmtime" 3 \
        "$INTEROP" cmtime-server "${here[@]}" --count 50 ::: cmtime -s $address -p $port -c 50

    # udaddy takes no other port.
    port=7174
    here=(--addr $address --limit $limit)
    pairing "interop udaddy-server with udaddy" 5 \
        "$INTEROP" udaddy-server "${here[@]}" ::: udaddy -s $address
    pairing "udaddy with interop udaddy-client" 5 \
        udaddy -b $address ::: "$INTEROP" udaddy-client "${here[@]}"

    # Queue pairs connected by hand, over an address that the programs choose by its index.
    port=18515
    gid=$(gid_index)
    for transport in rc uc ud; do
        size=4096
        [ $transport = ud ] && size=1024
        pairing "interop pingpong-server with ibv_${transport}_pingpong" 2 \
            "$INTEROP" pingpong-server "${here[@]}" --transport $transport --size $size ::: \
            ibv_${transport}_pingpong -d rxe0 -g "$gid" -s $size $address
        pairing "ibv_${transport}_pingpong with interop pingpong-client" 2 \
            ibv_${transport}_pingpong -d rxe0 -g "$gid" -s $size ::: \
            "$INTEROP" pingpong-client "${here[@]}" --transport $transport --size $size
    done
    for qps in 1 16; do
        pairing "interop srq-pingpong-server with ibv_srq_pingpong, $qps queue pairs" 2 \
            "$INTEROP" srq-pingpong-server "${here[@]}" --qps $qps ::: \
            ibv_srq_pingpong -d rxe0 -g "$gid" -q $qps $address
        pairing "ibv_srq_pingpong with interop srq-pingpong-client, $qps queue pairs" 2 \
            ibv_srq_pingpong -d rxe0 -g "$gid" -q $qps ::: \
            "$INTEROP" srq-pingpong-client "${here[@]}" --qps $qps
    done
    group=239.255.1.1
    begun=has_joined
    pairing "interop mckey-receiver with mckey -s" 2 \
        "$INTEROP" mckey-receiver "${here[@]}" --group $group ::: \
        mckey -m $group -b $address -s
    # A C program keeps what it prints until it ends, unless it is told otherwise.
    pairing "mckey with interop mckey-sender" 2 \
        stdbuf -o L mckey -m $group -b $address ::: \
        "$INTEROP" mckey-sender "${here[@]}" --group $group
fi

result
