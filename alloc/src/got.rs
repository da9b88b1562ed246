//! What a request obtained, what it did not, and what would mend that.

use core::fmt;
use std_alloc::vec::Vec;

use crate::pages::Pages;

/// What was asked for and what was obtained. True when the mapping was made: the figures were
/// read back from the kernel, not assumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Got {
    pub(crate) asked: Pages,
    pub(crate) got: Pages,
    pub(crate) locked: bool,
    pub(crate) shared: bool,
    pub(crate) notes: Vec<Shortfall>,
}

impl Got {
    /// For memory that came as it is: got is what was asked.
    pub(crate) const fn as_given(pages: Pages) -> Self {
        Self { asked: pages, got: pages, locked: false, shared: false, notes: Vec::new() }
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

    /// Whether the pages are held in memory: locked by mlock(2), or from the reserved pool.
    #[must_use]
    pub const fn locked(&self) -> bool {
        self.locked
    }

    /// Whether another process can map the same bytes.
    #[must_use]
    pub const fn shared(&self) -> bool {
        self.shared
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
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

/// One thing that was asked for and not had. Its text is one line and ends with the cure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The pages are not locked: the kernel may swap them out until a NIC pins them.
    Lock {
        /// Bytes to be locked.
        len: usize,
        /// The limit in force (`RLIMIT_MEMLOCK`), bytes; `None` is unlimited or unreadable.
        limit: Option<u64>,
        /// The system's error number from mlock(2).
        errno: i32,
    },
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Pages { asked, got, why } => write!(f, "asked {asked} pages, got {got}: {why}"),
            Self::Lock { len, limit, errno } => {
                write!(f, "asked to lock {len} bytes, got none: mlock answered errno {errno}")?;
                match limit {
                    Some(limit) => write!(f, ", limit {limit} bytes")?,
                    None => f.write_str(", no limit set")?,
                }
                // limits.conf(5) counts in KiB; twice the need leaves room for what a NIC pins.
                let kib = len.div_ceil(1024).saturating_mul(2);
                write!(
                    f,
                    "; mend: ulimit -l {kib}, or the line `* - memlock {kib}` in \
                     /etc/security/limits.d/doorbell.conf"
                )
            }
        }
    }
}

/// Why pages of some kind could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The reserved pool holds too few free pages.
    TooFewFree {
        /// Size of a page of the pool, bytes.
        page: usize,
        /// Pages needed.
        needed: usize,
        /// Pages free and not promised to others.
        free: usize,
        /// The pool size that would do, pages.
        pool: usize,
    },
    /// The kernel has no pool of this size.
    NoPool {
        /// The size asked for, bytes.
        page: usize,
    },
    /// The pool counted enough pages (free or still to be found), yet the kernel refused them.
    Refused {
        /// Size of a page of the pool, bytes.
        page: usize,
        /// Pages needed.
        needed: usize,
        /// The system's error number.
        errno: i32,
    },
    /// Transparent huge pages are switched off.
    TransparentOff {
        /// Whether it is the switch for shared memory.
        shared: bool,
    },
    /// The kernel found huge pages for a part only.
    Partly {
        /// Bytes that huge pages back.
        huge: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// Nothing was touched yet, so the kernel has not chosen pages.
    NotTouched,
}

impl Why {
    /// The cure alone: a command, or what to change.
    #[must_use]
    pub const fn cure(self) -> impl fmt::Display {
        Cure(self)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooFewFree { needed, free, .. } => {
                write!(f, "{free} of {needed} huge pages free")
            }
            Self::NoPool { page } => write!(f, "the kernel has no pool of {page} byte pages"),
            Self::Refused { page, needed, errno } => write!(
                f,
                "the kernel refused {needed} huge pages of {page} bytes that the pool promised, \
                 errno {errno}"
            ),
            Self::TransparentOff { shared: false } => f.write_str("transparent pages are off"),
            Self::TransparentOff { shared: true } => {
                f.write_str("transparent pages are off for shared memory")
            }
            Self::Partly { huge, len } => write!(f, "huge pages back {huge} of {len} bytes"),
            Self::NotTouched => f.write_str("no page was touched yet"),
        }?;
        write!(f, "; mend: {}", self.cure())
    }
}

/// Displays the cure of a [`Why`].
struct Cure(Why);

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Why::TooFewFree { page, pool, .. } => {
                let kib = page / 1024;
                write!(f, "echo {pool} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages")
            }
            Why::NoPool { page } => {
                write!(f, "boot with hugepagesz={}M hugepages=N", page >> 20)
            }
            Why::Refused { .. } => f.write_str(
                "reserve by nr_hugepages rather than nr_overcommit_hugepages, raise the control \
                 group's hugetlb limit, run kernel 5.14 or newer",
            ),
            Why::TransparentOff { shared: false } => {
                f.write_str("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
            }
            Why::TransparentOff { shared: true } => {
                f.write_str("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")
            }
            Why::Partly { .. } => {
                f.write_str("echo 1 > /proc/sys/vm/compact_memory, then map again")
            }
            Why::NotTouched => f.write_str("ask with prefault(true)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::string::ToString;
    use std_alloc::vec;

    const SHORT: Why = Why::TooFewFree { page: 2 << 20, needed: 3, free: 0, pool: 11 };

    #[test]
    fn a_note_says_asked_got_why_and_cure_on_one_line() {
        let note = Shortfall::Pages { asked: Pages::Huge2M, got: Pages::Plain, why: SHORT };
        assert_eq!(
            note.to_string(),
            "asked 2 MiB pages, got plain: 0 of 3 huge pages free; mend: \
             echo 11 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
    }

    #[test]
    fn every_reason_names_its_cure() {
        let reasons = [
            SHORT,
            Why::NoPool { page: 1 << 30 },
            Why::Refused { page: 2 << 20, needed: 3, errno: 12 },
            Why::TransparentOff { shared: false },
            Why::TransparentOff { shared: true },
            Why::Partly { huge: 0, len: 4096 },
            Why::NotTouched,
        ];
        for why in reasons {
            let (text, cure) = (why.to_string(), why.cure().to_string());
            let (reason, after) = text.split_once("; mend: ").expect("a reason and a cure");
            assert!(!reason.is_empty() && !cure.is_empty() && !text.contains('\n'), "{text}");
            assert_eq!(after, cure);
        }
        assert_eq!(
            Why::NoPool { page: 1 << 30 }.cure().to_string(),
            "boot with hugepagesz=1024M hugepages=N"
        );
    }

    #[test]
    fn a_failed_lock_names_the_figures_and_the_line_to_add() {
        let note = Shortfall::Lock { len: 1 << 20, limit: Some(65536), errno: 12 };
        let text = note.to_string();
        for part in [
            "lock 1048576 bytes",
            "errno 12",
            "limit 65536 bytes",
            "ulimit -l 2048",
            "- memlock 2048",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    #[test]
    fn the_whole_report_is_a_line_and_its_notes() {
        let note = Shortfall::Pages { asked: Pages::Huge2M, got: Pages::Plain, why: SHORT };
        let got = Got { notes: vec![note], ..Got::as_given(Pages::Plain) };
        assert_eq!(got.to_string(), std_alloc::format!("plain pages, private, not locked\n{note}"));
    }
}
