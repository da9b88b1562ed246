//! The orders of one security, by price and then by time of arrival.

use std::collections::BTreeMap;

use crate::field::Side;

/// An order's rank: the better price first, then the earlier arrival.
type Rank = (u64, u64);

/// The orders of one security: their numbers, in the order in which they trade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Book {
    buys: BTreeMap<Rank, u64>,
    sells: BTreeMap<Rank, u64>,
}

fn rank(side: Side, price: u64, arrival: u64) -> Rank {
    match side {
        Side::Buy => (u64::MAX - price, arrival),
        Side::Sell => (price, arrival),
    }
}

impl Book {
    fn side(&mut self, side: Side) -> &mut BTreeMap<Rank, u64> {
        match side {
            Side::Buy => &mut self.buys,
            Side::Sell => &mut self.sells,
        }
    }

    /// Adds an order. No two orders have the same arrival.
    pub fn add(&mut self, side: Side, price: u64, arrival: u64, order_ref: u64) {
        self.side(side).insert(rank(side, price, arrival), order_ref);
    }

    /// Removes an order.
    pub fn remove(&mut self, side: Side, price: u64, arrival: u64) {
        self.side(side).remove(&rank(side, price, arrival));
    }

    /// The best order of a side, if an order of the other side with that price trades with it.
    pub fn best(&self, side: Side, other_price: u64) -> Option<u64> {
        let (orders, limit) = match side {
            Side::Buy => (&self.buys, u64::MAX - other_price),
            Side::Sell => (&self.sells, other_price),
        };
        let ((price, _), order_ref) = orders.first_key_value()?;
        (*price <= limit).then_some(*order_ref)
    }

    /// The orders of a side, the best first.
    pub fn orders(&self, side: Side) -> impl Iterator<Item = u64> + '_ {
        let orders = if side == Side::Buy { &self.buys } else { &self.sells };
        orders.values().copied()
    }
}

impl Side {
    /// The other side.
    pub fn other(self) -> Side {
        match self {
            Side::Buy => Side::Sell,
            Side::Sell => Side::Buy,
        }
    }
}
