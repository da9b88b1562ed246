//! The limits that decide whether a request can be met, read before it is tried.
#![expect(unsafe_code, reason = "sysconf(3) and getrlimit(2)")]

use std::format;
use std::fs;
use std::mem::MaybeUninit;
use std::string::String;

use crate::got::Why;
use crate::pages::Pages;

/// Bytes that the length of a mapping of this kind is a multiple of.
pub(super) fn page_bytes(pages: Pages) -> usize {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let base = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // An error is -1: the kind's own size then stands.
    pages.bytes().max(usize::try_from(base).unwrap_or_default())
}

/// The soft limit on locked memory (`RLIMIT_MEMLOCK`, setrlimit(2)), bytes; `None` if unlimited.
pub(super) fn memlock() -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: getrlimit writes one rlimit through the pointer, which points to room for one.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, limit.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: getrlimit answered 0, so it wrote the whole structure.
    let soft = unsafe { limit.assume_init() }.rlim_cur;
    (soft != libc::RLIM_INFINITY).then_some(soft)
}

/// Whether the reserved pool of pages of `page` bytes can give `needed` of them.
pub(super) fn reserved_pages(page: usize, needed: usize) -> Result<(), Why> {
    Pool::read(page).ok_or(Why::NoPool { page })?.gives(page, needed)
}

/// Whether transparent huge pages can be had by asking, for private or for shared memory.
pub(super) fn transparent_pages(shared: bool) -> Result<(), Why> {
    let file = if shared { "shmem_enabled" } else { "enabled" };
    let modes = fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{file}"));
    if is_on(&modes.unwrap_or_default()) { Ok(()) } else { Err(Why::TransparentOff { shared }) }
}

/// Whether the mode in brackets is one under which asking helps.
fn is_on(modes: &str) -> bool {
    let chosen =
        modes.split_whitespace().find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']'));
    !matches!(chosen, None | Some("never" | "deny"))
}

/// The counters of one reserved pool, pages
/// (Documentation/admin-guide/mm/hugetlbpage.rst in the kernel).
#[derive(Debug, Clone, Copy, Default)]
struct Pool {
    /// In the pool, surplus included.
    total: usize,
    /// Not in use.
    free: usize,
    /// Free, but promised to a mapping that has not touched them.
    promised: usize,
    /// In the pool beyond its set size.
    surplus: usize,
    /// Surplus allowed.
    surplus_max: usize,
}

impl Pool {
    fn read(page: usize) -> Option<Self> {
        let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page / 1024);
        let number = |name: &str| -> Option<usize> {
            let text: String = fs::read_to_string(format!("{folder}/{name}")).ok()?;
            text.trim().parse().ok()
        };
        Some(Self {
            total: number("nr_hugepages")?,
            free: number("free_hugepages")?,
            promised: number("resv_hugepages")?,
            surplus: number("surplus_hugepages")?,
            surplus_max: number("nr_overcommit_hugepages")?,
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
        Err(Why::TooFewFree { page, needed, free, pool })
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
        let short = Why::TooFewFree { page: PAGE, needed: 3, free: 2, pool: 9 };
        assert_eq!(pool.gives(PAGE, 3), Err(short));
    }

    #[test]
    fn the_cure_asks_for_the_pages_that_lack() {
        let short = Why::TooFewFree { page: PAGE, needed: 3, free: 0, pool: 3 };
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
        assert_eq!(reserved_pages(page, 1), Err(Why::NoPool { page }));
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
