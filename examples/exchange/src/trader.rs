//! A client's handler: it sends orders at a rate, follows the feed on both lines, and compares its
//! books and its answers with the exchange's at the end.
//!
//! It is connected with the primary and with the standby. If the primary is gone, it says to the
//! standby how many answers it has, and sends again each request whose fate it does not know.

use doorbell::prelude::*;
use doorbell::worker::Datagram;

use crate::field::Symbol;
use crate::follower::{Follower, Need};
use crate::itch;
use crate::orders::{Load, Orders, Tick};
use crate::ouch::{Answer, Told};
use crate::taker::Taker;
use crate::view::View;
use crate::wire::{Answers, Channel, Digest, Login, LoginAnswer, SESSION, read_number, symbols};

/// Nanoseconds between two looks at gaps, in which the other line may fill them.
const LOOK: u64 = 200_000;

/// Looks after which it asks for the digest again.
const DIGEST_LOOKS: u32 = 250;

/// Looks after which it asks for missing messages again. The exchange answers each request, unless
/// it has not sent what is asked for.
const ANSWER_LOOKS: u32 = 25;

/// Looks after which it trades without the feed. A network may need a moment to reach a new member
/// of a group, so it waits for the first datagram: the exchange sends one every 5 ms.
const FEED_LOOKS: u32 = 5000;

/// What a trader does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Securities of the exchange.
    pub symbols: u16,
    /// What it sends of its own accord.
    pub load: Load,
    /// Of the orders that become the best of their side, it takes one in `take`; 0: none.
    pub take: u64,
    /// Datagrams in a thousand that it drops, on each line.
    pub drop: u32,
    /// Called with the number of each welcome by an exchange, the first one's 1.
    pub welcomed: fn(u64),
}

/// What a trader has seen.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Executions.
    pub executions: u64,
    /// Datagrams dropped on purpose.
    pub dropped: u64,
    /// Requests for messages that were missing.
    pub asked: u64,
    /// The books at the end: equal or not.
    pub equal: Option<bool>,
    /// Something that must not be.
    pub wrong: Option<String>,
    /// Exchanges that it was welcomed by, and why the last connection ended.
    pub welcomes: u64,
    /// See `welcomes`.
    pub down: Option<DownReason>,
}

/// See the module.
pub struct Trader {
    plan: Plan,
    symbols: Vec<Symbol>,
    follower: Follower,
    orders: Orders,
    taker: Taker,
    /// The exchange in charge.
    exchange: Option<PeerId>,
    answers: Answers,
    digest: Option<Digest>,
    digest_asked: bool,
    looks: u32,
    /// A datagram of the feed has come, or it waits for none any longer.
    has_feed: bool,
    /// The sum of its own books at the number of the digest.
    sum: Option<u64>,
    clock: fn() -> u64,
    drops: u64,
    /// Its timer is set.
    ticks: bool,
    /// There was no room to ask for what it needs of the feed.
    unasked: bool,
    /// Looks until it asks again for messages that it has asked for.
    patience: u32,
    /// Exchanges that it is connected with, and those of them that await its login.
    peers: u32,
    logins: Vec<PeerId>,
    message: Vec<u8>,
    results: Results,
    stop: Stop,
}

impl Trader {
    /// A trader. `clock`: its worker's clock, in nanoseconds.
    pub fn new(plan: Plan, clock: fn() -> u64, stop: Stop) -> Trader {
        let symbols = symbols(plan.symbols);
        Trader {
            orders: Orders::new(plan.load, &symbols, clock),
            symbols,
            follower: Follower::new(SESSION),
            taker: Taker::new(plan.take),
            exchange: None,
            answers: Answers::default(),
            digest: None,
            digest_asked: false,
            looks: 0,
            has_feed: false,
            sum: None,
            clock,
            drops: plan.load.seed,
            ticks: false,
            unasked: false,
            patience: 0,
            peers: 0,
            logins: Vec::new(),
            message: Vec::new(),
            results: Results::default(),
            stop,
            plan,
        }
    }

    /// What it has seen.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// Its orders.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// Its picture of the market.
    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Sends the orders that are due.
    fn trade<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let Some(exchange) = self.exchange else { return };
        if !self.has_feed {
            return;
        }
        if self.unasked {
            // Before the orders: those take all room while the exchange is behind.
            self.ask(out);
        }
        self.orders.send(exchange, out);
        if self.orders.is_over() {
            self.ask_digest(exchange, out);
        }
    }

    /// The feed is there: orders may go out.
    fn see_feed(&mut self) {
        if !std::mem::replace(&mut self.has_feed, true) && self.exchange.is_some() {
            self.orders.begin();
        }
    }

    /// Says who it is, and how many answers it has; if there is no room, at the next look.
    fn login<P: Provider>(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let (user, answers) = (self.plan.load.seed as u32, self.answers.count);
        Channel::Login.begin(&mut self.message);
        Login { user, answers }.write(&mut self.message);
        if out.send(peer, &self.message).is_err() {
            self.logins.push(peer);
        }
    }

    /// An exchange answers a login.
    fn welcome<P: Provider>(
        &mut self,
        peer: PeerId,
        answer: Option<LoginAnswer>,
        out: &mut Outbox<'_, P>,
    ) {
        match answer {
            Some(LoginAnswer::Again) => {
                // What the old one has said and was not taken yet comes again from the new one.
                self.exchange = None;
                self.login(peer, out);
            }
            Some(LoginAnswer::Welcome { answers }) if self.results.welcomes == 0 && answers > 0 => {
                // The exchange would ignore orders with numbers that it knows.
                let user = self.plan.load.seed;
                let known = format!(
                    "user {user} has traded at this exchange already; trade as another user, with \
                     another --seed than {user}"
                );
                self.results.wrong.get_or_insert(known);
                self.stop.stop();
            }
            Some(LoginAnswer::Welcome { .. }) => {
                (self.exchange, self.digest_asked) = (Some(peer), false);
                (self.digest, self.sum) = (None, None);
                self.results.welcomes += 1;
                (self.plan.welcomed)(self.results.welcomes);
                self.patience = 0;
                if self.has_feed {
                    self.orders.begin();
                }
                self.follower.lost();
                self.ask(out);
            }
            None => drop(self.results.wrong.get_or_insert("a damaged login".into())),
        }
    }

    /// At the end: asks for the sum of the exchange's books.
    fn ask_digest<P: Provider>(&mut self, exchange: PeerId, out: &mut Outbox<'_, P>) {
        if self.digest_asked || self.results.equal.is_some() || !self.follower.is_current() {
            return;
        }
        Channel::Digest.begin(&mut self.message);
        self.digest_asked = out.send(exchange, &self.message).is_ok();
    }

    /// Asks the exchange for what it needs of the feed.
    fn ask<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        self.unasked = false;
        let (Some(exchange), Some(need)) = (self.exchange, self.follower.need()) else { return };
        match need {
            Need::Snapshot => Channel::Snapshot.begin(&mut self.message),
            Need::Messages(_) if self.patience > 0 => return,
            Need::Messages(head) => {
                Channel::Recovery.begin(&mut self.message);
                head.write(&mut self.message);
            }
        }
        self.unasked = out.send(exchange, &self.message).is_err();
        match need {
            _ if self.unasked => {}
            Need::Snapshot => self.follower.asked(),
            Need::Messages(_) => {
                self.results.asked += 1;
                self.patience = ANSWER_LOOKS;
            }
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        let Some(answer) = Answer::read(bytes) else {
            self.results.wrong.get_or_insert("an answer is damaged".into());
            return;
        };
        self.answers.add(bytes);
        match answer.told {
            Told::Accepted(accepted) => self.orders.answered(accepted.order.user_ref),
            Told::Replaced { new, .. } => self.orders.answered(new.order.user_ref),
            Told::Rejected { user_ref, .. } => self.orders.answered(user_ref),
            Told::Executed { .. } => self.results.executions += 1,
            Told::Canceled { .. } | Told::System(_) => {}
        }
        self.compare();
    }

    /// Takes a packet of the feed, or a piece of a snapshot.
    fn follow(&mut self, channel: Channel, bytes: &[u8]) {
        let came = (self.clock)();
        let Trader { follower, digest, sum, symbols, taker, orders, .. } = self;
        let at = digest.map(|digest| digest.sequence);
        let applied = |message: &itch::Message, next: u64, view: &View| {
            if let Some(terms) = taker.look(message, view) {
                orders.take(terms, Tick { happened: message.time, came });
            }
            if at == Some(next) {
                *sum = Some(Digest::sum(symbols, |symbol, side| view.book(symbol, side)));
            }
        };
        match channel {
            Channel::Snapshot => follower.snapshot(bytes, applied),
            _ => follower.packet(bytes, applied),
        }
        if let Some(wrong) = self.follower.wrong() {
            self.results.wrong.get_or_insert_with(|| wrong.into());
        }
        self.compare();
    }

    /// An answer that was sent after the digest comes after it, so this side has no more answers
    /// than the exchange had, unless some were lost there.
    fn count_answers(&mut self) {
        let theirs = self.digest.map_or(u64::MAX, |digest| digest.answers.count);
        if self.answers.count > theirs {
            let lost = format!("it gave {} answers, and knows {theirs}", self.answers.count);
            self.results.wrong.get_or_insert(lost);
            self.stop.stop();
        }
    }

    /// Compares books and answers, if both sides know them at the same moment.
    fn compare(&mut self) {
        let Some(Digest { sequence, sum, answers }) = self.digest else { return };
        if self.follower.next_sequence() == sequence && self.sum.is_none() {
            let view = self.follower.view();
            self.sum = Some(Digest::sum(&self.symbols, |symbol, side| view.book(symbol, side)));
        }
        let behind = self.sum.is_none() && self.follower.next_sequence() > sequence;
        if behind || self.answers.count > answers.count {
            // Others trade on: the feed or an answer was faster than the digest.
            (self.digest, self.sum, self.digest_asked) = (None, None, false);
        } else if let Some(own) = self.sum
            && self.answers.count == answers.count
        {
            self.results.equal = Some(own == sum && self.answers == answers);
            self.stop.stop();
        }
    }

    /// True for a datagram that it drops on purpose.
    fn drops(&mut self) -> bool {
        self.drops =
            self.drops.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let drops = (self.drops >> 33) % 1000 < u64::from(self.plan.drop);
        self.results.dropped += u64::from(drops);
        drops
    }
}

impl<P: Provider> Handler<P> for Trader {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.peers += 1;
        self.login(peer, out);
        if !std::mem::replace(&mut self.ticks, true) {
            out.set_timer(out.now() + LOOK, 0);
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let peer = message.peer();
        let in_charge = self.exchange == Some(peer);
        match Channel::split(message.bytes()) {
            Some((Channel::Orders, bytes)) if in_charge => self.hear(bytes),
            Some((channel @ (Channel::Recovery | Channel::Snapshot), bytes)) => {
                self.follow(channel, bytes);
                // A packet holds a part of a long gap: the rest need not wait for the timer.
                self.patience = 0;
                self.ask(out);
            }
            Some((Channel::Digest, bytes)) if in_charge => {
                (self.digest, self.sum) = (Digest::read(bytes), None);
                self.count_answers();
                self.compare();
            }
            Some((Channel::Login, bytes)) => self.welcome(peer, LoginAnswer::read(bytes), out),
            // The last words of an exchange that is gone.
            Some((Channel::Orders | Channel::Digest, _)) => {}
            Some((Channel::Gone, bytes)) => {
                self.follower.gone(read_number(bytes).unwrap_or(0));
                self.patience = 0;
                self.ask(out);
            }
            Some((Channel::Standby, _)) | None => {
                self.results.wrong.get_or_insert("a message of no channel".into());
            }
        }
        self.trade(out);
        Verdict::Done
    }

    fn on_datagram(&mut self, datagram: Datagram<'_>, out: &mut Outbox<'_, P>) {
        self.see_feed();
        if !self.drops() {
            self.follow(Channel::Recovery, datagram.bytes());
            self.trade(out);
        }
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        for peer in std::mem::take(&mut self.logins) {
            self.login(peer, out);
        }
        self.patience = self.patience.saturating_sub(1);
        self.ask(out);
        self.looks += 1;
        if self.looks == FEED_LOOKS {
            self.see_feed();
        }
        if self.looks.is_multiple_of(DIGEST_LOOKS) && self.digest.is_none() {
            self.digest_asked = false;
        }
        out.set_timer(out.now() + LOOK, 0);
        self.trade(out);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.trade(out);
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, _out: &mut Outbox<'_, P>) {
        self.results.down = Some(why);
        self.peers -= 1;
        if self.peers == 0 {
            self.stop.stop();
        }
        self.logins.retain(|due| *due != peer);
        self.exchange.take_if(|exchange| *exchange == peer);
    }
}
