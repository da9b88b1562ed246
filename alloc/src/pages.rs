//! Kinds of pages, and which of them a request asks for.

use core::fmt;

/// The pages under a mapping, ordered from the largest kind to the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pages {
    /// 1 GiB pages from the kernel's reserved pool.
    Huge1G,
    /// 2 MiB pages from the kernel's reserved pool.
    Huge2M,
    /// Ordinary memory that the kernel backs with 2 MiB pages where it can.
    Transparent,
    /// Pages of the machine's base size, mostly 4 KiB.
    Plain,
}

impl Pages {
    /// Size of one page, bytes. For [`Pages::Plain`] this is 4096, although some machines have a
    /// larger base page.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Huge1G => 1 << 30,
            Self::Huge2M | Self::Transparent => 2 << 20,
            Self::Plain => 4096,
        }
    }

    /// Whether the pages come from the kernel's reserved pool. Such pages are never swapped out.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        matches!(self, Self::Huge1G | Self::Huge2M)
    }

    /// The kind to try when this one is not available.
    #[must_use]
    pub const fn smaller(self) -> Self {
        match self {
            Self::Huge1G => Self::Huge2M,
            Self::Huge2M => Self::Transparent,
            Self::Transparent | Self::Plain => Self::Plain,
        }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Huge1G => "1 GiB",
            Self::Huge2M => "2 MiB",
            Self::Transparent => "transparent",
            Self::Plain => "plain",
        })
    }
}

/// The pages that a request asks for. Where they are not available, the request takes the next
/// smaller kind, unless it is strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ask {
    /// 2 MiB pages for lengths of at least one such page, plain pages for shorter ones.
    #[default]
    Best,
    /// 1 GiB pages, then 2 MiB, transparent, plain.
    Huge1G,
    /// 2 MiB pages, then transparent, plain.
    Huge2M,
    /// Transparent huge pages, then plain.
    Transparent,
    /// Plain pages.
    Plain,
}

impl Ask {
    /// The kind tried first for `len` bytes.
    #[must_use]
    pub const fn first_choice(self, len: usize) -> Pages {
        match self {
            Self::Best if len < Pages::Huge2M.bytes() => Pages::Plain,
            Self::Best | Self::Huge2M => Pages::Huge2M,
            Self::Huge1G => Pages::Huge1G,
            Self::Transparent => Pages::Transparent,
            Self::Plain => Pages::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::string::ToString;

    #[test]
    fn best_takes_huge_pages_only_for_at_least_one_page() {
        assert_eq!(Ask::Best.first_choice((2 << 20) - 1), Pages::Plain);
        assert_eq!(Ask::Best.first_choice(2 << 20), Pages::Huge2M);
        assert_eq!(Ask::Huge2M.first_choice(1), Pages::Huge2M);
    }

    #[test]
    fn kinds_are_named_by_their_size() {
        assert_eq!(Pages::Huge2M.to_string(), "2 MiB");
        assert_eq!(Pages::Huge1G.bytes(), 1 << 30);
    }
}
