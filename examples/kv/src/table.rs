//! One generation of a shard's table: its memory, which clients read, and the server's own notes.
//!
//! A key's search begins at its home slot and goes through [`WINDOW`] slots. In one generation a
//! key never moves: while it is there it stays in its slot. A key goes into the first slot of its
//! window that is free, deleted or expired, so no key lies behind a slot that was never used. That
//! is why a client that has found other keys and then a slot that was never used knows: at some
//! moment of its search the key was absent.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::memory::Words;
use crate::slot::{self, Cover, Entry, HEAD, Place, State};

/// Slots in which a key may lie, from its home on.
pub const WINDOW: usize = 16;

/// Longest slot, in bytes.
pub const SLOT_MAX: usize = 1 << 16;

/// Where a key lies in a table. Clients compute the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The table's number, from 1 on.
    pub generation: u64,
    /// Where the hash of a key begins: another one in each generation, so that nobody can choose
    /// keys that all have the same home.
    pub seed: u64,
    /// Homes: a power of two. The table has `WINDOW - 1` slots more.
    pub homes: u32,
    /// Bytes of a slot: a multiple of 64.
    pub slot_bytes: u32,
}

impl Geometry {
    /// True if the numbers make sense. Those of a server may not.
    pub fn is_sound(&self) -> bool {
        let slot = self.slot_bytes as usize;
        self.homes.is_power_of_two() && slot.is_multiple_of(64) && (64..=SLOT_MAX).contains(&slot)
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.homes as usize + WINDOW - 1
    }

    /// Bytes of the table's memory.
    pub fn bytes(&self) -> usize {
        self.slots() * self.slot_bytes as usize
    }

    /// The hash of a key.
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    /// The first slot in which a key with this hash may lie.
    pub fn home(&self, hash: u64) -> usize {
        (hash & u64::from(self.homes.saturating_sub(1))) as usize
    }

    /// A slot's name in its seal.
    pub fn place(&self, slot: usize) -> Place {
        Place { generation: self.generation, slot }
    }

    /// True if a key and a value of these lengths fit a slot.
    pub fn fits(&self, key: usize, value: usize) -> bool {
        key <= slot::KEY_MAX && slot::bytes_for(key, value) <= self.slot_bytes as usize
    }
}

/// The server's note of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// `None`: never used.
    pub state: Option<State>,
    /// The key's hash.
    pub hash: u64,
    /// When it expires; 0: never.
    pub expires: u64,
    /// The version in the slot.
    pub version: u64,
    /// Bytes of the key, and of the value.
    pub lengths: (usize, usize),
}

impl Note {
    /// True if its key is there at that time.
    pub fn is_live(&self, now: u64) -> bool {
        self.state == Some(State::Live) && !is_over(self.expires, now)
    }

    /// True if a new key may go there.
    fn is_usable(&self, now: u64) -> bool {
        self.state != Some(State::Moved) && !self.is_live(now)
    }
}

/// True if something that expires then has expired.
pub fn is_over(expires: u64, now: u64) -> bool {
    expires != 0 && expires <= now
}

/// One generation.
pub struct Table<W> {
    words: W,
    geometry: Geometry,
    notes: Vec<Note>,
    live: usize,
    image: Vec<u8>,
    cover: Cover,
}

/// The memory is too short for a table, or the table's numbers make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a table of {slots} slots of {slot_bytes} bytes does not fit its memory of {memory} bytes")]
pub struct Misfit {
    slots: usize,
    slot_bytes: u32,
    memory: usize,
}

impl<W: Words> Table<W> {
    /// An empty table in memory that is all zero.
    ///
    /// # Errors
    /// [`Misfit`]
    pub fn new(words: W, geometry: Geometry) -> Result<Table<W>, Misfit> {
        let memory = words.len() * 8;
        if !geometry.is_sound() || geometry.bytes() > memory {
            let Geometry { slot_bytes, .. } = geometry;
            return Err(Misfit { slots: geometry.slots(), slot_bytes, memory });
        }
        let notes = vec![Note::default(); geometry.slots()];
        Ok(Table { words, geometry, notes, live: 0, image: Vec::new(), cover: Cover::All })
    }

    /// Seals only that from now on: a planted mistake.
    pub fn plant(&mut self, cover: Cover) {
        self.cover = cover;
    }

    /// Its numbers.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Its memory.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Keys, expired ones included.
    pub fn live(&self) -> usize {
        self.live
    }

    /// The note of a slot.
    pub fn note(&self, slot: usize) -> Note {
        self.notes.get(slot).copied().unwrap_or_default()
    }

    /// The slots of a key's window.
    pub fn window(&self, hash: u64) -> std::ops::Range<usize> {
        let home = self.geometry.home(hash);
        home..home + WINDOW
    }

    /// The slot that holds a key, expired or not.
    pub fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        self.window(hash).find(|slot| {
            let note = self.note(*slot);
            note.state == Some(State::Live) && note.hash == hash && self.has_key(*slot, key)
        })
    }

    /// The slot for a new key. `None`: its window is full.
    pub fn vacant(&self, hash: u64, now: u64) -> Option<usize> {
        self.window(hash).find(|slot| self.note(*slot).is_usable(now))
    }

    fn has_key(&self, slot: usize, key: &[u8]) -> bool {
        let first = self.first_word(slot) + HEAD / 8;
        let same = |(n, bytes): (usize, &[u8])| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.words.load(first + n) == u64::from_ne_bytes(word)
        };
        self.note(slot).lengths.0 == key.len() && key.chunks(8).enumerate().all(same)
    }

    fn first_word(&self, slot: usize) -> usize {
        slot * (self.geometry.slot_bytes as usize / 8)
    }

    /// Copies bytes of a slot out, from that byte on: a multiple of 8.
    fn copy(&self, slot: usize, from: usize, to: &mut [u8]) {
        let first = self.first_word(slot) + from / 8;
        for (n, bytes) in to.chunks_mut(8).enumerate() {
            let word = self.words.load(first + n).to_ne_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }

    /// Copies a slot's value into `to`, as much as fits, and returns its whole length.
    pub fn copy_value(&self, slot: usize, to: &mut [u8]) -> usize {
        let (key, value) = self.note(slot).lengths;
        let most = to.len().min(value);
        self.copy(slot, slot::bytes_for(key, 0), &mut to[..most]);
        value
    }

    /// Copies a slot's key and value into one buffer, the key first.
    pub fn copy_entry(&self, slot: usize, to: &mut Vec<u8>) {
        let (key, value) = self.note(slot).lengths;
        to.clear();
        to.resize(key + value, 0);
        self.copy(slot, HEAD, &mut to[..key]);
        self.copy(slot, slot::bytes_for(key, 0), &mut to[key..]);
    }

    /// Puts a key with this hash into a slot. It must fit (see [`Geometry::fits`]).
    pub fn put(&mut self, slot: usize, hash: u64, entry: Entry<'_>) {
        if !self.geometry.fits(entry.key.len(), entry.value.len()) {
            return;
        }
        let mut image = std::mem::take(&mut self.image);
        slot::put_live(&mut image, entry, self.geometry.place(slot), self.cover);
        self.store(slot, &image);
        self.image = image;
        let Entry { version, expires, key, value } = entry;
        let lengths = (key.len(), value.len());
        self.set_note(slot, Note { state: Some(State::Live), hash, expires, version, lengths });
    }

    /// Takes the key out of a slot. A slot that was never used may become `Moved`.
    pub fn mark(&mut self, slot: usize, state: State, version: u64) {
        let mut image = std::mem::take(&mut self.image);
        slot::put_mark(&mut image, state, version, self.geometry.place(slot));
        self.store(slot, &image);
        self.image = image;
        self.set_note(slot, Note { state: Some(state), version, ..Note::default() });
    }

    /// Notes a slot as moved and leaves its memory as it is: a planted mistake.
    pub fn forget(&mut self, slot: usize) {
        self.set_note(slot, Note { state: Some(State::Moved), ..Note::default() });
    }

    fn set_note(&mut self, slot: usize, note: Note) {
        let is_live = |note: &Note| usize::from(note.state == Some(State::Live));
        if let Some(old) = self.notes.get_mut(slot) {
            self.live = self.live + is_live(&note) - is_live(old);
            *old = note;
        }
    }

    /// Writes the words of an image. The order is of no importance: see [`crate::slot`].
    fn store(&self, slot: usize, image: &[u8]) {
        let first = self.first_word(slot);
        for (n, bytes) in image.chunks_exact(8).enumerate() {
            let word = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            self.words.store(first + n, word);
        }
    }
}
