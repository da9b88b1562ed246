//! A client's program: random operations, each recorded in the history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell::soft::sim::Prng;
use doorbell_kv::caller::Caller;
use doorbell_kv::client::{Client, How, Outcome};
use doorbell_kv::message::{self, Call};
use doorbell_kv::slot::{HEAD, bytes_for};

use super::history::{Expiry, History, Op};

/// What an actor does. Odds are in 1024.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) slot_bytes: u32,
    pub(crate) keys: u64,
    /// Operations, and how many at a time.
    pub(crate) operations: u64,
    pub(crate) depth: u32,
    /// A put has a lifetime; an operation is on a key that fills the table; a get goes by SEND; an
    /// operation is started when it may.
    pub(crate) mortal: u32,
    pub(crate) filler: u32,
    pub(crate) by_send: u32,
    pub(crate) start: u32,
    /// The longest lifetime, in nanoseconds.
    pub(crate) ttl_max: u64,
    /// The clock that all actors share.
    pub(crate) clock: fn() -> u64,
}

/// What all clients share.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) history: History,
    pub(crate) failure: Option<String>,
    pub(crate) values: u64,
    pub(crate) lost: u64,
    pub(crate) expired: u64,
    /// Operations that have ended.
    pub(crate) ended: u64,
    /// No new operations.
    pub(crate) still: bool,
}

/// An operation in progress. A key that fills the table has no history.
struct Started {
    key: Option<u32>,
    op: message::Op,
    value: u64,
    ttl: u64,
    tick: u64,
    clock: u64,
}

pub(crate) struct Actor {
    pub(crate) book: Arc<Mutex<Book>>,
    pub(crate) prng: Prng,
    pub(crate) habits: Habits,
    pub(crate) number: u64,
    pub(crate) left: u64,
    started: BTreeMap<u64, Started>,
    next: u64,
}

impl Actor {
    pub(crate) fn new(book: Arc<Mutex<Book>>, prng: Prng, habits: Habits, number: u64) -> Actor {
        let started = BTreeMap::new();
        Actor { book, prng, habits, number, left: habits.operations, started, next: 0 }
    }

    /// The book, also after another client has failed while it wrote there.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    /// Something happens: its number in the history, and the time.
    fn tick(&self) -> (u64, u64) {
        let mut book = self.book();
        let now = (self.habits.clock)();
        (book.history.tick(now), now)
    }

    /// Bytes of a value: its number, again and again, and its length from the number.
    fn value(&self, number: u64) -> Vec<u8> {
        let most = self.habits.slot_bytes as usize - HEAD - 16;
        let length = (8 + number as usize * 40 % most).min(most);
        let bytes = number.to_le_bytes().into_iter().cycle().take(length);
        bytes.collect()
    }

    /// The number of a value that came back, if it is whole.
    fn number_of(&self, value: &[u8]) -> Result<u64, String> {
        let number = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match number {
            Some(number) if self.value(number) == value => Ok(number),
            _ => Err(format!("client {} got a mixed value: {value:x?}", self.number)),
        }
    }

    fn start(&mut self, client: &mut Client) {
        let filler = self.prng.chance(self.habits.filler);
        let key = (!filler).then(|| self.prng.below(self.habits.keys) as u32);
        let name = match key {
            Some(key) => format!("key {key}"),
            None => format!("filler {}", self.prng.below(60)),
        };
        debug_assert!(bytes_for(name.len(), 0) <= HEAD + 16);
        let op = match self.prng.below(8) {
            _ if filler => message::Op::Put,
            0..4 => message::Op::Get,
            4..7 => message::Op::Put,
            _ => message::Op::Delete,
        };
        let by_send = self.prng.chance(self.habits.by_send);
        client.set_how(if by_send { How::Send } else { How::Read });
        let mortal = op == message::Op::Put && self.prng.chance(self.habits.mortal);
        let ttl = if mortal { self.prng.range(1, self.habits.ttl_max) } else { 0 };
        let value = {
            let mut book = self.book();
            book.values += 1;
            book.values
        };
        let bytes = if op == message::Op::Put { self.value(value) } else { Vec::new() };
        let call = Call { op, ttl, key: name.as_bytes(), value: &bytes };
        // Before the operation begins.
        let (tick, clock) = self.tick();
        if !client.start(call, self.next) {
            return;
        }
        self.started.insert(self.next, Started { key, op, value, ttl, tick, clock });
        self.next += 1;
        self.left -= 1;
    }
}

impl Caller for Actor {
    fn next(&mut self, client: &mut Client) {
        let still = self.book().still;
        while client.is_ready() && self.left > 0 && !still && self.prng.chance(self.habits.start) {
            if client.open() >= self.habits.depth as usize {
                return;
            }
            self.start(client);
        }
    }

    fn ended(&mut self, token: u64, outcome: Outcome<'_>) {
        let Some(started) = self.started.remove(&token) else {
            self.book().failure = Some(format!("operation {token} ended twice"));
            return;
        };
        let Started { key, op, value, ttl, tick, clock } = started;
        let got = match outcome {
            Outcome::Value { value, .. } => Some(self.number_of(value)),
            _ => None,
        };
        let mut book = self.book.lock().unwrap_or_else(|broken| broken.into_inner());
        book.ended += 1;
        let ended = (self.habits.clock)();
        let end = book.history.tick(ended);
        let Some(key) = key else { return };
        let (what, to) = match (op, outcome) {
            (message::Op::Get, Outcome::Lost) => return,
            (message::Op::Get, Outcome::Missing) => (Op::Get(None), end),
            (message::Op::Get, Outcome::Value { .. }) => match got {
                Some(Ok(number)) => (Op::Get(Some(number)), end),
                Some(Err(mixed)) => return book.failure = Some(mixed),
                None => return,
            },
            (message::Op::Put, Outcome::Done { expires, .. }) => {
                if expires != 0 {
                    book.history.compare_clocks(expires.saturating_sub(ttl), clock, ended);
                    book.history.expires(key, value, Expiry::Server(expires));
                    book.expired += 1;
                }
                (Op::Put(value), end)
            }
            (message::Op::Put, Outcome::Lost) => {
                book.lost += 1;
                if ttl != 0 {
                    book.history.expires(key, value, Expiry::After(clock + ttl));
                }
                (Op::Put(value), u64::MAX)
            }
            (message::Op::Delete, Outcome::Done { .. }) => (Op::Delete(Some(true)), end),
            (message::Op::Delete, Outcome::Missing) => (Op::Delete(Some(false)), end),
            (message::Op::Delete, Outcome::Lost) => {
                book.lost += 1;
                (Op::Delete(None), u64::MAX)
            }
            // The server has no room: nothing was put.
            (message::Op::Put, Outcome::Refused(message::Status::Full)) => return,
            (op, outcome) => {
                book.failure = Some(format!("{op:?} ended with {outcome:?}"));
                return;
            }
        };
        book.history.add(key, what, tick, to);
    }
}
