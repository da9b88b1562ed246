//! The book as a client builds it from the feed.

use std::collections::HashMap;

use crate::book::Book;
use crate::field::{Side, Symbol};
use crate::itch::{Message, Said};

/// An order that the feed has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    locate: u16,
    side: Side,
    shares: u32,
    price: u32,
    arrival: u64,
}

/// A message that does not fit the book: the feed is broken, or one was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown(pub Message);

/// All books, as the feed shows them.
#[derive(Default)]
pub struct View {
    symbols: HashMap<Symbol, u16>,
    books: HashMap<u16, Book>,
    orders: HashMap<u64, Shown>,
    arrivals: u64,
}

impl View {
    /// Applies the next message.
    ///
    /// # Errors
    /// [`Unknown`]: an order that is not there, or with fewer shares. The view stays as it was.
    pub fn apply(&mut self, message: &Message) -> Result<(), Unknown> {
        let unknown = Unknown(*message);
        match message.said {
            Said::System(_) => {}
            Said::Directory(symbol) => drop(self.symbols.insert(symbol, message.locate)),
            Said::Add { order_ref, side, shares, price, .. } => {
                self.add(order_ref, (message.locate, side), shares, price);
            }
            Said::Executed { order_ref, shares, .. } | Said::Cancel { order_ref, shares } => {
                let order = self.orders.get_mut(&order_ref).ok_or(unknown)?;
                order.shares = order.shares.checked_sub(shares).ok_or(unknown)?;
                if order.shares == 0 {
                    self.remove(order_ref).ok_or(unknown)?;
                }
            }
            Said::Delete { order_ref } => drop(self.remove(order_ref).ok_or(unknown)?),
            Said::Replace { old_ref, order_ref, shares, price } => {
                let old = self.remove(old_ref).ok_or(unknown)?;
                self.add(order_ref, (old.locate, old.side), shares, price);
            }
        }
        Ok(())
    }

    /// True if that order is the next of its side and security to trade.
    pub fn is_best(&self, order_ref: u64) -> bool {
        self.orders.get(&order_ref).is_some_and(|shown| {
            let book = self.books.get(&shown.locate);
            book.and_then(|book| book.orders(shown.side).next()) == Some(order_ref)
        })
    }

    fn add(&mut self, order_ref: u64, (locate, side): (u16, Side), shares: u32, price: u32) {
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.orders.insert(order_ref, Shown { locate, side, shares, price, arrival });
        self.books.entry(locate).or_default().add(side, price.into(), arrival, order_ref);
    }

    fn remove(&mut self, order_ref: u64) -> Option<Shown> {
        let shown = self.orders.remove(&order_ref)?;
        let book = self.books.get_mut(&shown.locate)?;
        book.remove(shown.side, shown.price.into(), shown.arrival);
        Some(shown)
    }

    /// The orders of a security and a side, the best first: number, open shares and price.
    pub fn book(&self, symbol: Symbol, side: Side) -> Vec<(u64, u32, u64)> {
        let Some(book) = self.symbols.get(&symbol).and_then(|locate| self.books.get(locate)) else {
            return Vec::new();
        };
        let terms = |order_ref| {
            let shown = self.orders.get(&order_ref)?;
            Some((order_ref, shown.shares, shown.price.into()))
        };
        book.orders(side).filter_map(terms).collect()
    }
}
