
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

# at_least PATTERN NUMBER WHOLE: writes NUMBER to each file that matches PATTERN and contains less,
# for the nodes in MEMORY_NODES, or for all if that is empty. WHOLE is the file of a machine that has
# none of these.
at_least() {
    files=
    pools=
    for path in .$1; do
        [ ! -e "$path" ] || pools=some
        node=${path#*/node/node}
        node=${node%%/*}
        case " ${MEMORY_NODES:-$node} " in
        *" $node "*) [ ! -e "$path" ] || files="$files $path" ;;
        esac
    done
    if [ -n "$pools" ] && [ -z "$files" ]; then
        echo "doorbell-tune: no node of MEMORY_NODES=$MEMORY_NODES is here" >&2
        return
    fi
    for path in ${files:-.$3}; do
        [ -e "$path" ] || continue
        if [ "$(cat "$path")" -lt "$2" ]; then
            put "${path#.}" "$2"
        fi
    done
}

# Patterns are relative to this folder.
cd "$ROOT/" || exit 1

