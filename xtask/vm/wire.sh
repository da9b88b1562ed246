# The checks of two machines whose wire loses packets, run by bash on each: with `server` on the one
# at 192.168.78.1, with `client` on the other. The variables INTEROP and ECHO are the paths of those
# programs, or unset if they could not be built; SHARED is a folder that both machines have. All
# pairings run side by side, each on a port of its own: a lost packet costs time, not work.
#
# A C client that disconnects ends at once, and nobody repeats its request if the wire loses it: its
# server would wait for ever. Such a server is told to end a minute after its client, and its test
# counts as skipped. The servers of our own clients have to end by themselves: a synchronous id waits
# until the kernel has repeated its request twice. A worker ends at once too, but has said goodbye,
# and its peer closes 2^25 turns later. On an emulated machine these take 3 to 6 minutes, and servers
# start before their clients. So they have longer.
#
# To add a pairing, add a line at the end: `pairing NAME SERVER… ::: CLIENT…`, with PORT for its port.

. xtask/vm/up.sh
. xtask/vm/harness.sh

copy INTEROP ECHO

side=$1
address=192.168.78.1
limit=500
[ "$side" = client ] || limit=1100
names=()
pairings=()

# pairing NAME SERVER... ::: CLIENT...: starts this machine's side; both have to end with 0.
pairing() {
    local port=$((7500 + ${#names[@]})) part=server
    local -a server=() client=()
    names+=("$1")
    shift
    for word; do
        if [ "$word" = ::: ]; then
            part=client
        else
            local -n command=$part
            command+=("${word//PORT/$port}")
        fi
    done
    local -n command=$side
    local file=$scratch/${#names[@]} ended=$SHARED/client-${#names[@]}
    {
        timeout -k 5 "$limit" "${command[@]}" > "$file" 2>&1 &
        local program=$!
        if [ "$side" = server ] && ! ours "${client[0]}"; then
            dismiss "$program" "$ended" "$file" &
        fi
        wait "$program"
        local code=$?
        echo "exit code $code of: ${command[*]}" >> "$file"
        [ "$code" = 0 ] && : > "$file.ok"
        [ "$side" = server ] || [ "$code" != 0 ] || : > "$ended"
    } &
    pairings+=($!)
}

# True for a program of ours.
ours() {
    [ "$1" = "${INTEROP:-}" ] || [ "$1" = "${ECHO:-}" ]
}

# dismiss PROGRAM ENDED FILE: tells a server to end if it still runs a minute after its client ended
# well, as the file ENDED shows.
dismiss() {
    await "$limit" test -e "$2" && sleep 60 && kill -0 "$1" && : > "$3.dismissed" && kill "$1"
} 2> /dev/null

# True if all servers listen, one of them over TCP.
all_listen() {
    [ "$(rdma resource show cm_id | grep -c LISTEN)" -ge $((${#names[@]} - 1)) ] &&
        [ -n "$(ss -Hltn)" ]
}

# True if the wire has lost packets of this side.
lost() {
    tc -s qdisc show | grep -q 'dropped [1-9]'
}

if [ "$side" = client ] && ! await 300 test -e "$SHARED/all-listen"; then
    echo "the servers do not listen"
fi

if [ -n "${INTEROP:-}" ]; then
    here=(--addr $address --port PORT --device rxe0 --limit $limit)
    pairing "interop rping with itself" \
        "$INTEROP" rping-server "${here[@]}" ::: "$INTEROP" rping-client "${here[@]}" --count 50
    pairing "interop rping-server with rping" \
        "$INTEROP" rping-server "${here[@]}" ::: rping -c -V -C 50 -a $address -p PORT
    pairing "rping with interop rping-client" \
        rping -s -C 50 -a $address -p PORT ::: \
        "$INTEROP" rping-client "${here[@]}" --count 50
    stream=(--size 5000 --count 20 --rounds 2)
    pairing "interop rstream with itself" \
        "$INTEROP" rstream-server "${here[@]}" "${stream[@]}" ::: \
        "$INTEROP" rstream-client "${here[@]}" "${stream[@]}"
    pairing "rstream with interop rstream-client" \
        rstream -b $address -p PORT -S 5000 -C 20 -I 2 -T v ::: \
        "$INTEROP" rstream-client "${here[@]}" "${stream[@]}"
    pairing "interop cmtime-server with cmtime" \
        "$INTEROP" cmtime-server "${here[@]}" --count 20 ::: cmtime -s $address -p PORT -c 20
    pairing "interop pingpong-server with ibv_rc_pingpong" \
        "$INTEROP" pingpong-server "${here[@]}" --count 200 ::: \
        ibv_rc_pingpong -d rxe0 -g 1 -n 200 -p PORT $address
fi

if [ -n "${ECHO:-}" ]; then
    pairing "echo with itself" \
        "$ECHO" server --device rxe0 --addr $address --port PORT --connections 1 ::: \
        "$ECHO" client --device rxe0 --addr $address --port PORT --count 500
fi

if [ "$side" = server ] && await 240 all_listen; then
    : > "$SHARED/all-listen"
fi
# The pairings alone: a dismissal of a server that has ended still sleeps.
wait "${pairings[@]}"
if [ "$side" = server ]; then
    : > "$SHARED/all-ended"
else
    # This machine answers until all servers have heard of the end.
    await 1100 test -e "$SHARED/all-ended"
fi
for ((number = 1; number <= ${#names[@]}; number++)); do
    ok=no
    [ -e "$scratch/$number.ok" ] && ok=yes
    name="${names[number - 1]}, on a lossy wire, $side"
    if [ -e "$scratch/$number.dismissed" ]; then
        skip "$name" "the wire lost the last packet of its client"
    else
        tell "$name" $ok "$scratch/$number"
    fi
done
# A wire that has lost nothing has shown nothing.
check "packets were lost" 0 lost
result
