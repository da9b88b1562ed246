//! Binds memory to a node, and asks the kernel on which node it is.
#![expect(unsafe_code, reason = "mbind(2) and move_pages(2) have no safe form in std or libc")]

use core::fmt;
use core::ops::Range;
use std::collections::BTreeMap;
use std::io;
use std::vec::Vec;

use super::limits;
use super::memory::Memory;
use super::nodes::NodeSet;
use crate::mapping::Mapping;
use crate::pages::Pages;
use crate::place::Place;

/// Binds memory that nobody has touched yet to a node (mbind(2)). For a memfd the policy belongs to
/// the file, so it applies to every process that maps it.
pub(super) fn bind(memory: &Memory, place: Place) -> io::Result<()> {
    let mode = match place {
        Place::Anywhere => return Ok(()),
        Place::Prefer(_) => libc::MPOL_PREFERRED,
        Place::Only(_) => libc::MPOL_BIND,
    };
    let nodes = place.node().and_then(NodeSet::one).ok_or(io::ErrorKind::InvalidInput)?;
    let (ptr, len) = memory.range();
    // The kernel reads one bit less than this number.
    let bits = libc::c_ulong::from(NodeSet::CAPACITY + 1);
    // SAFETY: the kernel reads `bits - 1` bits of the set, which has that many. It sets a policy
    // for the range, which is mapped as long as `memory` lives, and changes no byte of it.
    let code = unsafe {
        let mask = nodes.words().as_ptr();
        libc::syscall(libc::SYS_mbind, ptr.as_ptr(), len, mode, mask, bits, 0)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// On which nodes the pages of a range are now, as the kernel says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Where {
    nodes: BTreeMap<u32, usize>,
    absent: usize,
}

impl Where {
    /// The node that the whole range is on; `None` if it is on several, or if a part of it has no
    /// page yet.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        let mut nodes = self.nodes();
        let (first, _) = nodes.next()?;
        (nodes.next().is_none() && self.absent == 0).then_some(first)
    }

    /// The nodes that the range has pages on, ascending, and how many bytes of it are there.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, usize)> {
        self.nodes.iter().map(|(&node, &bytes)| (node, bytes))
    }

    /// Bytes of the range that are on a node.
    #[must_use]
    pub fn bytes_on(&self, node: u32) -> usize {
        self.nodes.get(&node).copied().unwrap_or_default()
    }

    /// Bytes of the range without a page: not touched yet, swapped out, or not mapped.
    #[must_use]
    pub const fn absent(&self) -> usize {
        self.absent
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (node, bytes) in self.nodes() {
            write!(f, "{comma}{bytes} bytes on node {node}")?;
            comma = ", ";
        }
        if self.absent != 0 || comma.is_empty() {
            write!(f, "{comma}{} bytes on none", self.absent)?;
        }
        Ok(())
    }
}

/// On which nodes the bytes of a range of this process are (move_pages(2), which moves nothing when
/// called without target nodes). Any range is allowed: bytes that are not mapped count as
/// [`absent`](Where::absent).
///
/// ```
/// use doorbell_alloc::where_is;
///
/// let bytes = vec![1_u8; 100_000];
/// match where_is(bytes.as_ptr_range()) {
///     Ok(seen) => println!("{seen}"), // 100000 bytes on node 0
///     Err(error) => println!("this kernel does not say: {error}"),
/// }
/// ```
///
/// # Errors
/// The system's error: ENOSYS on a kernel without NUMA, EPERM where a container forbids the call.
pub fn where_is(range: Range<*const u8>) -> io::Result<Where> {
    look(range.start.addr()..range.end.addr(), limits::page_bytes(Pages::Plain))
}

impl Mapping {
    /// On which nodes a part of the mapping is. `range` counts bytes from its start; bytes beyond
    /// its end are left out.
    ///
    /// ```
    /// use doorbell_alloc::{Ask, MapRequest, Place};
    ///
    /// let memory = MapRequest::new(1 << 20).pages(Ask::Plain).place(Place::Prefer(0)).map()?;
    /// if let Ok(seen) = memory.where_is(0..memory.len()) {
    ///     assert_eq!(seen.node(), memory.report().node());
    /// }
    /// # Ok::<(), doorbell_alloc::MapError>(())
    /// ```
    ///
    /// # Errors
    /// As for [`where_is`](fn@where_is).
    pub fn where_is(&self, range: Range<usize>) -> io::Result<Where> {
        let start = self.as_ptr().addr();
        let at = |offset: usize| start + offset.min(self.len());
        look(at(range.start)..at(range.end), self.step())
    }

    /// Size of the pages to ask about, bytes.
    fn step(&self) -> usize {
        let pages = if self.pages().is_reserved() { self.pages() } else { Pages::Plain };
        limits::page_bytes(pages)
    }
}

/// Asks on which node each page of `step` bytes of the range is.
pub(super) fn look(range: Range<usize>, step: usize) -> io::Result<Where> {
    /// Pages in one call: bounds the memory that the question takes.
    const BATCH: usize = 1024;
    let mut found = Where::default();
    let mut addresses = Vec::with_capacity(BATCH);
    let mut answers = [0_i32; BATCH];
    let mut next = range.start - range.start % step;
    while next < range.end {
        addresses.clear();
        while next < range.end && addresses.len() < BATCH {
            addresses.push(next);
            next = next.saturating_add(step);
        }
        ask(&addresses, &mut answers)?;
        for (&page, &answer) in addresses.iter().zip(&answers) {
            let bytes = page.saturating_add(step).min(range.end) - page.max(range.start);
            match u32::try_from(answer) {
                Ok(node) => *found.nodes.entry(node).or_default() += bytes,
                Err(_) => found.absent += bytes,
            }
        }
    }
    Ok(found)
}

/// Asks for the node of each address; the answer is a negative error number if there is none.
fn ask(addresses: &[usize], answers: &mut [i32]) -> io::Result<()> {
    let count = addresses.len().min(answers.len());
    let none = core::ptr::null::<i32>();
    // SAFETY: process 0 is this one. The kernel reads `count` addresses, looks each of them up
    // without touching the memory there, and writes `count` answers. Without nodes it moves
    // nothing.
    let code = unsafe {
        let (from, to) = (addresses.as_ptr(), answers.as_mut_ptr());
        libc::syscall(libc::SYS_move_pages, 0, count, from, none, to, 0)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn seen(nodes: &[(u32, usize)], absent: usize) -> Where {
        Where { nodes: nodes.iter().copied().collect(), absent }
    }

    #[test]
    fn a_node_is_named_only_if_the_whole_range_is_on_it() {
        assert_eq!(seen(&[(1, 4096)], 0).node(), Some(1));
        assert_eq!(seen(&[(0, 4096), (1, 4096)], 0).node(), None);
        assert_eq!(seen(&[(1, 4096)], 1).node(), None);
        assert_eq!(seen(&[], 0).node(), None);
        assert_eq!(seen(&[(1, 4096)], 1).bytes_on(1), 4096);
        assert_eq!(seen(&[(1, 4096)], 1).bytes_on(0), 0);
    }

    #[test]
    fn the_text_names_nodes_and_bytes() {
        assert_eq!(
            seen(&[(0, 1), (1, 2)], 3).to_string(),
            "1 bytes on node 0, 2 bytes on node 1, 3 bytes on none"
        );
        assert_eq!(seen(&[], 0).to_string(), "0 bytes on none");
    }
}
