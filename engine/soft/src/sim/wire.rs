//! The wire: ports, connections, and the network between them, driven by a clock of the caller.

mod conn;
mod event;
mod responses;

use std_alloc::collections::VecDeque;
use std_alloc::vec::Vec;

use doorbell_alloc::Mapping;

pub use self::event::Event;

use self::conn::{Conn, Flows, Lane, Line, open_to};
use super::super::wire::{Asking, Port, Psn, Record, Taking, Way};
use super::flow::{Ack, Got, Patience, Sender};
use super::mistake::{self, Mistake};
use super::net::{Fate, Net, Weather};
use super::prng::Prng;
use super::relay::{Datagram, Relay};
use crate::error::SetupError;
use crate::shm::layout::LINK_BYTES;
use crate::wc::Status;
use crate::{LinkShared, QpControl, Wiring};

/// A packet, or an acknowledgement.
#[derive(Clone)]
enum Word {
    Data { psn: Psn, record: Record },
    Ack(Ack),
}

#[derive(Clone)]
enum Packet {
    /// For one side of a connection.
    Flow { conn: usize, to: usize, lane: Lane, word: Word },
    /// For a datagram.
    Datagram { relay: usize, datagram: Datagram },
}

/// See the module.
pub struct Wire {
    now: u64,
    prng: Prng,
    patience: Patience,
    net: Net<Packet>,
    lines: Vec<Line>,
    conns: Vec<Conn>,
    /// The open ones, in the order of their numbers.
    open: Vec<usize>,
    relays: Vec<Relay>,
    last_sender: u32,
    events: Vec<(u64, Event)>,
    mistake: Option<Mistake>,
    /// How often a message does not ask its domain for an acknowledgement at once, in 1024.
    silent: u32,
    /// After this many nanoseconds such a domain is asked how far it has read.
    urge_ns: u64,
    memory: Memory,
}

/// Allocates zeroed memory of that many bytes for a link. The caller provides it, because it has a
/// system.
pub type Memory = fn(usize) -> Result<Mapping, SetupError>;

impl Wire {
    /// A wire at time 0. `prng` is the source of everything random.
    pub fn new(mut prng: Prng, weather: Weather, patience: Patience, memory: Memory) -> Wire {
        let net = Net::new(weather, prng.fork());
        let (silent, urge_ns) = (prng.pick(&[200, 900, 1024]), prng.range(1000, 20_000));
        Wire {
            now: 0,
            prng,
            patience,
            net,
            lines: Vec::new(),
            conns: Vec::new(),
            open: Vec::new(),
            relays: Vec::new(),
            last_sender: 0,
            events: Vec::new(),
            mistake: None,
            silent,
            urge_ns,
            memory,
        }
    }

    /// From now on the wire makes that mistake wherever it can.
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    /// Carries the datagrams that are put into a relay; returns the number by which events name it.
    pub fn relay(&mut self, relay: Relay) -> usize {
        self.relays.push(relay);
        self.relays.len() - 1
    }

    /// The network's faults, to change them.
    pub fn weather(&mut self) -> &mut Weather {
        self.net.weather()
    }

    /// Connects two queue pairs in INIT, of different devices, and returns the connection's number.
    /// It fills in `wirings[n].peer`. Side 1's queue pair goes to RTS at once, side 0's with
    /// [`Wire::start`].
    ///
    /// # Errors
    /// No memory for a link.
    pub fn connect(
        &mut self,
        ends: [&QpControl; 2],
        wirings: [Wiring; 2],
    ) -> Result<usize, SetupError> {
        let line = self.line(ends)?;
        let nums = [ends[0].num(), ends[1].num()];
        let mut first = || match self.prng.below(2) {
            0 => Psn::new(self.prng.word() as u32),
            // Soon past 2^24.
            _ => Psn::new(0x0100_0000 - self.prng.range(1, 100) as u32),
        };
        let [requests, responses] = [(); 2].map(|()| Flows::new([first(), first()]));
        self.conns.push(Conn {
            line,
            nums,
            requests,
            responses,
            asks: [0; 2],
            owed: [const { VecDeque::new() }; 2],
            exhausted: [false; 2],
            cut_until: 0,
        });
        self.open.push(self.conns.len() - 1);
        let wiring = Wiring { peer: nums[0], ..wirings[1] };
        ends[1].connect(&self.lines[line].ports[1].far, wiring);
        Ok(self.conns.len() - 1)
    }

    /// Brings the queue pair of side 0 to RTS: the passive side was first.
    pub fn start(&mut self, conn: usize, end: &QpControl, wiring: Wiring) {
        let Some(Conn { line, nums, .. }) = self.conns.get(conn) else { return };
        end.connect(&self.lines[*line].ports[0].far, Wiring { peer: nums[1], ..wiring });
    }

    /// Both queue pairs are gone, or will be without sending more: gives back their ends of the
    /// line.
    pub fn close(&mut self, conn: usize) {
        let (Some(known), Ok(at)) = (self.conns.get_mut(conn), self.open.binary_search(&conn))
        else {
            return;
        };
        self.open.remove(at);
        for side in 0..2 {
            known.requests.senders[side].dead = true;
            known.responses.senders[side].dead = true;
            let port = &mut self.lines[known.line].ports[side];
            port.forget(conn);
            port.near.release_end();
        }
    }

    /// Until that time nothing of a connection arrives, in either direction.
    pub fn cut(&mut self, conn: usize, until: u64) {
        if let Some(conn) = self.conns.get_mut(conn) {
            conn.cut_until = until;
        }
    }

    /// The time of the next event that happens by itself.
    pub fn next_at(&self) -> Option<u64> {
        let timer = self.next_timer().map(|(at, ..)| at);
        let silence = self.next_silence().map(|(at, ..)| at);
        [timer, silence, self.net.next_at()].into_iter().flatten().min()
    }

    /// Advances to that time: reads what the domains wrote, moves packets, runs timers, and writes
    /// what arrived to the domains.
    pub fn advance(&mut self, now: u64) {
        self.exchange();
        while self.happen(now) {}
        self.now = now.max(self.now);
        self.exchange();
    }

    /// Lets the next event happen, if it is due by `until`. A packet comes before a timer that is
    /// due at the same time, and a timer before a domain's silence. False: no event is due.
    fn happen(&mut self, until: u64) -> bool {
        let (timer, silence) = (self.next_timer(), self.next_silence());
        let by_itself = [timer.map(|(at, ..)| at), silence.map(|(at, ..)| at)];
        let by_itself = by_itself.into_iter().flatten().min();
        let packet = self.net.next_at().filter(|at| by_itself.is_none_or(|other| *at <= other));
        let Some(at) = packet.or(by_itself).filter(|at| *at <= until) else { return false };
        self.now = at.max(self.now);
        if packet.is_some() {
            if let Some(packet) = self.net.take() {
                self.arrive(packet);
            }
        } else if let Some((_, conn, from, lane)) = timer.filter(|timer| timer.0 == at) {
            self.time_out(conn, from, lane);
        } else if let Some((_, line, side)) = silence {
            self.urge(line, side);
        }
        true
    }

    /// The events since the last call, with their times.
    pub fn events(&mut self) -> Vec<(u64, Event)> {
        core::mem::take(&mut self.events)
    }

    /// The rule that a domain broke, if one did.
    pub fn broken(&self) -> Option<&'static str> {
        self.lines.iter().flat_map(|line| &line.ports).find_map(|port| port.broken)
    }

    fn is_open(&self, conn: usize) -> bool {
        self.open.binary_search(&conn).is_ok()
    }

    fn open_conns(&self) -> impl Iterator<Item = (usize, &Conn)> {
        self.open.iter().map(|number| (*number, &self.conns[*number]))
    }

    /// The first timer to end, with its connection, sending side and lane. Every packet that
    /// arrives asks for it, so it is a plain loop.
    fn next_timer(&self) -> Option<(u64, usize, usize, Lane)> {
        let mut next: Option<(u64, usize, usize, Lane)> = None;
        for (number, conn) in self.open_conns() {
            for (flows, lane) in
                [(&conn.requests, Lane::Requests), (&conn.responses, Lane::Responses)]
            {
                for (side, sender) in flows.senders.iter().enumerate() {
                    if let Some(at) = sender.deadline()
                        && next.is_none_or(|(first, ..)| at < first)
                    {
                        next = Some((at, number, side, lane));
                    }
                }
            }
        }
        next
    }

    /// The first domain to be asked how far it has read: when, its line and its side.
    fn next_silence(&self) -> Option<(u64, usize, usize)> {
        let mut next: Option<(u64, usize, usize)> = None;
        for (number, line) in self.lines.iter().enumerate() {
            for (side, port) in line.ports.iter().enumerate() {
                if let Some(since) = port.silent_since()
                    && next.is_none_or(|(first, ..)| since + self.urge_ns < first)
                {
                    next = Some((since + self.urge_ns, number, side));
                }
            }
        }
        next
    }

    /// Asks a domain how far it has read; asks later if there is no space, or a message has begun
    /// there.
    fn urge(&mut self, line: usize, side: usize) {
        let free = self.is_free(line, 1 - side, None);
        let (now, port) = (self.now, &mut self.lines[line].ports[side]);
        match free {
            true => port.urge(now),
            false => port.urge_later(now),
        }
    }

    /// The line between two domains' receive queues: an existing one, or a new one.
    fn line(&mut self, ends: [&QpControl; 2]) -> Result<usize, SetupError> {
        let places = [ends[0].place(), ends[1].place()];
        for (index, line) in self.lines.iter().enumerate() {
            if line.places != places {
                continue;
            }
            let [one, two] = &line.ports;
            if one.near.acquire() {
                if two.near.acquire() {
                    return Ok(index);
                }
                one.near.release_end();
                one.near.release_end();
            }
        }
        let ports = [self.port()?, self.port()?];
        for (end, port) in ends.into_iter().zip(&ports) {
            end.attach(&port.far);
        }
        self.lines.push(Line { places, ports, amid: [None; 2] });
        Ok(self.lines.len() - 1)
    }

    fn port(&self) -> Result<Port, SetupError> {
        let (far, near) = LinkShared::pair((self.memory)(LINK_BYTES)?)?;
        Ok(Port::new(far, near))
    }

    /// Does all work between ports and domains that takes no virtual time.
    fn exchange(&mut self) {
        for line in 0..self.lines.len() {
            for side in 0..2 {
                self.hear_domain(line, side);
                self.read_domain(line, side);
                self.read_responses(line, side);
            }
        }
        for relay in 0..self.relays.len() {
            self.read_relay(relay);
        }
        for line in &mut self.lines {
            line.ports.iter_mut().for_each(Port::settle);
        }
        for at in 0..self.open.len() {
            let conn = self.open[at];
            for from in 0..2 {
                self.write_domain(conn, from);
                self.write_responses(conn, from);
            }
        }
        for line in 0..self.lines.len() {
            for side in 0..2 {
                self.lines[line].ports[side].publish();
                self.lines[line].ports[side].tell();
            }
        }
    }

    /// Tells the senders what the domain on that side reports about its records.
    fn hear_domain(&mut self, line: usize, side: usize) {
        let from = 1 - side;
        while let Some(taking) = self.lines[line].ports[side].next_taking() {
            let (Taking::Taken { way, .. } | Taking::Refused { way, .. }) = taking;
            let Way { conn, psn } = way;
            let receiver = &mut self.conns[conn].requests.receivers[from];
            match taking {
                Taking::Taken { asks, .. } => {
                    let (answers, news) = (asks && receiver.serves(psn), receiver.take(psn));
                    self.conns[conn].asks[from] += i32::from(answers);
                    if !news {
                        continue;
                    }
                    self.events.push((self.now, Event::Taken { conn, from, psn: psn.number() }));
                }
                Taking::Refused { status, .. } => {
                    let status = status as u8;
                    receiver.refuse(psn, status);
                    let psn = psn.number();
                    self.events.push((self.now, Event::Refused { conn, from, psn, status }));
                }
            }
            let ack = self.conns[conn].requests.receivers[from].ack(false);
            self.send(conn, from, Lane::Requests, Word::Ack(ack));
        }
    }

    /// Reads the records that the domain on that side wrote, as far as the window allows, and sends
    /// them.
    fn read_domain(&mut self, line: usize, side: usize) {
        while self.lines[line].ports[side].has_record()
            && self.flying(line, side, |conn| &conn.requests) < self.patience.window
        {
            let port = &mut self.lines[line].ports[side];
            let Some((span, record)) = port.next_record() else { return };
            let Some(number) = open_to(&self.conns, &self.open, line, side, record.qp()) else {
                port.note_read(span, None);
                continue;
            };
            let conn = &mut self.conns[number];
            let sender = &mut conn.requests.senders[side];
            if sender.dead {
                match conn.exhausted[side] {
                    true => port.refuse_read(span, Status::RetryExceeded),
                    false => port.note_read(span, None),
                }
                continue;
            }
            let psn = sender.push(record.clone(), self.now, &self.patience);
            port.note_read(span, Some(Way { conn: number, psn }));
            self.send(number, 1 - side, Lane::Requests, Word::Data { psn, record });
        }
    }

    /// Sends the datagrams that were put into a relay.
    fn read_relay(&mut self, relay: usize) {
        while let Some(datagram) = self.relays[relay].take() {
            let (from, length) = (datagram.stamp.from, datagram.stamp.length);
            let fate = self.net.send(self.now, Packet::Datagram { relay, datagram });
            let copies = fate.copies();
            self.events.push((self.now, Event::Datagram { relay, from, length, copies }));
        }
    }

    /// Packets on the way from that side of a line, in those flows.
    fn flying(&self, line: usize, side: usize, flows: fn(&Conn) -> &Flows) -> usize {
        let conns = self.open_conns().filter(|(_, conn)| conn.line == line);
        let senders = conns.map(|(_, conn)| &flows(conn).senders[side]);
        senders.filter(|sender| !sender.dead).map(Sender::flying).sum()
    }

    /// Writes the records that have arrived to their domain, as far as the ring has space.
    fn write_domain(&mut self, number: usize, from: usize) {
        if self.conns[number].requests.receivers[from].ready.is_empty()
            || !self.may_write(number, from)
        {
            return;
        }
        let conn = &mut self.conns[number];
        let Line { ports, amid, .. } = &mut self.lines[conn.line];
        let (port, amid) = (&mut ports[1 - from], &mut amid[1 - from]);
        if self.mistake == Some(Mistake::LateWrite) {
            mistake::overtake(&mut conn.requests.receivers[from]);
        }
        let ready = &mut conn.requests.receivers[from].ready;
        while let Some((psn, record)) = ready.front() {
            // The last one asks, or the domain is asked later, so it always reports in the end.
            let asking = match ready.len() {
                1 if record.is_whole_message() && self.prng.chance(self.silent) => {
                    Asking::Later { now: self.now }
                }
                1 => Asking::Now,
                _ => Asking::Amid,
            };
            if !port.write(record, psn.map(|psn| Way { conn: number, psn }), asking) {
                return;
            }
            if record.asks() {
                conn.owed[from].push_back(psn.is_none());
            }
            if record.is_message() {
                *amid = (!record.is_last()).then_some(number);
            }
            ready.pop_front();
        }
    }

    /// False in the middle of another connection's message. On one link the pieces of a message
    /// follow each other, so that no message that waits for a receive stands between the pieces of
    /// one that has taken the last receive.
    fn may_write(&self, number: usize, from: usize) -> bool {
        self.is_free(self.conns[number].line, from, Some(number))
    }

    /// The same for a record of that connection, or of none, on that line.
    fn is_free(&self, line: usize, from: usize, number: Option<usize>) -> bool {
        let Some(amid) = self.lines[line].amid[1 - from] else { return true };
        let other = &self.conns[amid];
        let Flows { senders, receivers } = &other.requests;
        let over = !self.is_open(amid) || senders[from].dead || receivers[from].has_refused();
        Some(amid) == number || over
    }

    /// Sends a packet to a side, if the network lets it through.
    fn send(&mut self, conn: usize, to: usize, lane: Lane, word: Word) {
        let cut = self.now < self.conns[conn].cut_until;
        let data = match &word {
            Word::Data { psn, .. } => Some(psn.number()),
            Word::Ack(_) => None,
        };
        let packet = Packet::Flow { conn, to, lane, word };
        let fate = if cut { Fate::Lost } else { self.net.send(self.now, packet) };
        if let Some(psn) = data {
            let copies = fate.copies();
            self.events.push((self.now, Event::Sent { conn, from: 1 - to, psn, copies }));
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let (conn, to, lane, word) = match packet {
            Packet::Flow { conn, to, lane, word } => (conn, to, lane, word),
            Packet::Datagram { relay, datagram } => return self.deliver(relay, datagram),
        };
        if !self.is_open(conn) || self.now < self.conns[conn].cut_until {
            return;
        }
        match word {
            Word::Data { psn, record } => {
                let from = 1 - to;
                let replay = self.mistake == Some(Mistake::ReplayedAtomic) && record.is_atomic();
                let again = replay.then(|| record.clone());
                let receiver = &mut self.conns[conn].flows(lane).receivers[from];
                let (got, ack) = receiver.data(psn, record, &self.patience);
                let new = got == Got::New;
                if let (Got::Old, None, Some(again)) = (got, ack.refused, again) {
                    receiver.ready.push_back((None, again));
                }
                let psn = psn.number();
                self.events.push((self.now, Event::Arrived { conn, from, psn, new }));
                self.send(conn, from, lane, Word::Ack(ack));
            }
            Word::Ack(ack) => self.hear_peer(conn, to, lane, &ack),
        }
    }

    /// Handles a datagram that has arrived.
    fn deliver(&mut self, relay: usize, mut datagram: Datagram) {
        let Datagram { stamp, payload } = &mut datagram;
        let last = core::mem::replace(&mut self.last_sender, stamp.from);
        match self.mistake {
            Some(Mistake::ShortDatagram) => *payload = payload[..payload.len() / 2].into(),
            Some(Mistake::WrongSender) if last != 0 => stamp.from = last,
            _ => {}
        }
        self.relays[relay].put(&datagram);
    }

    /// Handles an acknowledgement for what `side` sent.
    fn hear_peer(&mut self, number: usize, side: usize, lane: Lane, ack: &Ack) {
        let conn = &mut self.conns[number];
        let sender = &mut conn.flows(lane).senders[side];
        let heard = sender.hear(ack, self.now, &self.patience);
        let oldest = sender.oldest();
        if lane == Lane::Requests {
            let port = &mut self.lines[conn.line].ports[side];
            port.done(number, heard.taken);
            if let Some(status) = heard.refused {
                let way = Way { conn: number, psn: oldest };
                port.refuse(way, Status::from_raw(status.into()));
            }
        }
        if heard.resend {
            self.send_again(number, side, lane);
        }
    }

    fn send_again(&mut self, conn: usize, side: usize, lane: Lane) {
        let again = self.conns[conn].flows(lane).senders[side].again();
        let mut again: Vec<_> = again.map(|(psn, record)| (psn, record.clone())).collect();
        if self.mistake == Some(Mistake::StaleRead) {
            mistake::stale(&mut again);
        }
        for (psn, record) in again {
            self.send(conn, 1 - side, lane, Word::Data { psn, record });
        }
    }

    fn time_out(&mut self, number: usize, from: usize, lane: Lane) {
        let conn = &mut self.conns[number];
        let sender = &mut conn.flows(lane).senders[from];
        if sender.time_out(self.now, &self.patience) {
            self.events.push((self.now, Event::TimedOut { conn: number, from }));
            return self.send_again(number, from, lane);
        }
        let oldest = sender.oldest();
        self.events.push((self.now, Event::Exhausted { conn: number, from }));
        if lane == Lane::Responses {
            // The queue pair that asked fails, see `write_responses`.
            return;
        }
        conn.exhausted[from] = true;
        let way = Way { conn: number, psn: oldest };
        self.lines[conn.line].ports[from].refuse(way, Status::RetryExceeded);
    }
}
