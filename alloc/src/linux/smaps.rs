//! Which pages are under a range, from /proc/self/smaps (proc_pid_smaps(5)). The kernel has to be
//! asked, because a request for transparent huge pages guarantees nothing.

use core::ptr::NonNull;
use std::fs;

use crate::pages::Pages;

/// The pages found under a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    /// Bytes of the range that are certainly on transparent huge pages.
    pub(super) huge: usize,
}

impl Seen {
    /// The kind of ordinary memory: transparent if all `len` bytes are on huge pages.
    pub(super) const fn ordinary_pages(self, len: usize) -> Pages {
        if self.huge >= len { Pages::Transparent } else { Pages::Plain }
    }
}

/// Looks at the pages under a range of this process. If /proc cannot be read, none count as huge.
///
/// For a range shorter than a huge page the file is not read: the range cannot have such a page,
/// and reading takes longer the more is mapped.
pub(super) fn look((ptr, len): (NonNull<u8>, usize)) -> Seen {
    if len < Pages::Huge2M.bytes() {
        return Seen::default();
    }
    let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    Seen { huge: huge_bytes(&text, ptr.addr().get(), len) }
}

/// Bytes in `start..start + len` that are on huge pages. The kernel counts by area and may have
/// joined our area with a neighbour. The neighbour's part is then assumed to be on huge pages
/// entirely, so that the sum is never too large.
fn huge_bytes(smaps: &str, start: usize, len: usize) -> usize {
    let end = start.saturating_add(len);
    let mut sum = 0;
    // Bytes of the current area that are inside and outside of the range.
    let (mut inside, mut outside) = (0, 0_usize);
    let mut huge = 0_usize;
    for line in smaps.lines() {
        if let Some((low, high)) = area(line) {
            sum += huge.saturating_sub(outside).min(inside);
            inside = high.min(end).saturating_sub(low.max(start));
            outside = high.saturating_sub(low).saturating_sub(inside);
            huge = 0;
        } else if let Some(bytes) = huge_line(line) {
            huge = huge.saturating_add(bytes);
        }
    }
    sum + huge.saturating_sub(outside).min(inside)
}

/// The addresses in an area's first line: `7f00-7f10 rw-p ...`.
fn area(line: &str) -> Option<(usize, usize)> {
    let (low, high) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(low, 16).ok()?, usize::from_str_radix(high, 16).ok()?))
}

/// The bytes in a line that counts huge pages, such as `AnonHugePages:  2048 kB`.
fn huge_line(line: &str) -> Option<usize> {
    let (name, value) = line.split_once(':')?;
    if !matches!(name, "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped") {
        return None;
    }
    let kib: usize = value.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const TEXT: &str = "\
00200000-00600000 rw-p 00000000 00:00 0
Size:               4096 kB
KernelPageSize:        4 kB
AnonHugePages:      2048 kB
ShmemPmdMapped:        0 kB
VmFlags: rd wr
00800000-00c00000 rw-s 00000000 00:01 7  /memfd:x (deleted)
AnonHugePages:         0 kB
ShmemPmdMapped:     4096 kB
";

    #[test]
    fn only_the_areas_of_the_range_count() {
        assert_eq!(huge_bytes(TEXT, 2 * MIB, 4 * MIB), 2 * MIB);
        assert_eq!(huge_bytes(TEXT, 8 * MIB, 4 * MIB), 4 * MIB);
        assert_eq!(huge_bytes(TEXT, 16 * MIB, 4 * MIB), 0);
        assert_eq!(huge_bytes("", 2 * MIB, 4 * MIB), 0);
    }

    #[test]
    fn huge_pages_of_a_joined_neighbour_do_not_count() {
        // Half of the first area is ours; its one huge page may be in the other half.
        assert_eq!(huge_bytes(TEXT, 2 * MIB, 2 * MIB), 0);
        // The second area is huge throughout, so our half of it is.
        assert_eq!(huge_bytes(TEXT, 10 * MIB, 2 * MIB), 2 * MIB);
        // A range over several areas adds up.
        assert_eq!(huge_bytes(TEXT, 2 * MIB, 10 * MIB), 6 * MIB);
    }

    #[test]
    fn the_whole_range_must_be_huge_to_count_as_transparent() {
        assert_eq!(Seen { huge: 4 * MIB }.ordinary_pages(4 * MIB), Pages::Transparent);
        assert_eq!(Seen { huge: 2 * MIB }.ordinary_pages(4 * MIB), Pages::Plain);
    }
}
