//! A simulated client's program: random operations, each recorded in the history.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use doorbell::soft::sim::Prng;
use doorbell_kv::caller::Caller;
use doorbell_kv::client::{Client, How, Outcome};
use doorbell_kv::message::{self, Call};
use doorbell_kv::slot::{HEAD, bytes_for};

use crate::history::{History, Op};
use crate::plan::Plan;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// The server's clock is ahead of the virtual time by this.
pub(crate) const AHEAD: u64 = 5_000_000_000;

/// The virtual time of this thread's simulation, in nanoseconds.
pub(crate) fn now() -> u64 {
    NOW.get()
}

/// Sets it.
pub(crate) fn set_now(now_ns: u64) {
    NOW.set(now_ns);
}

/// What all clients share.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) history: History,
    pub(crate) failure: Option<String>,
    pub(crate) values: u64,
    pub(crate) lost: u64,
    pub(crate) expired: u64,
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
    pub(crate) book: Rc<RefCell<Book>>,
    pub(crate) prng: Prng,
    pub(crate) plan: Plan,
    pub(crate) number: u64,
    pub(crate) left: u64,
    started: BTreeMap<u64, Started>,
    next: u64,
}

impl Actor {
    pub(crate) fn new(book: Rc<RefCell<Book>>, prng: Prng, plan: Plan, number: u64) -> Actor {
        let started = BTreeMap::new();
        Actor { book, prng, plan, number, left: plan.operations, started, next: 0 }
    }

    /// Bytes of a value: its number, again and again, and its length from the number.
    fn value(&self, number: u64) -> Vec<u8> {
        let most = self.plan.slot_bytes as usize - HEAD - 16;
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
        let filler = self.prng.chance(self.plan.filler);
        let key = (!filler).then(|| self.prng.below(self.plan.keys) as u32);
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
        let by_send = self.prng.chance(self.plan.by_send);
        client.set_how(if by_send { How::Send } else { How::Read });
        let mortal = op == message::Op::Put && self.prng.chance(self.plan.mortal);
        let ttl = if mortal { self.prng.range(1, self.plan.ttl_max) } else { 0 };
        let mut book = self.book.borrow_mut();
        book.values += 1;
        let value = book.values;
        let bytes = if op == message::Op::Put { self.value(value) } else { Vec::new() };
        let call = Call { op, ttl, key: name.as_bytes(), value: &bytes };
        if !client.start(call, self.next) {
            return;
        }
        let (tick, clock) = (book.history.tick(now()), now());
        self.started.insert(self.next, Started { key, op, value, ttl, tick, clock });
        self.next += 1;
        self.left -= 1;
    }
}

impl Caller for Actor {
    fn next(&mut self, client: &mut Client) {
        let still = self.book.borrow().still;
        while client.is_ready() && self.left > 0 && !still && self.prng.chance(300) {
            if client.open() >= self.plan.depth as usize {
                return;
            }
            self.start(client);
        }
    }

    fn ended(&mut self, token: u64, outcome: Outcome<'_>) {
        let Some(started) = self.started.remove(&token) else {
            self.book.borrow_mut().failure = Some(format!("operation {token} ended twice"));
            return;
        };
        let Started { key, op, value, ttl, tick, clock } = started;
        let got = match outcome {
            Outcome::Value { value, .. } => Some(self.number_of(value)),
            _ => None,
        };
        let mut book = self.book.borrow_mut();
        let end = book.history.tick(now());
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
                    book.history.expires(key, value, expires.saturating_sub(AHEAD), true);
                    book.expired += 1;
                }
                (Op::Put(value), end)
            }
            (message::Op::Put, Outcome::Lost) => {
                book.lost += 1;
                if ttl != 0 {
                    book.history.expires(key, value, clock + ttl, false);
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
