# Read by the suites that run in a virtual machine: counts their tests in the usual format.

passed=0
failed=0
skipped=0
scratch=$(mktemp -d)
since=$SECONDS
durations=()

# took NAME: notes the seconds since the last note.
took() {
    durations+=("$((SECONDS - since)) s  $1")
    since=$SECONDS
}

# copy VARIABLE...: replaces the path of a program of ours by that of a copy in memory; see
# `keep_in_memory`.
copy() {
    local variable
    for variable in "$@"; do
        [ -n "${!variable:-}" ] || continue
        cp "${!variable}" "$scratch/${variable,,}" && export "$variable=$scratch/${variable,,}"
    done
}

# tell NAME OK FILE...: counts one test; shows the files if it failed.
tell() {
    local name=$1 ok=$2
    shift 2
    if [ "$ok" = yes ]; then
        echo "test $name ... ok"
        ((passed++))
    else
        echo "test $name ... FAILED"
        # The last line may have no end.
        sed -e 's/^/    /' -e '$a\' "$@"
        ((failed++))
    fi
    took "$name"
}

# skip NAME REASON: counts one test that does not run.
skip() {
    echo "test $1 ... ignored, $2"
    ((skipped++))
}

# patient SECONDS COMMAND...: runs a command, and ends it when it has printed nothing for so long. A busy
# machine makes a program slow, but not silent. Prints its output as it comes, and keeps it in
# $scratch/out.
patient() {
    local silence=$1 size shown=0 heard=$SECONDS
    shift
    : > "$scratch/out"
    setsid "$@" > "$scratch/out" 2>&1 &
    local program=$!
    while kill -0 $program 2> /dev/null; do
        size=$(stat -c %s "$scratch/out")
        if ((size > shown)); then
            tail -c +$((shown + 1)) "$scratch/out" | head -c $((size - shown))
            shown=$size heard=$SECONDS
        elif ((SECONDS - heard >= silence)); then
            echo "silent for $silence seconds: ended" >> "$scratch/out"
            kill -KILL -- -$program
        fi
        sleep 0.2
    done
    tail -c +$((shown + 1)) "$scratch/out"
    wait $program
}

# check NAME LIMIT COMMAND...: passes if the command ends with 0 within LIMIT seconds. A function of
# this script limits itself.
check() {
    local name=$1 limit=$2 ok=yes
    shift 2
    if [ "$(type -t "$1")" = function ]; then
        "$@" > "$scratch/out" 2>&1
    else
        timeout -k 5 "$limit" "$@" > "$scratch/out" 2>&1
    fi
    local code=$?
    echo "exit code $code of: $*" >> "$scratch/out"
    [ "$code" = 0 ] || ok=no
    tell "$name" "$ok" "$scratch/out"
}

# harness NAME SILENCE COMMAND...: a program that counts its tests itself, in the usual format. It is
# ended when it prints nothing for SILENCE seconds.
harness() {
    local name=$1 silence=$2
    shift 2
    echo "suite $name"
    # Tests that are skipped say so in their output.
    patient "$silence" "$@" --show-output
    local code=$?
    if ! grep -q '^test result: ' "$scratch/out" ||
        { [ "$code" != 0 ] && ! grep -q '^test result: FAILED' "$scratch/out"; }; then
        echo "exit code $code of: $*" > "$scratch/out"
        tell "$name ends well" no "$scratch/out"
    fi
    took "$name"
}

# The last lines of a suite.
result() {
    echo "what took longest of $SECONDS s:"
    printf '%s\n' "${durations[@]}" | sort -rn | head -n 20
    local result=ok
    [ "$failed" = 0 ] || result=FAILED
    echo "test result: $result. $passed passed; $failed failed; $skipped ignored"
    [ "$failed" = 0 ]
}
