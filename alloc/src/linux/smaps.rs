//! What pages lie under a range, from /proc/self/smaps (proc_pid_smaps(5)): the kernel's own
//! count, since asking for transparent huge pages promises nothing.

use core::ptr::NonNull;
use std::fs;

use crate::pages::Pages;

/// What was seen under a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seen {
    /// Bytes of the range that transparent huge pages back, at least.
    pub(super) huge: usize,
}

impl Seen {
    /// The kind of ordinary memory this is: transparent if huge pages back all `len` bytes.
    pub(super) const fn ordinary_pages(self, len: usize) -> Pages {
        if self.huge >= len { Pages::Transparent } else { Pages::Plain }
    }
}

/// Looks at the pages under a range of this process. Nothing is claimed if /proc cannot be read.
///
/// A range that is shorter than a huge page has none of its own, and is not looked at: to read
/// the file takes longer the more is mapped, which a program with many small mappings would pay
/// for each.
pub(super) fn look((ptr, len): (NonNull<u8>, usize)) -> Seen {
    if len < Pages::Huge2M.bytes() {
        return Seen::default();
    }
    let text = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    Seen { huge: huge_bytes(&text, ptr.addr().get(), len) }
}

/// Bytes in `start..start + len` that huge pages back. The kernel counts per area and may have
/// joined ours with a neighbour: the neighbour's part is then assumed to be all huge, so that
/// the sum is never too large.
fn huge_bytes(smaps: &str, start: usize, len: usize) -> usize {
    let end = start.saturating_add(len);
    let mut sum = 0;
    // Bytes of the current area inside and outside the range.
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

/// The bytes in a line that counts huge pages: `AnonHugePages:  2048 kB`.
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
    fn counts_the_area_of_the_range_alone() {
        assert_eq!(huge_bytes(TEXT, 2 * MIB, 4 * MIB), 2 * MIB);
        assert_eq!(huge_bytes(TEXT, 8 * MIB, 4 * MIB), 4 * MIB);
        assert_eq!(huge_bytes(TEXT, 16 * MIB, 4 * MIB), 0);
        assert_eq!(huge_bytes("", 2 * MIB, 4 * MIB), 0);
    }

    #[test]
    fn a_joined_neighbour_is_never_credited_to_the_range() {
        // Half of the first area is ours; its one huge page may be the other half's.
        assert_eq!(huge_bytes(TEXT, 2 * MIB, 2 * MIB), 0);
        // The second area is huge throughout, so our half of it is.
        assert_eq!(huge_bytes(TEXT, 10 * MIB, 2 * MIB), 2 * MIB);
        // A range over several areas adds up.
        assert_eq!(huge_bytes(TEXT, 2 * MIB, 10 * MIB), 6 * MIB);
    }

    #[test]
    fn all_of_the_range_must_be_huge_to_be_called_so() {
        assert_eq!(Seen { huge: 4 * MIB }.ordinary_pages(4 * MIB), Pages::Transparent);
        assert_eq!(Seen { huge: 2 * MIB }.ordinary_pages(4 * MIB), Pages::Plain);
    }
}
