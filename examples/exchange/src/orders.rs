//! A client's orders: those that are due, those on their way, and how long they took.

use std::collections::{HashMap, VecDeque};

use doorbell::prelude::*;

use crate::clock::since_midnight;
use crate::field::Symbol;
use crate::flow::{Arrivals, Flow};
use crate::latency::Latency;
use crate::ouch::{Enter, Request};
use crate::wire::Channel;

/// What a client sends of its own accord.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Orders, cancels and replacements at most.
    pub orders: u64,
    /// How many a second, as a Poisson process; 0: as fast as there is room.
    pub rate: u64,
    /// Nanoseconds after which it makes no more.
    pub lasts: u64,
    /// Of the flow, and of the times.
    pub seed: u64,
}

/// A message of the feed that provoked an order.
#[derive(Clone, Copy, Debug)]
pub struct Tick {
    /// When the exchange took the request behind it, in nanoseconds since midnight.
    pub happened: u64,
    /// When its datagram came, by the client's own clock.
    pub came: u64,
}

/// A request that may not have been taken.
struct Unsure {
    /// The number of its order, if it has an answer of its own.
    user_ref: Option<u32>,
    message: Vec<u8>,
    tick: Option<Tick>,
}

/// How long things took, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// From the time at which an order was due to its answer.
    pub order_to_ack: Latency,
    /// From the request that caused a tick, by the exchange's stamp, to the post of the order that
    /// the tick provoked. The clocks of both machines must agree.
    pub tick_to_trade: Latency,
    /// The client's own part of it: from the tick's datagram to the post.
    pub in_client: Latency,
    /// From the first request to the last answer.
    pub span: u64,
}

/// See the module.
pub struct Orders {
    load: Load,
    flow: Flow,
    arrivals: Arrivals,
    /// When the flow began, and when its next request is due.
    began: Option<u64>,
    due: u64,
    made: u64,
    taken: u64,
    unsure: VecDeque<Unsure>,
    /// So many of them have gone to this exchange.
    sent: usize,
    /// When each order that has no answer was due.
    open: HashMap<u32, u64>,
    answered: u64,
    times: Times,
    clock: fn() -> u64,
}

impl Orders {
    /// The orders of a load. `clock`: the client's own, in nanoseconds.
    pub fn new(load: Load, symbols: &[Symbol], clock: fn() -> u64) -> Orders {
        let mut arrivals = Arrivals::new(load.seed, load.rate);
        Orders {
            load,
            flow: Flow::new(load.seed, symbols),
            due: arrivals.next_time(),
            arrivals,
            began: None,
            made: 0,
            taken: 0,
            unsure: VecDeque::new(),
            sent: 0,
            open: HashMap::new(),
            answered: 0,
            times: Times::default(),
            clock,
        }
    }

    /// Requests of the flow, orders that ticks provoked, and orders that were answered.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.made, self.taken, self.answered)
    }

    /// How long things took.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// An exchange is in charge: it gets what the last one may not have taken.
    pub fn begin(&mut self) {
        self.sent = 0;
        self.began.get_or_insert((self.clock)());
    }

    /// True if the flow has ended and each order has its answer.
    pub fn is_over(&self) -> bool {
        self.flow_is_over() && self.open.is_empty()
    }

    fn flow_is_over(&self) -> bool {
        self.made == self.load.orders || self.due >= self.load.lasts
    }

    /// Sends what is due, as far as there is room.
    pub fn send<P: Provider>(&mut self, exchange: PeerId, out: &mut Outbox<'_, P>) {
        loop {
            while let Some(unsure) = self.unsure.get_mut(self.sent) {
                if out.send_now(exchange, &unsure.message).is_err() {
                    return;
                }
                if let Some(tick) = unsure.tick.take() {
                    self.times.tick_to_trade.record(since_midnight().saturating_sub(tick.happened));
                    self.times.in_client.record((self.clock)().saturating_sub(tick.came));
                }
                self.sent += 1;
            }
            let Some(began) = self.began.filter(|_| !self.flow_is_over()) else { return };
            let passed = (self.clock)().saturating_sub(began);
            if passed < self.due {
                return;
            }
            if self.load.rate == 0 {
                // What there is room for is due now.
                self.due = passed;
            }
            let request = self.flow.next_request();
            self.put(&request, began + self.due, None);
            self.made += 1;
            self.due = self.due.max(self.arrivals.next_time());
        }
    }

    /// An order that a tick provoked. The next [`Orders::send`] sends it.
    pub fn take(&mut self, terms: Enter, tick: Tick) {
        if self.flow_is_over() {
            return;
        }
        let enter = Enter { user_ref: self.flow.next_number(), ..terms };
        self.taken += 1;
        self.put(&Request::Enter(enter), tick.came, Some(tick));
    }

    fn put(&mut self, request: &Request, due: u64, tick: Option<Tick>) {
        let mut message = Vec::with_capacity(64);
        Channel::Orders.begin(&mut message);
        request.write(&mut message);
        // A cancel of what is gone has no answer.
        let user_ref = match request {
            Request::Enter(enter) => Some(enter.user_ref),
            Request::Replace(replace) => Some(replace.user_ref),
            Request::Cancel { .. } => None,
        };
        self.open.extend(user_ref.map(|user_ref| (user_ref, due)));
        self.unsure.push_back(Unsure { user_ref, message, tick });
    }

    /// An order has its answer.
    pub fn answered(&mut self, user_ref: u32) {
        let Some(due) = self.open.remove(&user_ref) else { return };
        self.answered += 1;
        // The exchange takes requests in order: it has taken all before this one.
        while let Some(Unsure { user_ref: known, .. }) = self.unsure.pop_front() {
            self.sent = self.sent.saturating_sub(1);
            if known == Some(user_ref) {
                break;
            }
        }
        let now = (self.clock)();
        self.times.order_to_ack.record(now.saturating_sub(due));
        self.times.span = now.saturating_sub(self.began.unwrap_or(now));
    }
}
