//! The memory map of this process.

use std::fs;

/// The path that the kernel shows for the memfds of [`crate::shared`].
const SHARED_NAME: &str = "/memfd:doorbell-program";

/// A part of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// It can be read and written, and belongs to this process alone.
    pub(crate) is_private: bool,
    /// The file behind it; 0 for none.
    pub(crate) inode: u64,
    /// Where it begins in the file.
    pub(crate) offset: u64,
}

#[cfg(test)]
thread_local! {
    /// This thread cannot read the map.
    pub(crate) static UNREADABLE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The kernel's text; `None` if it cannot be read, as without `/proc` or a free descriptor. Paths
/// need not be UTF-8.
fn read() -> Option<String> {
    #[cfg(test)]
    if UNREADABLE.get() {
        return None;
    }
    let bytes = fs::read("/proc/self/maps").ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The areas that those addresses lie in; `None` if some lie in none, or the map cannot be read.
pub(crate) fn areas(start: usize, end: usize) -> Option<Vec<Area>> {
    find(&read()?, start, end)
}

/// True if part of that memory cannot be written. False if the map cannot be read.
pub(crate) fn is_read_only(start: usize, end: usize) -> bool {
    read().is_some_and(|map| has_read_only(&map, start, end))
}

fn has_read_only(map: &str, start: usize, end: usize) -> bool {
    let is_writable =
        |line: &&str| line.split_ascii_whitespace().nth(1).is_none_or(|text| text.contains('w'));
    let lines = map.lines().filter(|line| !is_writable(line));
    lines.filter_map(parse).any(|area| area.end > start && area.start < end)
}

/// All readable areas of those files among the memfds of [`crate::shared`], by address. Peers' are
/// named alike. `None` if the map cannot be read: they may be mapped then.
pub(crate) fn areas_of(inodes: &[u64]) -> Option<Vec<Area>> {
    Some(find_shared(&read()?, inodes))
}

fn find_shared(map: &str, inodes: &[u64]) -> Vec<Area> {
    let lines = map.lines().filter(|line| line.contains(SHARED_NAME) && line.contains(" r"));
    lines.filter_map(parse).filter(|area| inodes.contains(&area.inode)).collect()
}

fn find(map: &str, start: usize, end: usize) -> Option<Vec<Area>> {
    let mut next = start;
    let mut found = Vec::new();
    for area in map.lines().filter_map(parse).filter(|area| area.end > start && area.start < end) {
        if area.start > next {
            return None;
        }
        next = area.end;
        found.push(area);
    }
    (next >= end).then_some(found)
}

/// `start-end rights offset device inode path`
fn parse(line: &str) -> Option<Area> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = words.next()?;
    let inode = words.nth(1)?.parse().ok()?;
    // The stack grows, and the kernel keeps other places with names of its own.
    let is_ordinary = words.next().is_none_or(|name| name == "[heap]" || name.starts_with('/'));
    let hex = |text| usize::from_str_radix(text, 16).ok();
    Some(Area {
        start: hex(start)?,
        end: hex(end)?,
        is_private: rights == "rw-p" && is_ordinary,
        inode,
        offset: u64::from_str_radix(offset, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 rw-s 00002000 00:01 77                         /memfd:doorbell-program (deleted)
5000-6000 rw-p 00000000 00:00 0                          [heap]
7000-8000 rw-p 00000000 00:00 0                          [stack]
8000-9000 r--p 00000000 fe:00 12                         /usr/lib/a library.so
";

    #[test]
    fn addresses_must_be_mapped_without_a_gap() {
        let ends = |start, end| find(MAP, start, end).map(|found| found.len());
        assert_eq!(ends(0x1000, 0x2000), Some(1));
        assert_eq!(ends(0x2000, 0x4000), Some(2));
        assert_eq!(ends(0x2000, 0x5001), None);
        assert_eq!(ends(0, 0x2000), None);
        assert_eq!(ends(0x8000, 0xa000), None);
    }

    #[test]
    fn memory_is_read_only_if_a_part_of_it_is() {
        for (start, end, expected) in
            [(0x1000, 0x4000, false), (0x7000, 0x8000, false), (0x7fff, 0x8001, true)]
        {
            assert_eq!(has_read_only(MAP, start, end), expected, "{start:x} to {end:x}");
        }
    }

    #[test]
    fn shared_memory_is_found_wherever_it_is() {
        let map = "\
3000-4000 rw-s 00002000 00:01 77                         /memfd:doorbell-program (deleted)
5000-6000 rw-s 00000000 00:01 78                         /memfd:doorbell-program (deleted)
7000-8000 ---s 00000000 00:01 77                         /memfd:doorbell-program (deleted)
8000-9000 r--p 00000000 fe:00 77                         /usr/lib/a library.so
9000-a000 rw-s 00000000 00:01 77                         /memfd:doorbell-program (deleted)
";
        let found = |inodes| -> Vec<usize> {
            find_shared(map, inodes).iter().map(|area| area.start).collect()
        };
        assert_eq!(found(&[77]), [0x3000, 0x9000]);
        assert_eq!(found(&[77, 78]), [0x3000, 0x5000, 0x9000]);
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn areas_say_whose_they_are() {
        let one = |at| find(MAP, at, at + 1).unwrap()[0];
        let file =
            Area { start: 0x3000, end: 0x4000, is_private: false, inode: 77, offset: 0x2000 };
        assert_eq!(one(0x3000), file);
        assert_eq!((one(0x1000).is_private, one(0x1000).inode), (true, 0));
        assert!(one(0x5000).is_private);
        assert!(!one(0x7000).is_private, "a stack");
        assert!(!one(0x8000).is_private);
    }
}
