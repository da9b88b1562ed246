//! Memory: huge pages, limits, and what moves pages.

use super::condition::{Check, Verdict};
use super::fix::{Fix, Rule, Setting, Step};
use super::host::{Host, Unread, chosen, garbled};
use super::judge::{other_steps, settings, settings_noted, write};

const HUGEPAGES: Setting = Setting {
    files: "/sys/devices/system/node/node[0-9]*/hugepages/hugepages-2048kB/nr_hugepages",
    value: "$HUGEPAGES",
    rule: Rule::AtLeast,
};
const MEMLOCK: Setting = Setting {
    files: "/etc/security/limits.d/60-doorbell.conf",
    value: "* - memlock unlimited",
    rule: Rule::Is,
};
const THP_DEFRAG: Setting = Setting {
    files: "/sys/kernel/mm/transparent_hugepage/defrag",
    value: "madvise",
    rule: Rule::Is,
};

/// A setting of sysctl(8).
const fn sysctl(files: &'static str, value: &'static str) -> Fix {
    Fix::Write(Setting { files, value, rule: Rule::Is })
}

/// The family: pages are reserved, then locked, and then should not be moved.
pub const CHECKS: &[Check] = &[
    Check {
        name: "hugepages",
        should: "each node with memory has pages of 2 MiB reserved (--hugepages says how many)",
        why: "a region in small pages needs 512 times as many translations, in the core and in the \
              NIC",
        cost: "about 20 to 30 cycles for each touch of a page that the core's table of 1500 to \
               3000 translations does not hold (Intel's and AMD's optimization manuals); a NIC \
               that misses asks over PCIe, about 0.5 to 1 us (a PCIe round trip)",
        judge: hugepages,
        fixes: &[
            Fix::Write(HUGEPAGES),
            Fix::Advice(
                "if the kernel finds fewer, its memory is fragmented: restart the machine; if that \
                 does not help, add hugepages=N to the kernel's command line",
            ),
        ],
    },
    Check {
        name: "memlock",
        should: "a program may lock all memory that it registers",
        why: "memory that a NIC reads and writes is locked in place and counts against this limit",
        cost: "no time, it fails: registration answers ENOMEM (ibv_reg_mr(3)); the kernel's \
               default is 64 KiB, 8 MiB since Linux 5.16 (getrlimit(2))",
        judge: memlock,
        fixes: &[
            Fix::Write(MEMLOCK),
            Fix::Advice("log in again; a systemd service needs LimitMEMLOCK=infinity instead"),
        ],
    },
    Check {
        name: "thp",
        should: "transparent huge pages are for programs that ask for them (madvise)",
        why: "with `never` there is no substitute for reserved pages; with `always` khugepaged \
              moves any program's memory while it runs",
        cost: "about 0.1 to 1 ms while a page of 2 MiB is copied under a program that touches it \
               (2 MiB at memory speed and a fault; kernel: admin-guide/mm/transhuge)",
        judge: settings_noted,
        fixes: &[Fix::Write(Setting {
            files: "/sys/kernel/mm/transparent_hugepage/enabled",
            value: "madvise",
            rule: Rule::Is,
        })],
    },
    Check {
        name: "thp_defrag",
        should: "a page fault waits for compaction only in memory that asked for huge pages \
                 (madvise)",
        why: "with `always` any first touch may wait until memory is reclaimed and pages are moved",
        cost: "about 0.1 to 10 ms a fault when memory is fragmented (direct compaction; kernel: \
               admin-guide/mm/transhuge)",
        judge: thp_defrag,
        fixes: &[Fix::Write(THP_DEFRAG)],
    },
    Check {
        name: "numa_balancing",
        should: "kernel.numa_balancing is 0",
        why: "otherwise the kernel unmaps pages from time to time to see which node touches them, \
              and moves them there",
        cost: "about 1 to 2 us a fault, for every page in turn, and an interrupt on each core of \
               the program that has it mapped (kernel: admin-guide/sysctl/kernel)",
        judge: numa_balancing,
        fixes: &[sysctl("/proc/sys/kernel/numa_balancing", "0")],
    },
    Check {
        name: "zone_reclaim",
        should: "vm.zone_reclaim_mode is 0",
        why: "otherwise the kernel drops cached files of a full node before it takes memory of \
              another node",
        cost: "about 0.1 to 10 ms an allocation (direct reclaim; kernel: admin-guide/sysctl/vm)",
        judge: settings,
        fixes: &[sysctl("/proc/sys/vm/zone_reclaim_mode", "0")],
    },
    Check {
        name: "swap",
        should: "no swap, or vm.swappiness is 1",
        why: "memory that is not locked (stacks, tables, the control plane) may be on a disk when \
              it is needed",
        cost: "about 0.1 ms a touch from an SSD, 10 ms from a disk (their access times)",
        judge: swap,
        fixes: &[sysctl("/proc/sys/vm/swappiness", "1")],
    },
];

/// The pool of the whole machine.
pub(super) const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const NODES: &str = "/sys/devices/system/node";

/// The folders of the pools, one for each node that workers take memory from.
fn pools(host: &Host<'_>) -> Result<Vec<String>, Unread> {
    let wanted = match &host.nodes {
        Some(nodes) => Some(nodes.clone()),
        None => host.ids(&format!("{NODES}/has_memory"))?,
    };
    let mut folders = Vec::new();
    for file in host.files(HUGEPAGES.files) {
        let node = file.strip_prefix(NODES).and_then(|rest| rest.strip_prefix("/node"));
        let node = node.and_then(|rest| rest.split('/').next()?.parse::<usize>().ok());
        let asked = wanted.as_ref().zip(node).is_none_or(|(ids, node)| ids.contains(node));
        if asked && let Some(folder) = file.strip_suffix("/nr_hugepages") {
            folders.push(folder.to_owned());
        }
    }
    if folders.is_empty() && host.root.has(POOL) {
        folders.push(POOL.to_owned());
    }
    Ok(folders)
}

/// The bytes of the huge pages wanted on all nodes together.
pub(super) fn wanted(host: &Host<'_>) -> Result<u64, Unread> {
    let pools = pools(host)?.len().max(1);
    Ok(host.hugepages.saturating_mul(2 << 20).saturating_mul(pools as u64))
}

fn hugepages(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let folders = pools(host)?;
    if folders.is_empty() {
        return Ok(Verdict::absent("this kernel reserves no pages of 2 MiB"));
    }
    let (mut texts, mut steps, mut taken) = (Vec::new(), Vec::new(), false);
    for folder in folders {
        let number = |name: &str| host.number(&format!("{folder}/{name}"));
        let giant = folder.replace("-2048kB", "-1048576kB");
        let giant = host.number(&format!("{giant}/nr_hugepages"))?.unwrap_or(0);
        let small = number("nr_hugepages")?.unwrap_or(0);
        let free = number("free_hugepages")?.unwrap_or(small);
        let place = folder.split('/').find(|part| part.starts_with("node") && part.len() > 4);
        texts.push(format!("{} has {small}, {free} of them free", place.unwrap_or("the machine")));
        // A page of 1 GiB is as good as 512 of 2 MiB.
        if small.saturating_add(giant.saturating_mul(512)) < host.hugepages {
            steps.push(write(host, &HUGEPAGES, &format!("{folder}/nr_hugepages")));
        } else {
            taken |= free == 0 && giant == 0 && host.hugepages > 0;
        }
    }
    let is = format!("{} ({} wanted on each)", texts.join("; "), host.hugepages);
    if !steps.is_empty() {
        steps.extend(other_steps(host, check));
        return Ok(Verdict::bad(is, steps));
    }
    let more = "other programs use all pages of a node; reserve more with --hugepages".to_owned();
    Ok(if taken { Verdict::note(is, vec![Step::Advice(more)]) } else { Verdict::fine(is) })
}

/// CAP_IPC_LOCK, which lifts the limit (capabilities(7)).
const IPC_LOCK: u64 = 1 << 14;

fn memlock(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let file = "/proc/self/limits";
    let Some(text) = host.text(file)? else { return Ok(Verdict::absent("no limits here")) };
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let Some(soft) = line.and_then(|rest| rest.split_whitespace().next()) else {
        return Err(garbled(file, &text, "a table with a line `Max locked memory`"));
    };
    if soft == "unlimited" {
        return Ok(Verdict::fine("unlimited"));
    }
    let Ok(bytes) = soft.parse::<u64>() else { return Err(garbled(file, soft, "a number")) };
    let caps = host.root.field("/proc/self/status", "CapEff").unwrap_or_default();
    let capable = u64::from_str_radix(&caps, 16).is_ok_and(|caps| caps & IPC_LOCK != 0);
    if capable && !in_user_namespace(host)? {
        return Ok(Verdict::fine(format!("{bytes} bytes, and CAP_IPC_LOCK lifts the limit")));
    }
    let wanted = wanted(host)?;
    let is = format!("{bytes} bytes; the pages wanted on all nodes are {wanted}");
    let set = host.text(MEMLOCK.files)?.unwrap_or_default();
    let set = set.lines().any(|line| line == MEMLOCK.value);
    let mut steps = other_steps(host, check);
    if set {
        return Ok(Verdict::note(format!("{is}; the next login will have no limit"), steps));
    }
    steps.insert(0, write(host, &MEMLOCK, MEMLOCK.files));
    Ok(if bytes < wanted { Verdict::bad(is, steps) } else { Verdict::note(is, steps) })
}

/// Whether this process is in a user namespace of its own, where CAP_IPC_LOCK does not lift the
/// limit: it does not see all users under their own numbers (user_namespaces(7)). A kernel without
/// the file has no such namespaces.
fn in_user_namespace(host: &Host<'_>) -> Result<bool, Unread> {
    let map = host.text("/proc/self/uid_map")?;
    let all = ["0", "0", "4294967295"];
    Ok(map.is_some_and(|map| !map.split_whitespace().eq(all)))
}

fn thp_defrag(host: &Host<'_>, _: &Check) -> Result<Verdict, Unread> {
    Ok(match host.text(THP_DEFRAG.files)?.as_deref().map(chosen) {
        None => Verdict::absent("this kernel has no transparent huge pages"),
        Some("always") => Verdict::bad(
            "always: any fault may stop",
            vec![write(host, &THP_DEFRAG, THP_DEFRAG.files)],
        ),
        Some(mode) => Verdict::fine(mode),
    })
}

fn numa_balancing(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    if host.files(&format!("{NODES}/node[0-9]*")).len() < 2 {
        return Ok(Verdict::absent("one node, so nothing to balance"));
    }
    settings(host, check)
}

fn swap(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let areas = host.text("/proc/swaps")?.unwrap_or_default().lines().skip(1).count();
    if areas == 0 {
        return Ok(Verdict::fine("no swap"));
    }
    settings_noted(host, check)
}
