# Read by the suites that run in a virtual machine: counts their tests in the usual format.

passed=0
failed=0
scratch=$(mktemp -d)

# tell NAME OK FILE...: counts one test; shows the files if it failed.
tell() {
    local name=$1 ok=$2
    shift 2
    if [ "$ok" = yes ]; then
        echo "test $name ... ok"
        ((passed++))
    else
        echo "test $name ... FAILED"
        sed 's/^/    /' "$@"
        ((failed++))
    fi
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

# harness NAME LIMIT COMMAND...: a program that counts its tests itself, in the usual format.
harness() {
    local name=$1 limit=$2
    shift 2
    echo "suite $name"
    timeout -k 5 "$limit" "$@" > "$scratch/out" 2>&1
    local code=$?
    cat "$scratch/out"
    if ! grep -q '^test result: ' "$scratch/out" ||
        { [ "$code" != 0 ] && ! grep -q '^test result: FAILED' "$scratch/out"; }; then
        echo "exit code $code of: $*" > "$scratch/out"
        tell "$name ends well" no "$scratch/out"
    fi
}

# The last line of a suite.
result() {
    local result=ok
    [ "$failed" = 0 ] || result=FAILED
    echo "test result: $result. $passed passed; $failed failed; 0 ignored"
    [ "$failed" = 0 ]
}
