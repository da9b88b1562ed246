//! Names of registered memory of a worker.

/// Names registered memory of a worker: see [`super::Worker::adopt`]. Valid only in the worker that
/// gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub(super) u32);

/// Registered memory that only its worker and the worker's own requests touch: no peer may read or
/// write it. Its bytes are plain slices while no request in flight uses them. See
/// [`super::Worker::adopt_own`]. Valid only in the worker that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnRegion(pub(super) RegionId);

impl OwnRegion {
    /// Some bytes of it: for a request, or to borrow them.
    pub fn piece(self, offset: usize, length: u32) -> OwnPiece {
        OwnPiece(Piece { region: self.0, offset, length })
    }
}

/// Some bytes of a worker's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The region.
    pub region: RegionId,
    /// First byte.
    pub offset: usize,
    /// How many bytes.
    pub length: u32,
}

/// Some bytes of an [`OwnRegion`]. `into()` makes the [`Piece`] that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPiece(pub(super) Piece);

impl From<OwnPiece> for Piece {
    fn from(own: OwnPiece) -> Piece {
        own.0
    }
}

/// Where the bytes of a piece are.
#[derive(Clone, Copy)]
pub(super) struct Span {
    region: RegionId,
    start: usize,
    end: usize,
}

impl Span {
    /// No bytes.
    pub(super) const NONE: Span = Span { region: RegionId(u32::MAX), start: 0, end: 0 };

    pub(super) fn of(piece: &Piece) -> Span {
        let end = piece.offset.saturating_add(piece.length as usize);
        Span { region: piece.region, start: piece.offset, end }
    }

    /// True if both have a byte in common. Without branches: a loan compares itself with many, and
    /// each of them comes out otherwise.
    #[inline(always)]
    pub(super) fn overlaps(&self, other: &Span) -> bool {
        (self.region == other.region) & (self.start < other.end) & (other.start < self.end)
    }
}
