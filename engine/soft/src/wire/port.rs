//! A port: the far side of a domain's link memory. It reads what the domain sends and writes what
//! the domain receives, as the peer's domain would. Two ports share no memory.

use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec;
use std_alloc::vec::Vec;

use doorbell_alloc::Mapping;

use super::record::{Psn, Record};
use crate::error::SetupError;
use crate::provider::wake::Notifier;
use crate::shm::layout::{Header, KIND_RESPONSE, RecordFlags, SLOT_RECORD_MAX};
use crate::shm::reader::Rx;
use crate::shm::refusals::Refusal;
use crate::state::link::Link;
use crate::state::link_shared::LinkShared;
use crate::steps::sleep::before_last_look;
use crate::wc::Status;

/// The state of a record read from the domain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// The far domain has not taken it.
    Waiting,
    /// It was refused, and the domain has not been told yet.
    Refused,
    /// It may be acknowledged.
    Done,
}

/// The position of a read record in the domain's ring, and the far queue pair that it names.
#[derive(Clone, Copy)]
pub struct Span {
    at: u64,
    end: u64,
    qp: u32,
}

/// The connection of a record, as the wire counts them, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Connection.
    pub conn: usize,
    /// Sequence number.
    pub psn: Psn,
}

/// A record read from the domain.
struct Read {
    span: Span,
    /// `None` for a record that goes nowhere.
    way: Option<Way>,
    stand: Stand,
}

/// A record written to the domain.
struct Written {
    at: u64,
    end: u64,
    /// `None` if nobody waits to hear about the record.
    way: Option<Way>,
    /// The connection of a question, see [`Port::urge`].
    urged: Option<usize>,
    asks: bool,
}

/// When the domain acknowledges a record written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// As its sender asked, or as in a stream: more records may follow at once.
    Amid,
    /// With its next poll.
    Now,
    /// At any time, as with most messages of a peer. The caller asks later with [`Port::urge`].
    Later {
        /// The caller's time, for [`Port::silent_since`].
        now: u64,
    },
}

/// What the domain did with a record written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// It took the record.
    Taken {
        /// The connection and number of the record.
        way: Way,
        /// From here on the domain owes a response.
        asks: bool,
    },
    /// It refused the record, and took all before it.
    Refused {
        /// The connection and number of the record.
        way: Way,
        /// The status of the sender's completion.
        status: Status,
    },
}

/// See the module.
pub struct Port {
    link: Link,
    /// The port's end.
    pub(crate) near: Arc<LinkShared>,
    /// The end that the domain is given.
    pub(crate) far: Arc<LinkShared>,
    /// In ring order; the front is the oldest record that is not acknowledged.
    read: VecDeque<Read>,
    written: VecDeque<Written>,
    /// Refusals that the domain has not settled. The first is in the line, under that number.
    refusals: VecDeque<Refusal>,
    refusal_number: u32,
    /// Every record before it is done.
    safe: u64,
    /// The last record written to the domain asks for no acknowledgement: since then the domain may
    /// be silent.
    silent_since: Option<u64>,
    /// The queue pairs of such records, and their connections.
    silent: Vec<(u32, usize)>,
    /// Connections with a question that the domain refused, and where. The domain refuses a queue
    /// pair once. It takes later records of that queue pair, and says nothing.
    refused: Vec<(usize, Refusal)>,
    /// Queue pairs with a request or a response that is written without its end.
    halves: Vec<u32>,
    /// The positions that the domain was last told: read, and done.
    told: (u64, u64),
    /// The end of the link that stands for the far domain has been given back.
    peer_left: bool,
    /// The rule that the domain broke, if it broke one.
    pub(crate) broken: Option<&'static str>,
}

impl Port {
    /// A link in `memory`, all zero, to a domain that `domain` wakes; `carrier` wakes the thread
    /// that serves the port. Pass [`Port::link`] to `QpControl::attach`.
    ///
    /// # Errors
    /// As for [`LinkShared::new`].
    pub fn over(
        memory: Mapping,
        domain: Option<Notifier>,
        carrier: Option<Notifier>,
    ) -> Result<Port, SetupError> {
        let (far, near) = LinkShared::pair(memory)?;
        Ok(Port::new(far.with_notifier(carrier), near.with_notifier(domain)))
    }

    /// `far` goes to the domain, `near` stays here.
    pub(crate) fn new(far: LinkShared, near: LinkShared) -> Port {
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
            silent_since: None,
            silent: Vec::new(),
            refused: Vec::new(),
            halves: Vec::new(),
            told: (0, 0),
            peer_left: false,
            broken: None,
        }
    }

    /// The domain's end of the link.
    pub fn link(&self) -> &Arc<LinkShared> {
        &self.far
    }

    /// The rule that the domain broke, if it broke one: then nothing more is read.
    pub fn broken(&self) -> Option<&'static str> {
        self.broken
    }

    /// True if the domain has published a record that was not read.
    pub fn has_record(&mut self) -> bool {
        has_more(&mut self.link.rx, &mut self.broken)
    }

    /// Reads the next record that the domain has published. The caller passes its span to
    /// [`Port::note_read`] or [`Port::refuse_read`].
    pub fn next_record(&mut self) -> Option<(Span, Record)> {
        if !self.has_record() {
            return None;
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
        self.link.rx.fetch_into(header, &mut payload);
        let imm = self.link.rx.immediate(header);
        let at = self.link.rx.at;
        self.link.rx.consume(header);
        let span = Span { at, end: self.link.rx.at, qp: header.qp() };
        Some((span, Record { header, imm, payload: payload.into() }))
    }

    /// True if the domain has published a response that was not read.
    pub fn has_response(&mut self) -> bool {
        has_more(&mut self.link.responses.rx, &mut self.broken)
    }

    /// Reads the next response, or piece of one, that the domain has published. It waits for
    /// nothing, and the far domain takes it whenever that polls. A carrier that has no space for
    /// more reads no more.
    pub fn next_response(&mut self) -> Option<Record> {
        while self.has_response() {
            let rx = &mut self.link.responses.rx;
            match rx.header() {
                Some(Header::JUMP) if rx.jump() => {}
                Some(header) if header.kind() == KIND_RESPONSE => {
                    let mut payload = vec![0u8; header.length() as usize];
                    rx.fetch_into(header, &mut payload);
                    rx.consume(header);
                    return Some(Record { header, imm: 0, payload: payload.into() });
                }
                _ => self.broken = Some("no response, where responses go"),
            }
        }
        None
    }

    /// Writes a response, or a piece of one, to the domain, not yet visible. False: there is no
    /// space before the domain polls.
    pub fn write_response(&mut self, record: &Record) -> bool {
        let has_space = self.link.responses.has_space(record.header.record());
        if has_space {
            self.link.responses.tx.put_bytes(record.header, record.imm, &record.payload);
        }
        has_space
    }

    /// Bytes of the domain's ring that were read and are not done. The domain may write there
    /// again, so a carrier that keeps records stops reading at a limit of its own.
    pub fn outstanding(&self) -> u64 {
        self.link.rx.at - self.read.front().map_or(self.link.rx.at, |read| read.span.at)
    }

    /// Notes a record that was just read; one that goes nowhere is done at once.
    pub fn note_read(&mut self, span: Span, way: Option<Way>) {
        let stand = if way.is_some() { Stand::Waiting } else { Stand::Done };
        self.read.push_back(Read { span, way, stand });
    }

    /// Refuses a record that was just read: its connection carries nothing more.
    pub fn refuse_read(&mut self, span: Span, status: Status) {
        self.read.push_back(Read { span, way: None, stand: Stand::Refused });
        self.let_refuse(Refusal { at: span.at, qp: span.qp, status });
    }

    /// The far domain has taken the oldest `count` waiting records of a connection.
    pub fn done(&mut self, conn: usize, count: u32) {
        for read in self.waiting(conn).take(count as usize) {
            read.stand = Stand::Done;
        }
    }

    /// Record `way` is refused: tells the domain, and drops the rest of that connection.
    pub fn refuse(&mut self, way: Way, status: Status) {
        let mut refusal = None;
        for read in self.waiting(way.conn) {
            if refusal.is_none() && read.way == Some(way) {
                read.stand = Stand::Refused;
                refusal = Some(Refusal { at: read.span.at, qp: read.span.qp, status });
            } else {
                read.stand = Stand::Done;
            }
        }
        if let Some(refusal) = refusal {
            self.let_refuse(refusal);
        }
    }

    /// Records of a connection that its far domain has not taken.
    fn waiting(&mut self, conn: usize) -> impl Iterator<Item = &mut Read> {
        let of = move |read: &Read| read.way.is_some_and(|way| way.conn == conn);
        self.read.iter_mut().filter(move |read| of(read) && read.stand == Stand::Waiting)
    }

    fn let_refuse(&mut self, refusal: Refusal) {
        self.refusals.push_back(refusal);
        if self.refusals.len() == 1 {
            self.show_refusal();
        }
    }

    /// Both queue pairs of a connection are gone: nobody waits for its records any more.
    pub fn forget(&mut self, conn: usize) {
        self.waiting(conn).for_each(|read| read.stand = Stand::Done);
        self.refused.retain(|(refused, _)| *refused != conn);
    }

    fn show_refusal(&mut self) {
        if let Some(refusal) = self.refusals.front() {
            self.refusal_number = self.refusal_number.wrapping_add(1);
            self.link.rx.write_refusal(self.refusal_number, *refusal);
        }
    }

    /// Finds out how far the far domain has taken this domain's records.
    pub fn settle(&mut self) {
        if let Some(refusal) = self.refusals.front()
            && self.link.tx.refusals.settled() == self.refusal_number
        {
            let at = refusal.at;
            if let Some(read) = self.read.iter_mut().find(|read| read.span.at == at) {
                read.stand = Stand::Done;
            }
            self.refusals.pop_front();
            self.show_refusal();
        }
        while let Some(read) = self.read.front()
            && read.stand == Stand::Done
        {
            self.safe = read.span.end;
            self.read.pop_front();
        }
        if self.read.is_empty() {
            // There may be a jump behind the last record.
            self.safe = self.link.rx.at;
        }
    }

    /// Tells the domain how far its records were read, and how far they were taken.
    pub fn tell(&mut self) {
        self.settle();
        // Telling wakes a sleeping domain, so tell only news.
        let now = (self.link.rx.at, self.safe);
        if core::mem::replace(&mut self.told, now) != now {
            self.link.rx.write_ack(self.safe);
        }
        self.link.responses.give_back();
    }

    /// Writes a record to the domain's ring, not yet visible unless it uses the slot. False: there
    /// is no space. Without `way`, nobody hears what the domain reports about it.
    pub fn write(&mut self, record: &Record, way: Option<Way>, asking: Asking) -> bool {
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
            self.link.tx.publish_bytes_in_slot(header, &record.payload, self.safe);
        } else {
            self.link.tx.put_bytes(header, record.imm, &record.payload);
        }
        let (end, asks) = (self.link.tx.at, record.asks());
        self.written.push_back(Written { at, end, way, urged: None, asks });
        self.halves.retain(|qp| *qp != header.qp());
        if !record.is_last() {
            self.halves.push(header.qp());
        }
        match asking {
            Asking::Amid => {}
            Asking::Now => self.note_asked(),
            Asking::Later { now } => {
                self.silent_since = Some(now);
                self.silent.extend(way.map(|way| (header.qp(), way.conn)));
            }
        }
        true
    }

    /// Publishes what was written.
    pub fn publish(&mut self) {
        if self.link.tx.unpublished() > 0 {
            self.link.tx.publish(self.safe);
        }
        self.link.responses.publish();
    }

    /// The next report of the domain about the records written to it.
    pub fn next_taking(&mut self) -> Option<Taking> {
        while !self.written.is_empty() {
            self.link.note_ack(self.link.rx.peer_ack());
            if let Some(refusal) = self.link.look_at_taken() {
                self.link.settle_refusal();
                let found = self.written.iter().find(|written| written.at == refusal.at);
                let Some(&Written { way, urged, .. }) = found else {
                    self.broken = Some("a refusal of a record that is not outstanding");
                    return None;
                };
                let Some(way) = way else {
                    self.refused.extend(urged.map(|conn| (conn, refusal)));
                    continue;
                };
                return Some(Taking::Refused { way, status: refusal.status });
            }
            let first = self.written.front()?;
            if self.link.acked() < first.end {
                return None;
            }
            let taken = self.written.pop_front();
            if let Some(Written { at, way: Some(way), asks, .. }) = taken {
                let is_after =
                    |(conn, refusal): &&(usize, Refusal)| *conn == way.conn && refusal.at < at;
                return Some(match self.refused.iter().find(is_after) {
                    Some((_, refusal)) => Taking::Refused { way, status: refusal.status },
                    None => Taking::Taken { way, asks },
                });
            }
        }
        self.note_asked();
        None
    }

    fn note_asked(&mut self) {
        self.silent_since = None;
        self.silent.clear();
    }

    /// Since when the domain may be silent about what it has taken, after [`Asking::Later`].
    pub fn silent_since(&self) -> Option<u64> {
        self.silent_since
    }

    /// Asks the domain how far it has read, if it may be asked now; if not, [`Port::silent_since`]
    /// is `now`. The question goes to a queue pair with a silent record, and between two requests.
    pub fn urge(&mut self, now: u64) {
        let whole = |(qp, _): &(u32, usize)| !self.halves.contains(qp);
        let silent = self.silent.iter().copied().find(whole);
        let asked = silent.is_some_and(|(qp, _)| self.write(&Record::urge(qp), None, Asking::Now));
        if let (true, Some((_, conn)), Some(urge)) = (asked, silent, self.written.back_mut()) {
            urge.urged = Some(conn);
        }
        if !asked {
            self.urge_later(now);
        }
    }

    /// The domain cannot be asked now: [`Port::silent_since`] is `now`.
    pub fn urge_later(&mut self, now: u64) {
        self.silent_since = Some(now);
    }

    /// Announces that the thread that serves the port is about to sleep: from here on the domain
    /// wakes it. The caller looks once more before it sleeps. `barrier` is
    /// [`crate::Host::barrier`].
    pub fn fall_asleep(&self, barrier: fn()) {
        self.near.set_asleep(true);
        before_last_look(barrier);
    }

    /// Announces that the thread is awake.
    pub fn wake_up(&self) {
        self.near.set_asleep(false);
    }

    /// True when the domain's queue pair has left the link, which had one connection. The domain
    /// goes on refusing records for it.
    pub fn domain_has_left(&self) -> bool {
        self.near.users() <= u32::from(!self.peer_left)
    }

    /// True when both sides have left: the port has nothing more to do.
    pub fn is_over(&self) -> bool {
        self.near.users() == 0
    }

    /// The far domain has left the link. May be called more than once.
    pub fn peer_has_left(&mut self) {
        if !core::mem::replace(&mut self.peer_left, true) {
            self.near.release_end();
        }
    }
}

impl Drop for Port {
    /// Nothing comes any more: the link ends when its domain leaves it.
    fn drop(&mut self) {
        self.far.peer_gone();
    }
}

/// True if a direction has a record that was not read.
fn has_more(rx: &mut Rx, broken: &mut Option<&'static str>) -> bool {
    if broken.is_none() && rx.caught_up() && rx.look() && !rx.advance() {
        *broken = Some("a tail that no sender writes");
    }
    broken.is_none() && !rx.caught_up()
}
