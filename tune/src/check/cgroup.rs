//! Limits of this program's control group: CPU time, memory, huge pages, cores.

use super::condition::{Check, Verdict};
use super::fix::{Fix, Step};
use super::host::{Host, Unread, garbled};
use super::judge::other_steps;

/// The family. The fixes are for the group that the program is in, so there are none for boot.
pub const CHECKS: &[Check] = &[
    Check {
        name: "cgroup_cpu",
        should: "no quota of CPU time (cpu.max is max)",
        why: "a polling worker uses up any quota and then stands still until the next period",
        cost: "about the rest of a period of 100 ms, in every period (kernel: \
               admin-guide/cgroup-v2)",
        judge: cpu,
        fixes: &[Fix::Advice("for good: CPUQuota= of the service, or --cpus of the container")],
    },
    Check {
        name: "cgroup_memory",
        should: "no limit on memory, or one far above what is used",
        why: "near the limit each allocation first reclaims memory; at the limit a program is \
              killed",
        cost: "about 0.1 to 10 ms an allocation near the limit (direct reclaim; kernel: \
               admin-guide/cgroup-v2, memory.high and memory.max)",
        judge: memory,
        fixes: &[Fix::Advice("for good: MemoryMax= of the service, or --memory of the container")],
    },
    Check {
        name: "cgroup_hugetlb",
        should: "the group may use the huge pages that are reserved",
        why: "a program that touches free huge pages beyond the group's limit is killed",
        cost: "no time, it fails: SIGBUS at the first touch, or ENOMEM where reservations are \
               limited too (kernel: admin-guide/cgroup-v2, hugetlb)",
        judge: hugetlb,
        fixes: &[],
    },
    Check {
        name: "cpuset",
        should: "the group's cores include those of the workers",
        why: "a thread cannot run on a core outside of its group's set",
        cost: "no time, it fails: pinning answers EINVAL (sched_setaffinity(2), cpuset(7))",
        judge: cpuset,
        fixes: &[Fix::Advice("AllowedCPUs= of the service, or --cpuset-cpus of the container")],
    },
];

const MOUNT: &str = "/sys/fs/cgroup";

/// Folders of this program's group for `controller` and of the groups above it, innermost first.
///
/// Version 2 has one tree; version 1 has a tree for each controller, in a folder of its name.
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
        // In a container the path may be the one on the host, where only the mount is visible.
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

/// Limits found in a program's groups.
struct Found {
    /// Number of files that can contain a limit. 0 if the controller is off, or for the topmost
    /// group.
    files: usize,
    /// The limits that are set.
    limits: Vec<Limit>,
}

struct Limit {
    file: String,
    folder: String,
    text: String,
}

/// Every limit in files with these names, the innermost group first.
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

/// The verdict on all limits; `texts` describes each of them.
fn verdict(host: &Host<'_>, check: &Check, found: &Found, bad: bool, texts: &[String]) -> Verdict {
    if found.limits.is_empty() {
        return match found.files {
            0 => Verdict::absent(NOTHING),
            _ => Verdict::fine("no limit"),
        };
    }
    let mut steps: Vec<Step> = found.limits.iter().map(|limit| lifted(&limit.file)).collect();
    steps.extend(other_steps(host, check));
    let is = texts.join("; ");
    if bad { Verdict::bad(is, steps) } else { Verdict::note(is, steps) }
}

const NOTHING: &str = "this program is in no group with such a limit";

/// The step that removes a limit: the value is a word in version 2 and a number in version 1.
fn lifted(file: &str) -> Step {
    let version_1 = file.ends_with("_us") || file.ends_with("_bytes");
    let value = if version_1 { "-1" } else { "max" };
    Step::Write { file: file.to_owned(), value: value.to_owned() }
}

fn cpu(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let free = |text: &str| text.starts_with("max") || text.starts_with('-');
    let found = find(host, "cpu", &["cpu.max", "cpu.cfs_quota_us"], free)?;
    let texts = |limit: &Limit| format!("{} contains `{}` (us)", limit.file, limit.text);
    let texts: Vec<String> = found.limits.iter().map(texts).collect();
    Ok(verdict(host, check, &found, true, &texts))
}

/// Version 1 writes the greatest multiple of the page size for no limit.
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
    let (mut texts, mut near) = (Vec::new(), false);
    for limit in &found.limits {
        let bytes = bytes_of(limit)?;
        let mut used = 0;
        for name in ["memory.current", "memory.usage_in_bytes"] {
            used = host.number(&format!("{}/{name}", limit.folder))?.unwrap_or(used);
        }
        texts.push(format!("{} contains {bytes}, of which {used} are used", limit.file));
        // Nine tenths: cached files count as used, although the kernel can drop them.
        near |= used >= bytes / 10 * 9;
    }
    Ok(verdict(host, check, &found, near, &texts))
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
    let wanted = super::memory::wanted(host)?;
    let (mut texts, mut few) = (Vec::new(), false);
    for limit in &found.limits {
        let bytes = bytes_of(limit)?;
        texts.push(format!(
            "{} contains {bytes}; the pages wanted on all nodes are {wanted}",
            limit.file
        ));
        few |= bytes < wanted && limit.file.contains(".2MB.");
    }
    Ok(verdict(host, check, &found, few, &texts))
}

fn cpuset(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    for folder in groups(host, "cpuset")? {
        for name in ["cpuset.cpus.effective", "cpuset.effective_cpus"] {
            let Some(cores) = host.ids(&format!("{folder}/{name}"))? else { continue };
            let outside = host.workers.without(&cores).and(&host.cpus.online);
            if host.reserved && !outside.is_empty() {
                let is = format!("cores {cores}; workers would run on {outside} as well");
                return Ok(Verdict::bad(is, other_steps(host, check)));
            }
            let fewer = host.cpus.online.without(&cores);
            if !fewer.is_empty() {
                let is = format!("cores {cores} of {}", host.cpus.online);
                return Ok(Verdict::note(is, other_steps(host, check)));
            }
            return Ok(Verdict::fine(format!("all cores, {cores}")));
        }
    }
    Ok(Verdict::absent(NOTHING))
}
