//! A shard against a plain map, and a client's search in its memory against both.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell::prng::Prng;

use super::*;
use crate::search::{Verdict, judge};
use crate::slot::Cover;
use crate::table::WINDOW;

/// Words without a device.
struct Heap(Vec<AtomicU64>);

impl Words for Heap {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn load(&self, n: usize) -> u64 {
        self.0[n].load(Ordering::Relaxed)
    }
    fn store(&self, n: usize, word: u64) {
        self.0[n].store(word, Ordering::Relaxed);
    }
}

fn table(geometry: Geometry) -> Table<Heap> {
    let words = (0..geometry.bytes() / 8).map(|_| AtomicU64::new(0)).collect();
    Table::new(Heap(words), geometry).unwrap()
}

const FIRST: Geometry = Geometry { generation: 1, seed: 7, homes: 4, slot_bytes: 128 };

/// A client's search, with all READs at one moment, which begins with a guess. `None`: it asks the
/// server.
fn search(table: &Table<Heap>, key: &[u8], now: u64, guess: usize) -> Option<Option<Vec<u8>>> {
    let geometry = table.geometry();
    let home = geometry.home(geometry.hash(key));
    let words = geometry.slot_bytes as usize / 8;
    let (mut probe, mut guessed) = (guess, guess > 0);
    loop {
        let slot = home + probe;
        let load = |n| table.words().load(slot * words + n).to_ne_bytes();
        let bytes: Vec<u8> = (0..words).flat_map(load).collect();
        match judge(&bytes, geometry, (slot, probe, guessed), key, Cover::All) {
            Verdict::Here(entry) if is_over(entry.expires, now) => return None,
            Verdict::Here(entry) => return Some(Some(entry.value.to_vec())),
            Verdict::Absent => return Some(None),
            Verdict::Next => probe += 1,
            Verdict::Home => (probe, guessed) = (0, false),
            Verdict::Again => panic!("nobody writes"),
            Verdict::Ask => return None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    Unmarked,
}

/// Runs a random history. Returns what differs from the map, the number of growths, and how many
/// searches needed no server.
fn history(seed: u64, plant: Plant) -> (Option<String>, u64, u64) {
    let mut prng = Prng::new(seed);
    let mut shard = Shard::new(table(FIRST), 64);
    if plant == Plant::Unmarked {
        shard.plant_unmarked();
    }
    let mut map: BTreeMap<Vec<u8>, (Vec<u8>, u64)> = BTreeMap::new();
    // A client that learns of new tables late, as long as the old one asks it to.
    let (mut grown, mut alone, mut wants) = (0, 0, None);
    let keys = prng.range(2, 90);
    for now in 1..1500 {
        let key = format!("key {}", prng.below(keys)).into_bytes();
        let known = map.get(&key).filter(|(_, expires)| !is_over(*expires, now)).cloned();
        let value = vec![prng.word() as u8; prng.below(64) as usize];
        let expires = if prng.chance(200) { now + prng.below(100) } else { 0 };
        match prng.below(4) {
            0 => match shard.put(&key, &value, expires, now) {
                Ok(_) => drop(map.insert(key.clone(), (value, expires))),
                Err(PutError::Full) if keys > 60 => {}
                Err(error) => return (Some(format!("at {now}: {error}")), grown, alone),
            },
            1 => {
                let was = shard.delete(&key, now);
                if was != known.is_some() {
                    return (Some(format!("at {now}: deleted {was}")), grown, alone);
                }
                map.remove(&key);
            }
            2 => {
                let mut room = [0; 128];
                let found = shard.get(&key, &mut room, || now);
                let found = found.map(|found| room[..found.length].to_vec());
                if found != known.map(|(value, _)| value) {
                    return (Some(format!("at {now}: got {found:?}")), grown, alone);
                }
            }
            _ => {
                let tables = shard.old.iter().chain([&shard.table]);
                for table in tables {
                    let guess = prng.pick(&[0, 0, 1, 2, 5, WINDOW as u64 - 1]) as usize;
                    let Some(found) = search(table, &key, now, guess) else { continue };
                    alone += 1;
                    if found != known.as_ref().map(|(value, _)| value.clone()) {
                        let generation = table.geometry().generation;
                        let what = format!("at {now}: read {found:?} in table {generation}");
                        return (Some(what), grown, alone);
                    }
                }
            }
        }
        wants = wants.or(shard.wants());
        if wants.is_some() && prng.chance(50) {
            let geometry = shard.next_geometry(wants.take().unwrap(), prng.word());
            shard.grow(table(geometry));
        }
        if prng.chance(200) {
            grown += u64::from(shard.step(now));
        }
    }
    (None, grown, alone)
}

#[test]
fn a_shard_is_a_map_that_clients_can_read() {
    let (mut growths, mut searches) = (0, 0);
    for seed in 0..200 {
        let (wrong, grown, alone) = history(seed, Plant::Nothing);
        assert_eq!(wrong, None, "seed {seed}");
        growths += grown;
        searches += alone;
    }
    assert!(growths > 200 && searches > 20_000, "{growths} growths, {searches} searches");
}

#[test]
fn an_old_table_without_marks_is_found() {
    assert!((0..200).any(|seed| history(seed, Plant::Unmarked).0.is_some()));
}

#[test]
fn too_long_is_refused_and_full_is_full() {
    let mut shard = Shard::new(table(FIRST), FIRST.homes);
    assert_eq!(shard.put(b"key", &[0; 128], 0, 1), Err(PutError::TooLong));
    assert!(shard.put(b"key", &[0; 88], 0, 1).is_ok());
    let put = |n: u32| shard.put(&n.to_le_bytes(), b"value", 0, 1);
    let full = (0..200).map(put).find_map(Result::err);
    assert_eq!(full, Some(PutError::Full));
    assert_eq!(shard.wants(), None, "it may not grow");
    // What was put before is still there, and what was deleted makes room.
    assert!(shard.get(b"key", &mut [0; 88], || 1).is_some());
    assert!(shard.delete(b"key", 1));
}
