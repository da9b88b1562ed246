
# each PATTERN VALUE [NEXT NUMBER]: writes VALUE to each file that matches PATTERN; with NEXT, only
# to those with a file called NEXT in the same folder that contains more than NUMBER.
each() {
    if [ -z "$2" ]; then
        echo "$1 is left alone: doorbell-tune.env has no value for it" >&2
        return
    fi
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ -z "${3:-}" ] || [ "$(cat "${path%/*}/$3")" -gt "$4" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# at_least PATTERN NUMBER: writes NUMBER to each file that matches PATTERN and contains less.
at_least() {
    for path in .$1; do
        [ -e "$path" ] || continue
        if [ "$(cat "$path")" -lt "$2" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# Patterns are relative to this folder.
cd "$ROOT/" || exit 1

