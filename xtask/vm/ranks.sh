# Ranks of the benchmark on two machines with one wire, started by Slurm's srun, and by Open MPI's mpirun
# within a Slurm allocation, run by bash on each: with `server` on the one at 192.168.78.1, which is the
# node `one` and runs the controller too, with `client` on the other, the node `two`. The variable
# DOORBELL_BENCH is the path of the benchmark with the feature `verbs`; SHARED is a folder that both
# machines have.
#
# The machines have no systemd, and slurmd does not start without its folder of control groups: it then
# stays away, and the controller calls the node `unk*`. So the folder is mounted here.

. xtask/vm/up.sh
. xtask/vm/harness.sh

side=$1
case $side in
    server) node=one ;;
    *) node=two ;;
esac
# Each machine has a folder of its own there.
at=/run/doorbell-slurm

# Names for both machines, in this one only.
names() {
    hostname "$node" || return
    printf '127.0.0.1 localhost\n192.168.78.1 one\n192.168.78.2 two\n' > "$at/hosts"
    mount --bind "$at/hosts" /etc/hosts
}

# What slurmd looks for of systemd's.
control_groups() {
    mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/systemd &&
        mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd
}

configure() {
    mkdir -p "$at/state" "$at/spool" && chmod 755 "$at" || return
    printf '%128s' '' | tr ' ' k > "$at/munge.key" && chmod 400 "$at/munge.key"
    cat > "$at/slurm.conf" << CONF
ClusterName=doorbell
SlurmctldHost=one(192.168.78.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$at/munge.socket
CredType=cred/munge
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldLogFile=$at/slurmctld.log
SlurmdLogFile=$at/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
MessageTimeout=100
SlurmctldTimeout=300
SlurmdTimeout=300
NodeName=one NodeAddr=192.168.78.1 CPUs=8 State=UNKNOWN
NodeName=two NodeAddr=192.168.78.2 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
}

authenticate() {
    munged --force "--key-file=$at/munge.key" "--socket=$at/munge.socket" \
        "--pid-file=$at/munged.pid" "--log-file=$at/munged.log" "--seed-file=$at/munged.seed"
}

both_are_idle() {
    [ "$(sinfo -h -o '%D %T' 2> /dev/null)" = '2 idle' ]
}

# ranks NAME RANKS HOSTS COMMAND...: passes if the report names that many ranks on both hosts, and no
# message was lost.
ranks() {
    local name=$1 ranks=$2 ok=no
    shift 2
    timeout -k 5 400 "$@" --json - > "$scratch/json" 2> "$scratch/out"
    local code=$?
    echo "exit code $code of: $*" >> "$scratch/out"
    if [ $code = 0 ] && grep -q "\"ranks\": $ranks" "$scratch/json" &&
        [ "$(grep -o '"host": "[a-z]*"' "$scratch/json" | sort -u | wc -l)" = 2 ] &&
        ! grep -q '"lost": [1-9]' "$scratch/json" && grep -q '"device": "rxe0"' "$scratch/json"; then
        ok=yes
        grep -E '"(launcher|pattern|ranks|test|size|p50|messages_per_second)"' "$scratch/json" |
            tr -d '\n ' | sed 's/$/\n/'
    else
        tail -n 20 "$scratch/json" "$at"/*.log >> "$scratch/out"
    fi
    tell "$name" $ok "$scratch/out"
}

copy DOORBELL_BENCH
# Both machines need it at the same place.
cp "$DOORBELL_BENCH" /run/doorbell-bench
export SLURM_CONF=$at/slurm.conf DOORBELL_COMMIT=
mkdir -p "$at"
control_groups && names && configure && authenticate || echo "this machine is no node"
if [ "$side" = server ]; then
    slurmctld -i
    slurmd
    # Something must listen here that the other machine can wait for: the controller does.
    if await 300 both_are_idle; then
        sinfo
    else
        sinfo
        tail -n 20 "$at"/*.log
    fi
    short=(--device rxe0 --duration 1)
    srun=(srun -N 2 --cpu-bind=none)
    ranks "srun, 2 ranks, pairs" 2 \
        "${srun[@]}" -n 2 /run/doorbell-bench latency --size 8,4K --pattern pairs "${short[@]}"
    ranks "srun, 4 ranks, all to all" 4 \
        "${srun[@]}" -n 4 /run/doorbell-bench rate --size 64 --pattern all-to-all "${short[@]}"
    ranks "srun, 4 ranks, fan-in" 4 \
        "${srun[@]}" -n 4 /run/doorbell-bench latency --size 8 --pattern fan-in "${short[@]}"
    mpirun=(mpirun --allow-run-as-root --map-by node --mca btl tcp,self)
    ranks "mpirun, 2 ranks, pairs" 2 salloc -N 2 -n 2 "${mpirun[@]}" -n 2 \
        /run/doorbell-bench latency --size 8 --pattern pairs --rendezvous 192.168.78.1 "${short[@]}"
    ranks "mpirun, 4 ranks, all to all" 4 salloc -N 2 -n 4 "${mpirun[@]}" -n 4 \
        /run/doorbell-bench rate --size 64 --pattern all-to-all --rendezvous 192.168.78.1 "${short[@]}"
    : > "$SHARED/ranks-done"
    result
else
    slurmd
    # The other machine counts the tests.
    await 1800 test -e "$SHARED/ranks-done" || tail -n 20 "$at"/*.log
fi
