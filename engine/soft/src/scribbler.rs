//! For tests: a thread that writes to memory while others use it. Its seed decides what it writes,
//! but not how that interleaves with the others.
#![expect(unsafe_code, reason = "writes where nobody should")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "the test keeps the memory")]
#![expect(clippy::unwrap_used, reason = "a test ends by panicking")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::thread;
use std::vec::Vec;

use doorbell_alloc::{Mapping, Pages};

use crate::shm::inbox::{INBOX_BYTES, SLOTS};
use crate::shm::layout::{Direction, Header, KIND_SHOW, LINE, RECORD_MAX, SEGMENT, SLOT_LINES};
use crate::state::link_shared::LinkShared;

/// Heap memory of exactly the requested size, so that a sanitizer notices an access beyond it.
pub fn heap(len: usize) -> Mapping {
    unsafe fn free(_: *mut (), start: NonNull<u8>, len: usize) {
        unsafe { dealloc(start.as_ptr(), Layout::from_size_align(len, 128).unwrap()) };
    }
    let layout = Layout::from_size_align(len, 128).unwrap();
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
    unsafe { Mapping::from_raw_parts(start, len, Pages::Plain, core::ptr::null_mut(), free) }
}

/// Names the seed when a test fails.
struct Seed(&'static str, u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            std::eprintln!("failed: {} with seed {}", self.0, self.1);
        }
    }
}

/// Tells the attacker to stop, however its victim ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs `life` with that many seeds, or with as many as the environment asks for.
pub fn seeds(name: &'static str, count: u64, mut life: impl FnMut(u64)) {
    let times = std::env::var("DOORBELL_FUZZ").ok().and_then(|text| text.parse().ok());
    for seed in 0..count * times.unwrap_or(1) {
        let _named = Seed(name, seed);
        life(seed);
    }
}

/// Writes to those areas while `victims` runs. `victims` can ask whether the attack is over.
pub fn under_attack(scribbler: Scribbler, mut victims: impl FnMut() -> bool) {
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| scribbler.run(&stop, &done));
        while victims() && !done.load(Relaxed) {
            thread::yield_now();
        }
    });
}

/// A random number for each call; equal seeds give equal numbers.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.any() % bound.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len())).copied()
    }
}

/// Words of shared memory to write to.
#[derive(Clone, Copy)]
pub struct Area {
    start: usize,
    words: usize,
    holds: Holds,
}

/// The structure of an area, where it pays to look for a word in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Words,
    Records,
    /// Slots of an inbox.
    Slots,
}

impl Area {
    /// `words` words from `start` on, which must stay as long as a scribbler runs.
    pub fn new(start: *mut u8, words: usize) -> Area {
        assert!(start.addr().is_multiple_of(8) && words > 0);
        Area { start: start.expose_provenance(), words, holds: Holds::Words }
    }
}

/// The words of an inbox that begins there.
pub fn area_of_inbox(start: *mut u8) -> Area {
    Area { holds: Holds::Slots, ..Area::new(start, INBOX_BYTES / 8) }
}

/// The structures of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// How many use it, which side sleeps, and what each has mapped.
    Header,
    Slot,
    Tails,
    /// What each side has read and refused.
    Taken,
    Records,
    All,
}

/// Those words of the link.
pub fn areas_of(link: &LinkShared, part: Part) -> Vec<Area> {
    let base = NonNull::new(link.memory().as_ptr()).unwrap();
    // The test keeps the link for as long as the areas are used.
    let ways = link.directions();
    let line = |at: *mut u8, lines: usize| Area::new(at, lines * 8);
    let each = |of: fn(&Direction) -> *mut u8, lines| ways.map(|way| line(of(way), lines));
    let tail = |way: &Direction| core::ptr::from_ref(way.tail()).cast_mut().cast();
    let taken = |way: &Direction| core::ptr::from_ref(way.taken(0)).cast_mut().cast();
    let records = || {
        let area = |way: &Direction| {
            let words = way.area() as usize / 8;
            Area { holds: Holds::Records, ..Area::new(way.data_from(0).at(0), words) }
        };
        ways.map(area).to_vec()
    };
    match part {
        Part::Header => [line(base.as_ptr(), 4)].into(),
        Part::Slot => [line(ways[0].slot_line(0).as_ptr(), SLOT_LINES)].into(),
        Part::Tails => each(tail, 2).into(),
        Part::Taken => each(taken, 2).into(),
        Part::Records => records(),
        Part::All => {
            let parts = [Part::Header, Part::Slot, Part::Tails, Part::Taken, Part::Records];
            parts.into_iter().flat_map(|part| areas_of(link, part)).collect()
        }
    }
}

/// What an attacker may know besides what it sees.
#[derive(Clone, Default)]
pub struct Hints {
    /// Queue pair numbers.
    pub nums: Vec<u32>,
    /// Start, length and key of regions, including some without rights.
    pub regions: Vec<(u64, u64, u32)>,
    /// Numbers of shared receive queues.
    pub queues: Vec<u32>,
}

/// The attacker.
pub struct Scribbler {
    dice: Dice,
    areas: Vec<Area>,
    hints: Hints,
    /// Values seen before, and where.
    old: Vec<(usize, u64)>,
    /// The first words of areas that hold records, as they were at the last look.
    known: Vec<(usize, Vec<u64>)>,
    /// How often it writes, and how long it rests in between.
    left: u32,
    pace: usize,
    pulse: Pulse,
}

/// How often it has written.
#[derive(Clone, Default)]
pub struct Pulse(Arc<AtomicU32>);

impl Pulse {
    /// Waits until something changes, for a short time at most. Then the old value is the one to
    /// attack.
    pub fn wait(&self) {
        let before = self.0.load(Relaxed);
        for _ in 0..50 {
            if self.0.load(Relaxed) != before {
                return;
            }
            thread::yield_now();
        }
    }
}

impl Scribbler {
    pub fn new(seed: u64, areas: Vec<Area>, hints: Hints, writes: u32) -> Scribbler {
        let mut dice = Dice::new(seed);
        let pace = dice.pick(&[1, 50, 500, 2000]).unwrap_or(1);
        Scribbler {
            dice,
            areas,
            hints,
            old: Vec::new(),
            known: Vec::new(),
            left: writes,
            pace,
            pulse: Pulse::default(),
        }
    }

    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Writes until it is told to stop, or has reached its number of writes.
    pub fn run(mut self, stop: &AtomicBool, done: &AtomicBool) {
        while self.left > 0 && !stop.load(Relaxed) {
            self.left -= 1;
            for _ in 0..1 + self.dice.below(4) {
                self.scribble();
            }
            self.pulse.0.fetch_add(1, Relaxed);
            thread::yield_now();
            for _ in 0..self.dice.below(self.pace) {
                core::hint::spin_loop();
            }
        }
        done.store(true, Relaxed);
    }

    fn scribble(&mut self) {
        let Some(area) = self.dice.pick(&self.areas) else { return };
        if area.holds == Holds::Records && self.dice.one_in(2) {
            return self.sweep(area);
        }
        let index = match area.holds {
            Holds::Words => self.dice.below(area.words),
            Holds::Records => self.near_record(area),
            Holds::Slots => self.in_slot(area),
        };
        if area.holds == Holds::Slots && self.dice.one_in(4) {
            return self.stretch(area, index);
        }
        let at = area.start + index * 8;
        let word = word_at(at);
        let now = word.load(Relaxed);
        if self.old.len() < 256 {
            self.old.push((at, now));
        }
        match self.dice.below(12) {
            0 => {
                // Half a word.
                let half = core::ptr::with_exposed_provenance_mut(at + self.dice.below(2) * 4);
                let value = self.value(now) as u32;
                unsafe { AtomicU32::from_ptr(half) }.store(value, Relaxed);
            }
            1 => {
                if let Some((at, before)) = self.dice.pick(&self.old) {
                    word_at(at).store(before, Relaxed);
                }
            }
            _ => word.store(self.value(now), Relaxed),
        }
    }

    /// Writes to some of the records that have come since the last look: to their headers, and
    /// behind those.
    fn sweep(&mut self, area: Area) {
        let segment = SEGMENT as usize / 8;
        let known = self.known.iter().position(|(start, _)| *start == area.start);
        let known = known.unwrap_or_else(|| {
            self.known.push((area.start, std::vec![0; segment]));
            self.known.len() - 1
        });
        for index in 0..segment {
            let now = word_at(area.start + index * 8).load(Relaxed);
            if self.known[known].1[index] == now {
                continue;
            }
            self.known[known].1[index] = now;
            if !is_record(now) || !self.dice.one_in(3) {
                continue;
            }
            let skip = if self.dice.one_in(6) { 0 } else { 1 + self.dice.below(3) };
            let word = word_at(area.start + (index + skip) * 8);
            let value = match (skip, self.dice.below(6)) {
                (0, 0..4) => self.header(now),
                (1, 0..5) => self.address(),
                (2.., 0..4) => self.key(),
                _ => self.value(word.load(Relaxed)),
            };
            word.store(value, Relaxed);
        }
    }

    /// A word of a record, if one is found near a place that is often used.
    fn near_record(&mut self, area: Area) -> usize {
        let segment = SEGMENT as usize / 8;
        let far =
            if self.dice.one_in(4) { area.words } else { segment / (1 << self.dice.below(6)) };
        let from = self.dice.below(far.max(1));
        let is_one = |index: &usize| is_record(word_at(area.start + index * 8).load(Relaxed));
        let found = (from..area.words.min(from + 64)).find(is_one);
        // The header, or an operand behind it.
        let skip = if self.dice.one_in(2) { 0 } else { self.dice.below(4) };
        found.map_or(from, |at| (at + skip).min(area.words - 1))
    }

    /// A word in the head of a slot, preferably of one in use; or in the head of the inbox.
    fn in_slot(&mut self, area: Area) -> usize {
        const SLOT: usize = (INBOX_BYTES - LINE) / SLOTS as usize / 8;
        let head = |slot: usize| LINE / 8 + slot % SLOTS as usize * SLOT;
        let in_use = |slot: &usize| {
            let state = word_at(area.start + head(*slot) * 8).load(Relaxed);
            matches!(state & 7, 1..)
        };
        let from = self.dice.below(SLOTS as usize);
        let slot = (from..from + SLOTS as usize).find(in_use).unwrap_or(from);
        match self.dice.below(8) {
            0 => self.dice.below(5),
            1 => self.dice.below(area.words),
            _ => head(slot) + self.dice.below(6),
        }
    }

    /// Makes a datagram longer than allowed, if the word is the head of its slot.
    fn stretch(&mut self, area: Area, index: usize) {
        let line = LINE / 8;
        let word = word_at(area.start + (index / line * line + 1) * 8);
        let longer = 4097 + self.dice.below(6000) as u64;
        word.store(word.load(Relaxed) & !0xffff_ffff | longer, Relaxed);
    }

    /// The value to write over that one.
    fn value(&mut self, now: u64) -> u64 {
        let dice = &mut self.dice;
        match dice.below(12) {
            0 => dice.any(),
            1 => dice.below(64) as u64,
            2 => now.wrapping_add(8 * (1 + dice.below(16)) as u64),
            3 => now.wrapping_sub(8 * (1 + dice.below(16)) as u64),
            4 => now.rotate_left(32),
            5 => now ^ 1 << dice.below(64),
            6 => [0, u64::MAX, 1 << 63, 1 << 31, u64::from(u32::MAX)][dice.below(5)],
            7 => now.wrapping_add(1 << 32) ^ 1 << dice.below(8),
            8 => self.address(),
            9 => self.key(),
            _ => self.header(now),
        }
    }

    /// An address near an end of a region.
    fn address(&mut self) -> u64 {
        let (start, length, _) = self.dice.pick(&self.hints.regions).unwrap_or_default();
        let near = self.dice.below(80) as u64;
        match self.dice.below(4) {
            0 => start.wrapping_sub(near),
            1 => start + near,
            2 => start.wrapping_add(length).wrapping_sub(near),
            _ => start + length + near,
        }
    }

    /// A valid key, and a length as WRITE and READ carry it.
    fn key(&mut self) -> u64 {
        let (_, length, key) = self.dice.pick(&self.hints.regions).unwrap_or_default();
        let near = self.dice.below(16) as u64;
        let size = match self.dice.below(5) {
            0 => length + near,
            1 => length.saturating_sub(near),
            2 => self.dice.any() & 0xffff_ffff,
            3 => 1 << 30,
            _ => near,
        };
        let key = if self.dice.one_in(8) { key ^ 1 << self.dice.below(32) } else { key };
        u64::from(key) | size << 32
    }

    /// A header with one or more of its parts changed.
    fn header(&mut self, now: u64) -> u64 {
        let dice = &mut self.dice;
        let mut header = now;
        let mut put = |low: u32, bits: u32, value: u64| {
            let mask = ((1 << bits) - 1) << low;
            header = header & !mask | value << low & mask;
        };
        if dice.one_in(3) {
            put(16, 8, dice.below(KIND_SHOW as usize + 2) as u64);
        }
        if dice.one_in(3) {
            // Often all bits of a whole message, and the rest at random.
            let whole = if dice.one_in(2) { 24 } else { 0 };
            put(24, 8, dice.any() | whole);
        }
        if dice.one_in(3) {
            let max = u64::from(RECORD_MAX);
            let near = dice.below(40) as u64;
            let length = [0xffff, max - near, max + near, near, 4000, dice.any()][dice.below(6)];
            put(0, 16, length);
        }
        let num = if dice.one_in(2) { &self.hints.nums } else { &self.hints.queues };
        if let (0, Some(num)) = (dice.below(4), dice.pick(num)) {
            put(32, 32, num.into());
        }
        header
    }
}

fn is_record(word: u64) -> bool {
    let header = Header(word);
    (1..=KIND_SHOW).contains(&header.kind()) && header.record() <= RECORD_MAX && header.qp() != 0
}

fn word_at(at: usize) -> &'static AtomicU64 {
    // SAFETY: aligned, and in an area that the test keeps. The test is about what the device does
    // there at the same time.
    unsafe { AtomicU64::from_ptr(core::ptr::with_exposed_provenance_mut(at)) }
}
