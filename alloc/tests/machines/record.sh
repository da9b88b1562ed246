#!/bin/sh
# Prints what alloc reads of the machine that runs this, in the format of the files beside it:
#     sh record.sh > NAME.txt
# A line `== PATH` starts a file; what follows up to the next such line is its text.

groups=$(cut -d : -f 3 /proc/self/cgroup | sort -u)
for file in \
    /proc/meminfo /proc/self/limits /proc/self/status /proc/self/cgroup /proc/self/mountinfo \
    /proc/self/numa_maps /proc/self/uid_map \
    /proc/sys/vm/overcommit_memory \
    /sys/devices/system/node/online /sys/devices/system/node/has_memory \
    /sys/devices/system/node/node*/meminfo \
    /sys/devices/system/node/node*/hugepages/*/*_hugepages \
    /sys/kernel/mm/hugepages/*/*_hugepages \
    /sys/kernel/mm/transparent_hugepage/enabled \
    /sys/kernel/mm/transparent_hugepage/shmem_enabled \
    $(for group in $groups; do
        for top in /sys/fs/cgroup /sys/fs/cgroup/memory /sys/fs/cgroup/hugetlb; do
            folder=$top$group
            while [ "${#folder}" -ge "${#top}" ]; do
                ls "${folder%/}"/memory.max "${folder%/}"/memory.current "${folder%/}"/memory.stat \
                    "${folder%/}"/memory.limit_in_bytes "${folder%/}"/memory.usage_in_bytes \
                    "${folder%/}"/hugetlb.*.max "${folder%/}"/hugetlb.*.current \
                    "${folder%/}"/hugetlb.*limit_in_bytes "${folder%/}"/hugetlb.*usage_in_bytes
                folder=${folder%/*}
            done
        done
    done 2> /dev/null | sort -u); do
    [ -r "$file" ] || continue
    echo "== $file"
    case $file in
    # What these hold beyond the lines that are read is long, or a machine's own business.
    /proc/self/status) grep -E '^(VmLck|CapEff|Mems_allowed_list):' "$file" ;;
    /proc/self/mountinfo) grep ' - cgroup' "$file" ;;
    /proc/self/numa_maps) head -n 1 "$file" | cut -d ' ' -f 1,2 ;;
    /proc/self/limits) grep 'Max locked' "$file" ;;
    *) cat "$file" ;;
    esac
done
