//! The engine against a naive model, and the book of the feed against both.
#![cfg(test)]

use doorbell::prng::Prng;

use crate::engine::{Engine, Output};
use crate::field::{Side, Symbol};
use crate::flow::Flow;
use crate::itch::Message;
use crate::ouch::{Answer, Enter, Flags, Reason, Request, TimeInForce, Told};
use crate::view::View;

#[derive(Default)]
struct Record {
    answers: Vec<(u32, Answer)>,
    feed: Vec<Message>,
}

impl Output for Record {
    fn answer(&mut self, user: u32, answer: Answer) {
        self.answers.push((user, answer));
    }
    fn publish(&mut self, message: Message) {
        self.feed.push(message);
    }
}

/// An execution: user, order, shares, price.
type Fill = (u32, u32, u32, u64);

/// A resting order of the model: all in one list, in the order of arrival.
#[derive(Clone, Copy)]
struct Rest {
    user: u32,
    enter: Enter,
    open: u32,
    executed: u32,
}

/// The model: it looks through everything for each trade.
#[derive(Default)]
struct Model {
    rests: Vec<Rest>,
    fills: Vec<Fill>,
    /// Planted: the latest of the best price trades first.
    last_first: bool,
}

impl Model {
    fn best(&self, enter: &Enter) -> Option<usize> {
        let buys = enter.side == b'B';
        let crosses = |rest: &Rest| match buys {
            true => rest.enter.side == b'S' && rest.enter.price <= enter.price,
            false => rest.enter.side == b'B' && rest.enter.price >= enter.price,
        };
        let fits = |rest: &Rest| rest.enter.symbol == enter.symbol && crosses(rest);
        let key = |n: usize| {
            let price = self.rests[n].enter.price;
            let age = if self.last_first { usize::MAX - n } else { n };
            (if buys { price } else { u64::MAX - price }, age)
        };
        (0..self.rests.len()).filter(|n| fits(&self.rests[*n])).min_by_key(|n| key(*n))
    }

    fn enter(&mut self, user: u32, enter: Enter, mut executed: u32) {
        let mut open = enter.quantity;
        while open > 0
            && let Some(n) = self.best(&enter)
        {
            let rest = &mut self.rests[n];
            let shares = open.min(rest.open);
            rest.open -= shares;
            rest.executed += shares;
            let price = rest.enter.price;
            self.fills.push((rest.user, rest.enter.user_ref, shares, price));
            self.fills.push((user, enter.user_ref, shares, price));
            (open, executed) = (open - shares, executed + shares);
            if rest.open == 0 {
                self.rests.remove(n);
            }
        }
        if open > 0 && enter.time_in_force == TimeInForce::Day {
            self.rests.push(Rest { user, enter, open, executed });
        }
    }

    fn request(&mut self, user: u32, request: &Request) {
        let find = |rests: &[Rest], user_ref| {
            rests.iter().position(|rest| rest.user == user && rest.enter.user_ref == user_ref)
        };
        match request {
            Request::Enter(enter) => self.enter(user, *enter, 0),
            Request::Cancel { user_ref, quantity } => {
                let Some(n) = find(&self.rests, *user_ref) else { return };
                let rest = &mut self.rests[n];
                rest.open = rest.open.min(quantity.saturating_sub(rest.executed));
                if rest.open == 0 {
                    self.rests.remove(n);
                }
            }
            Request::Replace(replace) => {
                let Some(n) = find(&self.rests, replace.old_user_ref) else { return };
                let Rest { enter, executed, .. } = self.rests.remove(n);
                let quantity = replace.quantity.saturating_sub(executed);
                let (user_ref, price) = (replace.user_ref, replace.price);
                let time_in_force = replace.time_in_force;
                self.enter(
                    user,
                    Enter { user_ref, quantity, price, time_in_force, ..enter },
                    executed,
                );
            }
        }
    }

    /// Shares and prices of a side, in the order in which they trade.
    fn side(&self, symbol: Symbol, side: Side) -> Vec<(u32, u64)> {
        let code = if side == Side::Buy { b'B' } else { b'S' };
        let fits = |rest: &&Rest| rest.enter.symbol == symbol && rest.enter.side == code;
        let mut rests: Vec<&Rest> = self.rests.iter().filter(fits).collect();
        let rank = |price: u64| if side == Side::Buy { u64::MAX - price } else { price };
        rests.sort_by_key(|rest| rank(rest.enter.price));
        rests.iter().map(|rest| (rest.open, rest.enter.price)).collect()
    }
}

fn symbols() -> [Symbol; 3] {
    ["DOOR", "BELL", "RING"].map(Symbol::new)
}

fn fills(answers: &[(u32, Answer)]) -> Vec<Fill> {
    let fill = |(user, answer): &(u32, Answer)| match answer.told {
        Told::Executed { user_ref, quantity, price, .. } => {
            Some((*user, user_ref, quantity, price))
        }
        _ => None,
    };
    answers.iter().filter_map(fill).collect()
}

/// Runs a seed. The first difference, if there is one, and the number of fills.
fn run(seed: u64, last_first: bool) -> (Option<String>, usize) {
    let (mut prng, mut engine) = (Prng::new(seed), Engine::new(&symbols()));
    let mut flows = [1, 2, 3].map(|user| Flow::new(seed * 10 + user, &symbols()));
    let (mut model, mut view) = (Model { last_first, ..Model::default() }, View::default());
    let mut all = Record::default();
    engine.open(0, &mut all);
    for time in 1..800 {
        let user = prng.below(3) as usize;
        let request = flows[user].next_request();
        engine.request(time, user as u32, &request, &mut all);
        model.request(user as u32, &request);
        for message in all.feed.drain(..) {
            if let Err(unknown) = view.apply(&message) {
                return (Some(format!("at {time}: {unknown:?}")), model.fills.len());
            }
        }
        for (symbol, side) in symbols().into_iter().flat_map(|s| [(s, Side::Buy), (s, Side::Sell)])
        {
            let book = engine.book(symbol, side);
            let plain: Vec<(u32, u64)> =
                book.iter().map(|(_, open, price)| (*open, *price)).collect();
            if plain != model.side(symbol, side) || book != view.book(symbol, side) {
                return (Some(format!("at {time}: {symbol:?} {side:?}: {book:?}")), 0);
            }
        }
    }
    let differs = fills(&all.answers) != model.fills;
    (differs.then(|| "the fills differ".to_owned()), model.fills.len())
}

#[test]
fn the_engine_and_the_feed_agree_with_a_naive_model() {
    let mut trades = 0;
    for seed in 0..20 {
        let (wrong, fills) = run(seed, false);
        assert_eq!(wrong, None, "seed {seed}");
        trades += fills;
    }
    assert!(trades > 500, "{trades} fills");
    assert!((0..20).any(|seed| run(seed, true).0.is_some()), "time priority is not checked");
}

fn enter(user_ref: u32) -> Enter {
    Enter {
        user_ref,
        side: b'B',
        quantity: 100,
        symbol: Symbol::new("DOOR"),
        price: 10_000,
        time_in_force: TimeInForce::Day,
        flags: Flags::VISIBLE,
        cl_ord_id: [b' '; 14],
    }
}

#[test]
fn what_is_not_offered_is_rejected() {
    let flags = |display, cross| Flags { display, cross, ..Flags::VISIBLE };
    let cases = [
        (Enter { side: b'Q', ..enter(1) }, Reason::InvalidSide),
        (Enter { quantity: 0, ..enter(2) }, Reason::InvalidQuantity),
        (Enter { quantity: 1_000_000, ..enter(3) }, Reason::InvalidQuantity),
        (Enter { price: 0, ..enter(4) }, Reason::InvalidPrice),
        (Enter { price: 1 << 40, ..enter(5) }, Reason::InvalidPrice),
        (Enter { symbol: Symbol::new("GONE"), ..enter(6) }, Reason::InvalidSymbol),
        (Enter { flags: flags(b'N', b'N'), ..enter(7) }, Reason::InvalidDisplay),
        (Enter { flags: flags(b'Y', b'O'), ..enter(8) }, Reason::InvalidCross),
        (Enter { time_in_force: TimeInForce::Other(b'5'), ..enter(9) }, Reason::Other),
    ];
    let (mut engine, mut out) = (Engine::new(&symbols()), Record::default());
    for (enter, reason) in cases {
        engine.request(1, 1, &Request::Enter(enter), &mut out);
        let (user_ref, cl_ord_id) = (enter.user_ref, enter.cl_ord_id);
        let told = Told::Rejected { user_ref, reason, cl_ord_id };
        assert_eq!(out.answers.pop(), Some((1, Answer { time: 1, told })));
    }
    assert!(out.feed.is_empty());
}

#[test]
fn a_request_sent_again_is_ignored() {
    let (mut engine, mut out) = (Engine::new(&symbols()), Record::default());
    for _ in 0..2 {
        engine.request(1, 1, &Request::Enter(enter(5)), &mut out);
    }
    engine.request(1, 2, &Request::Enter(enter(5)), &mut out);
    assert_eq!((out.answers.len(), engine.ignored()), (2, 1));
    assert_eq!(engine.book(Symbol::new("DOOR"), Side::Buy).len(), 2);
}
