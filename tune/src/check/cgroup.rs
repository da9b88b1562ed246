//! What this program's control group takes away: time, memory, huge pages, cores.

use super::Check;
use super::host::{Host, Unread, garbled};
use super::mend::{Mend, Step};
use super::report::{Verdict, words};

/// The family. Mends are for the group the program is in, so there is nothing to do at boot.
pub const CHECKS: &[Check] = &[
    Check {
        name: "cgroup_cpu",
        should: "no quota of time (cpu.max is max)",
        why: "a worker that polls uses up any quota, and then stands still until the next period",
        cost: "about the rest of a period of 100 ms, in every period (kernel: admin-guide/cgroup-v2)",
        judge: cpu,
        mends: &[Mend::Advice("for good: CPUQuota= of the service, or --cpus of the container")],
    },
    Check {
        name: "cgroup_memory",
        should: "no limit on memory, or one far above what is used",
        why: "near the limit each allocation reclaims first, and at it a program is killed",
        cost: "about 0.1 to 10 ms an allocation near the limit (direct reclaim; kernel: \
               admin-guide/cgroup-v2, memory.high and memory.max)",
        judge: memory,
        mends: &[Mend::Advice("for good: MemoryMax= of the service, or --memory of the container")],
    },
    Check {
        name: "cgroup_hugetlb",
        should: "the group may have the huge pages that are set aside",
        why: "pages that are free but beyond the group's limit kill the program that touches them",
        cost: "no time, it fails: SIGBUS at the first touch, or ENOMEM where reservations are \
               limited too (kernel: admin-guide/cgroup-v2, hugetlb)",
        judge: hugetlb,
        mends: &[],
    },
    Check {
        name: "cpuset",
        should: "the group's cores hold the workers'",
        why: "a thread cannot be moved to a core outside of its group's set",
        cost: "no time, it fails: pinning answers EINVAL (sched_setaffinity(2), cpuset(7))",
        judge: cpuset,
        mends: &[Mend::Advice("AllowedCPUs= of the service, or --cpuset-cpus of the container")],
    },
];

const MOUNT: &str = "/sys/fs/cgroup";

/// Folders of the group that `controller` counts this program in, innermost first.
///
/// Version 2 has one tree; version 1 a tree for each controller, below its name.
fn groups(host: &Host<'_>, controller: &str) -> Result<Vec<String>, Unread> {
    let Some(text) = host.text("/proc/self/cgroup")? else { return Ok(Vec::new()) };
    let mut found = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(garbled("/proc/self/cgroup", line, "number:controllers:path"));
        };
        if names.split(',').any(|name| name == controller) {
            found = Some((format!("{MOUNT}/{controller}"), path.to_owned()));
            break;
        }
        if number == "0" {
            found = Some((MOUNT.to_owned(), path.to_owned()));
        }
    }
    let Some((mount, path)) = found else { return Ok(Vec::new()) };
    let mut path = path.trim_end_matches('/');
    let mut folders = Vec::new();
    loop {
        // In a container the path may be that of the host, of which only the mount is seen.
        let folder = format!("{mount}{path}");
        if host.root.has(&folder) {
            folders.push(folder);
        }
        match path.rsplit_once('/') {
            Some((above, _)) => path = above,
            None => return Ok(folders),
        }
    }
}

/// The first of the files that has a limit in it, from the innermost group on: what it says.
fn limit(
    host: &Host<'_>,
    controller: &str,
    names: &[&str],
    unlimited: fn(&str) -> bool,
) -> Result<Found, Unread> {
    let mut files = 0;
    for folder in groups(host, controller)? {
        for name in names {
            let file = format!("{folder}/{name}");
            if let Some(text) = host.text(&file)? {
                files += 1;
                if !unlimited(&text) {
                    return Ok(Found::Limit { file, folder, text });
                }
            }
        }
    }
    Ok(if files == 0 { Found::Nothing } else { Found::Free })
}

/// What is found in a program's groups.
enum Found {
    /// No such file: the controller is not on, or the group is the topmost.
    Nothing,
    /// No limit.
    Free,
    /// A limit.
    Limit { file: String, folder: String, text: String },
}

const NOTHING: &str = "this program is in no group with such a limit";

/// A file's value without a limit: a word in version 2, a number in version 1.
fn lifted(file: &str) -> Step {
    let version_1 = file.ends_with("_us") || file.ends_with("_bytes");
    let value = if version_1 { "-1" } else { "max" };
    Step::Write { file: file.to_owned(), value: value.to_owned() }
}

fn cpu(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let free = |text: &str| text.starts_with("max") || text.starts_with('-');
    Ok(match limit(host, "cpu", &["cpu.max", "cpu.cfs_quota_us"], free)? {
        Found::Nothing => Verdict::absent(NOTHING),
        Found::Free => Verdict::fine("no quota"),
        Found::Limit { file, text, .. } => {
            let mut steps = vec![lifted(&file)];
            steps.extend(words(host, check));
            Verdict::bad(format!("{file} holds `{text}` (quota and period, us)"), steps)
        }
    })
}

/// Version 1 says no limit by the greatest multiple of a page that fits.
const ENDLESS: u64 = 1 << 62;

fn is_endless(text: &str) -> bool {
    text == "max" || text.parse::<u64>().is_ok_and(|bytes| bytes >= ENDLESS)
}

fn memory(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let names = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let (file, folder, text) = match limit(host, "memory", &names, is_endless)? {
        Found::Nothing => return Ok(Verdict::absent(NOTHING)),
        Found::Free => return Ok(Verdict::fine("no limit")),
        Found::Limit { file, folder, text } => (file, folder, text),
    };
    let Ok(bytes) = text.parse::<u64>() else { return Err(garbled(&file, &text, "a number")) };
    let mut used = 0;
    for name in ["memory.current", "memory.usage_in_bytes"] {
        used = host.number(&format!("{folder}/{name}"))?.unwrap_or(used);
    }
    let is = format!("{file} holds {bytes}, of which {used} are used");
    let mut steps = vec![lifted(&file)];
    steps.extend(words(host, check));
    // Nine tenths, so that files it has read, which count and can go, are no alarm by themselves.
    Ok(if used >= bytes / 10 * 9 { Verdict::bad(is, steps) } else { Verdict::note(is, steps) })
}

fn hugetlb(host: &Host<'_>, _: &Check) -> Result<Verdict, Unread> {
    let names = [
        "hugetlb.2MB.max",
        "hugetlb.2MB.rsvd.max",
        "hugetlb.1GB.max",
        "hugetlb.1GB.rsvd.max",
        "hugetlb.2MB.limit_in_bytes",
        "hugetlb.1GB.limit_in_bytes",
    ];
    Ok(match limit(host, "hugetlb", &names, is_endless)? {
        Found::Nothing => Verdict::absent(NOTHING),
        Found::Free => Verdict::fine("no limit"),
        Found::Limit { file, text, .. } => {
            let Ok(bytes) = text.parse::<u64>() else {
                return Err(garbled(&file, &text, "a number"));
            };
            let wanted = host.hugepages << 21;
            let is = format!("{file} holds {bytes}; the pages of one node are {wanted}");
            let steps = vec![lifted(&file)];
            if bytes < wanted { Verdict::bad(is, steps) } else { Verdict::note(is, steps) }
        }
    })
}

fn cpuset(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    for folder in groups(host, "cpuset")? {
        for name in ["cpuset.cpus.effective", "cpuset.effective_cpus"] {
            let Some(cores) = host.ids(&format!("{folder}/{name}"))? else { continue };
            let outside = host.workers.without(&cores).and(&host.cpus.online);
            if host.apart && !outside.is_empty() {
                let is = format!("cores {cores}; workers would run on {outside} as well");
                return Ok(Verdict::bad(is, words(host, check)));
            }
            let fewer = host.cpus.online.without(&cores);
            if !fewer.is_empty() {
                let is = format!("cores {cores} of {}", host.cpus.online);
                return Ok(Verdict::note(is, words(host, check)));
            }
            return Ok(Verdict::fine(format!("all cores, {cores}")));
        }
    }
    Ok(Verdict::absent(NOTHING))
}
