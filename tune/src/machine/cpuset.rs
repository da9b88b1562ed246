//! The CPUs and nodes of this program's cpuset (cpuset(7), and cgroups(7) for the mounts).

use crate::ids::Ids;
use crate::root::Root;

/// A place where the kernel shows cpusets.
struct Place<'a> {
    /// The folder of all groups.
    mount: &'a str,
    /// Names of the files with the CPUs and with the nodes of a group.
    files: [&'static str; 2],
    /// True for the second version of control groups.
    unified: bool,
}

const UNIFIED: [&str; 2] = ["cpuset.cpus.effective", "cpuset.mems.effective"];

/// The CPUs of this program's cpuset; `None` if the machine does not say.
pub(super) fn cpus(root: &Root) -> Option<Ids> {
    read(root, 0)
}

/// The nodes whose memory this program's cpuset has; `None` if the machine does not say.
pub(super) fn nodes(root: &Root) -> Option<Ids> {
    read(root, 1)
}

/// Reads one of the two files of this program's group, or of the nearest group above it that has
/// one.
fn read(root: &Root, file: usize) -> Option<Ids> {
    let mounts = root.text("/proc/mounts").unwrap_or_default();
    let mut places: Vec<Place<'_>> = mounts.lines().filter_map(place).collect();
    if places.is_empty() {
        places.push(Place { mount: "/sys/fs/cgroup", files: UNIFIED, unified: true });
    }
    places.iter().find_map(|place| {
        let own = group(root, place.unified)?;
        let mut group = own.trim_end_matches('/');
        loop {
            let found = root.ids(&format!("{}{group}/{}", place.mount, place.files[file]));
            if let Some(ids) = found.filter(|ids| !ids.is_empty()) {
                return Some(ids);
            }
            group = group.rsplit_once('/')?.0;
        }
    })
}

/// The place that a line of `/proc/mounts` names: source, folder, type, options.
fn place(line: &str) -> Option<Place<'_>> {
    let mut words = line.split_whitespace().skip(1);
    let (mount, kind, options) = (words.next()?, words.next()?, words.next()?);
    let has = |name| options.split(',').any(|option| option == name);
    let short = ["cpus", "mems"];
    let files = match kind {
        "cgroup2" => UNIFIED,
        "cpuset" => short,
        "cgroup" if has("cpuset") && has("noprefix") => short,
        "cgroup" if has("cpuset") => ["cpuset.cpus", "cpuset.mems"],
        _ => return None,
    };
    Some(Place { mount, files, unified: kind == "cgroup2" })
}

/// The path of this program's group below the mount.
fn group(root: &Root, unified: bool) -> Option<String> {
    let text = root.text("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let fits = match unified {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|name| name == "cpuset"),
        };
        fits.then(|| path.to_owned())
    });
    own.or_else(|| root.text("/proc/self/cpuset"))
}
