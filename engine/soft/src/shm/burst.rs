//! Reading several records from the ring without reloading the receiving end for each.
#![expect(unsafe_code, reason = "reads the shared ring")]

use crate::model::buffers::Target;
use crate::prefetch;
use crate::room::never;
use crate::shm::copy;
use crate::shm::layout::{Data, Header, RECORD_MAX, record_bytes};
use crate::shm::ring::SHORT_MAX;
use crate::sync::reads;

/// Reads whole records from the ring, one after the other.
pub(crate) struct Burst {
    data: Data,
    at: u64,
    tail: u64,
}

impl Burst {
    /// A cursor over the records from `at` to `tail`, which lie in the data of one lap.
    #[inline(always)]
    pub(crate) fn new(data: Data, at: u64, tail: u64) -> Burst {
        debug_assert!(at <= tail);
        Burst { data, at, tail }
    }

    /// How far it has read.
    #[inline(always)]
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The published bytes from there on.
    pub(crate) fn left(&self) -> u64 {
        self.tail - self.at
    }

    /// The next record's header and size, if there is one and it lies inside the published bytes.
    /// The word is loaded once.
    #[inline(always)]
    pub(crate) fn next(&self) -> Option<(Header, u32)> {
        let published = (self.tail - self.at) as u32;
        if published == 0 {
            return None;
        }
        reads(self.data.at(self.at), 8);
        // SAFETY: what was published lies in the data, in whole words.
        let header = Header(unsafe { self.data.at(self.at).cast::<u64>().read_volatile() });
        let record = header.record();
        if record > RECORD_MAX || record > published { None } else { Some((header, record)) }
    }

    /// True if more follows behind the current record, which has that size.
    #[inline(always)]
    pub(crate) fn has_more(&self, record: u32) -> bool {
        self.tail - self.at > u64::from(record)
    }

    /// A cursor over the next messages that look like that one.
    #[inline(always)]
    pub(crate) fn plain(&self, like: Header) -> Plain {
        let next = self.data.at(self.at).cast_const();
        Plain { next, left: self.tail - self.at, like }
    }

    /// Continues behind the last message that `plain` has read.
    #[inline(always)]
    pub(crate) fn end_plain(&mut self, plain: &Plain) {
        self.at = self.tail - plain.left;
    }

    /// Fills `to` with the payload of the current record, whose header [`Burst::next`] gave. There
    /// are as many bytes.
    #[inline(always)]
    pub(crate) fn fetch(&self, header: Header, to: Target<'_>) {
        if to.length() > header.length() || header.record() > (self.tail - self.at) as u32 {
            return never();
        }
        // SAFETY: the record, and so its payload, lies inside what was published; an honest sender
        // does not write there before it is given back, and what a hostile one writes is only ever
        // copied, never interpreted in place.
        unsafe {
            let from = self.data.at(self.at).add(8 + header.immediate_bytes() as usize);
            copy::untrusted(to.as_ptr(), from, to.length() as usize);
        }
    }

    /// The immediate data of the current record, 0 if it has none.
    #[inline(always)]
    pub(crate) fn immediate(&self, header: Header) -> u32 {
        if header.immediate_bytes() == 0 {
            return 0;
        }
        reads(self.data.at(self.at), 16);
        // SAFETY: `next` checked that a record with an immediate word has room for it.
        unsafe { self.data.at(self.at).cast::<u64>().add(1).read_volatile() as u32 }
    }

    /// Takes the lines from that position up to here from the sender's core ([`prefetch::own`]).
    /// The sender writes there next. Each store to a line that both cores have waits until this
    /// core has given it up. Of lines that the sender's core lacks, it fetches several at a time.
    ///
    /// In lists of 16, near cores, 64 bytes then go at 75 M/s in place of 56, 200 at 45 in place of
    /// 34, and 1024 at 12 in place of 9; far ones 39, 22 and 3.3 in place of 22, 11 and 2.4. To own
    /// the lines of messages that come alone gained nothing, and neither did it within a burst. On
    /// an Intel processor (family 6, model 207), prefetches for writing here gained nothing either.
    #[inline]
    pub(crate) fn own_since(&self, from: u64) {
        if prefetch::owns() {
            prefetch::own(self.data.at(from).cast_const(), (self.at - from) as usize);
        }
    }

    /// Moves past a record of that size.
    #[inline(always)]
    pub(crate) fn consume(&mut self, record: u32) {
        self.at += u64::from(record);
    }
}

/// A message that [`Plain::next`] has found, and where it goes.
pub(crate) struct Next<'a> {
    length: u32,
    record: u64,
    to: Target<'a>,
}

impl Next<'_> {
    #[inline(always)]
    pub(crate) fn length(&self) -> u32 {
        self.length
    }
}

/// Reads messages that differ only in their length.
pub(crate) struct Plain {
    next: *const u8,
    /// Published bytes from `at` on.
    left: u64,
    like: Header,
}

impl Plain {
    /// The next message, if the next record is such a message, fits `to`, and lies inside the
    /// published bytes. The header is loaded once.
    #[inline(always)]
    pub(crate) fn next<'a>(&self, to: Target<'a>) -> Option<Next<'a>> {
        if self.left == 0 {
            return None;
        }
        reads(self.next, 8);
        // SAFETY: as in `Burst::next`.
        let header = unsafe { self.next.cast::<u64>().read_volatile() };
        // The length is in the lowest bits: any other difference makes this larger.
        let length = header ^ self.like.0;
        if length > u64::from(to.length().min(RECORD_MAX - 8)) {
            return None;
        }
        let record = record_bytes(length);
        (record <= self.left).then_some(Next { length: length as u32, record, to })
    }

    /// Copies the message just found to its target, and moves past it. Behind a long message it
    /// prefetches the next, which is probably of the same length.
    #[inline(always)]
    pub(crate) fn take(&mut self, next: Next<'_>) {
        let Next { length, record, to } = next;
        debug_assert!(record <= self.left && length <= to.length());
        if length > SHORT_MAX {
            let behind = self.next.wrapping_add(record as usize);
            prefetch::fetch(behind, record.min(self.left - record) as usize);
        }
        // SAFETY: as in `Burst::fetch`; `next` has found it whole, and the target has the length.
        unsafe { copy::untrusted(to.as_ptr(), self.next.add(8), length as usize) };
        self.next = self.next.wrapping_add(record as usize);
        self.left -= record;
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::shm::layout::{KIND_SEND, RecordFlags};

    fn take(cursor: &mut Plain, to: &mut [u8]) -> Option<u32> {
        let next = cursor.next(Target::of(to))?;
        let length = next.length();
        cursor.take(next);
        Some(length)
    }

    /// It reads only messages like the given one that have room and lie whole inside the published
    /// bytes. Any other record stays for another look.
    #[test]
    fn a_record_of_another_kind_stays() {
        let plain = RecordFlags::FIRST | RecordFlags::LAST;
        let record = |kind, flags, length, qp| Header::new(kind, flags, length, qp).0;
        let good = |length| record(KIND_SEND, plain, length, 7);
        // Each record with this many words of payload published.
        let odd = [
            (record(KIND_SEND, plain, 8, 6), 9000),
            (record(KIND_SEND, plain | RecordFlags::ACK_REQ, 8, 7), 9000),
            (record(KIND_SEND, plain | RecordFlags::IMM, 8, 7), 9000),
            (record(KIND_SEND, RecordFlags::FIRST, 8, 7), 9000),
            (record(KIND_SEND + 1, plain, 8, 7), 9000),
            (good(41), 9000),
            (good(0xffff), 9000),
            (good(9), 1),
            (good(40), 4),
            (0, 9000),
            (u64::MAX, 9000),
        ];
        for (odd, behind) in odd {
            let mut words: Vec<u64> =
                [good(8), 1, good(0), good(40), 2, 3, 4, 5, 6, good(3), 7, odd].to_vec();
            let before = words.len() as u64 * 8 - 8;
            words.resize(words.len() + behind, good(8));
            let published = words.len() as u64 * 8;
            let data = Data::over(words.as_mut_ptr().cast());
            let mut burst = Burst::new(data, 0, published);
            let mut cursor = burst.plain(Header::plain_for(7));
            let mut to = [0xee; 41];
            for length in [8, 0, 40, 3] {
                to.fill(0xee);
                assert_eq!(take(&mut cursor, &mut to[..40]), Some(length));
                assert!(to[length as usize..].iter().all(|byte| *byte == 0xee));
            }
            assert_eq!(take(&mut cursor, &mut to[..40]), None, "{odd:x}");
            burst.end_plain(&cursor);
            assert_eq!(burst.at(), before);
        }
        let words = [good(8), 1];
        let data = Data::over(words.as_ptr().cast_mut().cast());
        let mut cursor = Burst::new(data, 0, 16).plain(Header::plain_for(7));
        let mut to = [0; 40];
        assert_eq!(take(&mut cursor, &mut to), Some(8));
        assert_eq!(take(&mut cursor, &mut to), None, "nothing more was published");
    }
}
