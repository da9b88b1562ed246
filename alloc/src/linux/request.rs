//! [`MapRequest`]: ask for memory, take what there is, say what it was.

use std::io;
use std::string::ToString;
use std::vec::Vec;

use super::bind;
use super::error::MapError;
use super::limits;
use super::machine::Machine;
use super::memfd;
use super::memory::Memory;
use super::nodes::Nodes;
use super::prefault;
use super::smaps;
use crate::arith::{self, SizeError};
use crate::got::{Got, Shortfall};
use crate::mapping::Mapping;
use crate::pages::{Ask, Pages};
use crate::place::Place;
use crate::why::Why;

/// A request for memory that a NIC may touch.
///
/// It starts as: best pages, not strict, private, on any node, locked, prefaulted, without guards,
/// not in core dumps.
///
/// The limits that decide it (the reserved pools and each node's share, the control groups' limits
/// on memory and huge pages, overcommit, what machine and node have free, `RLIMIT_MEMLOCK`) are
/// read before anything is mapped. So a lack is an answer with its cure, and not a signal, or the
/// end of the process, at some later touch.
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
    place: Place,
    strict: bool,
    shared: bool,
    lock: bool,
    prefault: bool,
    guard: bool,
    dump: bool,
}

impl MapRequest {
    /// A request for at least `len` bytes; the length is rounded up to the page obtained.
    pub const fn new(len: usize) -> Self {
        Self {
            len,
            ask: Ask::Best,
            place: Place::Anywhere,
            strict: false,
            shared: false,
            lock: true,
            prefault: true,
            guard: false,
            dump: false,
        }
    }

    /// The pages to try first.
    pub const fn pages(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    /// The NUMA node to bind the memory to, before its first touch.
    pub const fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Whether to fail rather than take less: smaller pages than the kind named (with
    /// [`Ask::Best`] none is named), another node than the one named, or memory that is not
    /// locked.
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
    ///
    /// Long requests are obtained by several threads, which have ended when `map` returns: at
    /// most one for each processor the caller may run on, and one alone if the machine has
    /// several nodes and none is named, since a page lies where it is touched first.
    pub const fn prefault(mut self, prefault: bool) -> Self {
        self.prefault = prefault;
        self
    }

    /// Whether to put a page without rights right before and right behind the memory, whatever
    /// its pages are. To run past the memory is then a signal (SIGSEGV) and not somebody else's
    /// bytes. A NIC, and another process that maps the same memfd, are not held by it.
    pub const fn guard(mut self, guard: bool) -> Self {
        self.guard = guard;
        self
    }

    /// Whether a core dump shall hold the bytes: messages of others, and as long as the memory.
    pub const fn dump(mut self, dump: bool) -> Self {
        self.dump = dump;
        self
    }

    /// Maps the memory, zeroed.
    ///
    /// # Errors
    /// [`MapError::Size`] for a length of 0 or beyond the address space, [`MapError::NoPages`] if
    /// not even plain pages are to be had, [`MapError::Place`] if [`Place::Only`] names a node
    /// that cannot give memory, [`MapError::System`] if a call failed; if strict, also
    /// [`MapError::NoHugePages`], [`MapError::NoPages`], [`MapError::Place`] and
    /// [`MapError::Lock`].
    pub fn map(self) -> Result<Mapping, MapError> {
        let machine = Machine::this();
        let found =
            self.choose(&machine, |pages, len, place| self.make(&machine, pages, len, place))?;
        let (memory, unbound) = &found.made;
        let (locked, lock) = if !self.lock || found.pages.is_reserved() {
            (found.pages.is_reserved(), None)
        } else {
            lock(&machine, memory)
        };
        let touched = self.prefault || locked;
        let seen = if touched { smaps::look(memory.range()) } else { smaps::Seen::default() };
        let pages = match found.pages {
            reserved if reserved.is_reserved() => reserved,
            _ => seen.ordinary_pages(memory.len()),
        };
        let partly = if touched {
            Why::Partly { huge: seen.huge, len: memory.len() }
        } else {
            Why::NotTouched
        };
        let (node, place) = match (unbound, touched) {
            (Some(why), _) => (None, Some(why.clone())),
            (None, true) => whereabouts(memory, &found),
            (None, false) => (None, None),
        };
        let facts = Facts { pages, partly, locked, lock, node, place };
        let ((memory, _), got) = self.settle(found, facts)?;
        Ok(memory.into_mapping(got))
    }

    /// What would come of the request on a machine, as far as its limits say, without mapping
    /// anything. On a recorded machine that is what it would have given when it was recorded.
    ///
    /// ```
    /// use doorbell_alloc::{Ask, Machine, MapRequest, Place};
    ///
    /// let request = MapRequest::new(1 << 30).pages(Ask::Huge1G).place(Place::Only(0));
    /// match request.outlook(&Machine::this()) {
    ///     Ok(got) => println!("{got}"), // and each shortfall with its cure
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`map`](Self::map), except that no call is made that could fail.
    pub fn outlook(&self, machine: &Machine) -> Result<Got, MapError> {
        let found = self.choose(machine, |_, len, _| Ok(len))?;
        let reserved = found.pages.is_reserved();
        let lock =
            if self.lock && !reserved { limits::lockable(machine, found.made).err() } else { None };
        let locked = reserved || (self.lock && lock.is_none());
        let touched = self.prefault || locked;
        let pages = if touched || reserved { found.pages } else { Pages::Plain };
        let node = found.place.node().filter(|_| touched && found.lacks.is_none());
        let place = found.lacks.clone().filter(|_| touched);
        let facts = Facts { pages, partly: Why::NotTouched, locked, lock, node, place };
        self.settle(found, facts).map(|(_, got)| got)
    }

    /// Finds the largest pages that are to be had and makes something of them.
    fn choose<T>(
        &self,
        machine: &Machine,
        mut make: impl FnMut(Pages, usize, Place) -> Result<T, MapError>,
    ) -> Result<Found<T>, MapError> {
        if self.len == 0 {
            return Err(MapError::Size { len: 0, source: SizeError::Zero });
        }
        let (place, off) = self.place_on(machine)?;
        let mut missed = Vec::new();
        let mut pages = self.ask.first_choice(self.len);
        loop {
            let len = arith::round_up(self.len, limits::page_bytes(pages));
            let len = len.map_err(|source| MapError::Size { len: self.len, source })?;
            let why = match self.foresee(machine, pages, len, place) {
                Ok(()) => {
                    let lacks = match place {
                        Place::Prefer(node) => limits::node_lacks(machine, node, pages, len),
                        Place::Anywhere | Place::Only(_) => None,
                    };
                    match make(pages, len, place) {
                        Ok(made) => return Ok(Found { made, pages, place, missed, off, lacks }),
                        // The pool was counted a moment ago, but others draw on it.
                        Err(MapError::System { source, .. }) if pages.is_reserved() => {
                            Why::Refused {
                                page: pages.bytes(),
                                needed: len / pages.bytes(),
                                errno: source.raw_os_error().unwrap_or_default(),
                            }
                        }
                        Err(error) => return Err(error),
                    }
                }
                Err(why) => why,
            };
            if pages == Pages::Plain || self.strict_pages() {
                return Err(pages_error(pages, why));
            }
            missed.push((pages, why));
            // Ends: plain pages are the last kind.
            pages = pages.smaller();
        }
    }

    /// Whether smaller pages than those named are an error.
    fn strict_pages(&self) -> bool {
        self.strict && self.ask != Ask::Best
    }

    /// The node to bind to, and why it is not the one asked for.
    fn place_on(&self, machine: &Machine) -> Result<(Place, Option<Why>), MapError> {
        let Some(node) = self.place.node() else { return Ok((Place::Anywhere, None)) };
        match Nodes::read(machine).check(node) {
            Ok(()) => Ok((self.place, None)),
            Err(why) if self.strict_place() => Err(MapError::Place { asked: self.place, why }),
            Err(why) => Ok((Place::Anywhere, Some(why))),
        }
    }

    /// Whether another node than the one named is an error.
    const fn strict_place(&self) -> bool {
        self.strict || self.place.only().is_some()
    }

    /// Whether the machine's limits leave room for `len` bytes in pages of a kind.
    fn foresee(
        &self,
        machine: &Machine,
        pages: Pages,
        len: usize,
        place: Place,
    ) -> Result<(), Why> {
        if pages.is_reserved() {
            let page = limits::page_bytes(pages);
            return limits::reserved_pages(machine, page, len / page, place);
        }
        if pages == Pages::Transparent {
            limits::transparent_pages(machine, self.shared)?;
        }
        limits::ordinary_memory(machine, len, place, self.prefault || self.lock)
    }

    /// Maps, binds and, as far as asked, touches `len` bytes; also says why they are not bound.
    fn make(
        &self,
        machine: &Machine,
        pages: Pages,
        len: usize,
        place: Place,
    ) -> Result<(Memory, Option<Why>), MapError> {
        let memory = if self.shared {
            Memory::shared(memfd::create(len, pages)?, len, pages, self.guard)?
        } else {
            let memory = Memory::private(len, pages, self.guard)?;
            memory.keep_from_children()?;
            memory
        };
        if !self.dump {
            memory.keep_from_dumps()?;
        }
        if pages == Pages::Transparent {
            memory.prefer_huge()?;
        }
        let bound = bind::bind(&memory, place).map_err(|error| denied("mbind", &error));
        let unbound = match bound {
            Err(why) if self.strict_place() => {
                return Err(MapError::Place { asked: self.place, why });
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

    /// Weighs what came out against what was asked: an error, or the account of it.
    fn settle<T>(&self, found: Found<T>, facts: Facts) -> Result<(T, Got), MapError> {
        let asked = self.ask.first_choice(self.len);
        let got = facts.pages;
        let Found { made, pages: tried, mut missed, off, .. } = found;
        if tried == Pages::Transparent && got != tried {
            if self.strict_pages() {
                return Err(pages_error(tried, facts.partly));
            }
            missed.push((tried, facts.partly));
        }
        let place = off.or(facts.place);
        if let (Some(why), true) = (&place, self.strict_place()) {
            return Err(MapError::Place { asked: self.place, why: why.clone() });
        }
        if let (Some(note), true) = (&facts.lock, self.strict) {
            return Err(MapError::Lock(note.clone()));
        }
        let notes = missed.into_iter().map(|(asked, why)| Shortfall::Pages { asked, got, why });
        let notes = notes.chain(place.map(|why| Shortfall::Place { asked: self.place, why }));
        let got = Got {
            asked,
            got,
            place: self.place,
            node: facts.node,
            locked: facts.locked,
            shared: self.shared,
            guarded: self.guard,
            dumped: self.dump,
            notes: notes.chain(facts.lock).collect(),
        };
        Ok((made, got))
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

/// What was made, of which pages, and what was not to be had before.
struct Found<T> {
    made: T,
    pages: Pages,
    /// The node in force.
    place: Place,
    /// The kinds of pages tried in vain.
    missed: Vec<(Pages, Why)>,
    /// Why the node in force is not the one asked for.
    off: Option<Why>,
    /// What the preferred node lacked before.
    lacks: Option<Why>,
}

/// What came out, seen or foreseen.
struct Facts {
    pages: Pages,
    /// Why the pages are not transparent huge ones, if those were the ones to come.
    partly: Why,
    locked: bool,
    lock: Option<Shortfall>,
    node: Option<u32>,
    /// Why not all pages are on the node in force.
    place: Option<Why>,
}

/// The node that memory lies on, or why not all of it lies on the one in force.
fn whereabouts(
    memory: &Memory,
    found: &Found<(Memory, Option<Why>)>,
) -> (Option<u32>, Option<Why>) {
    let Some(node) = found.place.node() else { return (None, None) };
    let (ptr, len) = memory.range();
    let start = ptr.addr().get();
    let kind = if found.pages.is_reserved() { found.pages } else { Pages::Plain };
    match bind::look(start..start + len, limits::page_bytes(kind)) {
        Ok(seen) if seen.node() == Some(node) => (Some(node), None),
        Ok(seen) => {
            let elsewhere = || Why::Elsewhere { node, there: seen.bytes_on(node), len };
            (seen.node(), Some(found.lacks.clone().unwrap_or_else(elsewhere)))
        }
        Err(error) => (None, Some(denied("move_pages", &error))),
    }
}

/// Locks `memory`; if the limit leaves no room, or the system will not, the note that says so. The
/// limit is read only then: beyond it mlock(2) does nothing at all.
pub(super) fn lock(machine: &Machine, memory: &Memory) -> (bool, Option<Shortfall>) {
    let locked = memory.lock().map_err(|error| {
        let note = limits::lockable(machine, memory.len()).err();
        note.unwrap_or_else(|| lock_note(memory.len(), limits::memlock(machine), &error))
    });
    (locked.is_ok(), locked.err())
}

fn lock_note(len: usize, (limit, held): (Option<u64>, u64), error: &io::Error) -> Shortfall {
    Shortfall::Lock { len, limit, held, errno: error.raw_os_error() }
}

fn denied(call: &'static str, error: &io::Error) -> Why {
    Why::Denied { call, errno: error.raw_os_error().unwrap_or_default() }
}

fn pages_error(asked: Pages, why: Why) -> MapError {
    match why {
        Why::TooFewFree { needed, free, node, .. } => {
            MapError::NoHugePages { asked, needed, free, node, cure: why.cure().to_string() }
        }
        why => MapError::NoPages { asked, why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pool_is_an_error_with_needed_free_and_cure() {
        let why = Why::TooFewFree { page: 2 << 20, needed: 3, free: 1, pool: 7, node: None };
        let error = pages_error(Pages::Huge2M, why);
        let MapError::NoHugePages { asked: Pages::Huge2M, needed: 3, free: 1, cure, .. } = &error
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
        let error = pages_error(Pages::Huge2M, why);
        assert!(matches!(error, MapError::NoPages { asked: Pages::Huge2M, .. }), "{error:?}");
    }

    #[test]
    fn a_refused_lock_keeps_the_figures() {
        let error = io::Error::from_raw_os_error(libc::ENOMEM);
        let note = lock_note(8192, (Some(4096), 1024), &error);
        let (limit, errno) = (Some(4096), Some(libc::ENOMEM));
        assert_eq!(note, Shortfall::Lock { len: 8192, limit, held: 1024, errno });
    }
}
