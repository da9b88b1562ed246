//! A strategy that trades on what it sees: it takes each `n`-th order that becomes the best one of
//! its side, by an immediate order at its price.

use crate::field::Side;
use crate::itch::{Message, Said};
use crate::ouch::{Enter, Flags, TimeInForce};
use crate::view::View;

/// See the module.
pub struct Taker {
    every: u64,
    seen: u64,
}

impl Taker {
    /// One that takes each order of `every`; none if that is 0.
    pub fn new(every: u64) -> Taker {
        Taker { every, seen: 0 }
    }

    /// Looks at a message that was applied to the view. Returns the terms of an order that it
    /// provokes, still without a number.
    pub fn look(&mut self, message: &Message, view: &View) -> Option<Enter> {
        let Said::Add { order_ref, side, shares, symbol, price } = message.said else {
            return None;
        };
        if self.every == 0 || !view.is_best(order_ref) {
            return None;
        }
        self.seen += 1;
        self.seen.is_multiple_of(self.every).then_some(Enter {
            user_ref: 0,
            side: if side == Side::Buy { b'S' } else { b'B' },
            quantity: shares,
            symbol,
            price: price.into(),
            time_in_force: TimeInForce::Ioc,
            flags: Flags::VISIBLE,
            cl_ord_id: *b"taken         ",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Symbol;

    #[test]
    fn it_takes_the_best_order_only() {
        let (mut view, mut taker) = (View::default(), Taker::new(1));
        let mut look = |order_ref, price| {
            let symbol = Symbol::new("DOOR");
            let said = Said::Add { order_ref, side: Side::Buy, shares: 300, symbol, price };
            let message = Message { locate: 1, time: 1, said };
            view.apply(&message).expect("a new order");
            taker.look(&message, &view)
        };
        let terms = look(1, 500).expect("the first order is the best");
        assert_eq!((terms.side, terms.quantity, terms.price), (b'S', 300, 500));
        assert_eq!(look(2, 400), None);
        assert!(look(3, 600).is_some());
    }
}
