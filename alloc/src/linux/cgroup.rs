//! Control groups, version 1 and 2 (cgroups(7)): how much memory and how many huge pages they
//! leave.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::machine::Machine;
use crate::reason::{Limit, Reason};

/// The names of the two files of a limit: the limit itself, and what is used of it.
struct Files {
    limit: String,
    used: String,
}

/// Checks that the groups leave `needed` bytes of huge pages of `page` bytes.
pub(super) fn huge(machine: &Machine, page: usize, needed: u64) -> Result<(), Reason> {
    let Some(group) = Group::find(machine, "hugetlb") else { return Ok(()) };
    let name = format!("hugetlb.{}", size_name(page));
    // Pages reserved for a mapping (`.rsvd`) and pages touched are counted separately.
    for kind in ["", ".rsvd"] {
        let files = match group.version {
            Version::One => Files {
                limit: format!("{name}{kind}.limit_in_bytes"),
                used: format!("{name}{kind}.usage_in_bytes"),
            },
            Version::Two => {
                Files { limit: format!("{name}{kind}.max"), used: format!("{name}{kind}.current") }
            }
        };
        group.leaves(needed, &files, &|_| 0)?;
    }
    Ok(())
}

/// Checks that the groups leave `needed` bytes of memory. The kernel can drop cached files to make
/// room. It can swap out up to `swap` bytes, as far as the groups may use swap.
pub(super) fn memory(machine: &Machine, needed: u64, swap: u64) -> Result<(), Reason> {
    let Some(group) = Group::find(machine, "memory") else { return Ok(()) };
    match group.version {
        Version::One => {
            let cached = |folder: &str| cached(machine, folder, &ONE_CACHED);
            let files = |name: &str| Files {
                limit: format!("memory.{name}limit_in_bytes"),
                used: format!("memory.{name}usage_in_bytes"),
            };
            group.leaves(needed, &files(""), &|folder| cached(folder).saturating_add(swap))?;
            // The limit of memory and swap together.
            group.leaves(needed, &files("memsw."), &cached)
        }
        Version::Two => {
            let files = Files { limit: "memory.max".into(), used: "memory.current".into() };
            group.leaves(needed, &files, &|folder| {
                cached(machine, folder, &TWO_CACHED).saturating_add(group.swap(folder, swap))
            })
        }
    }
}

const ONE_CACHED: [&str; 2] = ["total_inactive_file", "total_active_file"];
const TWO_CACHED: [&str; 3] = ["inactive_file", "active_file", "slab_reclaimable"];

/// Bytes of a group's memory that the kernel can drop: the sum of these statistics.
fn cached(machine: &Machine, folder: &str, names: &[&str]) -> u64 {
    let text = machine.text(&format!("{folder}/memory.stat")).unwrap_or_default();
    names.iter().map(|name| statistic(&text, name)).sum()
}

/// The kernel's name for a page size: `2MB`, `1GB`, `64KB`.
fn size_name(page: usize) -> String {
    match page {
        page if page >= 1 << 30 => format!("{}GB", page >> 30),
        page if page >= 1 << 20 => format!("{}MB", page >> 20),
        page => format!("{}KB", page >> 10),
    }
}

/// The number after a name, in a text of lines `name number`; 0 if there is none.
fn statistic(text: &str, name: &str) -> u64 {
    let number = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(number).unwrap_or_default()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group of this process for one controller.
struct Group<'a> {
    machine: &'a Machine,
    version: Version,
    /// Where its hierarchy is mounted.
    mount: String,
    /// The folder of the group: the mount and the path below it.
    folder: String,
}

impl<'a> Group<'a> {
    /// Finds it: version 1 if the controller has a hierarchy of its own, else version 2.
    fn find(machine: &'a Machine, controller: &str) -> Option<Self> {
        let groups = machine.text("/proc/self/cgroup")?;
        let mounts = machine.text("/proc/self/mountinfo")?;
        // `4:memory:/path`, or `0::/path` for version 2.
        let path_of = |wanted: &dyn Fn(&str) -> bool| {
            groups.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (controllers, path) = (parts.next()?, parts.next()?);
                wanted(controllers).then_some(path)
            })
        };
        let has = |list: &str| list.split(',').any(|name| name == controller);
        let one = || {
            let mount = Mount::find(&mounts, "cgroup", &has)?;
            Some((Version::One, mount, path_of(&has)?))
        };
        let two = || {
            let mount = Mount::find(&mounts, "cgroup2", &|_| true)?;
            Some((Version::Two, mount, path_of(&str::is_empty)?))
        };
        let (version, mount, path) = one().or_else(two)?;
        let folder = mount.folder(path);
        Some(Self { machine, version, mount: mount.point.into(), folder })
    }

    /// Checks that this group and all groups above it leave `needed` bytes of a limit. `freeable`
    /// returns how many of the bytes used in a folder can be freed.
    fn leaves(
        &self,
        needed: u64,
        files: &Files,
        freeable: &dyn Fn(&str) -> u64,
    ) -> Result<(), Reason> {
        for folder in self.upwards() {
            let file = format!("{folder}/{}", files.limit);
            let Some(limit) = self.machine.number(&file) else { continue };
            let used = self.machine.number(&format!("{folder}/{}", files.used)).unwrap_or(0);
            let left = limit.saturating_sub(used);
            if left >= needed {
                continue;
            }
            let left = left.saturating_add(freeable(&folder)).min(limit);
            if left < needed {
                let limit = Limit::Group { file, bytes: limit };
                return Err(Reason::OverLimit { needed, left, limit });
            }
        }
        Ok(())
    }

    /// The part of `swap` bytes that a group of version 2 may use: its own limit of swap and those
    /// of the groups above it apply.
    fn swap(&self, folder: &str, swap: u64) -> u64 {
        let above = self.upwards().into_iter().filter(|above| above.len() <= folder.len());
        above.fold(swap, |least, folder| {
            let number = |name: &str| self.machine.number(&format!("{folder}/memory.swap.{name}"));
            let used = || number("current").unwrap_or(0);
            number("max").map_or(least, |most| least.min(most.saturating_sub(used())))
        })
    }

    /// The folders from the group up to the mount.
    fn upwards(&self) -> Vec<String> {
        let mut folders = Vec::new();
        let mut folder = self.folder.as_str();
        while folder.len() > self.mount.len() {
            folders.push(folder.into());
            folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
        }
        folders.push(self.mount.clone());
        folders
    }
}

/// A mounted hierarchy.
struct Mount<'a> {
    /// The group that is the top of the mount.
    root: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// The mount of a type whose options are `wanted`, in /proc/self/mountinfo:
    /// `36 25 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`.
    fn find(mounts: &'a str, kind: &str, wanted: &dyn Fn(&str) -> bool) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            if right.next()? != kind || !wanted(right.nth(1)?) {
                return None;
            }
            let mut left = left.split(' ').skip(3);
            Some(Self { root: left.next()?, point: left.next()?.trim_end_matches('/') })
        })
    }

    /// The folder of a group. A group outside of the mount counts as the top of the mount: a
    /// container may see the path that the group has on the host.
    fn folder(&self, path: &str) -> String {
        let below = match path.strip_prefix(self.root.trim_end_matches('/')) {
            Some(below) if below.starts_with('/') && !below.starts_with("/..") => below,
            _ => "",
        };
        format!("{}{}", self.point, below.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_have_the_kernels_names() {
        assert_eq!(size_name(2 << 20), "2MB");
        assert_eq!(size_name(1 << 30), "1GB");
        assert_eq!(size_name(64 << 10), "64KB");
    }

    #[test]
    fn a_group_is_found_below_its_mount() {
        let folder = |root, path: &str| Mount { root, point: "/cg" }.folder(path);
        assert_eq!(folder("/", "/a/b"), "/cg/a/b");
        assert_eq!(folder("/", "/"), "/cg");
        assert_eq!(folder("/docker/1", "/docker/1"), "/cg");
        assert_eq!(folder("/docker/1", "/docker/1/a"), "/cg/a");
        assert_eq!(folder("/docker/1", "/docker/12"), "/cg");
        assert_eq!(folder("/", "/../../x"), "/cg");
    }

    #[test]
    fn all_groups_above_are_checked() {
        let machine = Machine::recorded("/nowhere/at/all");
        let (mount, folder) = ("/cg".into(), "/cg/a/b".into());
        let group = Group { machine: &machine, version: Version::Two, mount, folder };
        assert_eq!(group.upwards(), ["/cg/a/b", "/cg/a", "/cg"]);
    }

    #[test]
    fn mounts_are_told_apart_by_type_and_options() {
        let text = "\
30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
31 25 0:27 /x /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
";
        let one = Mount::find(text, "cgroup", &|options| options.contains("memory"));
        assert_eq!(one.expect("mounted").point, "/sys/fs/cgroup/memory");
        let two = Mount::find(text, "cgroup2", &|_| true).expect("mounted");
        assert_eq!((two.root, two.point), ("/x", "/sys/fs/cgroup/unified"));
        assert!(Mount::find(text, "cgroup", &|options| options.contains("hugetlb")).is_none());
    }

    #[test]
    fn a_statistic_is_found_by_its_whole_name() {
        let text = "inactive_file 5\nfile 7\nactive_file 9\n";
        assert_eq!(statistic(text, "file"), 7);
        assert_eq!(statistic(text, "active_file"), 9);
        assert_eq!(statistic(text, "none"), 0);
    }
}
