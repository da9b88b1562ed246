//! The limits that decide whether a request can be met. They are read before it is tried.
#![expect(unsafe_code, reason = "sysconf(3)")]

use std::format;
use std::string::ToString;

use super::cgroup;
use super::machine::Machine;
use super::nodes::{NodeSet, Nodes};
use crate::pages::Pages;
use crate::place::Place;
use crate::reason::{Limit, Reason};
use crate::report::Shortfall;

/// Shorter requests for ordinary memory are not checked against the memory of the machine and of
/// its control groups, bytes: the check reads a dozen files, whose figures change all the time.
const SHORT: usize = 1 << 20;

/// Page size of this kind on this machine, bytes: lengths of mappings are multiples of it.
pub(super) fn page_bytes(pages: Pages) -> usize {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let base = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // On an error, which is -1, the kind's own size applies.
    pages.bytes().max(usize::try_from(base).unwrap_or_default())
}

/// Checks that `len` more bytes may be locked (mlock(2)): within `RLIMIT_MEMLOCK`, or beyond it
/// with the capability `CAP_IPC_LOCK`, which counts only outside of user namespaces.
pub(super) fn lockable(machine: &Machine, len: usize) -> Result<(), Shortfall> {
    const CAP_IPC_LOCK: u32 = 14;
    let (limit, held) = memlock(machine);
    let fits = limit.is_none_or(|limit| limit.saturating_sub(held) >= len as u64);
    let capable = || {
        let effective = machine.status("CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
        effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1) && !in_user_namespace(machine)
    };
    if fits || capable() {
        return Ok(());
    }
    Err(Shortfall::Lock { len, limit, held, errno: None })
}

/// Whether this process is in a user namespace of its own: it does not see all users under their
/// own numbers (user_namespaces(7)). A kernel without the file has no such namespaces.
fn in_user_namespace(machine: &Machine) -> bool {
    let map = machine.text("/proc/self/uid_map");
    map.is_some_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]))
}

/// The soft limit on locked memory (`RLIMIT_MEMLOCK`, setrlimit(2)) and how much is locked, bytes.
/// The limit is `None` if it is unlimited or cannot be read.
pub(super) fn memlock(machine: &Machine) -> (Option<u64>, u64) {
    let limits = machine.text("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    (soft, machine.figures("/proc/self/status").bytes("VmLck"))
}

/// Checks that the reserved pool of pages of `page` bytes can give `needed` pages: to this control
/// group and, for [`Place::Only`], from that node.
pub(super) fn reserved_pages(
    machine: &Machine,
    page: usize,
    needed: usize,
    place: Place,
) -> Result<(), Reason> {
    let pool = Pool::read(machine, page, None).ok_or(Reason::NoPool { page })?;
    if let Some(node) = place.only() {
        Pool::read(machine, page, Some(node)).map_or(Ok(()), |part| part.gives(page, needed))?;
    }
    pool.gives(page, needed)?;
    cgroup::huge(machine, page, needed.saturating_mul(page) as u64)
}

/// Checks that madvise(2) can get transparent huge pages, for private or for shared memory.
pub(super) fn transparent_pages(machine: &Machine, shared: bool) -> Result<(), Reason> {
    let file = if shared { "shmem_enabled" } else { "enabled" };
    let modes = machine.text(&format!("/sys/kernel/mm/transparent_hugepage/{file}"));
    if is_on(&modes.unwrap_or_default()) { Ok(()) } else { Err(Reason::TransparentOff { shared }) }
}

/// Whether the mode in brackets gives huge pages to those who ask for them.
fn is_on(modes: &str) -> bool {
    let chosen =
        modes.split_whitespace().find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']'));
    !matches!(chosen, None | Some("never" | "deny"))
}

/// Checks that `len` bytes of ordinary memory can be mapped and, if they will be `touched`, that
/// there are pages for them.
pub(super) fn ordinary_memory(
    machine: &Machine,
    len: usize,
    place: Place,
    touched: bool,
) -> Result<(), Reason> {
    if len < SHORT {
        return Ok(());
    }
    let needed = len as u64;
    let figures = machine.figures("/proc/meminfo");
    let left = |left: u64, limit: Limit| {
        if left >= needed { Ok(()) } else { Err(Reason::OverLimit { needed, left, limit }) }
    };
    // Documentation/mm/overcommit-accounting.rst in the kernel.
    match (machine.number("/proc/sys/vm/overcommit_memory"), figures.find("CommitLimit")) {
        (Some(2), Some(limit)) => {
            let committed = figures.bytes("Committed_AS");
            left(limit.saturating_sub(committed), Limit::Overcommit(limit))?;
        }
        (Some(0), _) if figures.find("MemTotal").is_some() => {
            left(figures.bytes("MemTotal") + figures.bytes("SwapTotal"), Limit::Machine)?;
        }
        _ => {}
    }
    if !touched {
        return Ok(());
    }
    let swap = figures.bytes("SwapFree");
    if let Some(available) = figures.find("MemAvailable") {
        left(available.saturating_add(swap), Limit::Machine)?;
    }
    if let Some(node) = place.only() {
        if let Some(room) = node_memory(machine, node) {
            left(room.saturating_add(swap), Limit::Node(node))?;
        }
    } else if let Some((nodes, room)) = confined_memory(machine, place) {
        left(room.saturating_add(swap), Limit::Nodes(nodes.to_string()))?;
    }
    cgroup::memory(machine, needed, swap)
}

/// Bytes that a node can free for new memory; `None` if the machine does not say.
fn node_memory(machine: &Machine, node: u32) -> Option<u64> {
    let figures = machine.figures(&format!("/sys/devices/system/node/node{node}/meminfo"));
    let freeable = ["Active(file)", "Inactive(file)", "SReclaimable"];
    let freeable: u64 = freeable.iter().map(|name| figures.bytes(name)).sum();
    Some(figures.find("MemFree")?.saturating_add(freeable))
}

/// The nodes that memory comes from, if those are not all nodes, and the bytes that they can free
/// together. When they are full, the kernel ends the process, although other nodes have memory.
fn confined_memory(machine: &Machine, place: Place) -> Option<(NodeSet, u64)> {
    // Memory that is bound to a node has a policy of its own.
    let nodes = Nodes::read(machine).confined(machine, place.node().is_none())?;
    let mut each = nodes.iter().map(|node| node_memory(machine, node));
    let room = each.try_fold(0_u64, |sum, room| Some(sum.saturating_add(room?)))?;
    Some((nodes, room))
}

/// Why a preferred node cannot hold `len` bytes, if that is known before trying.
pub(super) fn node_shortage(
    machine: &Machine,
    node: u32,
    pages: Pages,
    len: usize,
) -> Option<Reason> {
    if pages.is_reserved() {
        let page = pages.bytes();
        return Pool::read(machine, page, Some(node))?.gives(page, len / page).err();
    }
    let (needed, left) = (len as u64, node_memory(machine, node)?);
    let limit = Limit::Node(node);
    (len >= SHORT && left < needed).then_some(Reason::OverLimit { needed, left, limit })
}

/// The counters of one reserved pool, or of a node's share of it, in pages
/// (Documentation/admin-guide/mm/hugetlbpage.rst in the kernel).
#[derive(Debug, Clone, Copy, Default)]
struct Pool {
    node: Option<u32>,
    /// Pages in the pool, surplus included.
    total: usize,
    /// Pages not in use.
    free: usize,
    /// Free pages that a mapping has reserved but not touched; 0 for a node, which does not say.
    reserved: usize,
    /// Pages in the pool beyond its configured size.
    surplus: usize,
    /// Surplus pages allowed, for the whole machine.
    surplus_max: usize,
}

impl Pool {
    fn read(machine: &Machine, page: usize, node: Option<u32>) -> Option<Self> {
        let pool = format!("hugepages/hugepages-{}kB", page / 1024);
        let whole = format!("/sys/kernel/mm/{pool}");
        let number = |folder: &str, name: &str| -> Option<usize> {
            machine.number(&format!("{folder}/{name}"))?.try_into().ok()
        };
        let counted = match node {
            Some(node) => format!("/sys/devices/system/node/node{node}/{pool}"),
            None => whole.clone(),
        };
        Some(Self {
            node,
            total: number(&counted, "nr_hugepages")?,
            free: number(&counted, "free_hugepages")?,
            reserved: if node.is_none() { number(&counted, "resv_hugepages")? } else { 0 },
            surplus: number(&counted, "surplus_hugepages")?,
            surplus_max: number(&whole, "nr_overcommit_hugepages")?,
        })
    }

    /// Checks for `needed` pages of `page` bytes. Surplus pages that are allowed count, although
    /// the kernel may fail to find them; then mapping fails.
    fn gives(self, page: usize, needed: usize) -> Result<(), Reason> {
        let free = self.free.saturating_sub(self.reserved);
        let surplus = self.surplus_max.saturating_sub(self.surplus);
        if needed <= free.saturating_add(surplus) {
            return Ok(());
        }
        // nr_hugepages sets the pool without its surplus, and all surplus pages are in use.
        let set = self.total.saturating_sub(self.surplus);
        let pool = set.saturating_add(needed.saturating_sub(free));
        Err(Reason::TooFewFree { page, needed, free, pool, node: self.node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 2 << 20;

    #[test]
    fn reserved_pages_are_not_free() {
        let pool = Pool { total: 8, free: 5, reserved: 3, ..Pool::default() };
        assert_eq!(pool.gives(PAGE, 2), Ok(()));
        let short = Reason::TooFewFree { page: PAGE, needed: 3, free: 2, pool: 9, node: None };
        assert_eq!(pool.gives(PAGE, 3), Err(short));
    }

    #[test]
    fn the_fix_adds_the_missing_pages() {
        let short = Reason::TooFewFree { page: PAGE, needed: 3, free: 0, pool: 3, node: None };
        assert_eq!(Pool::default().gives(PAGE, 3), Err(short));
    }

    #[test]
    fn surplus_counts_up_to_what_is_allowed() {
        let pool = Pool { total: 2, free: 0, surplus: 1, surplus_max: 4, ..Pool::default() };
        assert_eq!(pool.gives(PAGE, 3), Ok(()));
        assert!(pool.gives(PAGE, 4).is_err());
    }

    #[test]
    fn a_size_without_a_pool_is_reported() {
        let page = 4 << 10;
        let answer = reserved_pages(&Machine::this(), page, 1, Place::Anywhere);
        assert_eq!(answer, Err(Reason::NoPool { page }));
    }

    #[test]
    fn the_switch_is_read_from_the_brackets() {
        assert!(is_on("always [madvise] never\n"));
        assert!(is_on("[always] madvise never\n"));
        assert!(!is_on("always madvise [never]\n"));
        assert!(is_on("always within_size [advise] never deny force\n"));
        assert!(!is_on("always within_size advise never [deny] force\n"));
        assert!(!is_on(""));
    }

    #[test]
    fn a_page_is_never_smaller_than_the_base_page() {
        assert!(page_bytes(Pages::Plain) >= 4096);
        assert_eq!(page_bytes(Pages::Huge2M), PAGE);
    }
}
