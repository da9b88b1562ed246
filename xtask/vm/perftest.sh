# Doorbell beside perftest and cmtime, and beside UCX and libfabric where they run, on one RDMA device, run by
# bash as root. The variables say what:
# BENCH is the path of doorbell-bench, DEVICE and ADDRESS the device and its address, ROUNDS how often
# everybody has a turn, TIME the seconds of one figure.
#
# Each figure is a line `figure ROUND WHAT WHO NUMBER`, which xtask reads; `missing ROUND WHAT WHO` says
# that somebody gave none, and what it printed is shown.
#
# 64 bytes, RC. Doorbell with a shared receive queue and credits, as always. Each setting of `ib_send_bw`
# has its turn in each round, so that its best is one that was measured beside ours.

size=64
port=18515
# Seconds that a program may take.
limit=60
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The index of the device's GID that is $ADDRESS over RoCE version 2, or none for InfiniBand.
gid_index() {
    local folder=/sys/class/infiniband/$DEVICE/ports/1
    local hex index
    hex=$(printf '%02x%02x:%02x%02x' ${ADDRESS//./ })
    for index in $(grep -l "ffff:$hex" "$folder"/gids/* 2> /dev/null | sed 's|.*/||'); do
        grep -q v2 "$folder/gid_attrs/types/$index" 2> /dev/null && echo "$index" && return
    done
}

# figure WHAT WHO NUMBER: one came out, if there is a number.
figure() {
    if [[ $3 =~ ^[0-9]+([.][0-9]+)?$ ]] && [ "$3" != 0 ]; then
        echo "figure $round $1 $2 $3"
    else
        echo "missing $round $1 $2"
        tail -q -n 20 "$scratch"/out "$scratch"/server 2> /dev/null | sed 's/^/    /'
    fi
}

listens() {
    ss -Hltn "sport = :$1" | grep -q .
}

# await CONDITION...: waits until it holds, ten seconds at most.
await() {
    local end=$((SECONDS + 10))
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

# both COMMAND...: the command as server, then with the address as client; the client's output is in
# $scratch/out.
both() {
    timeout -k 1 $limit "$@" > "$scratch/server" 2>&1 &
    local server=$!
    await listens $port
    timeout -k 1 $limit "$@" "$ADDRESS" > "$scratch/out" 2>&1
    kill $server 2> /dev/null
    wait $server 2> /dev/null
    ! listens $port || sleep 0.5
}

# perftest PROGRAM COLUMN OPTION...: the number in that column of the last line of figures. Where the clock
# of the processor runs unevenly the programs say 0 now and then; they are asked three times.
perftest() {
    local program=$1 column=$2 try number
    shift 2
    for try in 1 2 3; do
        both "$program" -d "$DEVICE" $gid -s $size -F "$@"
        number=$(awk -v column="$column" -v size=$size '$1 == size { number = $column } END { print number + 0 }' \
            "$scratch/out")
        [ "$number" = 0 ] || break
    done
    echo "$number"
}

# json NAME: the first number of that name in what the benchmark wrote.
json() {
    grep -o "\"$1\": *[0-9.]*" "$scratch/json" | head -n 1 | grep -o '[0-9.]*$'
}

# bench OPTION...: runs the benchmark; its figures are in $scratch/json.
bench() {
    rm -f "$scratch/json"
    timeout -k 1 120 "$BENCH" "$@" --device "$DEVICE" --addr "$ADDRESS" --duration "$TIME" \
        --json "$scratch/json" > "$scratch/out" 2>&1
    touch "$scratch/json"
}

# same NUMBER NUMBER: they are a twentieth apart at most.
same() {
    awk -v one="$1" -v two="$2" 'BEGIN { exit !(one > 0 && one < 1.05 * two && two < 1.05 * one) }'
}

# Where the cores are a virtual machine's, its host moves them between near and far ones, unseen, and
# everybody's message takes a fifth longer in one place than in the other. So theirs, which takes as long as
# ours (a short one sees but one of the two), counts between two of ours that agree; where they do not,
# both have another turn.
latency() {
    local before after typical try trips
    bench latency --size $size
    after=$(json p50)
    for try in 1 2 3 4 5 6; do
        before=$after
        trips=$(awk -v ns="$before" -v time="$TIME" 'BEGIN { print int(ns > 0 ? time * 5e8 / ns : time * 1000) }')
        # Microseconds; the typical one is the median.
        typical=$(perftest ib_send_lat 5 -n "$trips" -I $size)
        bench latency --size $size
        after=$(json p50)
        ! same "$before" "$after" || break
    done
    figure latency doorbell "$before"
    figure latency doorbell "$after"
    figure latency-mean doorbell "$(json mean)"
    figure latency ib_send_lat "$(awk -v us="$typical" 'BEGIN { print us * 1000 }')"
}

# rates WHAT OPTION...: what ib_send_bw makes with each of its settings, with $count messages.
rates() {
    local what=$1 post moderation inline millions
    shift
    for post in 1 16; do
        for moderation in 1 16; do
            for inline in 0 $size; do
                millions=$(perftest ib_send_bw 5 -n $count -l $post -Q $moderation -I $inline "$@")
                figure "$what" "ib_send_bw-l$post-Q$moderation-I$inline" \
                    "$(awk -v millions="$millions" 'BEGIN { print millions * 1000000 }')"
            done
        done
    done
}

# What we make; the last setting's rate is in $scratch/json.
our_rates() {
    local batch
    for batch in 1 16 32 64; do
        bench rate --size $size --batch $batch
        figure rate "doorbell-batch-$batch" "$(json messages_per_second)"
    done
}

# Ours before, between and after theirs, so that what changes meanwhile changes for both.
rate() {
    local count
    our_rates
    # About as many messages as fill the time; a multiple of what goes out with one doorbell.
    count=$(awk -v rate="$(json messages_per_second)" -v time="$TIME" \
        'BEGIN { print 16 * int(rate * time / 16) + 160 }')
    rates rate-srq --use-srq
    our_rates
    rates rate-own
    our_rates
}

# Milliseconds of all steps of 500 ids, from nothing to nothing.
steps_of_cmtime() {
    awk -F: '/^[a-z ]+:/ { split($2, words, " "); sum += words[1] } END { print sum }' "$scratch/out"
}

# asked WHAT WHO: they have given a figure before, or were never asked. A program that does not run on this device
# takes all of its time, and would in every round.
asked() {
    [ "${told[$1 $2]}" != nothing ]
}

# other WHAT WHO NUMBER: a figure of a program that may not run here.
other() {
    figure "$@"
    if [ -n "$3" ]; then
        told[$1 $2]=figures
    elif [ -z "${told[$1 $2]}" ]; then
        told[$1 $2]=nothing
    fi
}

# UCX's transports alone, over RC and UD. On rxe UD of 1.13 aborts, as its protocols do over either: the serving
# side does, and the other one waits for it.
ucx() {
    local transport trips=$((TIME * 2000)) limit=40
    local options="-D short -s $size -n $trips -w $((trips / 5)) -f -v -p $port"
    for transport in rc_verbs ud_verbs; do
        if asked latency-ucx $transport; then
            both ucx_perftest -x $transport -d "$DEVICE:1" -t am_lat $options
            other latency-ucx $transport "$(ucx_field 2 1000)"
        fi
        if asked rate-ucx $transport; then
            both ucx_perftest -x $transport -d "$DEVICE:1" -t am_bw $options
            other rate-ucx $transport "$(ucx_field 8 1)"
        fi
    done
}

# ucx_field COLUMN TIMES: a number of ucx_perftest's last line. It has iterations, microseconds (median, mean,
# mean of all), MB/s (twice) and messages a second (twice).
ucx_field() {
    awk -F, -v column="$1" -v times="$2" '/^[0-9]/ && NF == 8 { number = $column * times }
        END { if (number > 0) print number }' "$scratch/out"
}

# libfabric's endpoints over RC: it reports a mean.
libfabric() {
    local us
    asked latency-libfabric verbs || return
    local port=47592
    both fi_pingpong -p verbs -e msg -d "$DEVICE" -S $size -I $((TIME * 2000))
    us=$(awk -v size=$size '$1 == size { print $7 }' "$scratch/out")
    other latency-libfabric verbs "${us:+$(awk -v us="$us" 'BEGIN { print us * 1000 }')}"
}

connects() {
    bench connect --at-once $at_once
    figure connect doorbell "$(json connections_per_second)"
    timeout -k 1 60 cmtime -b "$ADDRESS" -p 7471 -c $at_once > "$scratch/server" 2>&1 &
    local server=$!
    sleep 1
    timeout -k 1 60 cmtime -s "$ADDRESS" -p 7471 -c $at_once > "$scratch/out" 2>&1
    kill $server 2> /dev/null
    wait $server 2> /dev/null
    local ms
    ms=$(steps_of_cmtime)
    figure connect cmtime "$(awk -v ms="$ms" -v count=$at_once 'BEGIN { if (ms > 0) print count * 1000 / ms }')"
}

# On rxe each doorbell is a write() to the file of the device.
doorbells() {
    [[ $DEVICE = rxe* ]] || return
    rm -f "$scratch/json"
    timeout -k 1 120 strace -f -c -e trace=write -o "$scratch/strace" "$BENCH" rate --device "$DEVICE" \
        --addr "$ADDRESS" --size $size --batch 32 --duration "$TIME" --json "$scratch/json" > "$scratch/out" 2>&1
    touch "$scratch/json"
    local calls messages
    calls=$(awk '$NF == "write" { print $4 }' "$scratch/strace")
    messages=$(json messages)
    figure doorbells doorbell \
        "$(awk -v messages="$messages" -v calls="$calls" 'BEGIN { if (calls > 0) print messages / calls }')"
}

at_once=500
gid=$(gid_index)
# UCX reads it from there.
[ -z "$gid" ] || export UCX_IB_GID_INDEX=$gid
gid=${gid:+-x $gid}
declare -A told
for ((round = 1; round <= ROUNDS; round++)); do
    latency
    rate
    ucx
    libfabric
    connects
    doorbells
done
