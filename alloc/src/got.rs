//! What a request obtained, and what it did not.

use core::fmt;
use std_alloc::vec::Vec;

use crate::pages::Pages;
use crate::place::Place;
use crate::why::Why;

/// What was asked for and what was obtained. True when the mapping was made: the figures were
/// read back from the kernel, not assumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub(crate) asked: Pages,
    pub(crate) got: Pages,
    pub(crate) place: Place,
    pub(crate) node: Option<u32>,
    pub(crate) locked: bool,
    pub(crate) shared: bool,
    pub(crate) guarded: bool,
    pub(crate) dumped: bool,
    pub(crate) notes: Vec<Shortfall>,
}

impl Got {
    /// For memory that came as it is: got is what was asked.
    pub(crate) const fn as_given(pages: Pages) -> Self {
        Self {
            asked: pages,
            got: pages,
            place: Place::Anywhere,
            node: None,
            locked: false,
            shared: false,
            guarded: false,
            dumped: true,
            notes: Vec::new(),
        }
    }

    /// The pages tried first.
    #[must_use]
    pub const fn asked(&self) -> Pages {
        self.asked
    }

    /// The pages under the mapping. [`Pages::Transparent`] only if huge pages back all of it.
    #[must_use]
    pub const fn got(&self) -> Pages {
        self.got
    }

    /// The node asked for.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// The node that all pages were seen on. `None` if no node was asked for, if nothing was
    /// touched yet, or if they lie on several, which is in the notes.
    #[must_use]
    pub const fn node(&self) -> Option<u32> {
        self.node
    }

    /// Whether the pages are held in memory: locked by mlock(2), or from the reserved pool.
    #[must_use]
    pub const fn locked(&self) -> bool {
        self.locked
    }

    /// Whether another process can map the same bytes. Memory that is not shared is kept out of
    /// children as well (`MADV_DONTFORK`).
    #[must_use]
    pub const fn shared(&self) -> bool {
        self.shared
    }

    /// Whether a page without rights lies right before and right behind the mapping.
    #[must_use]
    pub const fn guarded(&self) -> bool {
        self.guarded
    }

    /// Whether a core dump holds the bytes.
    #[must_use]
    pub const fn dumped(&self) -> bool {
        self.dumped
    }

    /// What fell short, in the order it was tried; empty if all was had as asked.
    #[must_use]
    pub fn notes(&self) -> &[Shortfall] {
        &self.notes
    }
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = if self.shared { "shared" } else { "private" };
        let lock = if self.locked { "locked" } else { "not locked" };
        write!(f, "{} pages, {share}, {lock}", self.got)?;
        if let Some(node) = self.node {
            write!(f, ", on node {node}")?;
        }
        if self.guarded {
            f.write_str(", guarded")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

/// One thing that was asked for and not had. Its text is one line and ends with the cure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortfall {
    /// Smaller pages than asked.
    Pages {
        /// The kind tried.
        asked: Pages,
        /// The kind the mapping ended with.
        got: Pages,
        /// What stood in the way.
        why: Why,
    },
    /// Not, or not all, on the node asked.
    Place {
        /// The node asked for.
        asked: Place,
        /// What stood in the way.
        why: Why,
    },
    /// The pages are not locked: the kernel may swap them out until a NIC pins them.
    Lock {
        /// Bytes to be locked.
        len: usize,
        /// The limit in force (`RLIMIT_MEMLOCK`), bytes; `None` is unlimited or unreadable.
        limit: Option<u64>,
        /// Bytes this process had locked before.
        held: u64,
        /// The system's error number from mlock(2); `None` if the limit said no before.
        errno: Option<i32>,
    },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages { asked, got, why } => write!(f, "asked {asked} pages, got {got}: {why}"),
            Self::Place { asked, why } => write!(f, "asked {asked}: {why}"),
            Self::Lock { len, limit, held, errno } => {
                write!(f, "asked to lock {len} bytes, got none: ")?;
                match limit {
                    Some(limit) => write!(f, "limit {limit} bytes, {held} of them taken")?,
                    None => f.write_str("no limit set")?,
                }
                if let Some(errno) = errno {
                    write!(f, ", mlock answered errno {errno}")?;
                }
                // limits.conf(5) counts in KiB; twice the need leaves room for what a NIC pins.
                let kib = (*held).saturating_add(*len as u64).div_ceil(1024).saturating_mul(2);
                write!(
                    f,
                    "; mend: ulimit -l {kib}, or the line `* - memlock {kib}` in \
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
        let why = Why::TooFewFree { page: 2 << 20, needed: 3, free: 0, pool: 11, node: None };
        Shortfall::Pages { asked: Pages::Huge2M, got: Pages::Plain, why }
    }

    #[test]
    fn a_note_says_asked_got_why_and_cure_on_one_line() {
        assert_eq!(
            note().to_string(),
            "asked 2 MiB pages, got plain: 0 of 3 huge pages free; mend: \
             echo 11 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        let why = Why::Elsewhere { node: 1, there: 0, len: 4096 };
        assert_eq!(
            Shortfall::Place { asked: Place::Prefer(1), why }.to_string(),
            "asked node 1 preferred: 0 of 4096 bytes lie on node 1; mend: \
             free memory on node 1, or ask for Place::Only(1)"
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
        let got = Got { notes: vec![note()], ..Got::as_given(Pages::Plain) };
        let text = std_alloc::format!("plain pages, private, not locked\n{}", note());
        assert_eq!(got.to_string(), text);
        let got = Got { node: Some(1), guarded: true, ..Got::as_given(Pages::Huge2M) };
        assert_eq!(got.to_string(), "2 MiB pages, private, not locked, on node 1, guarded");
    }
}
