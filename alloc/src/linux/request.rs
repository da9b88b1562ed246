//! [`MapRequest`]: asks for memory, takes the best that is available, and reports what it is.

use std::io;
use std::string::ToString;
use std::vec::Vec;

use super::bind;
use super::error::MapError;
use super::limits;
use super::lock;
use super::machine::Machine;
use super::memfd;
use super::memory::Memory;
use super::nodes::Nodes;
use super::prefault;
use super::smaps;
use crate::arith::{self, SizeError};
use crate::mapping::Mapping;
use crate::pages::{Ask, Pages};
use crate::place::Place;
use crate::reason::Reason;
use crate::report::{MapReport, Shortfall};

/// A request for memory that a NIC may touch.
///
/// The limits that decide a request are read before anything is mapped: the reserved pools and each
/// node's share of them, the control groups' limits on memory and huge pages, overcommit, the free
/// memory of the machine and the node, and `RLIMIT_MEMLOCK`. So a shortage is an error or a note
/// that says how to fix it, and not a signal, or a killed process, when the memory is touched
/// later.
///
/// | option | default |
/// |---|---|
/// | [`pages`](Self::pages) | [`Ask::Best`] |
/// | [`place`](Self::place) | [`Place::Anywhere`] |
/// | [`strict`](Self::strict) | no: take less and note it |
/// | [`shared`](Self::shared) | no: private memory |
/// | [`readable`](Self::readable) | no |
/// | [`lock`](Self::lock) | yes |
/// | [`prefault`](Self::prefault) | yes |
/// | [`guard`](Self::guard) | no |
/// | [`dump`](Self::dump) | no |
///
/// ```
/// use doorbell_alloc::{Ask, MapRequest, Place};
///
/// // 2 MiB pages on node 0, or smaller pages and a note for each shortfall.
/// let request = MapRequest::new(8 << 20).pages(Ask::Huge2M).place(Place::Prefer(0));
/// let memory = request.map()?;
/// println!("{} pages, {} bytes", memory.pages(), memory.len());
/// for note in memory.report().notes() {
///     eprintln!("{note}"); // asked 2 MiB pages, got plain: 0 of 4 huge pages free; fix: echo ...
/// }
///
/// // A strict request fails instead.
/// if let Err(error) = request.strict(true).map() {
///     eprintln!("{error}");
/// }
/// # Ok::<(), doorbell_alloc::MapError>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "a request does nothing until `map` is called"]
pub struct MapRequest {
    len: usize,
    ask: Ask,
    place: Place,
    strict: bool,
    backing: Backing,
    lock: bool,
    prefault: bool,
    guard: bool,
    dump: bool,
}

/// What other processes may do with the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// Nothing.
    Private,
    /// Map it and read it.
    Readable,
    /// Map it, read it and write to it.
    Shared,
}

impl MapRequest {
    /// A request for `len` bytes, rounded up to whole pages of the kind obtained.
    pub const fn new(len: usize) -> Self {
        Self {
            len,
            ask: Ask::Best,
            place: Place::Anywhere,
            strict: false,
            backing: Backing::Private,
            lock: true,
            prefault: true,
            guard: false,
            dump: false,
        }
    }

    /// The pages to try first. Default: [`Ask::Best`].
    pub const fn pages(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    /// The NUMA node to bind the memory to. Default: [`Place::Anywhere`].
    pub const fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Whether to fail rather than take smaller pages, another node, or memory that is not locked.
    /// Default: no. [`Ask::Best`] names no kind of page, so with it smaller pages are no failure.
    pub const fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Whether to back the memory with a sealed memfd, which another process can map with
    /// [`Mapping::from_memfd`], to read and to write. Default: no.
    pub const fn shared(mut self, shared: bool) -> Self {
        self.backing = if shared { Backing::Shared } else { Backing::Private };
        self
    }

    /// Whether to back the memory with a memfd that other processes can map for reading and never
    /// for writing (`F_SEAL_FUTURE_WRITE`; Linux 5.1 or newer). In everything else the memory is
    /// private: it can be lent as a slice, and child processes do not inherit it. The device in
    /// software passes long messages from such memory with one copy. Transparent huge pages obey
    /// the switch for shared memory. Default: no. If you call both this and
    /// [`shared`](Self::shared), the last call counts.
    ///
    /// ```
    /// use doorbell_alloc::{Ask, MapRequest};
    ///
    /// let mut memory = MapRequest::new(1 << 16).pages(Ask::Plain).readable(true).map()?;
    /// assert!(memory.report().readable() && memory.fd().is_some());
    /// assert!(memory.as_mut_slice().is_some(), "nobody else writes to it");
    /// # Ok::<(), doorbell_alloc::MapError>(())
    /// ```
    pub const fn readable(mut self, readable: bool) -> Self {
        self.backing = if readable { Backing::Readable } else { Backing::Private };
        self
    }

    /// Whether to lock the pages in memory with mlock(2), which also touches them all. Default:
    /// yes. Pages of the reserved pool need no lock and do not count against the limit.
    pub const fn lock(mut self, lock: bool) -> Self {
        self.lock = lock;
        self
    }

    /// Whether to obtain every page now. Default: yes. Pages of the reserved pool are always
    /// obtained now, because without a free page the first touch would raise SIGBUS.
    ///
    /// Several threads obtain a long range, at most one for each processor that the caller may run
    /// on; they have ended when `map` returns. On a machine with several nodes and a request that
    /// names none, the calling thread does it alone, because a page goes to the node of the thread
    /// that touches it first.
    pub const fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Whether to put a page that may not be accessed right before and right after the memory.
    /// Default: no. An access beyond the memory then raises SIGSEGV instead of reaching other data.
    /// Guards do not stop a NIC, nor another process that maps the same memfd.
    pub const fn guard(mut self, guard: bool) -> Self {
        self.guard = guard;
        self
    }

    /// Whether core dumps include the memory. Default: no, because it is large and holds messages.
    pub const fn dump(mut self, dump: bool) -> Self {
        self.dump = dump;
        self
    }

    /// Maps the memory, zeroed.
    ///
    /// # Errors
    /// - [`MapError::Size`] for a length of 0 or beyond the address space;
    /// - [`MapError::NoPages`] if not even plain pages are available;
    /// - [`MapError::Place`] if [`Place::Only`] names a node that cannot give memory;
    /// - [`MapError::System`] if a system call failed;
    /// - for a strict request also [`MapError::NoHugePages`], [`MapError::NoPages`],
    ///   [`MapError::Place`] and [`MapError::Lock`].
    pub fn map(self) -> Result<Mapping, MapError> {
        let machine = Machine::this();
        let found =
            self.choose(&machine, |pages, len, place| self.make(&machine, pages, len, place))?;
        let (memory, unbound) = &found.made;
        let (locked, lock) = if !self.lock || found.pages.is_reserved() {
            (found.pages.is_reserved(), None)
        } else {
            lock::lock(&machine, memory)
        };
        let touched = self.prefault || locked;
        let seen = if touched { smaps::look(memory.range()) } else { smaps::Seen::default() };
        let pages = match found.pages {
            reserved if reserved.is_reserved() => reserved,
            _ => seen.ordinary_pages(memory.len()),
        };
        let partly = if touched {
            Reason::Partly { huge: seen.huge, len: memory.len() }
        } else {
            Reason::NotTouched
        };
        let (node, place) = match (unbound, touched) {
            (Some(reason), _) => (None, Some(reason.clone())),
            (None, true) => whereabouts(memory, &found),
            (None, false) => (None, None),
        };
        let facts = Facts { pages, partly, locked, lock, node, place };
        let ((memory, _), report) = self.settle(found, facts)?;
        Ok(memory.into_mapping(report))
    }

    /// Predicts the result of [`map`](Self::map) from a machine's limits, without mapping anything.
    /// For a recorded machine, that is the result it would have given when it was recorded.
    ///
    /// ```
    /// use doorbell_alloc::{Ask, Machine, MapRequest, Place};
    ///
    /// let request = MapRequest::new(1 << 30).pages(Ask::Huge1G).place(Place::Only(0));
    /// match request.outlook(&Machine::this()) {
    ///     Ok(report) => println!("{report}"), // and each shortfall, with how to fix it
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`map`](Self::map), without [`MapError::System`]: nothing is mapped.
    pub fn outlook(&self, machine: &Machine) -> Result<MapReport, MapError> {
        let found = self.choose(machine, |_, len, _| Ok(len))?;
        let reserved = found.pages.is_reserved();
        let lock =
            if self.lock && !reserved { limits::lockable(machine, found.made).err() } else { None };
        let locked = reserved || (self.lock && lock.is_none());
        let touched = self.prefault || locked;
        let pages = if touched || reserved { found.pages } else { Pages::Plain };
        let node = found.place.node().filter(|_| touched && found.shortage.is_none());
        let place = found.shortage.clone().filter(|_| touched);
        let facts = Facts { pages, partly: Reason::NotTouched, locked, lock, node, place };
        self.settle(found, facts).map(|(_, report)| report)
    }

    /// Finds the largest pages that are available, and calls `make` with them.
    fn choose<T>(
        &self,
        machine: &Machine,
        mut make: impl FnMut(Pages, usize, Place) -> Result<T, MapError>,
    ) -> Result<Found<T>, MapError> {
        if self.len == 0 {
            return Err(MapError::Size { len: 0, source: SizeError::Zero });
        }
        let (place, moved) = self.place_on(machine)?;
        let mut missed = Vec::new();
        let mut pages = self.ask.first_choice(self.len);
        loop {
            let len = arith::round_up(self.len, limits::page_bytes(pages));
            let len = len.map_err(|source| MapError::Size { len: self.len, source })?;
            let reason = match self.foresee(machine, pages, len, place) {
                Ok(()) => {
                    let shortage = match place {
                        Place::Prefer(node) => limits::node_shortage(machine, node, pages, len),
                        Place::Anywhere | Place::Only(_) => None,
                    };
                    match make(pages, len, place) {
                        Ok(made) => {
                            return Ok(Found { made, pages, place, missed, moved, shortage });
                        }
                        // The pool had enough a moment ago, but other processes take pages too.
                        Err(MapError::System { source, .. }) if pages.is_reserved() => {
                            Reason::Refused {
                                page: pages.bytes(),
                                needed: len / pages.bytes(),
                                errno: source.raw_os_error().unwrap_or_default(),
                            }
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(reason) => reason,
            };
            if pages == Pages::Plain || self.strict_pages() {
                return Err(pages_error(pages, reason));
            }
            missed.push((pages, reason));
            // This ends: plain pages are the last kind.
            pages = pages.smaller();
        }
    }

    /// Whether smaller pages than the requested ones are an error.
    fn strict_pages(&self) -> bool {
        self.strict && self.ask != Ask::Best
    }

    /// The node to bind to and, if it is not the requested one, why.
    fn place_on(&self, machine: &Machine) -> Result<(Place, Option<Reason>), MapError> {
        let Some(node) = self.place.node() else { return Ok((Place::Anywhere, None)) };
        match Nodes::read(machine).check(node) {
            Ok(()) => Ok((self.place, None)),
            Err(reason) if self.strict_place() => {
                Err(MapError::Place { asked: self.place, reason })
            }
            Err(reason) => Ok((Place::Anywhere, Some(reason))),
        }
    }

    /// Whether another node than the requested one is an error.
    const fn strict_place(&self) -> bool {
        self.strict || self.place.only().is_some()
    }

    /// Checks that the machine's limits allow `len` bytes in pages of a kind.
    fn foresee(
        &self,
        machine: &Machine,
        pages: Pages,
        len: usize,
        place: Place,
    ) -> Result<(), Reason> {
        if pages.is_reserved() {
            let page = limits::page_bytes(pages);
            return limits::reserved_pages(machine, page, len / page, place);
        }
        if pages == Pages::Transparent {
            limits::transparent_pages(machine, self.backing != Backing::Private)?;
        }
        limits::ordinary_memory(machine, len, place, self.prefault || self.lock)
    }

    /// Maps and binds `len` bytes and, if requested, touches them. Also returns why they are not
    /// bound, if they are not.
    fn make(
        &self,
        machine: &Machine,
        pages: Pages,
        len: usize,
        place: Place,
    ) -> Result<(Memory, Option<Reason>), MapError> {
        let memory = if self.backing == Backing::Private {
            Memory::private(len, pages, self.guard)?
        } else {
            let memory = Memory::shared(memfd::create(len, pages)?, len, pages, self.guard)?;
            memory.seal(self.backing == Backing::Shared)?;
            memory
        };
        if self.backing != Backing::Shared {
            memory.keep_from_children()?;
        }
        if !self.dump {
            memory.keep_from_dumps()?;
        }
        if pages == Pages::Transparent {
            memory.prefer_huge()?;
        }
        let bound = bind::bind(&memory, place).map_err(|error| denied("mbind", &error));
        let unbound = match bound {
            Err(reason) if self.strict_place() => {
                return Err(MapError::Place { asked: self.place, reason });
            }
            bound => bound.err(),
        };
        if self.prefault || pages.is_reserved() {
            let one_node = || Nodes::read(machine).usable().len() <= 1;
            let threads = prefault::threads(len);
            let help =
                threads > 1 && ((place != Place::Anywhere && unbound.is_none()) || one_node());
            prefault::populate(&memory, pages, if help { threads } else { 1 })?;
        }
        Ok((memory, unbound))
    }

    /// Compares the result with the request: an error, or the report.
    fn settle<T>(&self, found: Found<T>, facts: Facts) -> Result<(T, MapReport), MapError> {
        let asked = self.ask.first_choice(self.len);
        let pages = facts.pages;
        let Found { made, pages: tried, mut missed, moved, .. } = found;
        if tried == Pages::Transparent && pages != tried {
            if self.strict_pages() {
                return Err(pages_error(tried, facts.partly));
            }
            missed.push((tried, facts.partly));
        }
        let place = moved.or(facts.place);
        if let (Some(reason), true) = (&place, self.strict_place()) {
            return Err(MapError::Place { asked: self.place, reason: reason.clone() });
        }
        if let (Some(note), true) = (&facts.lock, self.strict) {
            return Err(MapError::Lock(note.clone()));
        }
        let notes = missed.into_iter().map(|(asked, reason)| Shortfall::Pages {
            asked,
            got: pages,
            reason,
        });
        let notes = notes.chain(place.map(|reason| Shortfall::Place { asked: self.place, reason }));
        let report = MapReport {
            asked,
            pages,
            place: self.place,
            node: facts.node,
            locked: facts.locked,
            shared: self.backing == Backing::Shared,
            readable: self.backing == Backing::Readable,
            guarded: self.guard,
            dumped: self.dump,
            notes: notes.chain(facts.lock).collect(),
        };
        Ok((made, report))
    }
}

impl Mapping {
    /// Maps at least `len` bytes of private memory in 2 MiB pages, or in the best pages available:
    /// see [`report`](Mapping::report). Every page is obtained now, and locked where the limit
    /// allows.
    ///
    /// # Errors
    /// As for [`MapRequest::map`], not strict.
    pub fn huge(len: usize) -> Result<Self, MapError> {
        MapRequest::new(len).pages(Ask::Huge2M).map()
    }

    /// Maps at least `len` bytes of private memory in plain pages. Every page is obtained now, and
    /// locked where the limit allows.
    ///
    /// # Errors
    /// As for [`MapRequest::map`], not strict.
    pub fn plain(len: usize) -> Result<Self, MapError> {
        MapRequest::new(len).pages(Ask::Plain).map()
    }
}

/// What was made, with which pages, and what was tried before.
struct Found<T> {
    made: T,
    pages: Pages,
    /// The node that applies.
    place: Place,
    /// Larger kinds of pages that were not available.
    missed: Vec<(Pages, Reason)>,
    /// Why the node that applies is not the requested one.
    moved: Option<Reason>,
    /// Why the preferred node cannot hold all of it, if that was known before.
    shortage: Option<Reason>,
}

/// The result, measured or predicted.
struct Facts {
    pages: Pages,
    /// Why the pages are not transparent huge pages, if those were tried.
    partly: Reason,
    locked: bool,
    lock: Option<Shortfall>,
    node: Option<u32>,
    /// Why not all pages are on the node that applies.
    place: Option<Reason>,
}

/// The node that all of the memory is on; and why it is not the one that applies, if so.
fn whereabouts(
    memory: &Memory,
    found: &Found<(Memory, Option<Reason>)>,
) -> (Option<u32>, Option<Reason>) {
    let Some(node) = found.place.node() else { return (None, None) };
    let (ptr, len) = memory.range();
    let start = ptr.addr().get();
    let kind = if found.pages.is_reserved() { found.pages } else { Pages::Plain };
    match bind::look(start..start + len, limits::page_bytes(kind)) {
        Ok(seen) if seen.node() == Some(node) => (Some(node), None),
        Ok(seen) => {
            let elsewhere = || Reason::Elsewhere { node, there: seen.bytes_on(node), len };
            (seen.node(), Some(found.shortage.clone().unwrap_or_else(elsewhere)))
        }
        Err(error) => (None, Some(denied("move_pages", &error))),
    }
}

fn denied(call: &'static str, error: &io::Error) -> Reason {
    Reason::Denied { call, errno: error.raw_os_error().unwrap_or_default() }
}

fn pages_error(asked: Pages, reason: Reason) -> MapError {
    match reason {
        Reason::TooFewFree { needed, free, node, .. } => {
            MapError::NoHugePages { asked, needed, free, node, fix: reason.fix().to_string() }
        }
        reason => MapError::NoPages { asked, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pool_is_an_error_with_the_figures_and_the_fix() {
        let reason = Reason::TooFewFree { page: 2 << 20, needed: 3, free: 1, pool: 7, node: None };
        let error = pages_error(Pages::Huge2M, reason);
        let MapError::NoHugePages { asked: Pages::Huge2M, needed: 3, free: 1, fix, .. } = &error
        else {
            panic!("{error:?}");
        };
        assert!(fix.starts_with("echo 7 > /sys/kernel/mm/hugepages/"), "{fix}");
        let text = error.to_string();
        assert!(text.contains("1 free") && text.contains("fix: echo 7 >"), "{text}");
    }

    #[test]
    fn a_refused_page_is_an_error_of_its_own() {
        let reason = Reason::Refused { page: 2 << 20, needed: 3, errno: libc::ENOMEM };
        let error = pages_error(Pages::Huge2M, reason);
        assert!(matches!(error, MapError::NoPages { asked: Pages::Huge2M, .. }), "{error:?}");
    }

    /// Huge pages in shared memory need a descriptor, and the pool may have enough.
    #[test]
    fn a_lack_of_descriptors_is_told_with_its_cure() {
        let reason = Reason::Refused { page: 2 << 20, needed: 3, errno: libc::EMFILE };
        let error = pages_error(Pages::Huge2M, reason);
        assert_eq!(error.errno(), libc::EMFILE);
        let text = error.to_string();
        assert!(text.contains("may open no more files"), "{text}");
        assert!(text.contains("fix: close files, or raise ulimit -n"), "{text}");
    }
}
