//! Binding memory to a node, and asking where it lies.
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

/// Binds memory that nobody has touched yet (mbind(2)). The policy of a memfd is that of the
/// file, so it holds for every process that maps it.
pub(super) fn bind(memory: &Memory, place: Place) -> io::Result<()> {
    let mode = match place {
        Place::Anywhere => return Ok(()),
        Place::Prefer(_) => libc::MPOL_PREFERRED,
        Place::Only(_) => libc::MPOL_BIND,
    };
    let nodes = place.node().and_then(NodeSet::one).ok_or(io::ErrorKind::InvalidInput)?;
    let (ptr, len) = memory.range();
    // The kernel reads one bit less than it is told of.
    let bits = libc::c_ulong::from(NodeSet::ROOM + 1);
    // SAFETY: the kernel reads `bits - 1` bits of the set, which has as many, and sets a policy
    // for the range, which is mapped as long as `memory` lives; no byte of it changes.
    let code = unsafe {
        let mask = nodes.words().as_ptr();
        libc::syscall(libc::SYS_mbind, ptr.as_ptr(), len, mode, mask, bits, 0)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// On which nodes the pages of a range lie now, by the kernel's own account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Where {
    nodes: BTreeMap<u32, usize>,
    absent: usize,
}

impl Where {
    /// The node that all of the range lies on; `None` if it lies on several, or if a part has no
    /// page yet.
    #[must_use]
    pub fn node(&self) -> Option<u32> {
        let mut nodes = self.nodes();
        let (first, _) = nodes.next()?;
        (nodes.next().is_none() && self.absent == 0).then_some(first)
    }

    /// The nodes that pages lie on and how many bytes of the range do, by node.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, usize)> {
        self.nodes.iter().map(|(&node, &bytes)| (node, bytes))
    }

    /// Bytes of the range that lie on a node.
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

/// On which nodes the bytes of a range of this process lie (move_pages(2), which moves nothing if
/// it is given no nodes). Any range may be asked about: what is not mapped is
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
/// What the system answered: ENOSYS on a kernel without NUMA, EPERM where a container forbids
/// the call.
pub fn where_is(range: Range<*const u8>) -> io::Result<Where> {
    look(range.start.addr()..range.end.addr(), limits::page_bytes(Pages::Plain))
}

impl Mapping {
    /// On which nodes the pages under a part of the mapping lie, by byte offsets; a part beyond
    /// the end is left out.
    ///
    /// ```
    /// use doorbell_alloc::{Ask, MapRequest, Place};
    ///
    /// let memory = MapRequest::new(1 << 20).pages(Ask::Plain).place(Place::Prefer(0)).map()?;
    /// if let Ok(seen) = memory.where_is(0..memory.len()) {
    ///     assert_eq!(seen.node(), memory.got().node());
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

    /// How far apart it is enough to look.
    fn step(&self) -> usize {
        let pages = if self.pages().is_reserved() { self.pages() } else { Pages::Plain };
        limits::page_bytes(pages)
    }
}

/// Asks for each page of `step` bytes that the range touches.
pub(super) fn look(range: Range<usize>, step: usize) -> io::Result<Where> {
    /// Pages asked about in one call: bounds the memory that asking takes.
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

/// The node of each address, or an error number below 0.
fn ask(addresses: &[usize], answers: &mut [i32]) -> io::Result<()> {
    let count = addresses.len().min(answers.len());
    let none = core::ptr::null::<i32>();
    // SAFETY: process 0 is this one; the kernel reads `count` addresses, which it does not follow
    // but looks up, and writes as many answers; without nodes it moves nothing.
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
    fn one_node_is_named_only_if_all_of_the_range_lies_there() {
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
