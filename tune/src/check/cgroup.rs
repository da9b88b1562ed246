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
        cost: "about the rest of a period of 100 ms, in every period (kernel: \
               admin-guide/cgroup-v2)",
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

/// What is found in a program's groups.
struct Found {
    /// Files that could hold a limit: none where the controller is not on, or where the group is
    /// the topmost.
    files: usize,
    /// Those that do.
    limits: Vec<Limit>,
}

struct Limit {
    file: String,
    folder: String,
    text: String,
}

/// Every limit in files of these names, from the innermost group on.
fn find(
    host: &Host<'_>,
    controller: &str,
    names: &[&str],
    unlimited: fn(&str) -> bool,
) -> Result<Found, Unread> {
    let mut found = Found { files: 0, limits: Vec::new() };
    for folder in groups(host, controller)? {
        for name in names {
            let file = format!("{folder}/{name}");
            let Some(text) = host.text(&file)? else { continue };
            found.files += 1;
            if !unlimited(&text) {
                found.limits.push(Limit { file, folder: folder.clone(), text });
            }
        }
    }
    Ok(found)
}

/// The verdict, once each limit was looked at: `told` says of each what it is.
fn verdict(host: &Host<'_>, check: &Check, found: &Found, bad: bool, told: &[String]) -> Verdict {
    if found.limits.is_empty() {
        return match found.files {
            0 => Verdict::absent(NOTHING),
            _ => Verdict::fine("no limit"),
        };
    }
    let mut steps: Vec<Step> = found.limits.iter().map(|limit| lifted(&limit.file)).collect();
    steps.extend(words(host, check));
    let is = told.join("; ");
    if bad { Verdict::bad(is, steps) } else { Verdict::note(is, steps) }
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
    let found = find(host, "cpu", &["cpu.max", "cpu.cfs_quota_us"], free)?;
    let told = |limit: &Limit| format!("{} holds `{}` (us)", limit.file, limit.text);
    let told: Vec<String> = found.limits.iter().map(told).collect();
    Ok(verdict(host, check, &found, true, &told))
}

/// Version 1 says no limit by the greatest multiple of a page that fits.
const ENDLESS: u64 = 1 << 62;

fn is_endless(text: &str) -> bool {
    text == "max" || text.parse::<u64>().is_ok_and(|bytes| bytes >= ENDLESS)
}

fn bytes_of(limit: &Limit) -> Result<u64, Unread> {
    limit.text.parse().map_err(|_| garbled(&limit.file, &limit.text, "a number"))
}

fn memory(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let names = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let found = find(host, "memory", &names, is_endless)?;
    let (mut told, mut near) = (Vec::new(), false);
    for limit in &found.limits {
        let bytes = bytes_of(limit)?;
        let mut used = 0;
        for name in ["memory.current", "memory.usage_in_bytes"] {
            used = host.number(&format!("{}/{name}", limit.folder))?.unwrap_or(used);
        }
        told.push(format!("{} holds {bytes}, of which {used} are used", limit.file));
        // Nine tenths, so that files it has read, which count and can go, are no alarm.
        near |= used >= bytes / 10 * 9;
    }
    Ok(verdict(host, check, &found, near, &told))
}

fn hugetlb(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let names = [
        "hugetlb.2MB.max",
        "hugetlb.2MB.rsvd.max",
        "hugetlb.1GB.max",
        "hugetlb.1GB.rsvd.max",
        "hugetlb.2MB.limit_in_bytes",
        "hugetlb.1GB.limit_in_bytes",
    ];
    let found = find(host, "hugetlb", &names, is_endless)?;
    let wanted = host.hugepages << 21;
    let (mut told, mut few) = (Vec::new(), false);
    for limit in &found.limits {
        let bytes = bytes_of(limit)?;
        told.push(format!("{} holds {bytes}; the pages of one node are {wanted}", limit.file));
        few |= bytes < wanted && limit.file.contains(".2MB.");
    }
    Ok(verdict(host, check, &found, few, &told))
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
