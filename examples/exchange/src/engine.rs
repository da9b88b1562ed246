//! The matching engine: requests in, answers and market data out. It is pure: the same requests at
//! the same times give the same output, on every machine.
//!
//! An order trades with the best orders of the other side at their prices, by price and then by
//! time. What is left of a day order rests; what is left of an immediate order is canceled.

use std::collections::HashMap;

use crate::book::Book;
use crate::field::{Side, Symbol};
use crate::itch::{Message, Said};
use crate::ouch::{Accepted, Answer, Enter, Reason, Replace, Request, TimeInForce, Told};

/// Most shares of an order.
pub const SHARES_MAX: u32 = 999_999;

/// Highest price, with four implied decimals.
pub const PRICE_MAX: u64 = 1_999_999_900;

/// Where the engine's output goes.
pub trait Output {
    /// An answer to a user.
    fn answer(&mut self, user: u32, answer: Answer);
    /// A message for the feed.
    fn publish(&mut self, message: Message);
}

/// An order that rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    user: u32,
    terms: Enter,
    side: Side,
    locate: u16,
    /// Shares left, and executed before.
    open: u32,
    executed: u32,
    /// Where it stands behind others of its price.
    arrival: u64,
}

/// What the engine knows of a user.
#[derive(Default)]
struct User {
    /// The last number of an order.
    last_ref: u32,
    /// The orders that rest, by the user's numbers.
    orders: HashMap<u32, u64>,
}

/// See the module.
pub struct Engine {
    symbols: Vec<Symbol>,
    locates: HashMap<Symbol, u16>,
    /// By locate number.
    books: Vec<Book>,
    orders: HashMap<u64, Order>,
    users: HashMap<u32, User>,
    last_order: u64,
    last_match: u64,
    last_arrival: u64,
    ignored: u64,
}

/// An order on its way into the book.
struct Incoming {
    user: u32,
    terms: Enter,
    side: Side,
    locate: u16,
    executed: u32,
    order_ref: u64,
    /// The resting order that it replaces on the feed, if the feed still shows that.
    replaces: Option<u64>,
}

impl Engine {
    /// An engine for these securities, whose locate numbers count from 1.
    pub fn new(symbols: &[Symbol]) -> Engine {
        let symbols: Vec<Symbol> = symbols.iter().copied().take(usize::from(u16::MAX)).collect();
        let locates = symbols.iter().zip(1..).map(|(symbol, locate)| (*symbol, locate)).collect();
        Engine {
            books: vec![Book::default(); symbols.len() + 1],
            symbols,
            locates,
            orders: HashMap::new(),
            users: HashMap::new(),
            last_order: 0,
            last_match: 0,
            last_arrival: 0,
            ignored: 0,
        }
    }

    /// Begins the day on the feed: the system event and the directory.
    pub fn open(&self, time: u64, out: &mut impl Output) {
        out.publish(Message { locate: 0, time, said: Said::System(b'O') });
        for (symbol, locate) in self.symbols.iter().zip(1..) {
            out.publish(Message { locate, time, said: Said::Directory(*symbol) });
        }
    }

    /// The messages that give a reader all securities and books as they are now: the directory, and
    /// each order in the order in which it trades.
    pub fn snapshot(&self, time: u64, mut say: impl FnMut(Message)) {
        for (symbol, locate) in self.symbols.iter().zip(1..) {
            say(Message { locate, time, said: Said::Directory(*symbol) });
        }
        for (symbol, (book, locate)) in self.symbols.iter().zip(self.books[1..].iter().zip(1..)) {
            for side in [Side::Buy, Side::Sell] {
                for order_ref in book.orders(side) {
                    let Some(order) = self.orders.get(&order_ref) else { continue };
                    let (shares, symbol) = (order.open, *symbol);
                    let price = order.terms.price as u32;
                    let said = Said::Add { order_ref, side, shares, symbol, price };
                    say(Message { locate, time, said });
                }
            }
        }
    }

    /// Requests that were ignored: repeated ones, and cancels of what is not there.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The orders of a security and a side, the best first: number, open shares and price.
    pub fn book(&self, symbol: Symbol, side: Side) -> Vec<(u64, u32, u64)> {
        let locate = self.locates.get(&symbol).copied().unwrap_or(0);
        let orders = self.books[usize::from(locate)].orders(side);
        let terms = |order_ref| {
            let order = self.orders.get(&order_ref)?;
            Some((order_ref, order.open, order.terms.price))
        };
        orders.filter_map(terms).collect()
    }

    /// Takes a request of a user at that time, in nanoseconds since midnight.
    pub fn request(&mut self, time: u64, user: u32, request: &Request, out: &mut impl Output) {
        match request {
            Request::Enter(enter) => self.enter(time, user, enter, out),
            Request::Replace(replace) => self.replace(time, user, replace, out),
            Request::Cancel { user_ref, quantity } => {
                self.cancel(time, (user, *user_ref), *quantity, out);
            }
        }
    }

    /// True if the number is new. A repeated request is ignored, so that users may send again what
    /// may have been lost.
    fn is_new(&mut self, user: u32, user_ref: u32) -> bool {
        let user = self.users.entry(user).or_default();
        let new = user_ref > user.last_ref;
        user.last_ref = user.last_ref.max(user_ref);
        self.ignored += u64::from(!new);
        new
    }

    /// The side and the locate number of an order that may be entered.
    fn check(&self, enter: &Enter) -> Result<(Side, u16), Reason> {
        let side = enter.side().ok_or(Reason::InvalidSide)?;
        let locate = *self.locates.get(&enter.symbol).ok_or(Reason::InvalidSymbol)?;
        let known = matches!(enter.time_in_force, TimeInForce::Day | TimeInForce::Ioc);
        match () {
            () if !(1..=SHARES_MAX).contains(&enter.quantity) => Err(Reason::InvalidQuantity),
            () if !(1..=PRICE_MAX).contains(&enter.price) => Err(Reason::InvalidPrice),
            () if !matches!(enter.flags.display, b'Y' | b'A') => Err(Reason::InvalidDisplay),
            () if enter.flags.cross != b'N' => Err(Reason::InvalidCross),
            () if !known => Err(Reason::Other),
            () => Ok((side, locate)),
        }
    }

    fn enter(&mut self, time: u64, user: u32, enter: &Enter, out: &mut impl Output) {
        if !self.is_new(user, enter.user_ref) {
            return;
        }
        let (user_ref, cl_ord_id) = (enter.user_ref, enter.cl_ord_id);
        let (side, locate) = match self.check(enter) {
            Ok(checked) => checked,
            Err(reason) => {
                let told = Told::Rejected { user_ref, reason, cl_ord_id };
                return out.answer(user, Answer { time, told });
            }
        };
        self.last_order += 1;
        let order_ref = self.last_order;
        let accepted = Accepted { order: *enter, order_ref };
        out.answer(user, Answer { time, told: Told::Accepted(accepted) });
        let (terms, executed, replaces) = (*enter, 0, None);
        let incoming = Incoming { user, terms, side, locate, executed, order_ref, replaces };
        self.trade(time, incoming, out);
    }

    fn replace(&mut self, time: u64, user: u32, replace: &Replace, out: &mut impl Output) {
        if !self.is_new(user, replace.user_ref) {
            return;
        }
        let Replace { old_user_ref, user_ref, cl_ord_id, .. } = *replace;
        let reject = |reason| Answer { time, told: Told::Rejected { user_ref, reason, cl_ord_id } };
        let Some((old_ref, old)) = self.resting(user, old_user_ref) else {
            return out.answer(user, reject(Reason::ReplaceNotAllowed));
        };
        let Replace { quantity, price, time_in_force, display, sweep, .. } = *replace;
        let flags = crate::ouch::Flags { display, sweep, ..old.terms.flags };
        let open = quantity.saturating_sub(old.executed);
        let terms =
            Enter { user_ref, quantity: open, price, time_in_force, flags, cl_ord_id, ..old.terms };
        if let Err(reason) = self.check(&Enter { quantity: quantity.max(1), ..terms }) {
            return out.answer(user, reject(reason));
        }
        if open == 0 {
            // Nothing is left of the order with so few shares.
            self.reduce(time, old_ref, old.open, out);
            let told = Told::Canceled { user_ref: old_user_ref, quantity: old.open, reason: b'U' };
            out.answer(user, Answer { time, told });
            return out.answer(user, reject(Reason::InvalidQuantity));
        }
        self.take_out(old_ref);
        self.last_order += 1;
        let order_ref = self.last_order;
        let new = Accepted { order: terms, order_ref };
        out.answer(user, Answer { time, told: Told::Replaced { old_user_ref, new } });
        let Order { side, locate, executed, .. } = old;
        let replaces = Some(old_ref);
        let incoming = Incoming { user, terms, side, locate, executed, order_ref, replaces };
        self.trade(time, incoming, out);
    }

    fn cancel(
        &mut self,
        time: u64,
        (user, user_ref): (u32, u32),
        quantity: u32,
        out: &mut impl Output,
    ) {
        let Some((order_ref, order)) = self.resting(user, user_ref) else {
            self.ignored += 1;
            return;
        };
        let less = order.open.saturating_sub(quantity.saturating_sub(order.executed));
        if less == 0 {
            self.ignored += 1;
            return;
        }
        self.reduce(time, order_ref, less, out);
        let told = Told::Canceled { user_ref, quantity: less, reason: b'U' };
        out.answer(user, Answer { time, told });
    }

    fn resting(&self, user: u32, user_ref: u32) -> Option<(u64, Order)> {
        let order_ref = *self.users.get(&user)?.orders.get(&user_ref)?;
        Some((order_ref, *self.orders.get(&order_ref)?))
    }

    /// Takes an order out of the book.
    fn take_out(&mut self, order_ref: u64) {
        let Some(order) = self.orders.remove(&order_ref) else { return };
        let book = &mut self.books[usize::from(order.locate)];
        book.remove(order.side, order.terms.price, order.arrival);
        if let Some(user) = self.users.get_mut(&order.user) {
            user.orders.remove(&order.terms.user_ref);
        }
    }

    /// Takes shares off a resting order, or all of it, and tells the feed.
    fn reduce(&mut self, time: u64, order_ref: u64, less: u32, out: &mut impl Output) {
        let Some(order) = self.orders.get_mut(&order_ref) else { return };
        let locate = order.locate;
        let said = if less < order.open {
            order.open -= less;
            Said::Cancel { order_ref, shares: less }
        } else {
            self.take_out(order_ref);
            Said::Delete { order_ref }
        };
        out.publish(Message { locate, time, said });
    }

    /// Trades an order with what is in the book, and lets the rest of it rest.
    fn trade(&mut self, time: u64, incoming: Incoming, out: &mut impl Output) {
        let Incoming { user, terms, side, locate, mut executed, replaces, .. } = incoming;
        let mut open = terms.quantity;
        let mut shown = replaces;
        while open > 0
            && let Some(best) = self.books[usize::from(locate)].best(side.other(), terms.price)
        {
            // The feed shows the old order until now, and it must not trade.
            if let Some(order_ref) = shown.take() {
                out.publish(Message { locate, time, said: Said::Delete { order_ref } });
            }
            let shares = self.execute(time, best, open, (user, terms.user_ref), out);
            if shares == 0 {
                break;
            }
            open -= shares;
            executed += shares;
        }
        if open > 0 && terms.time_in_force == TimeInForce::Day {
            self.rest(time, Incoming { executed, replaces: shown, ..incoming }, open, out);
            return;
        }
        if let Some(order_ref) = shown {
            out.publish(Message { locate, time, said: Said::Delete { order_ref } });
        }
        if open > 0 {
            let told = Told::Canceled { user_ref: terms.user_ref, quantity: open, reason: b'I' };
            out.answer(user, Answer { time, told });
        }
    }

    /// Executes a resting order against a new one. Returns the shares.
    fn execute(
        &mut self,
        time: u64,
        order_ref: u64,
        most: u32,
        (user, user_ref): (u32, u32),
        out: &mut impl Output,
    ) -> u32 {
        let Some(order) = self.orders.get_mut(&order_ref) else { return 0 };
        let shares = order.open.min(most);
        order.open -= shares;
        order.executed += shares;
        let Order { terms, locate, open, user: owner, .. } = *order;
        self.last_match += 1;
        let match_number = self.last_match;
        for (user, user_ref, liquidity) in [(owner, terms.user_ref, b'A'), (user, user_ref, b'R')] {
            let (quantity, price) = (shares, terms.price);
            let told = Told::Executed { user_ref, quantity, price, liquidity, match_number };
            out.answer(user, Answer { time, told });
        }
        let said = Said::Executed { order_ref, shares, match_number };
        out.publish(Message { locate, time, said });
        if open == 0 {
            self.take_out(order_ref);
        }
        shares
    }

    /// Puts the rest of an order into the book.
    fn rest(&mut self, time: u64, incoming: Incoming, open: u32, out: &mut impl Output) {
        let Incoming { user, terms, side, locate, executed, order_ref, replaces } = incoming;
        self.last_arrival += 1;
        let arrival = self.last_arrival;
        let order = Order { user, terms, side, locate, open, executed, arrival };
        self.orders.insert(order_ref, order);
        self.users.entry(user).or_default().orders.insert(terms.user_ref, order_ref);
        self.books[usize::from(locate)].add(side, terms.price, arrival, order_ref);
        // Prices are at most `PRICE_MAX`, which 32 bits hold.
        let (shares, price) = (open, terms.price as u32);
        let said = match replaces {
            Some(old_ref) => Said::Replace { old_ref, order_ref, shares, price },
            None => Said::Add { order_ref, side, shares, symbol: terms.symbol, price },
        };
        out.publish(Message { locate, time, said });
    }
}
