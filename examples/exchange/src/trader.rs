//! A client's handler: it sends orders at a rate, follows the feed on both lines, and compares its
//! books and its answers with the exchange's at the end.
//!
//! It is connected with the primary and with the standby. If the primary is gone, it says to the
//! standby how many answers it has, and sends again each request whose fate it does not know.

use std::collections::{HashMap, VecDeque};

use doorbell::latency::Latency;
use doorbell::prelude::*;
use doorbell::worker::Datagram;

use crate::feed::Arbiter;
use crate::field::Symbol;
use crate::flow::Flow;
use crate::itch;
use crate::ouch::{Answer, Request, Told};
use crate::view::View;
use crate::wire::{Answers, Channel, Digest, Login, LoginAnswer, SESSION, symbols};

/// Nanoseconds between two looks at gaps, in which the other line may fill them.
const LOOK: u64 = 200_000;

/// Looks after which it asks for the digest again.
const DIGEST_LOOKS: u32 = 250;

/// What a trader does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Securities of the exchange.
    pub symbols: u16,
    /// Orders and requests to send.
    pub orders: u64,
    /// Nanoseconds from one to the next.
    pub every: u64,
    /// Datagrams in a thousand that it drops, on each line.
    pub drop: u32,
    /// Of its flow.
    pub seed: u64,
    /// Called with the number of each welcome by an exchange, the first one's 1.
    pub welcomed: fn(u64),
}

/// What a trader has seen.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Requests sent, and orders that were answered.
    pub sent: u64,
    /// See `sent`.
    pub answered: u64,
    /// Executions.
    pub executions: u64,
    /// From the time at which an order should have gone out to its answer, in nanoseconds.
    pub order_to_ack: Latency,
    /// Datagrams dropped on purpose.
    pub dropped: u64,
    /// Requests for what was missing.
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
    flow: Flow,
    symbols: Vec<Symbol>,
    arbiter: Arbiter,
    view: View,
    /// The exchange in charge.
    exchange: Option<PeerId>,
    /// Requests that may not have been taken: with the number of their order, if they have an
    /// answer of their own. The first `sent` have gone to this exchange.
    unsure: VecDeque<(Option<u32>, Vec<u8>)>,
    sent: usize,
    next_at: u64,
    answers: Answers,
    /// When each order that has no answer should have gone out.
    open: HashMap<u32, u64>,
    digest: Option<Digest>,
    digest_asked: bool,
    looks: u32,
    /// The sum of its own books at the number of the digest.
    sum: Option<u64>,
    clock: fn() -> u64,
    drops: u64,
    /// Its timer is set.
    ticks: bool,
    /// Exchanges that it is connected with.
    peers: u32,
    message: Vec<u8>,
    results: Results,
    stop: Stop,
}

impl Trader {
    /// A trader. `clock`: its worker's clock, in nanoseconds.
    pub fn new(plan: Plan, clock: fn() -> u64, stop: Stop) -> Trader {
        let symbols = symbols(plan.symbols);
        Trader {
            flow: Flow::new(plan.seed, &symbols),
            symbols,
            arbiter: Arbiter::new(SESSION),
            view: View::default(),
            exchange: None,
            unsure: VecDeque::new(),
            sent: 0,
            next_at: 0,
            answers: Answers::default(),
            open: HashMap::new(),
            digest: None,
            digest_asked: false,
            looks: 0,
            sum: None,
            clock,
            drops: plan.seed,
            ticks: false,
            peers: 0,
            message: Vec::new(),
            results: Results::default(),
            stop,
            plan,
        }
    }

    /// What it has seen, and what its arbiter has.
    pub fn results(&self) -> (&Results, crate::feed::Seen) {
        (&self.results, self.arbiter.seen())
    }

    /// Sends the orders that are due.
    fn trade<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let Some(exchange) = self.exchange else { return };
        loop {
            while let Some((_, message)) = self.unsure.get(self.sent) {
                if out.send_now(exchange, message).is_err() {
                    return;
                }
                self.sent += 1;
            }
            if self.results.sent == self.plan.orders {
                break;
            }
            if (self.clock)() < self.next_at {
                return;
            }
            self.make_request();
        }
        if self.open.is_empty() {
            self.ask_digest(exchange, out);
        }
    }

    /// Makes the next request of the flow, to be sent.
    fn make_request(&mut self) {
        let request = self.flow.next_request();
        let mut message = Vec::new();
        Channel::Orders.begin(&mut message);
        request.write(&mut message);
        // A cancel of what is gone has no answer.
        let user_ref = match request {
            Request::Enter(enter) => Some(enter.user_ref),
            Request::Replace(replace) => Some(replace.user_ref),
            Request::Cancel { .. } => None,
        };
        self.unsure.push_back((user_ref, message));
        self.open.extend(user_ref.map(|user_ref| (user_ref, self.next_at)));
        self.results.sent += 1;
        self.next_at += self.plan.every;
    }

    /// Says who it is, and how many answers it has.
    fn login<P: Provider>(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let (user, answers) = (self.plan.seed as u32, self.answers.count);
        Channel::Login.begin(&mut self.message);
        Login { user, answers }.write(&mut self.message);
        if out.send(peer, &self.message).is_err() {
            self.results.wrong.get_or_insert("a new peer has no room for a login".into());
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
            Some(LoginAnswer::Welcome) => {
                (self.exchange, self.sent, self.digest_asked) = (Some(peer), 0, false);
                (self.digest, self.sum) = (None, None);
                self.results.welcomes += 1;
                (self.plan.welcomed)(self.results.welcomes);
                self.next_at = self.next_at.max((self.clock)());
            }
            None => drop(self.results.wrong.get_or_insert("a damaged login".into())),
        }
    }

    /// At the end: asks for the sum of the exchange's books.
    fn ask_digest<P: Provider>(&mut self, exchange: PeerId, out: &mut Outbox<'_, P>) {
        if self.digest_asked || self.results.equal.is_some() || self.arbiter.missing().is_some() {
            return;
        }
        Channel::Digest.begin(&mut self.message);
        self.digest_asked = out.send(exchange, &self.message).is_ok();
    }

    /// An order has its answer.
    fn answered(&mut self, user_ref: u32) {
        if let Some(intended) = self.open.remove(&user_ref) {
            self.results.answered += 1;
            // The exchange takes requests in order: it has taken all before this one.
            while let Some((known, _)) = self.unsure.pop_front() {
                self.sent = self.sent.saturating_sub(1);
                if known == Some(user_ref) {
                    break;
                }
            }
            self.results.order_to_ack.record((self.clock)().saturating_sub(intended));
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        let Some(answer) = Answer::read(bytes) else {
            self.results.wrong.get_or_insert("an answer is damaged".into());
            return;
        };
        self.answers.add(bytes);
        match answer.told {
            Told::Accepted(accepted) => self.answered(accepted.order.user_ref),
            Told::Replaced { new, .. } => self.answered(new.order.user_ref),
            Told::Rejected { user_ref, .. } => self.answered(user_ref),
            Told::Executed { .. } => self.results.executions += 1,
            Told::Canceled { .. } | Told::System(_) => {}
        }
        self.compare();
    }

    /// Takes a packet of the feed.
    fn follow(&mut self, packet: &[u8]) {
        let Trader { arbiter, view, results, digest, sum, symbols, .. } = self;
        let at = digest.map(|digest| digest.sequence);
        arbiter.packet(packet, |message, next| {
            let applied = itch::Message::read(message).map(|message| view.apply(&message));
            if !matches!(applied, Some(Ok(()))) {
                results.wrong.get_or_insert_with(|| format!("message {}: {applied:?}", next - 1));
            }
            if at == Some(next) {
                *sum = Some(Digest::sum(symbols, |symbol, side| view.book(symbol, side)));
            }
        });
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
        if self.arbiter.next_sequence() == sequence && self.sum.is_none() {
            let view = &self.view;
            self.sum = Some(Digest::sum(&self.symbols, |symbol, side| view.book(symbol, side)));
        }
        let behind = self.sum.is_none() && self.arbiter.next_sequence() > sequence;
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
            Some((Channel::Recovery, packet)) => self.follow(packet),
            Some((Channel::Digest, bytes)) if in_charge => {
                (self.digest, self.sum) = (Digest::read(bytes), None);
                self.count_answers();
                self.compare();
            }
            Some((Channel::Login, bytes)) => self.welcome(peer, LoginAnswer::read(bytes), out),
            // The last words of an exchange that is gone.
            Some((Channel::Orders | Channel::Digest, _)) => {}
            Some((Channel::Standby, _)) | None => {
                self.results.wrong.get_or_insert("a message of no channel".into());
            }
        }
        self.trade(out);
        Verdict::Done
    }

    fn on_datagram(&mut self, datagram: Datagram<'_>, _out: &mut Outbox<'_, P>) {
        if !self.drops() {
            self.follow(datagram.bytes());
        }
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        if let (Some(exchange), Some(request)) = (self.exchange, self.arbiter.missing()) {
            Channel::Recovery.begin(&mut self.message);
            request.write(&mut self.message);
            self.results.asked += u64::from(out.send(exchange, &self.message).is_ok());
        }
        self.looks += 1;
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
        self.exchange.take_if(|exchange| *exchange == peer);
    }
}
