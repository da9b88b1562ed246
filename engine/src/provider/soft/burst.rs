//! Reading several records from the ring with few looks at the receiving end.
#![expect(unsafe_code, reason = "reads the shared ring")]

use super::copy;
use super::layout::{Data, Header, RECORD_MAX};

/// Reads whole records from the ring, one after the other.
pub(super) struct Burst {
    data: Data,
    at: u64,
    tail: u64,
}

impl Burst {
    /// Of the records from `at` to `tail`, which lie in the data of one lap.
    #[inline(always)]
    pub(super) fn new(data: Data, at: u64, tail: u64) -> Burst {
        debug_assert!(at <= tail);
        Burst { data, at, tail }
    }

    /// How far it has read.
    #[inline(always)]
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next record's header and size, if there is a next one that lies inside what was
    /// published. The word is loaded once.
    #[inline(always)]
    pub(super) fn next(&self) -> Option<(Header, u32)> {
        let published = (self.tail - self.at) as u32;
        if published == 0 {
            return None;
        }
        // SAFETY: what was published lies in the data, in whole words.
        let header = Header(unsafe { self.data.at(self.at).cast::<u64>().read_volatile() });
        let record = header.record();
        if record > RECORD_MAX || record > published { None } else { Some((header, record)) }
    }

    /// True if everything published was taken.
    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        self.at == self.tail
    }

    /// As [`Burst::next`], if the record is a message like that one, without immediate data.
    #[inline(always)]
    pub(super) fn next_plain(&self, like: Header) -> Option<(Header, u32)> {
        let published = (self.tail - self.at) as u32;
        if published == 0 {
            return None;
        }
        // SAFETY: as in `next`.
        let header = Header(unsafe { self.data.at(self.at).cast::<u64>().read_volatile() });
        let record = header.plain_record();
        let fits = header.length() <= RECORD_MAX - 8 && record <= published;
        if fits && header.is_like(like) { Some((header, record)) } else { None }
    }

    /// Copies the payload of the record just looked at, which has no immediate data.
    ///
    /// # Safety
    /// `to` is writable for `length` bytes, and nobody else uses them; the header that
    /// [`Burst::next_plain`] gave has that length.
    #[inline(always)]
    pub(super) unsafe fn fetch_plain(&self, length: u32, to: *mut u8) {
        // SAFETY: as in `fetch`.
        unsafe { copy::exact(to, self.data.at(self.at).add(8), length as usize) };
    }

    /// Copies the payload of the record just looked at.
    ///
    /// # Safety
    /// `to` is writable for `header.length()` bytes, and nobody else uses them; `header` is what
    /// [`Burst::next`] gave.
    #[inline(always)]
    pub(super) unsafe fn fetch(&self, header: Header, to: *mut u8) {
        // SAFETY: `next` checked that the record, and so its payload, lies inside what was
        // published; an honest sender does not write there before it is given back, and what a
        // hostile one writes is only ever copied, never interpreted in place.
        unsafe {
            let from = self.data.at(self.at).add(8 + header.immediate_bytes() as usize);
            copy::exact(to, from, header.length() as usize);
        }
    }

    /// The immediate data of the record just looked at, 0 if it has none.
    #[inline(always)]
    pub(super) fn immediate(&self, header: Header) -> u32 {
        if header.immediate_bytes() == 0 {
            return 0;
        }
        // SAFETY: `next` checked that a record with an immediate word has room for it.
        unsafe { self.data.at(self.at).cast::<u64>().add(1).read_volatile() as u32 }
    }

    /// Moves past a record of that size.
    #[inline(always)]
    pub(super) fn consume(&mut self, record: u32) {
        self.at += u64::from(record);
    }
}
