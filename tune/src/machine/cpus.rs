//! [`Cpus`]: which CPUs a machine has, and which of them this program may use.

use std::io;

use serde::Serialize;

use super::cpuset;
use crate::ids::Ids;
use crate::root::{ReadError, Root};

/// The CPUs of a machine, as the kernel numbers them: one for each hardware thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus {
    /// CPUs that are online.
    pub online: Ids,
    /// CPUs that exist but are switched off.
    pub offline: Ids,
    /// CPUs that the scheduler keeps free (`isolcpus`), whether or not they are usable.
    pub isolated: Ids,
    /// CPUs without timer ticks while they run one thread (`nohz_full`).
    pub tickless: Ids,
    /// CPUs that this program may use: those of its mask, and isolated ones of its cpuset.
    pub usable: Ids,
}

pub(super) const FOLDER: &str = "/sys/devices/system/cpu";

impl Cpus {
    /// Reads a machine's CPUs.
    ///
    /// # Errors
    /// The machine does not say which CPUs are online.
    pub fn read(root: &Root) -> Result<Cpus, ReadError> {
        let list = |name| root.ids(&format!("{FOLDER}/{name}"));
        let (online, offline) = match list("online").filter(|ids| !ids.is_empty()) {
            Some(online) => (online, list("offline").unwrap_or_default()),
            None => listed(root)?,
        };
        let isolated = list("isolated").unwrap_or_default();
        // The kernel's list of CPUs that are offline has those that could be added later, too.
        let offline = list("present").map_or_else(|| offline.clone(), |ids| offline.and(&ids));
        // For no tickless CPU the kernel writes `(null)`, which is not a list and counts as none.
        let tickless = list("nohz_full").unwrap_or_default();
        let usable = usable(root, &online, &isolated);
        Ok(Cpus { online, offline, isolated, tickless, usable })
    }
}

/// The CPUs that are online and those that are not, by their folders: old kernels have no list.
fn listed(root: &Root) -> Result<(Ids, Ids), ReadError> {
    let all: Ids = root
        .entries(FOLDER)
        .iter()
        .filter_map(|name| name.strip_prefix("cpu")?.parse::<usize>().ok())
        .collect();
    // The first CPU often has no such file, because it cannot be switched off.
    let runs = |cpu: &usize| root.value(&format!("{FOLDER}/cpu{cpu}/online")) != Some(0);
    let online: Ids = all.iter().filter(runs).collect();
    if online.is_empty() {
        // Neither list nor folders: the error names the list.
        let file = format!("{FOLDER}/online");
        root.read(&file)?;
        let source = io::Error::new(io::ErrorKind::InvalidData, "it is not a list of CPUs");
        return Err(ReadError { path: root.path(&file), source });
    }
    let offline = all.without(&online);
    Ok((online, offline))
}

/// A program starts without the isolated CPUs in its mask. It may still move there if they are in
/// its cpuset (sched_setaffinity(2), isolcpus in the kernel's parameters).
fn usable(root: &Root, online: &Ids, isolated: &Ids) -> Ids {
    let cpuset = cpuset::cpus(root);
    let status = root.field("/proc/self/status", "Cpus_allowed_list");
    let Some(own) = status.and_then(|text| text.parse::<Ids>().ok()) else {
        return cpuset.map_or_else(|| online.clone(), |cpuset| cpuset.and(online));
    };
    let others = online.without(isolated);
    let cpuset = cpuset.unwrap_or_else(|| {
        // If the mask has all CPUs that are not isolated, nobody has restricted it.
        if others.without(&own).is_empty() { online.clone() } else { own.clone() }
    });
    own.or(&isolated.and(&cpuset)).and(online)
}

/// The CPUs that one of these files in a CPU's folder names, by the mask or the list in it. The
/// second name is that of kernels before 5.3.
pub(super) fn siblings(root: &Root, folder: &str, names: [&str; 2]) -> Option<Ids> {
    let set = |name| root.set(&format!("{folder}/{name}"), &format!("{folder}/{name}_list"));
    names.into_iter().find_map(set)
}
