//! The layout of a slot: what a client reads by one READ, and how it knows that the READ was whole.
//!
//! All numbers are little-endian words of eight bytes:
//!
//! | word | holds |
//! |---|---|
//! | 0 | the seal: a hash of all words below, of the slot's number and of the table's generation |
//! | 1 | the version: the server never uses one twice |
//! | 2 | state (8 bits), length of the key (8 bits), length of the value (upper 32 bits) |
//! | 3 | when it expires, in nanoseconds of the server's clock; 0: never |
//! | 4… | the key, padded to a word, then the value, padded to a word |
//!
//! **Why a torn READ is found on any device.** RDMA promises nothing about the order or the time
//! at which a READ fetches its bytes. A NIC may fetch lines in any order, and the soft device
//! copies while the server writes. So a version in front and one behind prove nothing, and a
//! version in each line needs a device that fetches lines whole. The seal needs no such promise.
//! Each version of a slot has a seal of its own, because the version is part of what is sealed. A
//! mix of bytes of two versions has the right seal by a chance of 2^-64, whatever the mix is. A
//! client that finds a wrong seal reads again.
//!
//! **Why a whole READ is fresh.** Every byte came from memory between the post of the READ and its
//! completion. If the bytes are those of version v, so is the version word among them. At the time
//! that word was fetched, the server had not finished the next version, because it answers a put
//! only after its last store. So v was the value at a moment within the READ.
//!
//! A slot that was never used is all zero. Its head needs no seal: while its words are fetched as
//! zero, nothing put there has been answered.

use xxhash_rust::xxh3::xxh3_64;

/// Bytes in front of the key.
pub const HEAD: usize = 32;

/// Longest key, in bytes.
pub const KEY_MAX: usize = 255;

/// Which slot, of which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The table's generation.
    pub generation: u64,
    /// The number of the slot.
    pub slot: usize,
}

impl Place {
    /// What is added to the hash of a slot, so that its bytes have another seal in another slot or
    /// table.
    fn salt(self) -> u64 {
        self.generation.rotate_left(32) ^ self.slot as u64
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A key with its value.
    Live,
    /// A key was here. Later slots may still hold keys that began their search here.
    Deleted,
    /// Its key is in the next table. The server knows where.
    Moved,
}

impl State {
    fn code(self) -> u64 {
        match self {
            State::Live => 1,
            State::Deleted => 2,
            State::Moved => 3,
        }
    }
}

/// A key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The number of this put, from 1 on.
    pub version: u64,
    /// When it expires, in nanoseconds of the server's clock; 0: never.
    pub expires: u64,
    /// At most [`KEY_MAX`] bytes.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// A slot as a READ brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View<'a> {
    /// Never used: no later slot holds a key that began its search at this slot or before.
    Free,
    /// No key.
    Deleted,
    /// Ask the server.
    Moved,
    /// A key and its value.
    Live(Entry<'a>),
}

/// The bytes are not those of one version: the server wrote while the READ fetched them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slot was written while it was read; read it again")]
pub struct Torn;

/// Bytes of a key or a value with its padding.
const fn padded(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Bytes of a slot for a key and a value of these lengths.
pub const fn bytes_for(key: usize, value: usize) -> usize {
    HEAD + padded(key) + padded(value)
}

/// How much of a slot its seal covers. All but the first are planted mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// Everything.
    All,
    /// The head alone, as a version in front would.
    Head,
    /// Nothing: the reader trusts each slot.
    Nothing,
}

/// The seal of these bytes of a slot.
pub fn seal(bytes: &[u8], place: Place, cover: Cover) -> u64 {
    let end = if cover == Cover::Head { bytes.len().min(HEAD) } else { bytes.len() };
    xxh3_64(bytes.get(8..end).unwrap_or_default()).wrapping_add(place.salt())
}

/// Writes a slot's words in the form above; `image` has their bytes afterwards.
fn finish(image: &mut [u8], place: Place, cover: Cover) {
    let seal = seal(image, place, cover);
    if let Some(first) = image.first_chunk_mut::<8>() {
        *first = seal.to_le_bytes();
    }
}

/// Makes the image of a slot with a key and its value. The key must have at most [`KEY_MAX`]
/// bytes.
pub fn put_live(image: &mut Vec<u8>, entry: Entry<'_>, place: Place, cover: Cover) {
    let Entry { version, expires, key, value } = entry;
    image.clear();
    image.resize(8, 0);
    image.extend(version.to_le_bytes());
    let lengths = (value.len() as u64) << 32 | (key.len() as u64 & 0xff) << 8;
    image.extend((lengths | State::Live.code()).to_le_bytes());
    image.extend(expires.to_le_bytes());
    for bytes in [key, value] {
        image.extend(bytes);
        image.resize(padded(image.len()), 0);
    }
    finish(image, place, cover);
}

/// Makes the image of a slot without a key.
pub fn put_mark(image: &mut Vec<u8>, state: State, version: u64, place: Place) {
    image.clear();
    image.resize(8, 0);
    image.extend(version.to_le_bytes());
    image.extend(state.code().to_le_bytes());
    image.extend([0; 8]);
    finish(image, place, Cover::All);
}

/// Word `n` of some bytes.
fn word(bytes: &[u8], n: usize) -> Option<u64> {
    let bytes = bytes.get(n * 8..n * 8 + 8)?;
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Reads a slot.
///
/// # Errors
/// [`Torn`]: the bytes are not those of one version.
pub fn parse(bytes: &[u8], place: Place, cover: Cover) -> Result<View<'_>, Torn> {
    let (Some(told), Some(version), Some(meta), Some(expires)) =
        (word(bytes, 0), word(bytes, 1), word(bytes, 2), word(bytes, 3))
    else {
        return Err(Torn);
    };
    if [told, version, meta, expires] == [0; 4] {
        return Ok(View::Free);
    }
    let (key, value) = ((meta >> 8 & 0xff) as usize, (meta >> 32) as usize);
    let used = bytes_for(key, value);
    let image = bytes.get(..used).ok_or(Torn)?;
    if cover != Cover::Nothing && seal(image, place, cover) != told {
        return Err(Torn);
    }
    let from = HEAD + padded(key);
    let (Some(key), Some(value)) = (image.get(HEAD..HEAD + key), image.get(from..from + value))
    else {
        return Err(Torn);
    };
    match meta & 0xff {
        1 => Ok(View::Live(Entry { version, expires, key, value })),
        2 => Ok(View::Deleted),
        3 => Ok(View::Moved),
        _ => Err(Torn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::prng::Prng;

    const PLACE: Place = Place { generation: 3, slot: 17 };

    fn image(version: u64, value: &[u8], cover: Cover) -> Vec<u8> {
        let mut image = Vec::new();
        let entry = Entry { version, expires: 0, key: b"apple", value };
        put_live(&mut image, entry, PLACE, cover);
        image
    }

    #[test]
    fn a_slot_says_what_was_put() {
        let mut image = Vec::new();
        for (key, value) in [(0, 0), (1, 0), (8, 7), (13, 1000), (255, 9)] {
            let (key, value) = (vec![7; key], vec![9; value]);
            let entry = Entry { version: 5, expires: 99, key: &key, value: &value };
            put_live(&mut image, entry, PLACE, Cover::All);
            assert_eq!(image.len(), bytes_for(key.len(), value.len()));
            image.resize(2048, 0xaa);
            assert_eq!(parse(&image, PLACE, Cover::All), Ok(View::Live(entry)));
        }
        for (state, view) in [(State::Deleted, View::Deleted), (State::Moved, View::Moved)] {
            put_mark(&mut image, state, 8, PLACE);
            assert_eq!(parse(&image, PLACE, Cover::All), Ok(view));
        }
        assert_eq!(parse(&[0; 256], PLACE, Cover::All), Ok(View::Free));
    }

    #[test]
    fn the_seal_knows_its_slot_and_table() {
        let image = image(1, b"pie", Cover::All);
        for place in [Place { slot: 16, ..PLACE }, Place { generation: 4, ..PLACE }] {
            assert_eq!(parse(&image, place, Cover::All), Err(Torn));
        }
    }

    #[test]
    fn no_bytes_break_the_reader() {
        let mut prng = Prng::new(1);
        let good = image(1, &[1; 100], Cover::All);
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..prng.range(1, 4) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.word() as u8;
            }
            bytes.truncate(prng.below(bytes.len() as u64 + 1) as usize);
            let view = parse(&bytes, PLACE, Cover::All);
            assert!(bytes == good[..bytes.len()] || view.is_err(), "{view:?}");
            let _ = parse(&bytes, PLACE, Cover::Nothing);
        }
    }

    /// Mixes two versions in each way that a device may: by bytes, words or lines, in any order.
    fn torn_and_taken(cover: Cover) -> usize {
        let mut prng = Prng::new(2);
        let mut taken = 0;
        for round in 0..20_000_u64 {
            let values = [prng.word(), prng.word()].map(|word| [word; 20].map(u64::to_le_bytes));
            let old = image(2 * round + 1, values[0].as_flattened(), cover);
            let new = image(2 * round + 2, values[1].as_flattened(), cover);
            let grain = prng.pick(&[1, 8, 64]);
            let mut mix = old.clone();
            for (n, bytes) in mix.chunks_mut(grain).enumerate() {
                if prng.chance(512) {
                    let from = n * grain;
                    bytes.copy_from_slice(&new[from..from + bytes.len()]);
                }
            }
            if mix == old || mix == new {
                continue;
            }
            taken += usize::from(parse(&mix, PLACE, cover).is_ok());
        }
        taken
    }

    #[test]
    fn no_mix_of_two_versions_is_taken() {
        assert_eq!(torn_and_taken(Cover::All), 0);
        // Planted: a seal over the head alone, and no check.
        assert!(torn_and_taken(Cover::Head) > 0);
        assert!(torn_and_taken(Cover::Nothing) > 0);
    }

    #[test]
    fn an_old_slot_under_new_zeros_is_not_free() {
        let full = image(1, &[1; 100], Cover::All);
        for words in 1..3 {
            let mut bytes = full.clone();
            bytes[..words * 8].fill(0);
            assert_ne!(parse(&bytes, PLACE, Cover::All).unwrap_or(View::Deleted), View::Free);
        }
    }
}
