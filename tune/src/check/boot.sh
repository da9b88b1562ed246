
# each PATTERN VALUE [BESIDE NUMBER]: puts VALUE into each file that PATTERN names; with BESIDE, into
# those beside which a file of that name holds more than NUMBER.
each() {
    if [ -z "$2" ]; then
        echo "$1 is left alone: doorbell-tune.env does not say what it should hold" >&2
        return
    fi
    IFS=
    for path in $ROOT$1; do
        [ -e "$path" ] || continue
        if [ -z "${3:-}" ] || [ "$(cat "${path%/*}/$3")" -gt "$4" ]; then
            put "${path#"$ROOT"}" "$2"
        fi
    done
    unset IFS
}

# at_least PATTERN NUMBER: puts NUMBER into each file that PATTERN names and that holds less.
at_least() {
    IFS=
    for path in $ROOT$1; do
        [ -e "$path" ] || continue
        if [ "$(cat "$path")" -lt "$2" ]; then
            put "${path#"$ROOT"}" "$2"
        fi
    done
    unset IFS
}

