//! The exchange's handler: orders come in by RC, market data goes out by UD on two lines.
//!
//! A message that is damaged ends the connection of its sender, and of nobody else. The orders of a
//! user whose connection ends are canceled.

use std::collections::{HashMap, VecDeque};

use doorbell::prelude::*;
use doorbell::worker::{DestinationId, SendError};

use crate::engine::{Engine, Output};
use crate::feed::Publisher;
use crate::field::Symbol;
use crate::itch;
use crate::mold::Head;
use crate::ouch::{Answer, Request};
use crate::wire::{Channel, Digest, SESSION, symbols};

/// Nanoseconds between two heartbeats of the feed.
const HEARTBEAT: u64 = 5_000_000;

/// Messages that may wait for a user; one more ends the connection.
const WAITING_MAX: usize = 1 << 14;

/// Bytes of the longest packet on a line.
pub const PACKET_MAX: u32 = 1024;

/// Bytes of the longest packet that answers a request: less than a block of the default.
const RECOVERY_MAX: usize = 4000;

/// What the exchange has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of users.
    pub requests: u64,
    /// Damaged messages.
    pub damaged: u64,
    /// Datagrams on both lines, and those that found no room.
    pub datagrams: u64,
    /// See `datagrams`.
    pub unsent: u64,
    /// Packets that were asked for.
    pub recovered: u64,
}

/// What the engine says, on its way.
struct Desk {
    publisher: Publisher,
    answers: Vec<(u32, Answer)>,
}

impl Output for Desk {
    fn answer(&mut self, user: u32, answer: Answer) {
        self.answers.push((user, answer));
    }

    fn publish(&mut self, message: itch::Message) {
        self.publisher.push(&message);
    }
}

/// A user who is connected.
struct User {
    peer: PeerId,
    /// Messages that found no room yet.
    waiting: VecDeque<Vec<u8>>,
}

/// See the module.
pub struct Exchange {
    engine: Engine,
    symbols: Vec<Symbol>,
    desk: Desk,
    lines: Vec<DestinationId>,
    users: HashMap<u32, User>,
    /// By [`PeerId::index`].
    user_of: HashMap<usize, u32>,
    last_user: u32,
    clock: fn() -> u64,
    message: Vec<u8>,
    packet: Vec<u8>,
    counts: Counts,
}

impl Exchange {
    /// An exchange for that many securities. `clock`: nanoseconds since midnight.
    pub fn new(count: u16, clock: fn() -> u64) -> Exchange {
        let symbols = symbols(count);
        let engine = Engine::new(&symbols);
        let publisher = Publisher::new(SESSION, PACKET_MAX as usize);
        let mut desk = Desk { publisher, answers: Vec::new() };
        engine.open(clock(), &mut desk);
        Exchange {
            engine,
            symbols,
            desk,
            lines: Vec::new(),
            users: HashMap::new(),
            user_of: HashMap::new(),
            last_user: 0,
            clock,
            message: Vec::new(),
            packet: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Publishes on these lines from now on.
    pub fn publish_on(&mut self, lines: Vec<DestinationId>) {
        self.lines = lines;
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Messages of the feed.
    pub fn published(&self) -> u64 {
        self.desk.publisher.next_sequence() - 1
    }

    /// Sends the answers and the packets that the engine has made.
    fn send_all<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let mut answers = std::mem::take(&mut self.desk.answers);
        for (user, answer) in answers.drain(..) {
            Channel::Orders.begin(&mut self.message);
            answer.write(&mut self.message);
            self.send(user, out);
        }
        self.desk.answers = answers;
        while self.desk.publisher.next_packet(&mut self.packet) {
            self.publish(out);
        }
    }

    /// Sends the packet on all lines, each with its number.
    fn publish<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for (line, to) in (0..).zip(&self.lines) {
            match out.send_to(*to, &self.packet, Some(line)) {
                Ok(()) => self.counts.datagrams += 1,
                // The clients ask for it.
                Err(_) => self.counts.unsent += 1,
            }
        }
    }

    /// Sends the message to a user, inline and at once, or lets it wait.
    fn send<P: Provider>(&mut self, user: u32, out: &mut Outbox<'_, P>) {
        let Some(User { peer, waiting }) = self.users.get_mut(&user) else { return };
        if waiting.is_empty() {
            match out.send_now(*peer, &self.message) {
                Ok(()) | Err(SendError::NotConnected) => return,
                Err(_) => {}
            }
        }
        if waiting.len() == WAITING_MAX {
            return out.close(*peer);
        }
        waiting.push_back(self.message.clone());
    }

    /// Sends what waits, as far as there is room.
    fn send_waiting<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for User { peer, waiting } in self.users.values_mut() {
            while let Some(message) = waiting.front() {
                match out.send(*peer, message) {
                    Ok(()) | Err(SendError::NotConnected) => drop(waiting.pop_front()),
                    Err(_) => break,
                }
            }
        }
    }

    /// Takes a message of a user. `None`: it is damaged.
    fn take<P: Provider>(
        &mut self,
        user: u32,
        message: &[u8],
        out: &mut Outbox<'_, P>,
    ) -> Option<()> {
        match Channel::split(message)? {
            (Channel::Orders, bytes) => {
                let request = Request::read(bytes)?;
                self.counts.requests += 1;
                self.engine.request((self.clock)(), user, &request, &mut self.desk);
                self.send_all(out);
            }
            (Channel::Recovery, bytes) => {
                let request = Head::read_request(bytes)?;
                if self.desk.publisher.again(&request, RECOVERY_MAX, &mut self.packet) {
                    self.counts.recovered += 1;
                    Channel::Recovery.begin(&mut self.message);
                    self.message.extend_from_slice(&self.packet);
                    self.send(user, out);
                }
            }
            (Channel::Digest, bytes) => {
                bytes.is_empty().then_some(())?;
                let sequence = self.desk.publisher.next_sequence();
                let sum = Digest::sum(&self.symbols, |symbol, side| self.engine.book(symbol, side));
                Channel::Digest.begin(&mut self.message);
                Digest { sequence, sum }.write(&mut self.message);
                self.send(user, out);
            }
        }
        Some(())
    }
}

impl<P: Provider> Handler<P> for Exchange {
    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, P>) {
        self.last_user += 1;
        self.users.insert(self.last_user, User { peer, waiting: VecDeque::new() });
        self.user_of.insert(peer.index(), self.last_user);
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let peer = message.peer();
        let Some(user) = self.user_of.get(&peer.index()).copied() else { return Verdict::Done };
        if self.take(user, message.bytes(), out).is_none() {
            self.counts.damaged += 1;
            out.close(peer);
        }
        Verdict::Done
    }

    fn on_peer_down(&mut self, peer: PeerId, _why: DownReason, out: &mut Outbox<'_, P>) {
        let Some(user) = self.user_of.remove(&peer.index()) else { return };
        self.users.remove(&user);
        self.engine.user_gone((self.clock)(), user, &mut self.desk);
        self.send_all(out);
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        self.send_all(out);
        self.desk.publisher.heartbeat(&mut self.packet);
        self.publish(out);
        out.set_timer(out.now() + HEARTBEAT, 0);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.send_waiting(out);
    }
}
