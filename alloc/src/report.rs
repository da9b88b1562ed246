//! What a request obtained, and where that falls short of what it asked for.

use core::fmt;
use std_alloc::vec::Vec;

use crate::pages::Pages;
use crate::place::Place;
use crate::reason::Reason;

/// What was asked for and what was obtained. The figures were read back from the kernel when the
/// mapping was made, not assumed.
///
/// Its text is one line, followed by one line for each [`Shortfall`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapReport {
    pub(crate) asked: Pages,
    pub(crate) pages: Pages,
    pub(crate) place: Place,
    pub(crate) node: Option<u32>,
    pub(crate) locked: bool,
    pub(crate) shared: bool,
    pub(crate) readable: bool,
    pub(crate) guarded: bool,
    pub(crate) dumped: bool,
    pub(crate) notes: Vec<Shortfall>,
}

impl MapReport {
    /// The report of memory that the caller has made: nothing fell short.
    pub(crate) const fn as_given(pages: Pages) -> Self {
        Self {
            asked: pages,
            pages,
            place: Place::Anywhere,
            node: None,
            locked: false,
            shared: false,
            readable: false,
            guarded: false,
            dumped: true,
            notes: Vec::new(),
        }
    }

    /// The pages that were tried first.
    #[must_use]
    pub const fn asked(&self) -> Pages {
        self.asked
    }

    /// The pages under the mapping. [`Pages::Transparent`] only if huge pages back all of it.
    #[must_use]
    pub const fn pages(&self) -> Pages {
        self.pages
    }

    /// The node that was asked for.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// The node that all pages are on. `None` if no node was asked for, if the memory was not
    /// touched yet, or if the pages are on several nodes, which is then in the notes.
    #[must_use]
    pub const fn node(&self) -> Option<u32> {
        self.node
    }

    /// Whether the pages stay in memory: locked by mlock(2), or from the reserved pool.
    #[must_use]
    pub const fn locked(&self) -> bool {
        self.locked
    }

    /// Whether another process can map the same bytes and write to them. Memory that is not shared
    /// is not inherited by child processes either (`MADV_DONTFORK`).
    #[must_use]
    pub const fn shared(&self) -> bool {
        self.shared
    }

    /// Whether another process can map the same bytes, only to read them.
    #[must_use]
    pub const fn readable(&self) -> bool {
        self.readable
    }

    /// Whether a page that may not be accessed lies right before and right after the mapping.
    #[must_use]
    pub const fn guarded(&self) -> bool {
        self.guarded
    }

    /// Whether the bytes are part of a core dump.
    #[must_use]
    pub const fn dumped(&self) -> bool {
        self.dumped
    }

    /// Where the mapping falls short of the request, in the order things were tried; empty if
    /// nothing does.
    #[must_use]
    pub fn notes(&self) -> &[Shortfall] {
        &self.notes
    }
}

impl fmt::Display for MapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = match (self.shared, self.readable) {
            (true, _) => "shared",
            (false, true) => "readable by others",
            (false, false) => "private",
        };
        let lock = if self.locked { "locked" } else { "not locked" };
        write!(f, "{} pages, {share}, {lock}", self.pages)?;
        if let Some(node) = self.node {
            write!(f, ", on node {node}")?;
        }
        if self.guarded {
            f.write_str(", guarded")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

/// One thing that was asked for and not obtained. Its text is one line and ends with "fix: " and
/// what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortfall {
    /// Smaller pages than asked.
    Pages {
        /// The kind that was tried.
        asked: Pages,
        /// The kind that the mapping has.
        got: Pages,
        /// Why `asked` was not obtained.
        reason: Reason,
    },
    /// Some or all of the memory is not on the node asked for.
    Place {
        /// The node asked for.
        asked: Place,
        /// Why not.
        reason: Reason,
    },
    /// The pages are not locked: the kernel may swap them out until a NIC pins them.
    Lock {
        /// Bytes to lock.
        len: usize,
        /// The limit in force (`RLIMIT_MEMLOCK`), bytes; `None` if unlimited or unreadable.
        limit: Option<u64>,
        /// Bytes this process had locked before.
        held: u64,
        /// The error number of mlock(2); `None` if the limit ruled it out before the call.
        errno: Option<i32>,
    },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages { asked, got, reason } => {
                write!(f, "asked {asked} pages, got {got}: {reason}")
            }
            Self::Place { asked, reason } => write!(f, "asked {asked}: {reason}"),
            Self::Lock { len, limit, held, errno } => {
                write!(f, "asked to lock {len} bytes, got none: ")?;
                match limit {
                    Some(limit) => write!(f, "limit {limit} bytes, {held} of them in use")?,
                    None => f.write_str("no limit set")?,
                }
                if let Some(errno) = errno {
                    write!(f, ", mlock answered errno {errno}")?;
                }
                // limits.conf(5) counts in KiB. Twice the need leaves room for what a NIC pins.
                let kib = (*held).saturating_add(*len as u64).div_ceil(1024).saturating_mul(2);
                write!(
                    f,
                    "; fix: ulimit -l {kib}, or the line `* - memlock {kib}` in \
                     /etc/security/limits.d/doorbell.conf"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::string::ToString;
    use std_alloc::vec;

    fn note() -> Shortfall {
        let reason = Reason::TooFewFree { page: 2 << 20, needed: 3, free: 0, pool: 11, node: None };
        Shortfall::Pages { asked: Pages::Huge2M, got: Pages::Plain, reason }
    }

    #[test]
    fn a_note_says_on_one_line_what_was_asked_what_came_why_and_the_fix() {
        assert_eq!(
            note().to_string(),
            "asked 2 MiB pages, got plain: 0 of 3 huge pages free; fix: \
             echo 11 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        let reason = Reason::Elsewhere { node: 1, there: 0, len: 4096 };
        assert_eq!(
            Shortfall::Place { asked: Place::Prefer(1), reason }.to_string(),
            "asked node 1 preferred: 0 of 4096 bytes are on node 1; fix: \
             free memory on node 1, or request Place::Only(1)"
        );
    }

    #[test]
    fn a_failed_lock_names_the_figures_and_the_line_to_add() {
        let lock = |errno| Shortfall::Lock { len: 1 << 20, limit: Some(65536), held: 0, errno };
        let text = lock(Some(12)).to_string();
        for part in [
            "lock 1048576 bytes",
            "errno 12",
            "limit 65536 bytes",
            "ulimit -l 2048",
            "- memlock 2048",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(!lock(None).to_string().contains("errno"));
    }

    #[test]
    fn the_whole_report_is_a_line_and_its_notes() {
        let report = MapReport { notes: vec![note()], ..MapReport::as_given(Pages::Plain) };
        let text = std_alloc::format!("plain pages, private, not locked\n{}", note());
        assert_eq!(report.to_string(), text);
        let report =
            MapReport { node: Some(1), guarded: true, ..MapReport::as_given(Pages::Huge2M) };
        assert_eq!(report.to_string(), "2 MiB pages, private, not locked, on node 1, guarded");
    }
}
