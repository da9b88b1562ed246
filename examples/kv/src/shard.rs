//! A worker's share of the keys: its table, the next one while it grows, and what fits neither.
//!
//! **Growing.** While the next table is filled, each slot that was copied there is marked as moved
//! in the old table, and so is each slot of a key's window before the server handles that key. A
//! client that reads a moved slot asks the server, which looks into the next table. Clients learn
//! of the next table only when nothing is left in the old one. So the old table is right wherever
//! it is not marked, and the next one is right everywhere once it is known. Old tables stay in
//! memory until the end, because a READ of them may still come: together they are shorter than the
//! present one.
//!
//! **Full windows.** A key whose window is full goes to `spill`, which no READ reaches. Its
//! window has no slot that was never used, so no client takes it for absent: it asks the server.

use std::collections::BTreeMap;

use crate::memory::Words;
use crate::slot::{Entry, State};
use crate::table::{Geometry, Table, is_over};

/// Slots copied to the next table in one step.
const STEP: usize = 4;

/// A value that has no slot.
struct Spilled {
    value: Vec<u8>,
    expires: u64,
    version: u64,
}

/// Where a key was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Slot(usize),
    Spill,
    Nowhere,
}

/// A value that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its whole length, which may be more than there was room for.
    pub length: usize,
    /// When it expires; 0: never.
    pub expires: u64,
    /// The number of its put.
    pub version: u64,
    /// Slots from its home to where it is; 0 if it is in no slot.
    pub probe: u8,
}

/// Why a put was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Key and value are longer than a slot.
    #[error("key and value are longer than a slot of the table")]
    TooLong,
    /// The table has its largest size, and the key's window is full.
    #[error("the table is full")]
    Full,
}

/// A table that is being filled.
struct Next<W> {
    table: Table<W>,
    /// The next slot of the old table to copy.
    cursor: usize,
}

/// See the module.
pub struct Shard<W> {
    table: Table<W>,
    next: Option<Next<W>>,
    old: Vec<Table<W>>,
    spill: BTreeMap<Vec<u8>, Spilled>,
    homes_max: u32,
    asked: bool,
    version: u64,
    sweep: usize,
    entry: Vec<u8>,
    /// The old table is not marked: a planted mistake.
    unmarked: bool,
}

impl<W: Words> Shard<W> {
    /// A shard in an empty table, which may grow to that many homes.
    pub fn new(table: Table<W>, homes_max: u32) -> Shard<W> {
        Shard {
            table,
            next: None,
            old: Vec::new(),
            spill: BTreeMap::new(),
            homes_max,
            asked: false,
            version: 0,
            sweep: 0,
            entry: Vec::new(),
            unmarked: false,
        }
    }

    /// Leaves old tables unmarked from now on: a planted mistake.
    pub fn plant_unmarked(&mut self) {
        self.unmarked = true;
    }

    /// The table that clients may know.
    pub fn table(&self) -> &Table<W> {
        &self.table
    }

    /// Keys, expired ones included.
    pub fn live(&self) -> usize {
        let next = self.next.as_ref().map_or(0, |next| next.table.live());
        self.table.live() + next + self.spill.len()
    }

    /// True while the next table is filled.
    pub fn is_growing(&self) -> bool {
        self.next.is_some()
    }

    /// The homes of the table that the shard needs next, if it needs one. It asks once.
    pub fn wants(&mut self) -> Option<u32> {
        let homes = self.table.geometry().homes;
        let crowded = self.table.live() > homes as usize / 2 || !self.spill.is_empty();
        if self.asked || self.next.is_some() || !crowded || homes >= self.homes_max {
            return None;
        }
        self.asked = true;
        homes.checked_mul(2)
    }

    /// Nobody can provide the table that was asked for: the shard keeps its size.
    pub fn refused(&mut self) {
        self.homes_max = self.table.geometry().homes;
    }

    /// Begins to fill the next table. It must be of the next generation, with slots as long.
    pub fn grow(&mut self, table: Table<W>) {
        let (new, now) = (table.geometry(), self.table.geometry());
        if self.next.is_some() || new.slot_bytes != now.slot_bytes || new.homes < now.homes {
            return;
        }
        self.next = Some(Next { table, cursor: 0 });
    }

    /// The numbers for the next table.
    pub fn next_geometry(&self, homes: u32, seed: u64) -> Geometry {
        let now = self.table.geometry();
        Geometry { generation: now.generation + 1, seed, homes, ..*now }
    }

    /// Does a little of what waits: copies slots to the next table, or looks for an expired key.
    /// True if the table has changed: tell the clients that ask.
    pub fn step(&mut self, now: u64) -> bool {
        let Some(next) = &self.next else {
            self.sweep(now);
            return false;
        };
        let (from, slots) = (next.cursor, self.table.geometry().slots());
        let to = (from + STEP).min(slots);
        (from..to).for_each(|slot| self.migrate(slot, now));
        match &mut self.next {
            Some(next) if to < slots => {
                next.cursor = to;
                false
            }
            _ => self.switch(now),
        }
    }

    fn sweep(&mut self, now: u64) {
        let slots = self.table.geometry().slots();
        self.sweep = (self.sweep + 1) % slots;
        let note = self.table.note(self.sweep);
        if note.state == Some(State::Live) && is_over(note.expires, now) {
            let version = self.new_version();
            self.table.mark(self.sweep, State::Deleted, version);
        }
    }

    fn new_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Copies a slot to the next table and marks it.
    fn migrate(&mut self, slot: usize, now: u64) {
        let Some(next) = &mut self.next else { return };
        let note = self.table.note(slot);
        if note.state == Some(State::Moved) {
            return;
        }
        if note.is_live(now) {
            let mut bytes = std::mem::take(&mut self.entry);
            self.table.copy_entry(slot, &mut bytes);
            let (key, value) = bytes.split_at(note.lengths.0);
            let entry = Entry { version: note.version, expires: note.expires, key, value };
            if !insert(&mut next.table, entry, now) {
                let (value, expires, version) = (value.to_vec(), entry.expires, entry.version);
                self.spill.insert(key.to_vec(), Spilled { value, expires, version });
            }
            self.entry = bytes;
        }
        if !self.unmarked {
            let version = self.new_version();
            self.table.mark(slot, State::Moved, version);
        } else if note.state == Some(State::Live) {
            // It still counts as moved here.
            self.table.forget(slot);
        }
    }

    /// Nothing is left in the old table.
    fn switch(&mut self, now: u64) -> bool {
        let Some(Next { mut table, .. }) = self.next.take() else { return false };
        // A key whose window is full stays.
        self.spill.retain(|key, Spilled { value, expires, version }| {
            let entry = Entry { version: *version, expires: *expires, key, value };
            !is_over(*expires, now) && !insert(&mut table, entry, now)
        });
        self.old.push(std::mem::replace(&mut self.table, table));
        self.asked = false;
        true
    }

    /// Finds the table and the place of a key, and moves its window first if the table grows.
    fn locate(&mut self, key: &[u8], now: u64) -> (&mut Table<W>, At, u64) {
        if self.next.is_some() {
            let window = self.table.window(self.table.geometry().hash(key));
            window.for_each(|slot| self.migrate(slot, now));
        }
        let table = match &mut self.next {
            Some(next) => &mut next.table,
            None => &mut self.table,
        };
        let hash = table.geometry().hash(key);
        let at = match table.find(hash, key) {
            Some(slot) => At::Slot(slot),
            None if !self.spill.is_empty() && self.spill.contains_key(key) => At::Spill,
            None => At::Nowhere,
        };
        (table, at, hash)
    }

    /// Copies the value of a key into `to`, as much as fits. `now` is called only if the value may
    /// have expired.
    pub fn get(
        &mut self,
        key: &[u8],
        to: &mut [u8],
        mut now: impl FnMut() -> u64,
    ) -> Option<Found> {
        let at_once = self.next.is_some();
        let (table, at, hash) = self.locate(key, if at_once { now() } else { 0 });
        let found = match at {
            At::Slot(slot) => {
                let note = table.note(slot);
                let length = table.copy_value(slot, to);
                let probe = (slot - table.geometry().home(hash)) as u8;
                Found { length, expires: note.expires, version: note.version, probe }
            }
            At::Spill => {
                let Spilled { value, expires, version } = self.spill.get(key)?;
                let most = to.len().min(value.len());
                to[..most].copy_from_slice(&value[..most]);
                Found { length: value.len(), expires: *expires, version: *version, probe: 0 }
            }
            At::Nowhere => return None,
        };
        (found.expires == 0 || !is_over(found.expires, now())).then_some(found)
    }

    /// Puts a value, and returns the number of this put.
    ///
    /// # Errors
    /// See [`PutError`].
    pub fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        expires: u64,
        now: u64,
    ) -> Result<u64, PutError> {
        if !self.table.geometry().fits(key.len(), value.len()) {
            return Err(PutError::TooLong);
        }
        let version = self.new_version();
        let entry = Entry { version, expires, key, value };
        let (table, at, hash) = self.locate(key, now);
        let slot = match at {
            At::Slot(slot) => Some(slot),
            At::Nowhere => table.vacant(hash, now),
            At::Spill => None,
        };
        let (homes, live) = (table.geometry().homes as usize, table.live());
        match slot {
            Some(slot) => table.put(slot, hash, entry),
            // While the table grows it may spill as much as the old one held.
            None if at == At::Spill || self.spill.len() < live.min(homes) / 8 + 64 => {
                let value = value.to_vec();
                self.spill.insert(key.to_vec(), Spilled { value, expires, version });
            }
            None => return Err(PutError::Full),
        }
        Ok(version)
    }

    /// Deletes a key. True if it was there.
    pub fn delete(&mut self, key: &[u8], now: u64) -> bool {
        let version = self.new_version();
        let (table, at, _) = self.locate(key, now);
        match at {
            At::Slot(slot) => {
                let was_there = table.note(slot).is_live(now);
                table.mark(slot, State::Deleted, version);
                was_there
            }
            At::Spill => {
                let gone = self.spill.remove(key);
                gone.is_some_and(|spilled| !is_over(spilled.expires, now))
            }
            At::Nowhere => false,
        }
    }
}

/// Puts an entry into a table that does not hold its key. False: its window is full.
fn insert<W: Words>(table: &mut Table<W>, entry: Entry<'_>, now: u64) -> bool {
    let hash = table.geometry().hash(entry.key);
    let slot = table.vacant(hash, now);
    slot.map(|slot| table.put(slot, hash, entry)).is_some()
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
