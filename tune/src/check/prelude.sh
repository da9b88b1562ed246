# ROOT is the folder that holds the machine's files, empty for this machine. Where STATE is not
# empty, it is the file that keeps what was there before: `tune check --undo` restores it.
failed=0

# What /proc and /sys hold ends with this start of the machine.
start=-
if [ -r "$ROOT/proc/sys/kernel/random/boot_id" ]; then
    read -r start < "$ROOT/proc/sys/kernel/random/boot_id"
fi

# keep KIND NAME BEFORE: a line of STATE.
keep() {
    [ -n "$STATE" ] || return 0
    [ -d "${STATE%/*}" ] || mkdir -p "${STATE%/*}"
    printf '%s\t%s\t%s\t%s\n' "$start" "$1" "$2" "$3" >> "$STATE"
}

# put FILE VALUE: keeps what FILE holds, then writes VALUE.
put() {
    file=$1
    value=$2
    before=absent
    if [ -e "$ROOT$file" ]; then
        # Two digits for each byte; joined without the spaces between.
        set -- $(od -An -vtx1 "$ROOT$file")
        IFS=
        before="had:$*"
        unset IFS
    fi
    if ! keep file "$file" "$before"; then
        echo "$file is left alone: what it holds cannot be kept in $STATE" >&2
        failed=1
    elif ! printf '%s\n' "$value" > "$ROOT$file"; then
        echo "$file did not take $value" >&2
        case $file in
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
