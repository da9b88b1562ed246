//! The bytes of a message: they follow from its number, and every byte changes from one message of
//! a link to the next.

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

/// Writes every byte of message `number`.
#[inline]
pub(crate) fn fill(payload: &mut [u8], number: u64) {
    let mut word = Words::new(number);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.next().to_le_bytes());
    }
    let rest = chunks.into_remainder();
    let last = word.next().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Reads every byte. True if they are those of message `number`.
#[inline]
pub(crate) fn is_filled(payload: &[u8], number: u64) -> bool {
    let mut word = Words::new(number);
    let (chunks, rest) = payload.as_chunks::<8>();
    // No early exit: a right payload and a wrong one are read to the end alike.
    let mut difference = 0;
    for chunk in chunks {
        difference |= u64::from_le_bytes(*chunk) ^ word.next();
    }
    let last = word.next().to_le_bytes();
    difference == 0 && rest == &last[..rest.len()]
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
        for size in [8, 9, 40, 64, 200, 4096] {
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

    #[test]
    fn links_share_no_number() {
        assert_eq!((number(0, 0), number(63, 0), number(0, 1)), (0, 63, 64));
    }
}
