//! The handler of a server's worker: it owns the keys of one shard.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};

use doorbell::prelude::*;
use doorbell::rpc::{self, Calls, HEADER, Incoming};

use crate::memory::RegionWords;
use crate::message::{ANSWER_HEAD, Answer, CALL_HEAD, Call, INFO_BYTES, Op, Status, TableInfo};
use crate::message::{is_key, owner};
use crate::plant::Mistake;
use crate::shard::{PutError, Shard};
use crate::slot::{Cover, KEY_MAX};
use crate::table::{Geometry, Misfit, Table};

/// A clock in nanoseconds that never goes back.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// A worker's request for the memory of its next table.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The number of the worker.
    pub worker: u32,
    /// The table.
    pub geometry: Geometry,
}

/// Where a worker gets memory for tables, because a turn must neither map nor register any.
pub struct Supply<R> {
    /// It asks here.
    pub asks: Sender<Ask>,
    /// Here comes zeroed memory, or `None` if there is none. The sender then submits a key to the
    /// worker, so that it looks.
    pub offers: Receiver<Option<R>>,
}

/// What a worker is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The number of the worker, and the number of workers.
    pub shard: (u32, u32),
    /// The most homes of its table: a power of two.
    pub homes_max: u32,
    /// Where the hashes of its tables begin: random, so that no client can choose keys that all
    /// have the same home.
    pub seed: u64,
    /// A mistake that is planted.
    pub mistake: Option<Mistake>,
}

/// The rights that a region of a table needs.
pub fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ
}

/// Bytes of a block that holds every call and answer for slots of that length.
pub fn block_bytes(slot_bytes: u32) -> u32 {
    slot_bytes.saturating_add((HEADER + ANSWER_HEAD.max(CALL_HEAD)) as u32)
}

/// The handler.
pub struct Server<R> {
    setup: Setup,
    shard: Shard<RegionWords<R>>,
    /// It tells calls from other messages; this side makes none.
    calls: Calls,
    clock: Clock,
    supply: Supply<R>,
    /// The table that was asked for.
    asked: Option<Geometry>,
    answered: u64,
    /// Puts that were answered and not written: a planted mistake.
    late: VecDeque<(Vec<u8>, Vec<u8>, u64)>,
}

impl<R: Region> Server<R> {
    /// A worker's handler with its first table: `homes` homes in `region`, which is zeroed and
    /// registered with [`rights`].
    ///
    /// # Errors
    /// [`Misfit`]
    pub fn new(
        setup: Setup,
        (region, homes, slot_bytes): (R, u32, u32),
        clock: Clock,
        supply: Supply<R>,
    ) -> Result<Server<R>, Misfit> {
        let geometry = Geometry { generation: 1, seed: setup.seed, homes, slot_bytes };
        let mut table = Table::new(RegionWords::new(region), geometry)?;
        if setup.mistake == Some(Mistake::HeadSealed) {
            table.plant(Cover::Head);
        }
        let mut shard = Shard::new(table, setup.homes_max);
        if setup.mistake == Some(Mistake::Unmarked) {
            shard.plant_unmarked();
        }
        let (calls, late) = (Calls::new(1, 0, 0), VecDeque::new());
        Ok(Server { setup, shard, calls, clock, supply, asked: None, answered: 0, late })
    }

    /// Calls that it has answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Its keys, expired ones included, and the generation of its table.
    pub fn size(&self) -> (usize, u64) {
        (self.shard.live(), self.shard.table().geometry().generation)
    }

    /// Answers the call in the first `length` bytes of `room`, in place; returns the length of the
    /// answer.
    fn serve(&mut self, room: &mut [u8], length: usize) -> usize {
        let mut answer = Answer {
            status: Status::Malformed,
            generation: self.shard.table().geometry().generation,
            time: 0,
            expires: 0,
            version: 0,
            probe: 0,
        };
        self.answered += 1;
        let mut rest = 0;
        match room.get(..length).and_then(Call::read) {
            Some(call) if call.op == Op::Table => rest = self.describe(&mut answer, room),
            Some(call) if !self.owns(call.key) => {}
            Some(call) if call.op == Op::Get => {
                let (mut key, length) = ([0; KEY_MAX], call.key.len());
                key[..length].copy_from_slice(call.key);
                rest = self.get(&mut answer, &key[..length], room);
            }
            Some(call) => self.change(&mut answer, call),
            None => {}
        }
        answer.write(room);
        ANSWER_HEAD + rest
    }

    fn owns(&self, key: &[u8]) -> bool {
        let (number, of) = self.setup.shard;
        is_key(key) && owner(key, of) == number
    }

    /// Says where the table is; returns the bytes after the head.
    fn describe(&self, answer: &mut Answer, room: &mut [u8]) -> usize {
        let table = self.shard.table();
        let geometry = *table.geometry();
        let memory = table.words().region().remote_memory(0, geometry.bytes());
        let (Ok(memory), Some(rest)) = (memory, room.get_mut(ANSWER_HEAD..)) else { return 0 };
        let Some(to) = rest.first_chunk_mut::<INFO_BYTES>() else { return 0 };
        *to = TableInfo { shard: self.setup.shard, geometry, memory }.to_bytes();
        (answer.status, answer.time) = (Status::Done, (self.clock)());
        INFO_BYTES
    }

    /// Gets a value; returns its length.
    fn get(&mut self, answer: &mut Answer, key: &[u8], room: &mut [u8]) -> usize {
        let to = room.get_mut(ANSWER_HEAD..).unwrap_or_default();
        let most = to.len();
        let mut time = 0;
        let found = self.shard.get(key, to, || {
            time = (self.clock)();
            time
        });
        answer.time = time;
        let Some(found) = found else {
            answer.status = Status::Missing;
            return 0;
        };
        (answer.expires, answer.version) = (found.expires, found.version);
        answer.probe = found.probe;
        if found.length > most {
            answer.status = Status::TooLong;
            return 0;
        }
        answer.status = Status::Done;
        found.length
    }

    /// Puts or deletes.
    fn change(&mut self, answer: &mut Answer, call: Call<'_>) {
        let now = (self.clock)();
        answer.time = now;
        if call.op == Op::Delete {
            let was_there = self.shard.delete(call.key, now);
            answer.status = if was_there { Status::Done } else { Status::Missing };
            return;
        }
        let expires = if call.ttl == 0 { 0 } else { now.saturating_add(call.ttl) };
        answer.expires = expires;
        if self.setup.mistake == Some(Mistake::EarlyAnswer) {
            self.late.push_back((call.key.to_vec(), call.value.to_vec(), expires));
            answer.status = Status::Done;
            return;
        }
        answer.status = match self.shard.put(call.key, call.value, expires, now) {
            Ok(version) => {
                answer.version = version;
                Status::Done
            }
            Err(PutError::TooLong) => Status::TooLong,
            Err(PutError::Full) => Status::Full,
        };
    }

    /// Does a little of what waits, and asks for a larger table when one is needed.
    fn step(&mut self) {
        let now = (self.clock)();
        if let Some((key, value, expires)) = self.late.pop_front() {
            let _ = self.shard.put(&key, &value, expires, now);
        }
        self.shard.step(now);
        let Some(homes) = self.shard.wants() else { return };
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(&homes.to_le_bytes(), self.setup.seed);
        let geometry = self.shard.next_geometry(homes, seed);
        self.asked = Some(geometry);
        // Nobody supplies memory any more: the program ends.
        let _ = self.supply.asks.send(Ask { worker: self.setup.shard.0, geometry });
    }

    /// Takes the memory that was asked for.
    fn take(&mut self, offer: Option<R>) {
        let Some(geometry) = self.asked.take() else { return };
        let table = offer.and_then(|region| Table::new(RegionWords::new(region), geometry).ok());
        match table {
            Some(mut table) => {
                if self.setup.mistake == Some(Mistake::HeadSealed) {
                    table.plant(Cover::Head);
                }
                self.shard.grow(table);
            }
            None => self.shard.refused(),
        }
    }
}

impl<P: Provider> Handler<P> for Server<P::Region> {
    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let Incoming::Call(payload) = self.calls.incoming(out, &message) else {
            return Verdict::Done;
        };
        let length = payload.len();
        let written = rpc::answer(&mut message, |room| self.serve(room, length));
        if self.shard.is_growing() {
            self.step();
        }
        written.map_or(Verdict::Done, |len| Verdict::Reply { len })
    }

    fn on_work(&mut self, _key: u64, _out: &mut Outbox<'_, P>) {
        while let Ok(offer) = self.supply.offers.try_recv() {
            self.take(offer);
        }
    }

    fn on_idle(&mut self, _out: &mut Outbox<'_, P>) {
        self.step();
    }
}
