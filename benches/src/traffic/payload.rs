//! The bytes of a message: they follow from its number, and every byte changes from one message of
//! a link to the next.

use std::array;

/// The most links of a row.
pub(crate) const LINKS_MAX: usize = 64;

/// A number times this has every byte changed when the number rises by 1 or by [`LINKS_MAX`]: each
/// byte rises by as much, plus one if the byte below it overflows.
const SPREAD: u64 = 0x0101_0101_0101_0101;

/// `SPREAD * UNSPREAD` is 1, because `SPREAD * 255` is -1.
const UNSPREAD: u64 = 0_u64.wrapping_sub(255);

/// What the words of a payload differ by.
const PLACE: u64 = 0xd6e8_feb8_6659_fd93;

/// The number of message `sequence` on a link. The messages of all links have different numbers.
#[inline(always)]
pub(crate) fn number(link: usize, sequence: u64) -> u64 {
    sequence * LINKS_MAX as u64 + link as u64
}

/// The number at the start of a payload; 0 if it is too short to have one.
#[inline(always)]
pub(crate) fn read_number(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(0, |first| u64::from_le_bytes(*first).wrapping_mul(UNSPREAD))
}

/// Words that are written and compared at once: the harness should take less time than the
/// delivery.
const LANES: usize = 8;

/// Writes every byte of message `number`.
#[inline]
pub(crate) fn fill(payload: &mut [u8], number: u64) {
    let mut words = Words::new(number);
    let (groups, rest) = payload.as_chunks_mut::<{ 8 * LANES }>();
    if !groups.is_empty() {
        let mut lanes = words.lanes();
        for group in &mut *groups {
            for (chunk, word) in group.as_chunks_mut::<8>().0.iter_mut().zip(lanes.next()) {
                *chunk = word.to_le_bytes();
            }
        }
        words.skip(groups.len() * LANES);
    }
    let (chunks, rest) = rest.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = words.next().to_le_bytes();
    }
    for (byte, right) in rest.iter_mut().zip(words.next().to_le_bytes()) {
        *byte = right;
    }
}

/// Reads every byte. True if they are those of message `number`.
#[inline]
pub(crate) fn is_filled(payload: &[u8], number: u64) -> bool {
    let mut words = Words::new(number);
    let (groups, rest) = payload.as_chunks::<{ 8 * LANES }>();
    // No early exit: a right payload and a wrong one are read to the end alike.
    let mut difference = 0;
    if !groups.is_empty() {
        let lanes = words.lanes();
        difference = match groups.len() < WIDE_MIN {
            true => compare(groups, lanes),
            false => wide::compare(groups, &lanes).unwrap_or_else(|| compare(groups, lanes)),
        };
        words.skip(groups.len() * LANES);
    }
    let (chunks, rest) = rest.as_chunks::<8>();
    for chunk in chunks {
        difference |= u64::from_le_bytes(*chunk) ^ words.next();
    }
    // Byte by byte: a comparison of slices is a call, which costs more than a short message.
    for (byte, right) in rest.iter().zip(words.next().to_le_bytes()) {
        difference |= u64::from(byte ^ right);
    }
    difference == 0
}

/// As many words as are compared at once.
type Group = [u8; 8 * LANES];

/// Bits by which the groups differ from the words of those lanes; 0 if they are the same.
#[inline(always)]
fn compare(groups: &[Group], mut lanes: Lanes) -> u64 {
    let mut differences = [0; LANES];
    for group in groups {
        let chunks = group.as_chunks::<8>().0.iter().zip(lanes.next());
        for (difference, (chunk, word)) in differences.iter_mut().zip(chunks) {
            *difference |= u64::from_le_bytes(*chunk) ^ word;
        }
    }
    differences.iter().fold(0, |all, one| all | one)
}

/// From this number of groups on, [`wide`] takes less time than [`compare`].
const WIDE_MIN: usize = 8;

/// Reads a group with one instruction, on a processor that has registers of that width: 64 KiB in
/// the cache take a third to two thirds of the time. Writing them would gain nothing.
#[cfg(target_arch = "x86_64")]
mod wide {
    #![expect(unsafe_code, reason = "instructions that not every processor has")]

    use std::arch::x86_64::{
        _mm512_add_epi64, _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi64,
        _mm512_setzero_si512, _mm512_test_epi64_mask, _mm512_xor_si512,
    };

    use super::{Group, LANES, Lanes, PLACE};

    /// As `super::compare`. `None`: the processor has no such registers.
    pub(super) fn compare(groups: &[Group], lanes: &Lanes) -> Option<u64> {
        if !is_x86_feature_detected!("avx512f") {
            return None;
        }
        // SAFETY: the processor has these instructions.
        Some(unsafe { compare_each(groups, lanes) })
    }

    #[target_feature(enable = "avx512f")]
    fn compare_each(groups: &[Group], lanes: &Lanes) -> u64 {
        let base = _mm512_set1_epi64(lanes.base.cast_signed());
        // SAFETY: the array has as many bytes.
        let mut places = unsafe { _mm512_loadu_si512(lanes.places.as_ptr().cast()) };
        let step = _mm512_set1_epi64(PLACE.wrapping_mul(LANES as u64).cast_signed());
        let mut difference = _mm512_setzero_si512();
        for group in groups {
            // SAFETY: a group has as many bytes.
            let found = unsafe { _mm512_loadu_si512(group.as_ptr().cast()) };
            let words = _mm512_xor_si512(base, places);
            difference = _mm512_or_si512(difference, _mm512_xor_si512(found, words));
            places = _mm512_add_epi64(places, step);
        }
        _mm512_test_epi64_mask(difference, difference).into()
    }
}

/// Other processors read word by word.
#[cfg(not(target_arch = "x86_64"))]
mod wide {
    use super::{Group, Lanes};

    pub(super) fn compare(_: &[Group], _: &Lanes) -> Option<u64> {
        None
    }
}

/// The words of a message.
struct Words {
    base: u64,
    place: u64,
}

impl Words {
    #[inline(always)]
    fn new(number: u64) -> Words {
        Words { base: number.wrapping_mul(SPREAD), place: 0 }
    }

    #[inline(always)]
    fn next(&mut self) -> u64 {
        let word = self.base ^ self.place;
        self.place = self.place.wrapping_add(PLACE);
        word
    }

    #[inline(always)]
    fn skip(&mut self, words: usize) {
        self.place = self.place.wrapping_add(PLACE.wrapping_mul(words as u64));
    }

    /// The words from here on, [`LANES`] at a time.
    #[inline(always)]
    fn lanes(&self) -> Lanes {
        let place = |lane| self.place.wrapping_add(PLACE.wrapping_mul(lane as u64));
        Lanes { base: self.base, places: array::from_fn(place) }
    }
}

/// Words next to each other.
struct Lanes {
    base: u64,
    places: [u64; LANES],
}

impl Lanes {
    #[inline(always)]
    fn next(&mut self) -> [u64; LANES] {
        let words = self.places.map(|place| self.base ^ place);
        for place in &mut self.places {
            *place = place.wrapping_add(PLACE.wrapping_mul(LANES as u64));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_changes_from_message_to_message() {
        for step in [1, LINKS_MAX as u64] {
            for number in (0..70_000).chain(u64::MAX / 512 - 300..u64::MAX / 512) {
                let (mut one, mut two) = ([0; 29], [0; 29]);
                fill(&mut one, number);
                fill(&mut two, number + step);
                assert!(one.iter().zip(&two).all(|(one, two)| one != two), "{number} {step}");
                assert_eq!(read_number(&one), number);
            }
        }
    }

    #[test]
    fn each_wrong_byte_is_seen() {
        for size in [8, 9, 40, 64, 72, 200, 261, 1003, 4096] {
            let mut payload = vec![0; size];
            fill(&mut payload, 12_345);
            assert!(is_filled(&payload, 12_345) && !is_filled(&payload, 12_346), "{size}");
            for at in 0..size {
                payload[at] ^= 0x10;
                assert!(!is_filled(&payload, 12_345), "byte {at} of {size}");
                payload[at] ^= 0x10;
            }
        }
    }

    /// A message of any size is the front of the longest.
    #[test]
    fn every_size_has_the_same_words() {
        let mut longest = [0; 1000];
        let mut words = Words::new(77);
        for chunk in longest.chunks_mut(8) {
            chunk.copy_from_slice(&words.next().to_le_bytes()[..chunk.len()]);
        }
        for size in 0..longest.len() {
            let mut payload = vec![0; size];
            fill(&mut payload, 77);
            assert_eq!(payload, longest[..size]);
            assert!(is_filled(&payload, 77));
        }
    }

    #[test]
    fn links_share_no_number() {
        assert_eq!((number(0, 0), number(63, 0), number(0, 1)), (0, 63, 64));
    }
}
