//! Which CPUs there are, and which of them a program may have.

use serde::Serialize;

use crate::ids::Ids;
use crate::root::{ReadError, Root};

/// The CPUs of a machine: what the kernel numbers, hardware threads where cores have several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus {
    /// Those that run.
    pub online: Ids,
    /// Those that are there and switched off.
    pub offline: Ids,
    /// Those kept free of other programs (`isolcpus`), whether or not they are usable.
    pub isolated: Ids,
    /// Those without timer ticks while one thread runs (`nohz_full`).
    pub tickless: Ids,
    /// Those this program may have: its own mask, and isolated ones that its cpuset holds.
    pub usable: Ids,
}

const FOLDER: &str = "/sys/devices/system/cpu";

impl Cpus {
    /// Reads a machine's CPUs.
    ///
    /// # Errors
    /// The machine does not say which CPUs run.
    pub fn read(root: &Root) -> Result<Cpus, ReadError> {
        root.read(&format!("{FOLDER}/online"))?;
        let list = |name| root.ids(&format!("{FOLDER}/{name}")).unwrap_or_default();
        let (online, isolated) = (list("online"), list("isolated"));
        // Without one, the kernel writes `(null)`, which is no list: none.
        let (offline, tickless) = (list("offline").and(&list("present")), list("nohz_full"));
        let usable = usable(root, &online, &isolated);
        Ok(Cpus { online, offline, isolated, tickless, usable })
    }
}

/// A program starts without the isolated CPUs in its mask, and may go there nevertheless if its
/// cpuset holds them (sched_setaffinity(2), isolcpus in the kernel's parameters).
fn usable(root: &Root, online: &Ids, isolated: &Ids) -> Ids {
    let status = root.field("/proc/self/status", "Cpus_allowed_list");
    let Some(own) = status.and_then(|text| text.parse::<Ids>().ok()) else {
        return online.clone();
    };
    let others = online.without(isolated);
    let cpuset = cpuset(root).unwrap_or_else(|| {
        // A mask that lacks none of the others is nobody's choice.
        if others.without(&own).is_empty() { online.clone() } else { own.clone() }
    });
    own.or(&isolated.and(&cpuset)).and(online)
}

/// The CPUs of this program's control group: of its own, else of the nearest above it that says.
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
