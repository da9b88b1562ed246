//! The client's side of the store: many operations at a time over one worker, with a connection to
//! each worker of the server.

use std::collections::VecDeque;

use doorbell::prelude::*;
use doorbell::rpc::{Calls, Incoming};
use doorbell::wc::Status as WcStatus;
use doorbell::worker::{OwnRegion, Request, SendError};

use crate::learned::{Hints, Sample, may_be_over};
use crate::message::{Answer, Call, Op, Status, TableInfo, is_key, owner};
use crate::plant::Mistake;
use crate::search::{self, judge};
use crate::server::Clock;
use crate::slot::Cover;

/// READs of one slot that found it being written, after which the server is asked.
const TEARS_MAX: u32 = 16;

/// Calls for a table have the index of their peer above this key.
const TABLE: u64 = 1 << 32;

/// By what a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum How {
    /// By one-sided READ, and by SEND where a READ does not tell.
    Read,
    /// By SEND to the worker that owns the key.
    Send,
}

/// What a client is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Operations at a time, at most 65 536.
    pub depth: u32,
    /// The longest slot that it can read, in bytes.
    pub slot_max: u32,
    /// How it gets.
    pub how: How,
    /// READs by which it fetches one slot, one after the other; usually 1.
    pub parts: u32,
    /// A mistake that is planted.
    pub mistake: Option<Mistake>,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A get found this.
    Value {
        /// The value.
        value: &'a [u8],
        /// Its version.
        version: u64,
    },
    /// It was put, or deleted.
    Done {
        /// When the value expires, by the server's clock; 0: never.
        expires: u64,
        /// Its version.
        version: u64,
    },
    /// There is no such key.
    Missing,
    /// The server refused it.
    Refused(Status),
    /// The connection ended. A put or a delete was done or not.
    Lost,
}

/// What a client has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// READs of slots.
    pub reads: u64,
    /// READs that found a slot being written.
    pub torn: u64,
    /// Calls, without those for a table.
    pub calls: u64,
    /// Gets that a READ began and a call ended.
    pub asked: u64,
    /// Gets that no call was needed for.
    pub alone: u64,
    /// Tables that it was told of.
    pub tables: u64,
}

/// What it knows of a worker of the server.
#[derive(Clone, Copy, Default)]
struct Line {
    peer: Option<PeerId>,
    table: Option<TableInfo>,
    /// It has asked for the table.
    asking: bool,
    sample: Option<Sample>,
    /// Gets on their way by a call.
    asked: u32,
}

/// An operation.
#[derive(Default)]
struct Pending {
    op: Option<Op>,
    token: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    ttl: u64,
    line: usize,
    probe: usize,
    /// The key's hash in that table, and whether the probe is a guess from earlier gets.
    hash: u64,
    guessed: bool,
    /// The part of the slot that is fetched.
    part: u32,
    /// The table whose slot it reads.
    table: Option<TableInfo>,
    tears: u32,
    /// Only the server knows.
    ask: bool,
    /// Its own clock at the call.
    began: u64,
}

/// See the module. A handler owns it and passes it the worker's calls: see
/// [`crate::caller::ClientHandler`].
pub struct Client {
    settings: Settings,
    lines: Vec<Line>,
    /// Peers whose table is not known yet.
    unknown: Vec<PeerId>,
    pending: Vec<Pending>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
    refused: VecDeque<(u64, Status)>,
    calls: Calls,
    region: Option<OwnRegion>,
    hints: Hints,
    clock: Clock,
    stage: Vec<u8>,
    counts: Counts,
}

impl Client {
    /// A client of a server with that many workers. `clock` is the clock by which its worker is
    /// advanced.
    pub fn new(settings: Settings, workers: u32, clock: Clock) -> Client {
        let depth = settings.depth.min(1 << 16) as usize;
        Client {
            settings,
            lines: vec![Line::default(); workers as usize],
            unknown: Vec::new(),
            pending: (0..depth).map(|_| Pending::default()).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            refused: VecDeque::new(),
            // Calls for tables are few: one for each connection.
            calls: Calls::new((depth as u32 + workers).min(1 << 16), 1 << 17, 0),
            region: None,
            hints: Hints::new(),
            clock,
            stage: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Bytes of memory of its own that it needs for READs.
    pub fn memory_bytes(&self) -> usize {
        self.pending.len() * self.settings.slot_max as usize
    }

    /// Tells it the memory for READs, at least [`Client::memory_bytes`] long.
    pub fn read_into(&mut self, region: OwnRegion) {
        self.region = Some(region);
    }

    /// How it gets from now on.
    pub fn set_how(&mut self, how: How) {
        self.settings.how = how;
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// True if it knows every worker of the server.
    pub fn is_ready(&self) -> bool {
        self.lines.iter().all(|line| line.table.is_some())
    }

    /// Operations that have not ended.
    pub fn open(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Starts an operation; its end comes with `token`. False: as many as it may have are open, or
    /// the key is empty or too long.
    pub fn start(&mut self, call: Call<'_>, token: u64) -> bool {
        let known = call.op != Op::Table && is_key(call.key) && !self.lines.is_empty();
        let Some(n) = self.free.pop_if(|_| known) else { return false };
        let line = owner(call.key, self.lines.len() as u32) as usize;
        let pending = &mut self.pending[n];
        pending.key.clear();
        pending.key.extend(call.key);
        pending.value.clear();
        pending.value.extend(call.value);
        (pending.op, pending.token, pending.ttl) = (Some(call.op), token, call.ttl);
        (pending.line, pending.probe, pending.part, pending.tears) = (line, 0, 0, 0);
        (pending.ask, pending.table) = (false, None);
        self.waiting.push_back(n);
        true
    }

    /// Sends what waits, as far as there is room.
    pub fn pump<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for _ in 0..self.unknown.len() {
            let peer = self.unknown.swap_remove(0);
            self.ask_table(peer, out);
        }
        for _ in 0..self.waiting.len() {
            let Some(n) = self.waiting.pop_front() else { return };
            self.go(n, out);
        }
    }

    fn ask_table<P: Provider>(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        Call { op: Op::Table, ttl: 0, key: &[], value: &[] }.write(&mut self.stage);
        let key = TABLE + peer.index() as u64;
        match self.calls.call(out, peer, &self.stage, key, None) {
            Ok(_) | Err(SendError::NotConnected) => {}
            Err(_) => self.unknown.push(peer),
        }
    }

    /// Takes an operation a step further, or lets it wait.
    fn go<P: Provider>(&mut self, n: usize, out: &mut Outbox<'_, P>) {
        let pending = &self.pending[n];
        let sent = match (self.lines[pending.line].peer, self.lines[pending.line].table) {
            // Behind a call the soft device would leave this READ to the server, and all that
            // follow while one is on its way. The call is rare and soon answered.
            (Some(_), Some(table))
                if self.lines[pending.line].asked > 0 && self.may_read(pending, &table) =>
            {
                false
            }
            (Some(peer), Some(table)) if self.may_read(pending, &table) => {
                self.read(n, peer, table, out)
            }
            (Some(peer), _) => self.call(n, peer, out),
            (None, _) => false,
        };
        if !sent {
            self.waiting.push_back(n);
        }
    }

    fn may_read(&self, pending: &Pending, table: &TableInfo) -> bool {
        pending.op == Some(Op::Get)
            && !pending.ask
            && self.settings.how == How::Read
            && self.region.is_some()
            && table.geometry.slot_bytes <= self.settings.slot_max
    }

    /// Posts the READ of the next part of a slot. False: not now.
    fn read<P: Provider>(
        &mut self,
        n: usize,
        peer: PeerId,
        table: TableInfo,
        out: &mut Outbox<'_, P>,
    ) -> bool {
        let Some(region) = self.region else { return false };
        let pending = &mut self.pending[n];
        // One search goes through one table, although the client may learn of the next meanwhile.
        if pending.table.is_none() {
            pending.table = Some(table);
            pending.hash = table.geometry.hash(&pending.key);
            pending.probe = self.hints.probe(pending.hash);
            pending.guessed = pending.probe > 0;
        }
        let table = pending.table.unwrap_or(table);
        let geometry = table.geometry;
        let slot = geometry.home(pending.hash) + pending.probe;
        let (from, to) = part(geometry.slot_bytes, pending.part, self.settings.parts);
        let there = slot as u64 * u64::from(geometry.slot_bytes) + u64::from(from);
        let Ok(op) = table.memory.read(there, to - from) else {
            pending.ask = true;
            return false;
        };
        let here = n * self.settings.slot_max as usize + from as usize;
        let pieces = [region.piece(here, to - from).into()];
        let token = n as u64;
        let posted = out.request(peer, &Request { op, pieces: &pieces, fence: false, token });
        self.counts.reads += u64::from(posted.is_ok());
        posted.is_ok()
    }

    /// Calls the server. False: not now.
    fn call<P: Provider>(&mut self, n: usize, peer: PeerId, out: &mut Outbox<'_, P>) -> bool {
        let pending = &mut self.pending[n];
        let Some(op) = pending.op else { return true };
        let Pending { ttl, ref key, ref value, .. } = *pending;
        Call { op, ttl, key, value }.write(&mut self.stage);
        pending.began = out.now();
        match self.calls.call(out, peer, &self.stage, n as u64, None) {
            Ok(_) => {
                self.counts.calls += 1;
                self.lines[pending.line].asked += u32::from(op == Op::Get);
            }
            Err(SendError::TooLong | SendError::TooLongForPeer) => {
                let token = self.end(n);
                self.refused.push_back((token, Status::TooLong));
            }
            Err(_) => return false,
        }
        true
    }

    /// An operation that this side has refused, and why; `None` after the last. Ask after each call
    /// that may send.
    pub fn refused(&mut self) -> Option<(u64, Outcome<'static>)> {
        self.refused.pop_front().map(|(token, why)| (token, Outcome::Refused(why)))
    }

    /// The call of an operation has its answer, or never will.
    fn note_answered(&mut self, n: usize) {
        let pending = &self.pending[n];
        if pending.op == Some(Op::Get) {
            let asked = &mut self.lines[pending.line].asked;
            *asked = asked.saturating_sub(1);
        }
    }

    /// An operation is over.
    fn end(&mut self, n: usize) -> u64 {
        self.pending[n].op = None;
        self.free.push(n);
        self.pending[n].token
    }

    /// A worker of the server is connected.
    pub fn peer_up<P: Provider>(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.ask_table(peer, out);
    }

    /// A message has come. Returns the operation that it ended.
    pub fn message<'m, P: Provider>(
        &mut self,
        message: &'m Message<'_>,
        out: &mut Outbox<'_, P>,
    ) -> Option<(u64, Outcome<'m>)> {
        let Incoming::Answer { key, bytes } = self.calls.incoming(out, message) else {
            return None;
        };
        let answer = Answer::read(bytes);
        if key >= TABLE {
            self.learn(message.peer(), answer?);
            return None;
        }
        let n = key as usize;
        let Pending { op, line, began, ask, table, hash, .. } = *self.pending.get(n)?;
        self.counts.asked += u64::from(ask);
        self.note_answered(n);
        let token = self.end(n);
        let Some((answer, value)) = answer else {
            return Some((token, Outcome::Refused(Status::Malformed)));
        };
        self.hear(line, &answer, began, out);
        if table.is_some_and(|table| table.geometry.generation == answer.generation) {
            self.hints.remember(hash, usize::from(answer.probe));
        }
        let Answer { expires, version, .. } = answer;
        let outcome = match answer.status {
            Status::Done if op == Some(Op::Get) => Outcome::Value { value, version },
            Status::Done => Outcome::Done { expires, version },
            Status::Missing => Outcome::Missing,
            why => Outcome::Refused(why),
        };
        Some((token, outcome))
    }

    /// A worker of the server describes its table.
    fn learn(&mut self, peer: PeerId, (answer, rest): (Answer, &[u8])) {
        let Some(info) = TableInfo::read(answer.generation, rest) else { return };
        if info.shard.1 as usize != self.lines.len() {
            return;
        }
        let Some(line) = self.lines.get_mut(info.shard.0 as usize) else { return };
        self.counts.tables += 1;
        (line.peer, line.table, line.asking) = (Some(peer), Some(info), false);
    }

    /// Learns from an answer what the clock of the server says, and whether it has a new table.
    fn hear<P: Provider>(
        &mut self,
        line: usize,
        answer: &Answer,
        began: u64,
        out: &mut Outbox<'_, P>,
    ) {
        let line = &mut self.lines[line];
        if answer.time != 0 {
            line.sample = Some(Sample { server: answer.time, own: began });
        }
        let known = line.table.is_some_and(|info| info.geometry.generation == answer.generation);
        if let Some(peer) = line.peer
            && !known
            && !line.asking
        {
            line.asking = true;
            self.ask_table(peer, out);
        }
    }

    /// A READ has ended. Returns the operation that it ended. Otherwise the next [`Client::pump`]
    /// takes the operation further.
    pub fn read_done<'o, P: Provider>(
        &mut self,
        n: u64,
        result: Result<(), WcStatus>,
        out: &'o Outbox<'_, P>,
    ) -> Option<(u64, Outcome<'o>)> {
        let n = n as usize;
        self.pending.get(n).filter(|pending| pending.op.is_some())?;
        if result.is_err() {
            return Some((self.end(n), Outcome::Lost));
        }
        self.pending[n].part += 1;
        if self.pending[n].part < self.settings.parts {
            self.waiting.push_back(n);
            return None;
        }
        self.pending[n].part = 0;
        match self.conclude(n, out) {
            None => {
                self.waiting.push_back(n);
                None
            }
            Some(outcome) => {
                self.counts.alone += 1;
                Some((self.end(n), outcome))
            }
        }
    }

    /// What a slot that was read whole tells. `None`: the operation goes on.
    fn conclude<'o, P: Provider>(
        &mut self,
        n: usize,
        out: &'o Outbox<'_, P>,
    ) -> Option<Outcome<'o>> {
        let here = n * self.settings.slot_max as usize;
        let pending = &mut self.pending[n];
        let line = &self.lines[pending.line];
        // Only a server without sense makes either of them fail.
        pending.ask = true;
        let (geometry, region) = (pending.table?.geometry, self.region?);
        let bytes = out.bytes(region.piece(here, geometry.slot_bytes)).ok()?;
        pending.ask = false;
        let cover = match self.settings.mistake {
            Some(Mistake::Unsealed) => Cover::Nothing,
            Some(Mistake::HeadSealed) => Cover::Head,
            _ => Cover::All,
        };
        let slot = geometry.home(pending.hash) + pending.probe;
        let at = (slot, pending.probe, pending.guessed);
        match judge(bytes, &geometry, at, &pending.key, cover) {
            search::Verdict::Here(entry) => {
                if !pending.guessed {
                    self.hints.remember(pending.hash, pending.probe);
                }
                let immortal = self.settings.mistake == Some(Mistake::Immortal);
                if entry.expires == 0
                    || immortal
                    || !may_be_over(line.sample, entry.expires, &self.clock)
                {
                    return Some(Outcome::Value { value: entry.value, version: entry.version });
                }
                pending.ask = true;
            }
            search::Verdict::Home => {
                (pending.guessed, pending.probe) = (false, 0);
                self.hints.remember(pending.hash, 0);
            }
            search::Verdict::Absent => return Some(Outcome::Missing),
            search::Verdict::Next => pending.probe += 1,
            search::Verdict::Again => {
                self.counts.torn += 1;
                pending.tears += 1;
                pending.ask = pending.tears > TEARS_MAX;
            }
            search::Verdict::Ask => pending.ask = true,
        }
        None
    }

    /// A worker of the server is gone. Call it until it returns `None`: each call returns an
    /// operation that ended with it. Those that were not sent wait for the next connection.
    pub fn lost<P: Provider>(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) -> Option<u64> {
        if let Some(n) = self.lines.iter().position(|line| line.peer == Some(peer)) {
            self.lines[n] = Line::default();
            // The next connection may be to another server: searches begin again.
            for pending in self.pending.iter_mut().filter(|pending| pending.line == n) {
                (pending.probe, pending.part, pending.table) = (0, 0, None);
            }
        }
        self.unknown.retain(|unknown| *unknown != peer);
        loop {
            let key = self.calls.lost(out, peer)?;
            if key < TABLE {
                // A newer connection may use the same line already. Its READs waited for this call.
                self.note_answered(key as usize);
                return Some(self.end(key as usize));
            }
        }
    }
}

/// The first byte of a part of a slot, and the one behind its last.
fn part(slot_bytes: u32, part: u32, parts: u32) -> (u32, u32) {
    let words = slot_bytes / 8;
    let at = |part: u32| (u64::from(words) * u64::from(part) / u64::from(parts.max(1))) as u32 * 8;
    (at(part), at(part + 1))
}
