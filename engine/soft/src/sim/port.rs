//! A port: the far side of a domain's link memory. It reads what the domain sends and writes what
//! the domain receives, as the peer's domain would; what lies between two ports is no memory.
#![expect(unsafe_code, reason = "reads and writes the ring of a link")]

use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::super::layout::{Header, RecordFlags, SLOT_RECORD_MAX};
use super::super::link::{Link, LinkShared};
use super::super::ring::Refusal;
use super::flow::{Psn, Record};
use crate::wc::Status;

/// Where a record read from the domain stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// The far domain has not taken it.
    Waiting,
    /// It was refused, and the domain has not yet heard of that.
    Refused,
    /// It may be acknowledged.
    Done,
}

/// A record read from the domain, by its place in the ring.
struct Read {
    at: u64,
    end: u64,
    conn: usize,
    psn: Psn,
    /// The far queue pair it names.
    qp: u32,
    stand: Stand,
}

/// A record written to the domain.
struct Written {
    at: u64,
    end: u64,
    /// Connection and number; nobody waits to hear of one without.
    way: Option<(usize, Psn)>,
    asks: bool,
}

/// What becomes of the domain's acknowledgement of a record written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// More records follow at once.
    Amid,
    /// The domain acknowledges it with its next poll.
    Now,
    /// The domain acknowledges it when it likes, as it does with most messages of a peer.
    Later,
}

/// What the domain did with a record written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// If it asks for something, the domain owes the answer from here on.
    Taken {
        conn: usize,
        psn: Psn,
        asks: bool,
    },
    Refused {
        conn: usize,
        psn: Psn,
        status: Status,
    },
}

/// See the module.
pub(super) struct Port {
    link: Link,
    /// The port's end.
    pub(super) near: Arc<LinkShared>,
    /// The end that the domain is given.
    pub(super) far: Arc<LinkShared>,
    /// Ring order; the front is the oldest that is not acknowledged.
    read: VecDeque<Read>,
    written: VecDeque<Written>,
    /// The first is in the line, under that number.
    refusals: VecDeque<Refusal>,
    refusal_number: u32,
    /// Every record before it is done.
    safe: u64,
    /// The connection whose message is written to the domain without its end.
    pub(super) amid: Option<usize>,
    /// The last record written to the domain does not ask: since when the domain may be silent.
    pub(super) silent_since: Option<u64>,
    /// Queue pairs of such records.
    silent: Vec<u32>,
    /// Queue pairs of which a request or an answer is written without its end.
    halves: Vec<u32>,
    /// The rule the domain broke, if it did.
    pub(super) broken: Option<&'static str>,
}

impl Port {
    /// `far` goes to the domain, `near` stays here.
    pub(super) fn new(far: LinkShared, near: LinkShared) -> Port {
        let (far, near) = (Arc::new(far), Arc::new(near));
        Port {
            link: Link::new(near.clone()),
            near,
            far,
            read: VecDeque::new(),
            written: VecDeque::new(),
            refusals: VecDeque::new(),
            refusal_number: 0,
            safe: 0,
            amid: None,
            silent_since: None,
            silent: Vec::new(),
            halves: Vec::new(),
            broken: None,
        }
    }

    /// Reads the next record the domain has published: its place, its end, itself.
    pub(super) fn next_record(&mut self) -> Option<(u64, u64, Record)> {
        if self.broken.is_some() {
            return None;
        }
        if self.link.rx.caught_up() {
            if !self.link.rx.look() {
                return None;
            }
            if !self.link.rx.advance() {
                self.broken = Some("a tail that no sender writes");
            }
            if self.link.rx.caught_up() {
                return None;
            }
        }
        let Some(header) = self.link.rx.header() else {
            self.broken = Some("a header that no sender writes");
            return None;
        };
        if header == Header::JUMP {
            if !self.link.rx.jump() {
                self.broken = Some("a jump where no sender jumps");
            }
            return self.next_record();
        }
        let mut payload = vec![0u8; header.length() as usize];
        // SAFETY: the vector has the length asked for.
        unsafe { self.link.rx.fetch(header, payload.as_mut_ptr()) };
        let imm = self.link.rx.immediate(header);
        let at = self.link.rx.at;
        self.link.rx.consume(header);
        Some((at, self.link.rx.at, Record { header, imm, payload: payload.into() }))
    }

    /// Notes a record that was just read; one that goes nowhere is done at once.
    pub(super) fn note_read(&mut self, (at, end): (u64, u64), qp: u32, way: Option<(usize, Psn)>) {
        let stand = if way.is_some() { Stand::Waiting } else { Stand::Done };
        let (conn, psn) = way.unwrap_or((usize::MAX, Psn::new(0)));
        self.read.push_back(Read { at, end, conn, psn, qp, stand });
    }

    /// Refuses a record that was just read: nothing goes the way of its connection any more.
    pub(super) fn refuse_read(&mut self, (at, end): (u64, u64), qp: u32, status: Status) {
        let (conn, psn) = (usize::MAX, Psn::new(0));
        self.read.push_back(Read { at, end, conn, psn, qp, stand: Stand::Refused });
        self.let_refuse(Refusal { at, qp, status });
    }

    /// The far domain has taken the oldest `count` waiting records of a connection.
    pub(super) fn done(&mut self, conn: usize, count: u32) {
        let waiting = self.read.iter_mut().filter(|r| r.conn == conn && r.stand == Stand::Waiting);
        for read in waiting.take(count as usize) {
            read.stand = Stand::Done;
        }
    }

    /// Record `psn` of a connection is refused: the domain hears it, and the rest of that
    /// connection goes nowhere.
    pub(super) fn refuse(&mut self, conn: usize, psn: Psn, status: Status) {
        let mut refusal = None;
        for read in &mut self.read {
            if read.conn != conn || read.stand != Stand::Waiting {
                continue;
            }
            if refusal.is_none() && read.psn == psn {
                read.stand = Stand::Refused;
                refusal = Some(Refusal { at: read.at, qp: read.qp, status });
            } else {
                read.stand = Stand::Done;
            }
        }
        if let Some(refusal) = refusal {
            self.let_refuse(refusal);
        }
    }

    fn let_refuse(&mut self, refusal: Refusal) {
        self.refusals.push_back(refusal);
        if self.refusals.len() == 1 {
            self.show_refusal();
        }
    }

    /// Both queue pairs of a connection are gone: nobody waits for its records any more.
    pub(super) fn forget(&mut self, conn: usize) {
        for read in self.read.iter_mut().filter(|read| read.conn == conn) {
            if read.stand == Stand::Waiting {
                read.stand = Stand::Done;
            }
        }
    }

    fn show_refusal(&mut self) {
        if let Some(refusal) = self.refusals.front() {
            self.refusal_number = self.refusal_number.wrapping_add(1);
            self.link.rx.write_refusal(self.refusal_number, *refusal);
        }
    }

    /// Finds out how far the far domain has taken this domain's records.
    pub(super) fn settle(&mut self) {
        if let Some(refusal) = self.refusals.front()
            && self.link.tx.settled_refusal() == self.refusal_number
        {
            let at = refusal.at;
            if let Some(read) = self.read.iter_mut().find(|read| read.at == at) {
                read.stand = Stand::Done;
            }
            self.refusals.pop_front();
            self.show_refusal();
        }
        while let Some(read) = self.read.front()
            && read.stand == Stand::Done
        {
            self.safe = read.end;
            self.read.pop_front();
        }
        if self.read.is_empty() {
            // Behind the last there may be a jump.
            self.safe = self.link.rx.at;
        }
    }

    /// Tells the domain how far its records were read, and how far they were taken.
    pub(super) fn tell(&mut self) {
        self.settle();
        self.link.rx.write_ack(self.safe);
    }

    /// Writes a record to the domain's ring, not yet visible unless it goes by the slot. False:
    /// there is no space. Without a way back nobody hears what the domain says of it.
    pub(super) fn write(
        &mut self,
        record: &Record,
        way: Option<(usize, Psn)>,
        (asking, now): (Asking, u64),
    ) -> bool {
        let Header(mut word) = record.header;
        if asking == Asking::Now {
            word |= u64::from(RecordFlags::ACK_REQ.bits()) << 24;
        }
        let header = Header(word);
        if !self.link.has_space(header.record()) {
            return false;
        }
        let at = self.link.tx.at;
        let lone = self.link.tx.unpublished() == 0 && header.immediate_bytes() == 0;
        if asking != Asking::Amid && lone && header.record() <= SLOT_RECORD_MAX {
            // SAFETY: the payload has the header's length, which fits the slot.
            unsafe {
                self.link.tx.publish_in_slot(
                    header,
                    header.record(),
                    record.payload.as_ptr(),
                    self.safe,
                )
            };
        } else {
            let to = self.link.tx.begin(header, record.imm);
            // SAFETY: `begin` gives space for the record.
            unsafe { to.copy_from_nonoverlapping(record.payload.as_ptr(), record.payload.len()) };
            self.link.tx.end(header);
        }
        let (end, asks) = (self.link.tx.at, record.asks());
        self.written.push_back(Written { at, end, way, asks });
        self.halves.retain(|qp| *qp != header.qp());
        if !record.is_last() {
            self.halves.push(header.qp());
        }
        match asking {
            Asking::Amid => {}
            Asking::Now => self.note_asked(),
            Asking::Later => {
                self.silent_since = Some(now);
                self.silent.push(header.qp());
            }
        }
        true
    }

    /// Makes what was written visible.
    pub(super) fn publish(&mut self) {
        if self.link.tx.unpublished() > 0 {
            self.link.tx.publish(self.safe);
        }
    }

    /// The next thing the domain says of what was written to it.
    pub(super) fn next_taking(&mut self) -> Option<Taking> {
        while !self.written.is_empty() {
            self.link.note_ack(self.link.rx.peer_ack());
            if let Some(refusal) = self.link.look_at_taken() {
                self.link.settle_refusal();
                let found = self.written.iter().find(|written| written.at == refusal.at);
                let Some(&Written { way, .. }) = found else {
                    self.broken = Some("a refusal of a record that is not outstanding");
                    return None;
                };
                let Some((conn, psn)) = way else { continue };
                return Some(Taking::Refused { conn, psn, status: refusal.status });
            }
            let first = self.written.front()?;
            if self.link.acked() < first.end {
                return None;
            }
            let taken = self.written.pop_front();
            if let Some(Written { way: Some((conn, psn)), asks, .. }) = taken {
                return Some(Taking::Taken { conn, psn, asks });
            }
        }
        self.note_asked();
        None
    }

    fn note_asked(&mut self) {
        self.silent_since = None;
        self.silent.clear();
    }

    /// Asks the domain what it has taken, if it may be asked now. That goes to a queue pair of a
    /// silent record, and between two requests.
    pub(super) fn urge(&mut self, now: u64) {
        let qp = self.silent.iter().copied().find(|qp| !self.halves.contains(qp));
        let asked = qp.is_some_and(|qp| self.write(&Record::urge(qp), None, (Asking::Now, now)));
        if !asked {
            self.silent_since = Some(now);
        }
    }
}
