//! The buffers of users: which bytes the device may read, and which it may write.
//!
//! A request names memory by address, and an address proves nothing. So the data plane passes on
//! only a [`Source`] or a [`Target`], which can be had in three ways:
//!
//! - from [`Memory`](crate::model::memory::Memory), which has checked key, bounds and right: the
//!   bytes lie in a registered region, and a region owns its memory;
//! - from a [`Posted`] request, whose poster vouches for its buffers (whether their keys allow the
//!   access is another question, which the steps ask as well);
//! - from a borrowed slice.
//!
//! A region may go while a request uses it. For the poster's own request that breaks the contract
//! of the post; for a peer's request the region is lent, and its removal waits.
#![expect(unsafe_code, reason = "users name memory by address")]

use core::any::Any;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU64;

use arrayvec::ArrayVec;
use std_alloc::boxed::Box;

use crate::model::limits::SEND_SGE_MAX;
use crate::prefetch::{self, LINE};
use crate::room::FixedCapacity;
use crate::sync::reads;
use crate::wr::{Segmentation, SendFlags, SendOp, SendWr, Sge};

/// Bytes that may be read. Others may write them meanwhile: they are only ever copied.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    at: *const u8,
    length: u32,
    life: PhantomData<&'a [u8]>,
}

impl<'a> Source<'a> {
    /// # Safety
    /// The bytes are readable as long as `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *const u8, length: u32) -> Source<'a> {
        Source { at, length, life: PhantomData }
    }

    /// Those bytes; of more than 4 GiB the first.
    #[inline(always)]
    pub(crate) fn of(bytes: &'a [u8]) -> Source<'a> {
        Source { at: bytes.as_ptr(), length: bytes.len() as u32, life: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *const u8 {
        self.at
    }

    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        self.length
    }

    /// The bytes of those words.
    pub(crate) fn of_words(words: &'a [u64; 3]) -> Source<'a> {
        Source { at: words.as_ptr().cast(), length: size_of_val(words) as u32, life: PhantomData }
    }

    /// The bytes as a word; `None` unless they are eight.
    pub(crate) fn word(self) -> Option<u64> {
        // SAFETY: eight bytes are readable.
        (self.length == 8).then(|| unsafe { self.at.cast::<u64>().read_unaligned() })
    }

    /// `length` of the bytes, from `skip` on, or fewer if there are not as many.
    pub(crate) fn part(self, skip: u32, length: u32) -> Source<'a> {
        let skip = skip.min(self.length);
        let at = self.at.wrapping_add(skip as usize);
        Source { at, length: length.min(self.length - skip), ..self }
    }

    /// The bytes without the last line that they touch.
    pub(crate) fn but_last_line(self) -> Source<'a> {
        let Some(last) = self.length.checked_sub(1) else { return self };
        let in_line = self.at.addr().wrapping_add(last as usize) % LINE;
        self.part(0, last.saturating_sub(in_line as u32))
    }

    /// How many ticks of the processor's clock the load of the last byte takes; 0 if there is none,
    /// or no such clock. The first byte of its page, or of these bytes, is loaded before, unless it
    /// is in the same line: a page that is new to this process says nothing about the line.
    pub(crate) fn ticks_of_last(self) -> u64 {
        let Some(last) = self.length.checked_sub(1) else { return 0 };
        let in_page = self.at.addr().wrapping_add(last as usize) % PAGE;
        if in_page >= LINE {
            let first = (last as usize).saturating_sub(in_page);
            reads(self.at.wrapping_add(first), 1);
            // SAFETY: the byte is readable.
            unsafe { self.at.add(first).read_volatile() };
        }
        let start = prefetch::ticks();
        reads(self.at.wrapping_add(last as usize), 1);
        // SAFETY: the byte is readable.
        unsafe { self.at.add(last as usize).read_volatile() };
        prefetch::ticks().saturating_sub(start)
    }

    /// Drops the lines of the bytes from the caches of all cores; what was written there goes to
    /// memory.
    pub(crate) fn flush(self) {
        // SAFETY: the bytes are readable.
        unsafe { prefetch::flush(self.at, self.length as usize) }
    }
}

/// Bytes of the smallest page.
const PAGE: usize = 4096;

/// Memory of another process that is mapped here to be read, and never written.
pub struct ReadOnly {
    base: NonNull<u8>,
    len: usize,
    _keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: nobody writes through it, and `_keep` may be dropped on any thread.
unsafe impl Send for ReadOnly {}
// SAFETY: as above.
unsafe impl Sync for ReadOnly {}

impl ReadOnly {
    /// `len` bytes from `base`.
    ///
    /// # Safety
    /// They stay readable as long as `keep` lives.
    pub unsafe fn new(base: NonNull<u8>, len: usize, keep: Box<dyn Any + Send + Sync>) -> ReadOnly {
        ReadOnly { base, len, _keep: keep }
    }

    /// The bytes of a view, which are readable as long as it lives.
    #[cfg(feature = "std")]
    pub(crate) fn over(view: doorbell_alloc::View) -> Option<ReadOnly> {
        let base = NonNull::new(view.as_ptr().cast_mut())?;
        Some(ReadOnly { base, len: view.len(), _keep: Box::new(view) })
    }

    /// First byte.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Bytes that may be written. Others may write them too: nobody has a reference to them.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    at: *mut u8,
    length: u32,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Target<'a> {
    /// # Safety
    /// The bytes are readable and writable as long as `'a`, and no reference to them is used
    /// meanwhile. What several change at once is used only as atomics.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *mut u8, length: u32) -> Target<'a> {
        Target { at, length, life: PhantomData }
    }

    /// Those bytes; of more than 4 GiB the first.
    pub(crate) fn of(bytes: &'a mut [u8]) -> Target<'a> {
        Target { at: bytes.as_mut_ptr(), length: bytes.len() as u32, life: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.at
    }

    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        self.length
    }

    /// The same bytes, to be read.
    pub(crate) fn source(self) -> Source<'a> {
        Source { at: self.at, length: self.length, life: PhantomData }
    }

    /// `length` of the bytes, from `skip` on, or fewer if there are not as many.
    pub(crate) fn part(self, skip: u32, length: u32) -> Target<'a> {
        let skip = skip.min(self.length);
        let at = self.at.wrapping_add(skip as usize);
        Target { at, length: length.min(self.length - skip), ..self }
    }

    /// Writes bytes at the front, as many as there are on both sides.
    pub(crate) fn write(self, bytes: &[u8]) {
        self.copy(Source::of(bytes));
    }

    /// Copies bytes to the front, as many as there are on both sides. Both may be the same memory,
    /// mapped twice. It is a call: the compiler reads bytes that a peer changes nowhere else.
    pub(crate) fn copy(self, from: Source<'_>) {
        let length = from.length.min(self.length) as usize;
        // SAFETY: a source is readable and a target writable for that length; `copy` allows that
        // they overlap.
        unsafe { ptr::copy(from.at, self.at, length) };
    }

    /// The eight bytes as a word that several may change at once; `None` unless they are eight, and
    /// aligned.
    pub(crate) fn word(self) -> Option<&'a AtomicU64> {
        let fits = self.length == 8 && self.at.addr().is_multiple_of(8);
        // SAFETY: they are aligned, and writable as long as `'a`. What several change at once is
        // used only as atomics: the owner of the region lets peers change it.
        fits.then(|| unsafe { AtomicU64::from_ptr(self.at.cast()) })
    }
}

/// A request whose poster vouches for it, by the contract of `Qp::post`: what it names is readable,
/// or writable if it reads from the peer, until it has completed. Only the `unsafe` posts of the
/// handles make one, of what they are given.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Posted<'a>(SendWr<'a>);

impl<'a> Deref for Posted<'a> {
    type Target = SendWr<'a>;

    #[inline(always)]
    fn deref(&self) -> &SendWr<'a> {
        &self.0
    }
}

impl<'a> Posted<'a> {
    /// # Safety
    /// As for `Qp::post`.
    #[inline(always)]
    pub(crate) unsafe fn one<'l>(wr: &'l SendWr<'a>) -> &'l Posted<'a> {
        // SAFETY: it is the same type but for its name, and the caller vouches for the request.
        unsafe { &*ptr::from_ref(wr).cast() }
    }

    /// # Safety
    /// As for `Qp::post`.
    #[inline(always)]
    pub(crate) unsafe fn list<'l>(list: &'l [SendWr<'a>]) -> &'l [Posted<'a>] {
        // SAFETY: as in `one`.
        unsafe { &*(ptr::from_ref(list) as *const [Posted<'a>]) }
    }

    /// The bytes of the first piece.
    #[inline(always)]
    pub(crate) fn first(&self) -> Source<'_> {
        source(self.0.sge)
    }

    /// The header of a segmented send, which has no key.
    pub(crate) fn header(&self, how: Segmentation) -> Source<'_> {
        let ours = matches!(self.0.op, SendOp::Tso(own) if own == how);
        let length = if ours { how.header_len.into() } else { 0 };
        let at = ptr::with_exposed_provenance(how.header as usize);
        Source { at, length, life: PhantomData }
    }

    /// The same request with a copy of its bytes in one piece, in `room`. `None`: they do not fit.
    pub(crate) fn in_one_piece<'r>(&self, room: &'r mut [u8]) -> Option<Posted<'r>>
    where
        'a: 'r,
    {
        let mut rest = Target::of(room);
        let start = rest.as_ptr();
        let mut length = 0;
        for source in self.sources() {
            if source.length() > rest.length() {
                return None;
            }
            rest.copy(source);
            length += source.length();
            rest = rest.part(source.length(), u32::MAX);
        }
        let sge = Sge { addr: start as u64, length, lkey: 0 };
        Some(Posted(SendWr { sge, more: &[], ..self.0 }))
    }

    /// The bytes of all pieces.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.0.all_pieces().map(source)
    }

    /// The same of a request that reads from the peer, to be written.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Target<'_>> {
        let inward = !self.0.op.is_outward();
        let pieces = self.0.all_pieces().filter(move |_| inward);
        pieces.map(|sge| Target { at: sge.addr as *mut u8, length: sge.length, life: PhantomData })
    }

    /// All pieces.
    pub(crate) fn gathered(&self) -> Pieces {
        gathered(self.0.all_pieces())
    }
}

/// The pieces of a posted request, each readable until the request has completed.
pub(crate) struct Pieces {
    list: ArrayVec<Sge, SEND_SGE_MAX>,
}

impl Clone for Pieces {
    /// Unlike the list's own, this cannot panic.
    fn clone(&self) -> Pieces {
        gathered(self.list.iter().copied())
    }
}

/// A post has checked that they are not too many.
fn gathered(pieces: impl Iterator<Item = Sge>) -> Pieces {
    let mut list = ArrayVec::new();
    for piece in pieces {
        list.put(piece);
    }
    Pieces { list }
}

impl Deref for Pieces {
    type Target = [Sge];

    fn deref(&self) -> &[Sge] {
        &self.list
    }
}

impl Pieces {
    /// One piece.
    ///
    /// # Safety
    /// The bytes are readable as long as the pieces are used.
    pub(crate) unsafe fn new(at: u64, length: u32) -> Pieces {
        let mut list = ArrayVec::new();
        list.put(Sge { addr: at, length, lkey: 0 });
        Pieces { list }
    }

    /// The bytes of each piece.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'_>> {
        self.list.iter().copied().map(source)
    }

    /// The request that they are of, again: `op` and `flags` are its own.
    pub(crate) fn posted(&self, op: SendOp, flags: SendFlags) -> Option<Posted<'_>> {
        let (sge, more) = self.list.split_first()?;
        Some(Posted(SendWr { wr_id: 0, op, flags, sge: *sge, more }))
    }
}

/// The bytes of a piece that somebody vouches for.
#[inline(always)]
fn source<'a>(piece: Sge) -> Source<'a> {
    Source { at: piece.addr as *const u8, length: piece.length, life: PhantomData }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left ends where the last line begins, or is nothing.
    #[test]
    fn the_last_line_is_the_one_of_the_last_byte() {
        #[repr(align(64))]
        struct Lines([u8; 4 * LINE]);
        let lines = Lines([7; 4 * LINE]);
        for (from, to, left) in [
            (0, 4 * LINE, 3 * LINE),
            (0, 3 * LINE + 1, 3 * LINE),
            (0, 3 * LINE, 2 * LINE),
            (70, 200, 192 - 70),
            (70, 192, 128 - 70),
            (70, 120, 0),
            (64, 128, 0),
            (70, 70, 0),
        ] {
            let bytes = Source::of(&lines.0[from..to]);
            assert_eq!(bytes.but_last_line().length(), left as u32, "{from}..{to}");
            assert_eq!(bytes.but_last_line().as_ptr(), bytes.as_ptr(), "{from}..{to}");
        }
    }
}
