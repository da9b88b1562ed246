//! The exchange's handler: orders come in by RC, market data goes out by UD on two lines.
//!
//! A message that is damaged ends the connection of its sender, and of nobody else. Orders stay
//! when a connection ends.
//!
//! A standby is the same program in another role. It takes the primary's log from its own memory
//! and gives it to an engine of its own, so it has the same books, answers and feed. When the
//! primary is gone it is in charge: it answers the users who wait for it, and its feed goes on with
//! the next number.

use std::io;

use doorbell::prelude::*;
use doorbell::wc::Status;
use doorbell::worker::{DestinationId, OwnRegion, Piece, RegionId, SendError};

use crate::accounts::Accounts;
use crate::capture::{Kind, Writer};
use crate::clock::since_epoch;
use crate::engine::{Engine, Output};
use crate::feed::{Again, Publisher};
use crate::field::Symbol;
use crate::itch;
use crate::log::{Log, RECORD, Record, SLOTS};
use crate::mold::Head;
use crate::ouch::{Answer, Request};
use crate::snapshot::{self, Snapshots};
use crate::wire::{Channel, Digest, GREETING, Login, LoginAnswer, SESSION, read_number, symbols};

/// Nanoseconds between two heartbeats of the feed.
const HEARTBEAT: u64 = 5_000_000;

/// Bytes of the longest packet on a line.
pub const PACKET_MAX: u32 = 1024;

/// Bytes of the longest packet that answers a request, and of a piece of a snapshot: less than a
/// block of the default.
const RECOVERY_MAX: usize = 4000;

/// Messages of the feed that are kept, unless it is said otherwise: 2.5 MB.
pub const FEED_KEPT: usize = 1 << 16;

/// Each time that a standby has taken this many records, it says how many it has taken in all.
const TELL: u64 = SLOTS / 4;

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
    /// Snapshots, and requests for messages that were gone.
    pub snapshots: u64,
    /// See `snapshots`.
    pub gone: u64,
    /// Records that came from a primary.
    pub followed: u64,
}

/// What the engine says, on its way.
struct Desk {
    publisher: Publisher,
    accounts: Accounts,
}

impl Output for Desk {
    fn answer(&mut self, user: u32, answer: Answer) {
        self.accounts.keep(user, &answer);
    }

    fn publish(&mut self, message: itch::Message) {
        self.publisher.push(&message);
    }
}

/// What a standby knows of the primary.
struct Following {
    memory: RegionId,
    primary: Option<PeerId>,
    /// Records that the primary had when it took this standby: with fewer it may not take over.
    needs: Option<u64>,
    /// To be called when it may take over.
    ready: Option<fn()>,
    told: u64,
    /// Users who wait for the takeover.
    waiting: Vec<PeerId>,
}

/// See the module.
pub struct Exchange {
    engine: Engine,
    symbols: Vec<Symbol>,
    desk: Desk,
    log: Log,
    /// Records that the engine has taken.
    applied: u64,
    /// `None`: it is in charge.
    following: Option<Following>,
    lines: Vec<DestinationId>,
    snapshots: Snapshots,
    /// Requests for messages of the feed that found no room for their answer: one of each peer.
    gaps: Vec<(PeerId, Head)>,
    /// Where it writes the orders that it takes.
    capture: Option<Writer>,
    capture_failed: Option<io::Error>,
    clock: fn() -> u64,
    message: Vec<u8>,
    packet: Vec<u8>,
    counts: Counts,
    stop: Stop,
}

impl Exchange {
    /// An exchange for that many securities. `clock`: nanoseconds since midnight. It calls `stop`
    /// if it was to take over and may not. It keeps that many messages of the feed, for those who
    /// miss some. Those who miss older ones get a snapshot.
    pub fn new(count: u16, kept: usize, clock: fn() -> u64, stop: Stop) -> Exchange {
        let symbols = symbols(count);
        let engine = Engine::new(&symbols);
        let publisher = Publisher::new(SESSION, PACKET_MAX as usize, kept);
        let mut desk = Desk { publisher, accounts: Accounts::default() };
        // At 0, so that a standby says the same.
        engine.open(0, &mut desk);
        Exchange {
            engine,
            symbols,
            desk,
            log: Log::default(),
            applied: 0,
            following: None,
            lines: Vec::new(),
            snapshots: Snapshots::default(),
            gaps: Vec::new(),
            capture: None,
            capture_failed: None,
            clock,
            message: Vec::new(),
            packet: Vec::new(),
            counts: Counts::default(),
            stop,
        }
    }

    /// Publishes on these lines from now on.
    pub fn publish_on(&mut self, lines: Vec<DestinationId>) {
        self.lines = lines;
    }

    /// Sends the log of a standby from this memory: see [`Log::send_from`].
    pub fn send_log_from(&mut self, stage: OwnRegion) {
        self.log.send_from(stage);
    }

    /// Writes each order there when the engine takes it. If that fails it goes on without, and
    /// [`Exchange::end_capture`] says why.
    pub fn capture_to(&mut self, capture: Writer) {
        self.capture = Some(capture);
    }

    /// Ends the capture. Returns the number of its orders, if there is one.
    ///
    /// # Errors
    /// Those of the file system, now or before.
    pub fn end_capture(&mut self) -> io::Result<Option<u64>> {
        match (self.capture_failed.take(), self.capture.take()) {
            (Some(failed), _) => Err(failed),
            (None, Some(mut capture)) => capture.finish().map(Some),
            (None, None) => Ok(None),
        }
    }

    fn capture_order(&mut self, user: u32, request: &Request) {
        let Some(capture) = &mut self.capture else { return };
        self.message.clear();
        request.write(&mut self.message);
        if let Err(failed) = capture.write(since_epoch(), Kind::Order(user), &self.message) {
            (self.capture, self.capture_failed) = (None, Some(failed));
        }
    }

    /// Makes it a standby, whose primary writes its log to this memory, [`Exchange::log_bytes`]
    /// long. `ready` is called when it has all that the primary had at its coming: from then on it
    /// may take over.
    pub fn follow(&mut self, memory: RegionId, ready: fn()) {
        let (primary, needs, told, waiting) = (None, None, 0, Vec::new());
        let ready = Some(ready);
        self.following = Some(Following { memory, primary, needs, ready, told, waiting });
    }

    /// Bytes of a standby's memory for the log.
    pub fn log_bytes() -> u32 {
        (SLOTS * RECORD as u64) as u32
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Messages of the feed.
    pub fn published(&self) -> u64 {
        self.desk.publisher.next_sequence() - 1
    }

    /// The sum over all books: see [`Digest::sum`].
    pub fn sum(&self) -> u64 {
        Digest::sum(&self.symbols, |symbol, side| self.engine.book(symbol, side))
    }

    /// Gives the engine all records that it may take, and sends what it says.
    fn advance<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        self.log.pump(out);
        while let Some(Record { time, user, request }) = self.log.safe(self.applied) {
            self.applied += 1;
            self.capture_order(user, &request);
            self.engine.request(time, user, &request, &mut self.desk);
        }
        if self.following.is_some() {
            self.desk.publisher.skip();
            self.fill_gaps(out);
            return;
        }
        // Before the answers: those would take all room while the exchange is behind.
        self.fill_gaps(out);
        self.desk.accounts.send(out);
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

    /// Takes a message of a peer. `None`: it is damaged.
    fn take<P: Provider>(
        &mut self,
        peer: PeerId,
        message: &[u8],
        out: &mut Outbox<'_, P>,
    ) -> Option<()> {
        match Channel::split(message)? {
            (Channel::Orders, bytes) => {
                let (user, request) = (self.desk.accounts.user(peer)?, Request::read(bytes)?);
                self.counts.requests += 1;
                self.log.push(Record { time: (self.clock)(), user, request });
                self.advance(out);
            }
            (Channel::Recovery, bytes) => {
                let request = Head::read_request(bytes)?;
                self.gaps.retain(|(from, _)| *from != peer);
                self.gaps.push((peer, request));
                self.fill_gaps(out);
            }
            (Channel::Snapshot, bytes) => {
                bytes.is_empty().then_some(())?;
                self.begin_snapshot(peer);
                self.fill_gaps(out);
            }
            (Channel::Digest, bytes) => {
                bytes.is_empty().then_some(())?;
                let answers = self.desk.accounts.sum(self.desk.accounts.user(peer)?);
                let sequence = self.desk.publisher.next_sequence();
                let sum = self.sum();
                Channel::Digest.begin(&mut self.message);
                Digest { sequence, sum, answers }.write(&mut self.message);
                let _ = out.send(peer, &self.message);
            }
            (Channel::Login, bytes) => self.login(peer, Login::read(bytes)?, out),
            (Channel::Standby, bytes) => self.hear_other(peer, bytes, out)?,
            (Channel::Gone, _) => return None,
        }
        Some(())
    }

    /// Sends what peers have asked for of the feed, as far as there is room.
    fn fill_gaps<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        self.snapshots.send(out);
        for (peer, request) in std::mem::take(&mut self.gaps) {
            if !self.send_again(peer, &request, out) {
                self.gaps.push((peer, request));
            }
        }
    }

    /// Sends messages of the feed to one peer, or says that they are gone. False: there is no room.
    fn send_again<P: Provider>(
        &mut self,
        peer: PeerId,
        request: &Head,
        out: &mut Outbox<'_, P>,
    ) -> bool {
        let counter = match self.desk.publisher.again(request, RECOVERY_MAX, &mut self.packet) {
            Again::Packet => {
                Channel::Recovery.begin(&mut self.message);
                self.message.extend_from_slice(&self.packet);
                &mut self.counts.recovered
            }
            Again::Gone(oldest) => {
                Channel::Gone.begin(&mut self.message);
                self.message.extend(oldest.to_be_bytes());
                &mut self.counts.gone
            }
            Again::Nothing => return true,
        };
        match out.send(peer, &self.message) {
            Ok(()) => *counter += 1,
            Err(SendError::NotConnected) => {}
            Err(_) => return false,
        }
        true
    }

    /// Begins to send a snapshot, unless that peer is getting one.
    fn begin_snapshot(&mut self, peer: PeerId) {
        if self.snapshots.is_under_way(peer) {
            return;
        }
        let (time, next) = ((self.clock)(), self.desk.publisher.next_sequence());
        let pieces = snapshot::pieces(&self.engine, time, next, RECOVERY_MAX);
        self.snapshots.begin(peer, pieces);
        self.counts.snapshots += 1;
    }

    /// A user comes. It waits while another exchange is in charge.
    fn login<P: Provider>(&mut self, peer: PeerId, login: Login, out: &mut Outbox<'_, P>) {
        if let Some(following) = &mut self.following {
            if !following.waiting.contains(&peer) {
                following.waiting.push(peer);
            }
            return;
        }
        let answers = self.desk.accounts.sum(login.user).count;
        if login.answers > answers {
            // Answers that this exchange never gave: the log was lost, or the user is mistaken.
            self.counts.damaged += 1;
            return out.close(peer);
        }
        Channel::Login.begin(&mut self.message);
        LoginAnswer::Welcome { answers }.write(&mut self.message);
        if out.send(peer, &self.message).is_err() {
            return out.close(peer);
        }
        self.desk.accounts.login(peer, login);
        self.advance(out);
    }

    /// The standby or the primary says something. `None`: it is damaged.
    fn hear_other<P: Provider>(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        out: &mut Outbox<'_, P>,
    ) -> Option<()> {
        if let Some(following) = &mut self.following {
            following.needs = Some(read_number(bytes).filter(|_| following.primary == Some(peer))?);
        } else if let Ok(memory) = <&[u8; RemoteMemory::BYTES]>::try_from(bytes) {
            Channel::Standby.begin(&mut self.message);
            self.message.extend(self.log.len().to_be_bytes());
            if out.send(peer, &self.message).is_ok() {
                self.log.begin(peer, RemoteMemory::from_bytes(memory));
            }
            self.advance(out);
        } else {
            self.log.taken(peer, read_number(bytes)?);
            self.advance(out);
        }
        Some(())
    }

    /// A standby's turn: takes the records that have come into its memory.
    fn take_log<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let Some(Following { memory, .. }) = &self.following else { return };
        let (memory, mut bytes) = (*memory, [0; RECORD]);
        loop {
            let number = self.log.len();
            let at = (number % SLOTS) as usize * RECORD;
            if out.copy_out(memory, at, &mut bytes).is_err() {
                break;
            }
            let Some(record) = Record::read(&bytes, number) else { break };
            self.log.push(record);
            self.counts.followed += 1;
        }
        self.advance(out);
        let Some(Following { primary, needs, ready, told, .. }) = &mut self.following else {
            return;
        };
        if needs.is_some_and(|needs| self.applied >= needs)
            && let Some(ready) = ready.take()
        {
            ready();
        }
        if let Some(primary) = *primary
            && self.applied >= *told + TELL
        {
            Channel::Standby.begin(&mut self.message);
            self.message.extend(self.applied.to_be_bytes());
            if out.send(primary, &self.message).is_ok() {
                *told = self.applied;
            }
        }
    }

    /// The primary is gone: takes what it wrote last, and is in charge.
    fn take_over<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        self.take_log(out);
        let Some(Following { needs, waiting, .. }) = self.following.take() else { return };
        if needs.is_none_or(|needs| self.log.len() < needs) {
            // It does not have the whole day: it may not be in charge.
            return self.stop.stop();
        }
        for peer in waiting {
            Channel::Login.begin(&mut self.message);
            LoginAnswer::Again.write(&mut self.message);
            if out.send(peer, &self.message).is_err() {
                out.close(peer);
            }
        }
    }
}

impl<P: Provider> Handler<P> for Exchange {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let Some(following) = &mut self.following else { return };
        let is_primary = out.peer_info(peer).is_some_and(|info| info.data() == GREETING);
        if !is_primary || following.primary.is_some() {
            return;
        }
        following.primary = Some(peer);
        let all = Piece { region: following.memory, offset: 0, length: Exchange::log_bytes() };
        let Ok(memory) = out.remote_memory(all) else { return self.stop.stop() };
        Channel::Standby.begin(&mut self.message);
        self.message.extend(memory.to_bytes());
        if out.send(peer, &self.message).is_err() {
            out.close(peer);
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let peer = message.peer();
        if self.take(peer, message.bytes(), out).is_none() {
            self.counts.damaged += 1;
            out.close(peer);
        }
        Verdict::Done
    }

    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        self.log.ended(peer, token, result.is_ok());
        self.advance(out);
    }

    fn on_peer_down(&mut self, peer: PeerId, _why: DownReason, out: &mut Outbox<'_, P>) {
        self.desk.accounts.gone(peer);
        self.snapshots.gone(peer);
        self.gaps.retain(|(from, _)| *from != peer);
        self.log.lost(peer);
        if let Some(following) = &mut self.following {
            following.waiting.retain(|waits| *waits != peer);
            if following.primary == Some(peer) {
                return self.take_over(out);
            }
        }
        self.advance(out);
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        if self.following.is_none() {
            self.advance(out);
            self.desk.publisher.heartbeat(&mut self.packet);
            self.publish(out);
        }
        out.set_timer(out.now() + HEARTBEAT, 0);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        match self.following {
            Some(_) => self.take_log(out),
            None => self.advance(out),
        }
    }
}
