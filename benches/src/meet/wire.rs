//! The messages of the two sides inside the connection: messages with a number that are measured,
//! and words with immediate data that mark the begin and the end of measuring.

/// Immediate data: measuring begins. The other side answers with [`ACK`] when it has received all
/// messages before it.
pub(crate) const MARK: u32 = 1;
/// Immediate data: measuring ends. The other side answers with [`ACK`] when it has received all
/// messages before it.
pub(crate) const END: u32 = 2;
/// Immediate data of an answer: two words of 8 bytes, usually the messages received since the last
/// answer and how many of them were wrong.
pub(crate) const ACK: u32 = 3;
/// Immediate data: asks where the exposed memory begins. The other side answers with [`ACK`].
pub(crate) const HELLO: u32 = 4;

/// Bytes of a message with immediate data.
pub(crate) const WORD_BYTES: usize = 16;

/// The payload of a message with immediate data.
pub(crate) fn words(one: u64, two: u64) -> [u8; WORD_BYTES] {
    let mut bytes = [0; WORD_BYTES];
    bytes[..8].copy_from_slice(&one.to_le_bytes());
    bytes[8..].copy_from_slice(&two.to_le_bytes());
    bytes
}

/// Reads [`words`]; zeros for a payload that is too short.
pub(crate) fn read_words(bytes: &[u8]) -> (u64, u64) {
    (sequence(bytes), bytes.get(8..).map_or(0, sequence))
}

/// The number at the start of a payload. A short payload holds its low bytes only.
#[inline(always)]
pub(crate) fn sequence(bytes: &[u8]) -> u64 {
    if let Some((first, _)) = bytes.split_first_chunk::<8>() {
        return u64::from_le_bytes(*first);
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The bits of a number that fit into a payload of `size` bytes.
pub(crate) fn sequence_mask(size: usize) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (size * 8)) - 1 }
}

/// Writes a number at the start of a payload, and its complement at the end where both fit.
#[inline(always)]
pub(crate) fn stamp(payload: &mut [u8], number: u64) {
    let size = payload.len();
    if let Some(last) = payload.last_chunk_mut::<8>()
        && size >= 16
    {
        *last = (!number).to_le_bytes();
    }
    if let Some(first) = payload.first_chunk_mut::<8>() {
        *first = number.to_le_bytes();
    } else {
        payload.copy_from_slice(&number.to_le_bytes()[..size]);
    }
}

/// True if a payload has that size and carries `number`. Checks the first and the last word, and
/// all bytes of every 64th message.
#[inline(always)]
pub(crate) fn is_stamped(payload: &[u8], size: usize, number: u64) -> bool {
    let right = match payload.first_chunk::<8>() {
        Some(first) => u64::from_le_bytes(*first) == number,
        None => sequence(payload) == number & sequence_mask(size),
    };
    if payload.len() != size || !right {
        return false;
    }
    if size < 16 {
        return true;
    }
    let last = payload.last_chunk::<8>().map(|last| u64::from_le_bytes(*last));
    last == Some(!number) && (!number.is_multiple_of(64) || is_filled(&payload[8..size - 8]))
}

/// A payload of that size with a pattern in the bytes between the two stamped words.
pub(crate) fn filled(size: usize) -> Vec<u8> {
    // `is_filled` counts from behind the first word.
    (0..size).map(|at| filler(at.wrapping_sub(8))).collect()
}

#[inline(never)]
fn is_filled(middle: &[u8]) -> bool {
    middle.chunks(FILLERS.len()).all(|part| FILLERS.starts_with(part))
}

fn filler(at: usize) -> u8 {
    FILLERS[at % FILLERS.len()]
}

/// The pattern between the ends of a payload. It repeats.
static FILLERS: [u8; 256] = {
    let (mut all, mut at) = ([0; 256], 0);
    while at < all.len() {
        all[at] = (at as u8).wrapping_mul(167).wrapping_add(13);
        at += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_payload_is_known_at_every_size() {
        for size in [1, 2, 7, 8, 9, 15, 16, 17, 24, 64, 200, 4096] {
            let mut payload = filled(size);
            for number in [0, 1, 64, 255, 256, 1 << 40] {
                stamp(&mut payload, number);
                assert!(is_stamped(&payload, size, number), "{size} {number}");
                assert!(!is_stamped(&payload, size + 1, number));
                assert!(!is_stamped(&payload, size, number + 1));
            }
        }
    }

    #[test]
    fn a_changed_byte_is_seen_first_last_and_between() {
        let mut payload = filled(64);
        stamp(&mut payload, 128);
        for at in 0..64 {
            payload[at] ^= 1;
            assert!(!is_stamped(&payload, 64, 128), "byte {at}");
            payload[at] ^= 1;
        }
    }

    #[test]
    fn words_are_read_back_and_short_ones_are_zeros() {
        assert_eq!(read_words(&words(7, 1 << 60)), (7, 1 << 60));
        assert_eq!(read_words(&[]), (0, 0));
    }
}
