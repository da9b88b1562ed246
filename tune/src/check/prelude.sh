# ROOT is the folder with the machine's files, empty for this machine. STATE is the file that saves
# the previous values for `tune check --undo`; if it is empty, none are saved.
failed=0

# Values in /proc and /sys last until the machine restarts.
start=-
if [ -r "$ROOT/proc/sys/kernel/random/boot_id" ]; then
    read -r start < "$ROOT/proc/sys/kernel/random/boot_id"
fi

# keep KIND NAME BEFORE: appends a line to STATE.
keep() {
    [ -n "$STATE" ] || return 0
    case ${STATE%/*} in
    "$STATE" | "") ;; # a bare name is in this folder, /NAME in the root
    *) [ -d "${STATE%/*}" ] || mkdir -p "${STATE%/*}" ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$start" "$1" "$2" "$3" >> "$STATE"
}

# put FILE VALUE: saves the value of FILE, then writes VALUE to it.
put() {
    file=$1
    value=$2
    before=absent
    if [ -e "$ROOT$file" ]; then
        # Two digits for each byte, joined without spaces.
        set -- $(od -An -vtx1 "$ROOT$file")
        IFS=
        before="had:$*"
        unset IFS
    fi
    if ! keep file "$file" "$before"; then
        echo "$file is left alone: its value cannot be saved in $STATE" >&2
        failed=1
    elif ! printf '%s\n' "$value" > "$ROOT$file"; then
        echo "$file did not take $value" >&2
        case $file in
        /proc/irq/*) ;; # the kernel does not let some interrupts be moved
        *) failed=1 ;;
        esac
    fi
}

# stop SERVICE: if it runs, saves that, then stops it.
stop() {
    if [ -n "$ROOT" ]; then
        echo "$1 is left alone: $ROOT is not this machine" >&2
    elif ! command -v systemctl > /dev/null; then
        echo "$1 is left alone: there is no systemctl here; stop it the way it was started" >&2
        failed=1
    elif systemctl is-active --quiet "$1"; then
        keep service "$1" active && systemctl stop "$1" || failed=1
    fi
}
