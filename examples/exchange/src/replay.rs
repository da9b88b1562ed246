//! Replays a capture at its recorded times, or faster: datagrams of the feed on the lines, and
//! orders to an exchange, each user's by a connection of its own.

use std::collections::BTreeSet;

use doorbell::prelude::*;
use doorbell::worker::DestinationId;

use crate::capture::{Kind, Packet};
use crate::latency::Latency;
use crate::wire::{Channel, Digest, Login};

/// What a replay has done.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Datagrams and orders that went out, and datagrams that found no room.
    pub sent: u64,
    /// See `sent`.
    pub unsent: u64,
    /// By how much they went out late.
    pub late: Latency,
    /// What the exchange said of its books at the end, if there were orders.
    pub digest: Option<Digest>,
    /// All packets went out, and the exchange has taken all orders.
    pub whole: bool,
}

/// Nanoseconds after which a digest that has not come is asked for again: the exchange drops one
/// that it has no room for.
const AGAIN: u64 = 50_000_000;

/// A user of the capture.
struct User {
    number: u32,
    peer: Option<PeerId>,
    /// It has asked for the digest, and has got it.
    asked: bool,
    told: bool,
}

/// See the module.
pub struct Replay {
    packets: Vec<Packet>,
    next: usize,
    speed: f64,
    lines: Vec<DestinationId>,
    users: Vec<User>,
    welcomes: usize,
    began: Option<u64>,
    clock: fn() -> u64,
    message: Vec<u8>,
    replayed: Replayed,
    stop: Stop,
}

impl Replay {
    /// Replays these packets, `speed` times as fast as they came. `clock`: in nanoseconds.
    pub fn new(packets: Vec<Packet>, speed: f64, clock: fn() -> u64, stop: Stop) -> Replay {
        let users: BTreeSet<u32> = packets.iter().filter_map(user_of).collect();
        Replay {
            packets,
            next: 0,
            speed,
            lines: Vec::new(),
            users: users
                .into_iter()
                .map(|number| User { number, peer: None, asked: false, told: false })
                .collect(),
            welcomes: 0,
            began: None,
            clock,
            message: Vec::new(),
            replayed: Replayed::default(),
            stop,
        }
    }

    /// Publishes on these lines.
    pub fn publish_on(&mut self, lines: Vec<DestinationId>) {
        self.lines = lines;
    }

    /// Connections to the exchange that it needs.
    pub fn users(&self) -> usize {
        self.users.len()
    }

    /// What it has done.
    pub fn replayed(&self) -> &Replayed {
        &self.replayed
    }

    /// Sends what is due.
    fn send<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        if self.welcomes < self.users.len() {
            return;
        }
        let now = (self.clock)();
        let began = *self.began.get_or_insert(now);
        let first = self.packets.first().map_or(0, |packet| packet.time);
        while let Some(packet) = self.packets.get(self.next) {
            let after = packet.time.saturating_sub(first) as f64 / self.speed;
            let due = began.saturating_add(after as u64);
            let now = (self.clock)();
            if now < due {
                return;
            }
            match packet.kind {
                Kind::Feed(line) => {
                    let to = self.lines.get(usize::from(line));
                    let sent = to.is_some_and(|to| {
                        out.send_to(*to, &packet.payload, Some(line.into())).is_ok()
                    });
                    if !sent {
                        self.replayed.unsent += 1;
                        self.next += 1;
                        continue;
                    }
                }
                Kind::Order(user) => {
                    let known = self.users.iter().find(|known| known.number == user);
                    let Some(peer) = known.and_then(|known| known.peer) else { return };
                    Channel::Orders.begin(&mut self.message);
                    self.message.extend_from_slice(&packet.payload);
                    if out.send_now(peer, &self.message).is_err() {
                        return;
                    }
                }
            }
            self.replayed.late.record(now - due);
            self.replayed.sent += 1;
            self.next += 1;
        }
        self.end(out);
    }

    /// All packets have gone out. Each user asks for the digest: its answer comes when the exchange
    /// has taken all orders.
    fn end<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        Channel::Digest.begin(&mut self.message);
        for User { peer, asked, .. } in &mut self.users {
            if let Some(peer) = peer.filter(|_| !*asked) {
                *asked = out.send(peer, &self.message).is_ok();
            }
        }
        self.replayed.whole = self.users.iter().all(|user| user.told);
        if self.replayed.whole {
            self.stop.stop();
        }
    }
}

/// The user of an order.
fn user_of(packet: &Packet) -> Option<u32> {
    match packet.kind {
        Kind::Order(user) => Some(user),
        Kind::Feed(_) => None,
    }
}

impl<P: Provider> Handler<P> for Replay {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let Some(user) = self.users.iter_mut().find(|user| user.peer.is_none()) else { return };
        user.peer = Some(peer);
        Channel::Login.begin(&mut self.message);
        Login { user: user.number, answers: 0 }.write(&mut self.message);
        out.set_timer(out.now() + AGAIN, 0);
        if out.send(peer, &self.message).is_err() {
            self.stop.stop();
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match Channel::split(message.bytes()) {
            Some((Channel::Login, _)) => self.welcomes += 1,
            Some((Channel::Digest, bytes)) => {
                self.replayed.digest = Digest::read(bytes);
                let known = self.users.iter_mut().find(|user| user.peer == Some(message.peer()));
                known.into_iter().for_each(|user| user.told = true);
            }
            _ => {}
        }
        self.send(out);
        Verdict::Done
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        self.users.iter_mut().for_each(|user| user.asked = false);
        out.set_timer(out.now() + AGAIN, 0);
        self.send(out);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.send(out);
    }

    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}
