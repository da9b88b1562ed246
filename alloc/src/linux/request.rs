//! [`MapRequest`]: ask for memory, take what there is, say what it was.

use std::io;
use std::string::ToString;
use std::vec::Vec;

use super::error::MapError;
use super::limits;
use super::memfd;
use super::memory::Memory;
use super::smaps;
use crate::arith::{self, SizeError};
use crate::got::{Got, Shortfall, Why};
use crate::mapping::Mapping;
use crate::pages::{Ask, Pages};

/// A request for memory that a NIC may touch.
///
/// It starts as: best pages, not strict, private, locked, prefaulted.
///
/// ```
/// use doorbell_alloc::{Ask, MapRequest};
///
/// let memory = MapRequest::new(100_000).pages(Ask::Plain).shared(true).map()?;
/// assert!(memory.len() >= 100_000 && memory.fd().is_some());
/// # Ok::<(), doorbell_alloc::MapError>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "a request does nothing until `map` is called"]
pub struct MapRequest {
    len: usize,
    ask: Ask,
    strict: bool,
    shared: bool,
    lock: bool,
    prefault: bool,
}

impl MapRequest {
    /// A request for at least `len` bytes; the length is rounded up to the page obtained.
    pub const fn new(len: usize) -> Self {
        Self { len, ask: Ask::Best, strict: false, shared: false, lock: true, prefault: true }
    }

    /// The pages to try first.
    pub const fn pages(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    /// Whether to fail rather than take less: smaller pages than the kind named (with
    /// [`Ask::Best`] none is named), or memory that is not locked.
    pub const fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Whether to back the memory with a sealed memfd, which another process can map.
    pub const fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Whether to hold the pages in memory by mlock(2), which also touches each. Pages of the
    /// reserved pool need no lock and take none of the limit.
    pub const fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Whether to obtain every page now. Pages of the reserved pool are obtained now in any
    /// case: their lack must be an answer, not a signal (SIGBUS) at first touch.
    pub const fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Maps the memory, zeroed.
    ///
    /// # Errors
    /// [`MapError::Size`] for a length of 0 or beyond the address space, [`MapError::System`] if
    /// not even plain pages were had; if strict, also [`MapError::NoHugePages`],
    /// [`MapError::NoPages`] and [`MapError::Lock`].
    pub fn map(self) -> Result<Mapping, MapError> {
        if self.len == 0 {
            return Err(MapError::Size { len: 0, source: SizeError::Zero });
        }
        let asked = self.ask.first_choice(self.len);
        let strict = self.strict && self.ask != Ask::Best;
        let mut missed = Vec::new();
        let mut tried = asked;
        loop {
            match self.obtain(tried) {
                Ok(memory) => {
                    let memory = Obtained { memory, tried, missed };
                    return self.finish(memory, asked, strict);
                }
                Err(Refusal::Error(error)) => return Err(error),
                Err(Refusal::Pages(why)) if strict => return Err(strict_error(tried, why)),
                Err(Refusal::Pages(why)) => {
                    missed.push((tried, why));
                    // Ends: plain pages are the last kind and are never refused, only failed.
                    tried = tried.smaller();
                }
            }
        }
    }

    /// Memory of one kind of pages, obtained now as far as the request says.
    fn obtain(&self, pages: Pages) -> Result<Memory, Refusal> {
        let size = |source| MapError::Size { len: self.len, source };
        let page = limits::page_bytes(pages);
        let len = arith::round_up(self.len, page).map_err(size)?;
        match pages {
            Pages::Huge1G | Pages::Huge2M => {
                limits::reserved_pages(page, len / page).map_err(Refusal::Pages)?;
            }
            Pages::Transparent => {
                limits::transparent_pages(self.shared).map_err(Refusal::Pages)?;
            }
            Pages::Plain => {}
        }
        self.create(len, pages).map_err(|error| match error {
            // The pool was counted a moment ago, but others draw on it and groups limit it.
            MapError::System { source, .. } if pages.is_reserved() => {
                Refusal::Pages(Why::Refused {
                    page,
                    needed: len / page,
                    errno: source.raw_os_error().unwrap_or_default(),
                })
            }
            error => Refusal::Error(error),
        })
    }

    /// Creates, maps and, as far as asked, touches `len` bytes.
    fn create(&self, len: usize, pages: Pages) -> Result<Memory, MapError> {
        let memory = if self.shared {
            Memory::shared(memfd::create(len, pages)?, len)?
        } else {
            let memory = Memory::private(len, pages)?;
            memory.keep_from_children()?;
            memory
        };
        if pages == Pages::Transparent {
            memory.prefer_huge()?;
        }
        if self.prefault || pages.is_reserved() {
            memory.populate(pages)?;
        }
        Ok(memory)
    }

    /// Locks the memory, looks at what it is, and writes down both.
    fn finish(self, from: Obtained, asked: Pages, strict: bool) -> Result<Mapping, MapError> {
        let Obtained { memory, tried, mut missed } = from;
        let (locked, lock_note) = if self.lock && !tried.is_reserved() {
            lock(&memory)
        } else {
            (tried.is_reserved(), None)
        };
        if let (Some(note), true) = (lock_note, self.strict) {
            return Err(MapError::Lock(note));
        }
        let touched = self.prefault || locked;
        let seen = if touched { smaps::look(memory.range()) } else { smaps::Seen::default() };
        let got = if tried.is_reserved() { tried } else { seen.ordinary_pages(memory.len()) };
        if tried == Pages::Transparent && got != tried {
            let partly = Why::Partly { huge: seen.huge, len: memory.len() };
            let why = if touched { partly } else { Why::NotTouched };
            if strict {
                return Err(strict_error(tried, why));
            }
            missed.push((tried, why));
        }
        let notes = missed.into_iter().map(|(asked, why)| Shortfall::Pages { asked, got, why });
        let notes = notes.chain(lock_note).collect();
        Ok(memory.into_mapping(Got { asked, got, locked, shared: self.shared, notes }))
    }
}

impl Mapping {
    /// Memory of at least `len` bytes in 2 MiB pages, or the best there is: see
    /// [`got`](Mapping::got). Private, prefaulted, locked where allowed.
    ///
    /// # Errors
    /// As for [`MapRequest::map`], not strict.
    pub fn huge(len: usize) -> Result<Self, MapError> {
        MapRequest::new(len).pages(Ask::Huge2M).map()
    }

    /// Memory of at least `len` bytes in plain pages. Private, prefaulted, locked where allowed.
    ///
    /// # Errors
    /// As for [`MapRequest::map`], not strict.
    pub fn plain(len: usize) -> Result<Self, MapError> {
        MapRequest::new(len).pages(Ask::Plain).map()
    }
}

/// Memory, the kind of pages it was made with, and the kinds tried in vain before.
struct Obtained {
    memory: Memory,
    tried: Pages,
    missed: Vec<(Pages, Why)>,
}

/// Why one kind of pages was not obtained: not to be had (try the next), or an error.
enum Refusal {
    Pages(Why),
    Error(MapError),
}

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Self {
        Self::Error(error)
    }
}

/// Locks `memory`; if the system will not, the note that says so.
pub(super) fn lock(memory: &Memory) -> (bool, Option<Shortfall>) {
    let limit = limits::memlock();
    match memory.lock() {
        Ok(()) => (true, None),
        Err(error) => (false, Some(lock_note(memory.len(), limit, &error))),
    }
}

fn lock_note(len: usize, limit: Option<u64>, error: &io::Error) -> Shortfall {
    Shortfall::Lock { len, limit, errno: error.raw_os_error().unwrap_or_default() }
}

fn strict_error(asked: Pages, why: Why) -> MapError {
    match why {
        Why::TooFewFree { needed, free, .. } => {
            MapError::NoHugePages { asked, needed, free, cure: why.cure().to_string() }
        }
        why => MapError::NoPages { asked, why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pool_is_an_error_with_needed_free_and_cure() {
        let why = Why::TooFewFree { page: 2 << 20, needed: 3, free: 1, pool: 7 };
        let error = strict_error(Pages::Huge2M, why);
        let MapError::NoHugePages { asked: Pages::Huge2M, needed: 3, free: 1, cure } = &error
        else {
            panic!("{error:?}");
        };
        assert!(cure.starts_with("echo 7 > /sys/kernel/mm/hugepages/"), "{cure}");
        let text = error.to_string();
        assert!(text.contains("1 free") && text.contains("mend: echo 7 >"), "{text}");
    }

    #[test]
    fn a_refused_page_is_an_error_of_its_own() {
        let why = Why::Refused { page: 2 << 20, needed: 3, errno: libc::ENOMEM };
        let error = strict_error(Pages::Huge2M, why);
        assert!(matches!(error, MapError::NoPages { asked: Pages::Huge2M, .. }), "{error:?}");
    }

    #[test]
    fn a_refused_lock_keeps_the_figures() {
        let error = io::Error::from_raw_os_error(libc::ENOMEM);
        let note = lock_note(8192, Some(4096), &error);
        let want = Shortfall::Lock { len: 8192, limit: Some(4096), errno: libc::ENOMEM };
        assert_eq!(note, want);
    }
}
