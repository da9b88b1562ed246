//! A client's handler: it sends orders at a rate, follows the feed on both lines, and compares its
//! books with the exchange's at the end.

use std::collections::HashMap;

use doorbell::latency::Latency;
use doorbell::prelude::*;
use doorbell::worker::Datagram;

use crate::feed::Arbiter;
use crate::field::Symbol;
use crate::flow::Flow;
use crate::itch;
use crate::ouch::{Answer, Request, Told};
use crate::view::View;
use crate::wire::{Channel, Digest, SESSION, symbols};

/// Nanoseconds between two looks at gaps, in which the other line may fill them.
const LOOK: u64 = 200_000;

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
    /// Why the connection ended.
    pub down: Option<DownReason>,
}

/// See the module.
pub struct Trader {
    plan: Plan,
    flow: Flow,
    symbols: Vec<Symbol>,
    arbiter: Arbiter,
    view: View,
    exchange: Option<PeerId>,
    /// The request that found no room, and when it should have gone out.
    waiting: Option<Request>,
    next_at: u64,
    /// When each order that has no answer should have gone out.
    open: HashMap<u32, u64>,
    digest: Option<Digest>,
    digest_asked: bool,
    /// The sum of its own books at the number of the digest.
    sum: Option<u64>,
    clock: fn() -> u64,
    drops: u64,
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
            waiting: None,
            next_at: 0,
            open: HashMap::new(),
            digest: None,
            digest_asked: false,
            sum: None,
            clock,
            drops: plan.seed,
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
        while self.results.sent < self.plan.orders {
            let now = (self.clock)();
            if now < self.next_at {
                return;
            }
            let request = self.waiting.take().unwrap_or_else(|| self.flow.next_request());
            Channel::Orders.begin(&mut self.message);
            request.write(&mut self.message);
            if out.send_now(exchange, &self.message).is_err() {
                self.waiting = Some(request);
                return;
            }
            self.results.sent += 1;
            // A cancel of what is gone has no answer.
            let user_ref = match request {
                Request::Enter(enter) => Some(enter.user_ref),
                Request::Replace(replace) => Some(replace.user_ref),
                Request::Cancel { .. } => None,
            };
            self.open.extend(user_ref.map(|user_ref| (user_ref, self.next_at)));
            self.next_at += self.plan.every;
        }
        self.ask_digest(exchange, out);
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
            self.results.order_to_ack.record((self.clock)().saturating_sub(intended));
        }
    }

    fn hear(&mut self, answer: &Answer) {
        match answer.told {
            Told::Accepted(accepted) => self.answered(accepted.order.user_ref),
            Told::Replaced { new, .. } => self.answered(new.order.user_ref),
            Told::Rejected { user_ref, .. } => self.answered(user_ref),
            Told::Executed { .. } => self.results.executions += 1,
            Told::Canceled { .. } | Told::System(_) => {}
        }
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

    /// Compares the books, if both sums are of the same moment.
    fn compare(&mut self) {
        let Some(Digest { sequence, sum }) = self.digest else { return };
        if self.arbiter.next_sequence() == sequence && self.sum.is_none() {
            let view = &self.view;
            self.sum = Some(Digest::sum(&self.symbols, |symbol, side| view.book(symbol, side)));
        }
        if let Some(own) = self.sum {
            self.results.equal = Some(own == sum);
            self.stop.stop();
        } else if self.arbiter.next_sequence() > sequence {
            // Others trade on: the feed was faster than the digest.
            (self.digest, self.digest_asked) = (None, false);
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
        self.exchange = Some(peer);
        self.next_at = (self.clock)();
        out.set_timer(out.now() + LOOK, 0);
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match Channel::split(message.bytes()) {
            Some((Channel::Orders, bytes)) => match Answer::read(bytes) {
                Some(answer) => self.hear(&answer),
                None => drop(self.results.wrong.get_or_insert("an answer is damaged".into())),
            },
            Some((Channel::Recovery, packet)) => self.follow(packet),
            Some((Channel::Digest, bytes)) => {
                self.digest = Digest::read(bytes);
                self.compare();
            }
            None => drop(self.results.wrong.get_or_insert("a message of no channel".into())),
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
        out.set_timer(out.now() + LOOK, 0);
        self.trade(out);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        self.trade(out);
    }

    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _out: &mut Outbox<'_, P>) {
        (self.exchange, self.results.down) = (None, Some(why));
        self.stop.stop();
    }
}
