# Read by bash inside the virtual machine, after the lines that set vm_folder, vm_role, vm_address,
# vm_mac, vm_loss and vm_hugepages. `up` makes the device; `as_command`, `as_server` and
# `as_client` run a line of shell and leave its exit code in the shared folder.

fail() {
    echo "vm: $*" >&2
    exit 125
}

# await LIMIT CONDITION...: waits until it holds; fails after LIMIT seconds.
await() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

interface_of_mac() {
    grep -l -x -s "$vm_mac" /sys/class/net/*/address | head -n 1 | cut -d / -f 5
}

has_interface() {
    interface=$(interface_of_mac)
    [ -n "$interface" ]
}

has_device_files() {
    [ -e /dev/infiniband/uverbs0 ] && [ -e /dev/infiniband/rdma_cm ]
}

# A second device, for what must not mix two of them.
second_device() {
    ip link add d1 type dummy && ip addr add 192.168.79.1/24 dev d1 && ip link set d1 up &&
        rdma link add rxe1 type rxe netdev d1
}

# The host's files are read anew at each start of a program, which takes longer than many programs
# run. A file that is touched is copied into this machine's memory, with the libraries it loads.
keep_in_memory() {
    local program
    for program in bash grep cat sed sleep timeout stat ss rdma "$@"; do
        program=$(command -v "$program") || continue
        echo "$program"
        ldd "$program" | grep -o '/[^ ]*'
    done 2> /dev/null | sort -u | xargs -r touch -c
    touch -c /usr/lib/*/libibverbs/librxe*
}

up() {
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    # The home of root is the host's, and not writable.
    export HOME=/tmp
    modprobe -a rdma_rxe rdma_ucm || fail "no RDMA modules"
    if [ -n "$vm_mac" ]; then
        modprobe virtio_net || fail "no virtio_net"
        await 100 has_interface || fail "no interface $vm_mac"
    else
        interface=d0
        modprobe dummy numdummies=0 && ip link add d0 type dummy || fail "no dummy interface"
    fi
    ip addr add "$vm_address/24" dev "$interface" || fail "no address on $interface"
    ip link set "$interface" up || fail "$interface stays down"
    if [ -n "$vm_loss" ]; then
        tc qdisc add dev "$interface" root netem loss "$vm_loss" || fail "no loss on $interface"
    fi
    rdma link add rxe0 type rxe netdev "$interface" || fail "no rxe0 on $interface"
    if [ -z "$vm_mac" ]; then
        second_device || fail "no rxe1"
    fi
    await 100 has_device_files || fail "no files in /dev/infiniband"
    if [ "$vm_hugepages" != 0 ]; then
        echo "$vm_hugepages" > /proc/sys/vm/nr_hugepages
        [ "$(cat /proc/sys/vm/nr_hugepages)" = "$vm_hugepages" ] ||
            fail "only $(cat /proc/sys/vm/nr_hugepages) huge pages of $vm_hugepages"
    fi
    ulimit -l unlimited
    keep_in_memory
    : > "$vm_folder/$vm_role.up"
}

leave() {
    echo "$1" > "$vm_folder/$vm_role.exit"
    exit "$1"
}

as_command() {
    sh -c "$1"
    leave $?
}

# True if something waits for a connection, by RDMA or by TCP.
serves() {
    rdma resource show cm_id | grep -q LISTEN || [ -n "$(ss -H -l -t -n)" ]
}

serves_or_ended() {
    serves || ! kill -0 "$server" 2> /dev/null
}

# A server that goes on serving when the client has ended is told to end, and that is no failure. On a
# wire that loses packets it may take many seconds to hear of the end.
as_server() {
    # A session of its own, so that all of it can be told to end.
    setsid sh -c "$1" &
    server=$!
    # Not all servers listen (a datagram one need not): they get a moment.
    await 10 serves_or_ended
    : > "$vm_folder/ready"
    local after=0 told=no
    while kill -0 "$server" 2> /dev/null; do
        if [ -e "$vm_folder/client.exit" ] && ((after++ == 150)); then
            told=yes
            kill -TERM -- "-$server"
        fi
        sleep 0.2
    done
    wait "$server"
    local code=$?
    if [ "$told" = yes ]; then
        echo "vm: still serving when the client had ended; told to end"
        code=0
    fi
    leave "$code"
}

server_is_up() {
    [ -e "$vm_folder/ready" ] || [ -e "$vm_folder/server.exit" ]
}

as_client() {
    await 300 server_is_up || fail "the server's machine did not come up"
    sh -c "$1"
    leave $?
}
