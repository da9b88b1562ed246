# ROOT is the folder that holds the machine's files, empty for this machine. Where STATE is not
# empty, it is the file that keeps what was there before: `tune check --undo` restores it.
ROOT=${ROOT:-}
failed=0

# keep KIND NAME BEFORE: a line of STATE. What /proc and /sys hold ends with this start's number.
keep() {
    [ -n "$STATE" ] || return 0
    mkdir -p "$(dirname "$STATE")"
    start=$(cat "$ROOT/proc/sys/kernel/random/boot_id" 2> /dev/null || echo -)
    printf '%s\t%s\t%s\t%s\n' "$start" "$1" "$2" "$3" >> "$STATE"
}

# put FILE VALUE: keeps what FILE holds, then writes VALUE.
put() {
    if [ -e "$ROOT$1" ]; then
        before=had:$(od -An -vtx1 "$ROOT$1" | tr -d ' \n')
    else
        before=absent
    fi
    if ! keep file "$1" "$before"; then
        echo "$1 is left alone: what it holds cannot be kept in $STATE" >&2
        failed=1
    elif ! printf '%s\n' "$2" > "$ROOT$1"; then
        echo "$1 did not take $2" >&2
        case $1 in
        /proc/irq/*) ;; # some interrupts are the kernel's own to place
        *) failed=1 ;;
        esac
    fi
}

# stop SERVICE: keeps that it runs, then stops it.
stop() {
    if [ -n "$ROOT" ]; then
        echo "$1 is left alone: $ROOT is not this machine" >&2
    elif ! command -v systemctl > /dev/null; then
        echo "$1 is left alone: there is no systemctl here; end it the way it was started" >&2
        failed=1
    elif systemctl is-active --quiet "$1"; then
        keep service "$1" active && systemctl stop "$1" || failed=1
    fi
}
