//! [`Ledger`]: who has which block, kept in builds with debug assertions.

use core::fmt::Write;
use core::panic::Location;
use std_alloc::boxed::Box;
use std_alloc::string::String;

use spin::Mutex;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Home,
    Out,
    Posted,
}

/// The last that was done with a block, by whom.
#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    owner: u32,
    at: &'static Location<'static>,
}

/// An entry for each block. Blocks of one depot are taken and put by several threads, so each
/// entry has a lock; it is held for a comparison and a copy.
#[derive(Debug)]
pub(super) struct Ledger(Box<[Mutex<Entry>]>);

impl Ledger {
    #[track_caller]
    pub(super) fn new(count: u32) -> Self {
        let entry = Entry { state: State::Home, owner: 0, at: Location::caller() };
        Self((0..count).map(|_| Mutex::new(entry)).collect())
    }

    #[track_caller]
    pub(super) fn take(&self, index: u32, owner: u32) {
        self.step(index, owner, ("given out", State::Home), State::Out);
    }

    #[track_caller]
    pub(super) fn post(&self, index: u32, owner: u32) {
        self.step(index, owner, ("posted", State::Out), State::Posted);
    }

    #[track_caller]
    pub(super) fn complete(&self, index: u32, owner: u32) {
        self.step(index, owner, ("completed", State::Posted), State::Out);
    }

    #[track_caller]
    pub(super) fn put(&self, index: u32, owner: u32) {
        self.step(index, owner, ("put", State::Out), State::Home);
    }

    /// Moves a block from one state to the next; asserts that it was in the first.
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

    /// The blocks that are not home and who has them, some of them.
    pub(super) fn held(&self) -> String {
        const NAMED: usize = 8;
        let mut text = String::new();
        let entries = self.0.iter().enumerate().map(|(index, entry)| (index, *entry.lock()));
        let out = entries.filter(|(_, entry)| entry.state != State::Home);
        for (index, entry) in out.take(NAMED) {
            let words = entry.state.words();
            // Writing to a string does not fail.
            let _ = write!(text, "; block {index}: owner {} {words} at {}", entry.owner, entry.at);
        }
        text
    }
}

impl State {
    /// What its owner did last.
    const fn words(self) -> &'static str {
        match self {
            Self::Home => "put it home",
            Self::Out => "took it",
            Self::Posted => "posted it",
        }
    }
}
