//! The limits that decide whether a request can be met, read before it is tried.
#![expect(unsafe_code, reason = "sysconf(3)")]

use std::format;

use super::groups;
use super::machine::Machine;
use crate::got::Shortfall;
use crate::pages::Pages;
use crate::place::Place;
use crate::why::{Bound, Why};

/// Shorter requests for ordinary memory are not held against the memory of the machine and of
/// its control groups: that takes a dozen files, and what it could tell is soon untrue.
const SHORT: usize = 1 << 20;

/// Bytes that the length of a mapping of this kind is a multiple of.
pub(super) fn page_bytes(pages: Pages) -> usize {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let base = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // An error is -1: the kind's own size then stands.
    pages.bytes().max(usize::try_from(base).unwrap_or_default())
}

/// Whether `len` bytes more may be locked (mlock(2)): within `RLIMIT_MEMLOCK`, or past it with
/// the capability to.
pub(super) fn lockable(machine: &Machine, len: usize) -> Result<(), Shortfall> {
    const CAP_IPC_LOCK: u32 = 14;
    let (limit, held) = memlock(machine);
    let fits = limit.is_none_or(|limit| limit.saturating_sub(held) >= len as u64);
    let may = || {
        let effective = machine.status("CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
        effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
    };
    if fits || may() {
        return Ok(());
    }
    Err(Shortfall::Lock { len, limit, held, errno: None })
}

/// The soft limit on locked memory (`RLIMIT_MEMLOCK`, setrlimit(2)), `None` if unlimited or not
/// to be read, and what is locked of it, bytes.
pub(super) fn memlock(machine: &Machine) -> (Option<u64>, u64) {
    let limits = machine.text("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    (soft, machine.figures("/proc/self/status").bytes("VmLck"))
}

/// Whether the reserved pool of pages of `page` bytes can give `needed` of them, to this control
/// group and, if it must be, from one node.
pub(super) fn reserved_pages(
    machine: &Machine,
    page: usize,
    needed: usize,
    place: Place,
) -> Result<(), Why> {
    let pool = Pool::read(machine, page, None).ok_or(Why::NoPool { page })?;
    if let Some(node) = place.only() {
        Pool::read(machine, page, Some(node)).map_or(Ok(()), |part| part.gives(page, needed))?;
    }
    pool.gives(page, needed)?;
    groups::huge(machine, page, needed.saturating_mul(page) as u64)
}

/// Whether transparent huge pages can be had by asking, for private or for shared memory.
pub(super) fn transparent_pages(machine: &Machine, shared: bool) -> Result<(), Why> {
    let file = if shared { "shmem_enabled" } else { "enabled" };
    let modes = machine.text(&format!("/sys/kernel/mm/transparent_hugepage/{file}"));
    if is_on(&modes.unwrap_or_default()) { Ok(()) } else { Err(Why::TransparentOff { shared }) }
}

/// Whether the mode in brackets is one under which asking helps.
fn is_on(modes: &str) -> bool {
    let chosen =
        modes.split_whitespace().find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']'));
    !matches!(chosen, None | Some("never" | "deny"))
}

/// Whether there is room for `len` bytes of ordinary memory: as a promise and, if it will be
/// `touched`, as pages.
pub(super) fn ordinary_memory(
    machine: &Machine,
    len: usize,
    place: Place,
    touched: bool,
) -> Result<(), Why> {
    if len < SHORT {
        return Ok(());
    }
    let needed = len as u64;
    let figures = machine.figures("/proc/meminfo");
    let left = |left: u64, bound: Bound| {
        if left >= needed { Ok(()) } else { Err(Why::Bound { needed, left, bound }) }
    };
    // Documentation/mm/overcommit-accounting.rst in the kernel.
    match (machine.number("/proc/sys/vm/overcommit_memory"), figures.find("CommitLimit")) {
        (Some(2), Some(limit)) => {
            let promised = figures.bytes("Committed_AS");
            left(limit.saturating_sub(promised), Bound::Commit(limit))?;
        }
        (Some(0), _) if figures.find("MemTotal").is_some() => {
            left(figures.bytes("MemTotal") + figures.bytes("SwapTotal"), Bound::Machine)?;
        }
        _ => {}
    }
    if !touched {
        return Ok(());
    }
    let swap = figures.bytes("SwapFree");
    if let Some(available) = figures.find("MemAvailable") {
        left(available.saturating_add(swap), Bound::Machine)?;
    }
    if let Some(node) = place.only()
        && let Some(room) = node_memory(machine, node)
    {
        left(room.saturating_add(swap), Bound::Node(node))?;
    }
    groups::memory(machine, needed, swap)
}

/// Bytes that a node can free for new memory; `None` if the machine does not say.
fn node_memory(machine: &Machine, node: u32) -> Option<u64> {
    let figures = machine.figures(&format!("/sys/devices/system/node/node{node}/meminfo"));
    let freeable = ["Active(file)", "Inactive(file)", "SReclaimable"];
    let freeable: u64 = freeable.iter().map(|name| figures.bytes(name)).sum();
    Some(figures.find("MemFree")?.saturating_add(freeable))
}

/// What a node that is preferred lacks for `len` bytes, if it is known before.
pub(super) fn node_lacks(machine: &Machine, node: u32, pages: Pages, len: usize) -> Option<Why> {
    if pages.is_reserved() {
        let page = pages.bytes();
        return Pool::read(machine, page, Some(node))?.gives(page, len / page).err();
    }
    let (needed, left) = (len as u64, node_memory(machine, node)?);
    let bound = Bound::Node(node);
    (len >= SHORT && left < needed).then_some(Why::Bound { needed, left, bound })
}

/// The counters of one reserved pool, or of a node's share of it, pages
/// (Documentation/admin-guide/mm/hugetlbpage.rst in the kernel).
#[derive(Debug, Clone, Copy, Default)]
struct Pool {
    node: Option<u32>,
    /// In the pool, surplus included.
    total: usize,
    /// Not in use.
    free: usize,
    /// Free, but promised to a mapping that has not touched them; not known for a node.
    promised: usize,
    /// In the pool beyond its set size.
    surplus: usize,
    /// Surplus allowed, to the whole machine.
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
            promised: if node.is_none() { number(&counted, "resv_hugepages")? } else { 0 },
            surplus: number(&counted, "surplus_hugepages")?,
            surplus_max: number(&whole, "nr_overcommit_hugepages")?,
        })
    }

    /// Surplus pages are only a hope: the kernel must find them, so obtaining them decides.
    fn gives(self, page: usize, needed: usize) -> Result<(), Why> {
        let free = self.free.saturating_sub(self.promised);
        let surplus = self.surplus_max.saturating_sub(self.surplus);
        if needed <= free.saturating_add(surplus) {
            return Ok(());
        }
        // nr_hugepages sets the pool without its surplus, and surplus pages are all in use.
        let set = self.total.saturating_sub(self.surplus);
        let pool = set.saturating_add(needed.saturating_sub(free));
        Err(Why::TooFewFree { page, needed, free, pool, node: self.node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 2 << 20;

    #[test]
    fn promised_pages_are_not_free() {
        let pool = Pool { total: 8, free: 5, promised: 3, ..Pool::default() };
        assert_eq!(pool.gives(PAGE, 2), Ok(()));
        let short = Why::TooFewFree { page: PAGE, needed: 3, free: 2, pool: 9, node: None };
        assert_eq!(pool.gives(PAGE, 3), Err(short));
    }

    #[test]
    fn the_cure_asks_for_the_pages_that_lack() {
        let short = Why::TooFewFree { page: PAGE, needed: 3, free: 0, pool: 3, node: None };
        assert_eq!(Pool::default().gives(PAGE, 3), Err(short));
    }

    #[test]
    fn surplus_counts_as_far_as_it_is_allowed() {
        let pool = Pool { total: 2, free: 0, surplus: 1, surplus_max: 4, ..Pool::default() };
        assert_eq!(pool.gives(PAGE, 3), Ok(()));
        assert!(pool.gives(PAGE, 4).is_err());
    }

    #[test]
    fn a_size_without_a_pool_is_said_so() {
        let page = 4 << 10;
        let answer = reserved_pages(&Machine::this(), page, 1, Place::Anywhere);
        assert_eq!(answer, Err(Why::NoPool { page }));
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
    fn a_page_is_never_smaller_than_the_machine_has() {
        assert!(page_bytes(Pages::Plain) >= 4096);
        assert_eq!(page_bytes(Pages::Huge2M), PAGE);
    }
}
