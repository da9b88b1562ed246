//! [`Tracker`] records the owner of each block. Only builds with debug assertions keep one.

use core::fmt::Write;
use core::panic::Location;
use std_alloc::boxed::Box;
use std_alloc::string::String;

use spin::Mutex;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Taken,
    Posted,
}

/// The last operation on a block: what it did, who called it, and where.
#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    owner: u32,
    at: &'static Location<'static>,
}

/// One entry for each block. Several threads take and put blocks of one shared pool, so each
/// entry has a lock, which is held for a comparison and a copy.
#[derive(Debug)]
pub(super) struct Tracker(Box<[Mutex<Entry>]>);

impl Tracker {
    #[track_caller]
    pub(super) fn new(count: u32) -> Self {
        let entry = Entry { state: State::Free, owner: 0, at: Location::caller() };
        Self((0..count).map(|_| Mutex::new(entry)).collect())
    }

    #[track_caller]
    pub(super) fn take(&self, index: u32, owner: u32) {
        self.step(index, owner, ("taken", State::Free), State::Taken);
    }

    #[track_caller]
    pub(super) fn post(&self, index: u32, owner: u32) {
        self.step(index, owner, ("posted", State::Taken), State::Posted);
    }

    #[track_caller]
    pub(super) fn complete(&self, index: u32, owner: u32) {
        self.step(index, owner, ("completed", State::Posted), State::Taken);
    }

    #[track_caller]
    pub(super) fn put(&self, index: u32, owner: u32) {
        self.step(index, owner, ("put", State::Taken), State::Free);
    }

    /// Moves a block from state `from` to state `to`; asserts that it was in `from`.
    #[track_caller]
    fn step(&self, index: u32, owner: u32, (done, from): (&str, State), to: State) {
        let now = Entry { state: to, owner, at: Location::caller() };
        let Some(entry) = self.0.get(index as usize) else {
            panic!("block {index} is not of a pool of {}", self.0.len());
        };
        let before = {
            let mut entry = entry.lock();
            let before = *entry;
            if before.state == from {
                *entry = now;
            }
            before
        };
        assert!(
            before.state == from,
            "block {index} was {done} twice or too soon: by owner {owner} at {}, but owner {} \
             {} at {}",
            now.at,
            before.owner,
            before.state.words(),
            before.at
        );
    }

    /// The first few blocks that are not free, with their owners.
    pub(super) fn held(&self) -> String {
        const NAMED: usize = 8;
        let mut text = String::new();
        let entries = self.0.iter().enumerate().map(|(index, entry)| (index, *entry.lock()));
        let out = entries.filter(|(_, entry)| entry.state != State::Free);
        for (index, entry) in out.take(NAMED) {
            let words = entry.state.words();
            // Writing to a string does not fail.
            let _ = write!(text, "; block {index}: owner {} {words} at {}", entry.owner, entry.at);
        }
        text
    }
}

impl State {
    /// What the owner did last.
    const fn words(self) -> &'static str {
        match self {
            Self::Free => "put it",
            Self::Taken => "took it",
            Self::Posted => "posted it",
        }
    }
}
