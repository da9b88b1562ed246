//! One direction of a connection: what was posted, how it must end, and what the far side must see
//! of it.

use std::collections::VecDeque;

use doorbell::soft::sim::mix;
use doorbell::wc::{Status, Wc, WcFlags, WcOpcode};

use super::adds::Adds;
use super::field::{Field, pattern};
use super::sizes::{DEPTH, FIRST_SLOT, PIECE, SLOTS};

/// A request that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// An invalid key.
    Key,
    /// Bytes behind the end of the region.
    Bounds,
    /// A WRITE to memory that may only be read.
    Right,
    /// The key of a window that an earlier message has closed.
    Closed,
    /// An atomic at an address that is not a multiple of eight.
    Odd,
    /// A message that is longer than any receive.
    Long,
    /// An invalid local key.
    Local,
}

impl Wrong {
    /// The poster's status (CK-1).
    pub fn status(self) -> Status {
        match self {
            Wrong::Key | Wrong::Bounds | Wrong::Right | Wrong::Closed => Status::RemoteAccess,
            Wrong::Odd | Wrong::Long => Status::RemoteInvalidRequest,
            Wrong::Local => Status::LocalProtection,
        }
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "places and lengths")]
pub enum What {
    /// A message; with a key it closes that window.
    Send { key: Option<u32> },
    /// A WRITE to a slot.
    Write { slot: usize },
    /// The same, with immediate data.
    WriteImm { slot: usize },
    /// A READ from a slot that was written before.
    Read { slot: usize, version: u32, skip: usize, length: usize },
    /// A READ of memory that the peer never changes.
    Shelf { skip: usize, length: usize },
    /// An addition of one to the word that all peers add to.
    Add,
    /// A compare-and-swap to the next number in the direction's own word, which holds `before`; or
    /// one whose comparison fails.
    Swap { before: u64, takes: bool },
    /// Opens a window for the peer.
    Bind { key: u32 },
    /// A request that must be refused.
    Wrong(Wrong),
}

/// A posted request that is not known to be over.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Its number, from 0 on.
    pub number: u64,
    /// It completes even on success.
    pub signaled: bool,
    /// Its operation.
    pub what: What,
}

/// The expected content of a receive at the far side.
#[derive(Clone, Copy, Debug)]
struct Due {
    number: u64,
    length: usize,
    imm: bool,
    key: Option<u32>,
    long: bool,
}

/// A place at the far side for one WRITE at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// The number of the WRITE.
    pub version: u32,
    /// Its bytes.
    pub length: usize,
    /// Its request.
    number: u64,
    /// It is in use.
    pub written: bool,
    /// A message behind the WRITE has arrived.
    covered: bool,
    /// READs of it that are not over.
    readers: u32,
}

impl Slot {
    fn rest(&mut self) {
        self.written &= !(self.covered && self.readers == 0);
    }
}

/// The account of one direction.
#[derive(Clone, Debug)]
pub struct Direction {
    /// Connection and sending side.
    pub who: (usize, usize),
    /// Makes its bytes differ from those of others.
    pub key: u64,
    /// Posted requests that are not over, oldest first.
    pub queue: VecDeque<Posted>,
    /// The number of the next request.
    pub next: u64,
    /// Places at the far side.
    pub slots: [Slot; SLOTS],
    /// The value of its own word when everything posted is done.
    pub word: u64,
    /// The value after the last swap known to be done.
    pub word_done: u64,
    /// The request that must be refused, if one was posted.
    pub wrong: Option<(u64, Wrong)>,
    /// The first error status.
    pub over: Option<Status>,
    due: VecDeque<Due>,
    received: u64,
    confirmed: u64,
}

impl Direction {
    /// A direction without posts.
    pub fn new(seed: u64, who: (usize, usize)) -> Direction {
        Direction {
            who,
            key: mix(seed ^ mix((who.0 as u64) << 1 | who.1 as u64)),
            queue: VecDeque::new(),
            next: 0,
            slots: [Slot::default(); SLOTS],
            word: 0,
            word_done: 0,
            wrong: None,
            over: None,
            due: VecDeque::new(),
            received: 0,
            confirmed: 0,
        }
    }

    /// The bytes of message `number`.
    pub fn text(&self, number: u64, length: usize) -> Vec<u8> {
        pattern(self.key ^ mix(number << 2 | 1), length)
    }

    /// The bytes of WRITE `version`.
    pub fn written(&self, version: u32, length: usize) -> Vec<u8> {
        pattern(self.key ^ mix(u64::from(version) << 2 | 2), length)
    }

    /// Where the next request's bytes lie in its side's memory.
    pub fn buffer(&self, number: u64) -> usize {
        (self.who.0 * DEPTH + number as usize % DEPTH) * PIECE
    }

    /// Where a slot lies in the far side's memory.
    pub fn place(&self, slot: usize) -> usize {
        FIRST_SLOT + (self.who.0 * SLOTS + slot) * PIECE
    }

    /// Where its own word lies there.
    pub fn word_place(&self) -> usize {
        64 + self.who.0 * 8
    }

    /// True if everything posted is over, and everything sent has arrived.
    pub fn rests(&self) -> bool {
        self.queue.is_empty() && self.due.is_empty()
    }

    /// True if no outstanding request must complete.
    pub fn is_over(&self) -> bool {
        self.queue.iter().all(|posted| !posted.signaled)
    }

    /// The queue pair is gone and reports nothing about silent requests.
    pub fn forget(&mut self, adds: &mut Adds) {
        for posted in self.queue.drain(..) {
            adds.uncertain += u64::from(posted.what == What::Add);
        }
    }

    /// True if everything known to be taken has arrived.
    pub fn has_come(&self) -> bool {
        self.received >= self.confirmed
    }

    /// A request of that length was posted.
    pub fn push(&mut self, what: What, length: usize, signaled: bool) {
        let number = self.next;
        self.next += 1;
        let mut due = Due { number, length, imm: false, key: None, long: false };
        match what {
            What::Send { key } => {
                due.key = key;
                self.due.push_back(due);
            }
            What::Write { slot } | What::WriteImm { slot } => {
                let slot = &mut self.slots[slot];
                *slot = Slot {
                    version: slot.version + 1,
                    length,
                    number,
                    written: true,
                    ..Slot::default()
                };
                if matches!(what, What::WriteImm { .. }) {
                    due.imm = true;
                    self.due.push_back(due);
                }
            }
            What::Read { slot, .. } => self.slots[slot].readers += 1,
            What::Swap { takes: true, .. } => self.word += 1,
            What::Wrong(wrong) => {
                self.wrong.get_or_insert((number, wrong));
                if wrong == Wrong::Long {
                    due.long = true;
                    self.due.push_back(due);
                }
            }
            What::Shelf { .. } | What::Add | What::Swap { .. } | What::Bind { .. } => {}
        }
        self.queue.push_back(Posted { number, signaled, what });
    }

    /// The device gave that request this key for its window.
    pub fn bound(&mut self, number: u64, key: u32) {
        if let Some(posted) = self.queue.iter_mut().find(|posted| posted.number == number) {
            posted.what = What::Bind { key };
        }
    }

    /// Handles a completion of a request; returns what is worth recording. `excused`: something
    /// other than a refused request may end this direction. `at` is the memory of the poster and of
    /// the peer.
    pub fn completed(
        &mut self,
        wc: &Wc,
        excused: bool,
        at: [&Field; 2],
        adds: &mut Adds,
    ) -> Result<Option<What>, String> {
        let number = wc.wr_id;
        loop {
            let Some(first) = self.queue.pop_front() else {
                return Err(format!("request {number} completes, and is not outstanding"));
            };
            if first.number == number {
                return self.ended(&first, wc, excused, at, adds);
            }
            if first.signaled || self.over.is_some() {
                return Err(format!("request {number} completes before {}", first.number));
            }
            if self.wrong.is_some_and(|(wrong, _)| wrong == first.number) {
                return Err(format!("request {number} completes, {} was wrong", first.number));
            }
            // It completed without an entry, so it succeeded.
            self.confirm(&first, at, adds)?;
        }
    }

    fn ended(
        &mut self,
        posted: &Posted,
        wc: &Wc,
        excused: bool,
        at: [&Field; 2],
        adds: &mut Adds,
    ) -> Result<Option<What>, String> {
        let Posted { number, signaled, what } = *posted;
        let status = wc.status;
        let wrong = self.wrong.filter(|(wrong, _)| *wrong == number).map(|(_, wrong)| wrong);
        if status.is_ok() {
            if self.over.is_some() || wrong.is_some() || !signaled {
                return Err(format!("request {number}, {what:?}, succeeds and must not"));
            }
            if wc.opcode != opcode(what) {
                return Err(format!("request {number}, {what:?}, completes as {:?}", wc.opcode));
            }
            self.confirm(posted, at, adds)?;
            return Ok(Some(what));
        }
        if what == What::Add && self.wrong.is_none_or(|(wrong, _)| wrong >= number) {
            adds.uncertain += 1;
        }
        if self.over.is_some() {
            let flushed = status == Status::Flushed;
            let text = || format!("request {number}, behind one that failed, ends with {status:?}");
            return if flushed { Ok(None) } else { Err(text()) };
        }
        self.over = Some(status);
        let expected = wrong.is_some_and(|wrong| wrong.status() == status);
        let by_peer = [Status::RetryExceeded, Status::RnrRetryExceeded, Status::Flushed];
        if expected || (excused && by_peer.contains(&status)) {
            return Ok(None);
        }
        Err(format!("request {number}, {what:?}, ends with {status:?}"))
    }

    /// A request succeeded: checks its result.
    fn confirm(
        &mut self,
        posted: &Posted,
        [here, there]: [&Field; 2],
        adds: &mut Adds,
    ) -> Result<(), String> {
        let Posted { number, what, .. } = *posted;
        let buffer = self.buffer(number);
        let wrong = |what: &str| Err(format!("request {number}: {what}"));
        match what {
            What::Send { .. } => self.confirmed += 1,
            What::Write { slot } | What::WriteImm { slot } => {
                self.confirmed += u64::from(matches!(what, What::WriteImm { .. }));
                let Slot { version, length, written, number: last, .. } = self.slots[slot];
                let bytes = self.written(version, length);
                if written && last == number && !there.holds(self.place(slot), &bytes) {
                    return wrong("the WRITE is over, and its bytes are not there");
                }
            }
            What::Read { slot, version, skip, length } => {
                let bytes = self.written(version, skip + length);
                self.slots[slot].readers -= 1;
                self.slots[slot].rest();
                if !here.holds(buffer, &bytes[skip..]) {
                    return wrong("the READ returned other bytes than were written before");
                }
            }
            What::Shelf { skip, length } => {
                let bytes = shelf(1 - self.who.1, skip + length);
                if !here.holds(buffer, &bytes[skip..]) {
                    return wrong("the READ does not bring what is there");
                }
            }
            What::Add => return adds.returned(here.word(buffer)),
            What::Swap { before, takes } => {
                let was = here.word(buffer);
                if was != before {
                    return wrong(&format!("the word was {was}, and not {before}"));
                }
                self.word_done = before + u64::from(takes);
            }
            What::Bind { .. } => {}
            What::Wrong(_) => return wrong("it was wrong, and went well"),
        }
        Ok(())
    }

    /// A receive of the far side has completed. `at` is that side's memory: the buffers, and the
    /// memory that peers write to. `excused` as in [`Direction::completed`].
    pub fn came(
        &mut self,
        wc: &Wc,
        buffer: usize,
        excused: bool,
        [local, field]: [&Field; 2],
    ) -> Result<(), String> {
        let doomed = excused || self.wrong.is_some();
        if wc.status == Status::Flushed && doomed {
            return Ok(());
        }
        let Some(due) = self.due.pop_front() else {
            return Err(format!("a receive completes with {:?}; nothing was sent", wc.status));
        };
        self.received += 1;
        if due.long && wc.status == Status::LocalLength {
            return Ok(());
        }
        let Due { number, length, imm, key, .. } = due;
        let opcode = if imm { WcOpcode::RecvWriteWithImm } else { WcOpcode::Recv };
        let word = match (imm, key) {
            (true, _) => (WcFlags::WITH_IMM, number as u32),
            (false, Some(key)) => (WcFlags::WITH_INV, key),
            (false, None) => (WcFlags::empty(), wc.imm),
        };
        let got = (wc.status, wc.opcode, wc.byte_len as usize, (wc.flags, wc.imm));
        let want = (Status::Success, opcode, length, word);
        if got != want {
            return Err(format!("message {number} must come as {want:?}, and comes as {got:?}"));
        }
        if !imm && !local.holds(buffer, &self.text(number, length)) {
            return Err(format!("message {number} comes with bytes that nobody sent"));
        }
        for at in 0..SLOTS {
            let Slot { version, length, number: write, written, covered, .. } = self.slots[at];
            if !written || covered || write > number {
                continue;
            }
            if !field.holds(self.place(at), &self.written(version, length)) {
                return Err(format!("message {number} comes before the WRITE {write} before it"));
            }
            self.slots[at].covered = true;
            self.slots[at].rest();
        }
        Ok(())
    }
}

/// The opcode in the completion of a successful request.
fn opcode(what: What) -> WcOpcode {
    match what {
        What::Send { .. } | What::Wrong(_) => WcOpcode::Send,
        What::Write { .. } | What::WriteImm { .. } => WcOpcode::Write,
        What::Read { .. } | What::Shelf { .. } => WcOpcode::Read,
        What::Add => WcOpcode::FetchAdd,
        What::Swap { .. } => WcOpcode::CompareSwap,
        What::Bind { .. } => WcOpcode::Bind,
    }
}

/// The memory that a side never changes.
pub fn shelf(side: usize, length: usize) -> Vec<u8> {
    pattern(mix(side as u64 + 1), length)
}
