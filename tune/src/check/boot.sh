
# each PATTERN VALUE [BESIDE NUMBER]: puts VALUE into each file that PATTERN names; with BESIDE, into
# those beside which a file of that name holds more than NUMBER.
each() {
    if [ -z "$2" ]; then
        echo "$1 is left alone: doorbell-tune.env does not say what it should hold" >&2
        return
    fi
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ -z "${3:-}" ] || [ "$(cat "${path%/*}/$3")" -gt "$4" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# at_least PATTERN NUMBER: puts NUMBER into each file that PATTERN names and that holds less.
at_least() {
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ "$(cat "$path")" -lt "$2" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# Patterns are looked for from here.
cd "$ROOT/" || exit 1

