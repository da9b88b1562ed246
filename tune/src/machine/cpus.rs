//! [`Cpus`]: which CPUs a machine has, and which of them this program may use.

use serde::Serialize;

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

const FOLDER: &str = "/sys/devices/system/cpu";

impl Cpus {
    /// Reads a machine's CPUs.
    ///
    /// # Errors
    /// The machine does not say which CPUs are online.
    pub fn read(root: &Root) -> Result<Cpus, ReadError> {
        root.read(&format!("{FOLDER}/online"))?;
        let list = |name| root.ids(&format!("{FOLDER}/{name}")).unwrap_or_default();
        let (online, isolated) = (list("online"), list("isolated"));
        // For no tickless CPU the kernel writes `(null)`, which is not a list and counts as none.
        let (offline, tickless) = (list("offline").and(&list("present")), list("nohz_full"));
        let usable = usable(root, &online, &isolated);
        Ok(Cpus { online, offline, isolated, tickless, usable })
    }
}

/// A program starts without the isolated CPUs in its mask. It may still move there if they are in
/// its cpuset (sched_setaffinity(2), isolcpus in the kernel's parameters).
fn usable(root: &Root, online: &Ids, isolated: &Ids) -> Ids {
    let status = root.field("/proc/self/status", "Cpus_allowed_list");
    let Some(own) = status.and_then(|text| text.parse::<Ids>().ok()) else {
        return online.clone();
    };
    let others = online.without(isolated);
    let cpuset = cpuset(root).unwrap_or_else(|| {
        // If the mask has all CPUs that are not isolated, nobody has restricted it.
        if others.without(&own).is_empty() { online.clone() } else { own.clone() }
    });
    own.or(&isolated.and(&cpuset)).and(online)
}

/// The CPUs of this program's control group, or of the nearest group above it that lists some.
fn cpuset(root: &Root) -> Option<Ids> {
    let text = root.text("/proc/self/cgroup")?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut group = own.trim_end_matches('/');
    loop {
        if let Some(ids) = root.ids(&format!("/sys/fs/cgroup{group}/cpuset.cpus.effective")) {
            return Some(ids);
        }
        group = group.rsplit_once('/')?.0;
    }
}
