//! ITCH 5.0, the market data protocol of Nasdaq: the layout of the messages that build a book.

use crate::field::{Reader, Side, Symbol, Write};

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// System Event, `S`, with its code: `O` begins the messages, `C` ends them.
    System(u8),
    /// Stock Directory, `R`: the security of a locate number. Its other fields describe a common
    /// stock in round lots of 100.
    Directory(Symbol),
    /// Add Order, `A`.
    Add {
        /// The order.
        order_ref: u64,
        /// Its side.
        side: Side,
        /// Shares.
        shares: u32,
        /// The security.
        symbol: Symbol,
        /// Price, with four implied decimals.
        price: u32,
    },
    /// Order Executed, `E`, at the order's price.
    Executed {
        /// The order.
        order_ref: u64,
        /// Shares less.
        shares: u32,
        /// The trade.
        match_number: u64,
    },
    /// Order Cancel, `X`: part of it.
    Cancel {
        /// The order.
        order_ref: u64,
        /// Shares less.
        shares: u32,
    },
    /// Order Delete, `D`.
    Delete {
        /// The order.
        order_ref: u64,
    },
    /// Order Replace, `U`: another order of the same side and security, behind all others of its
    /// price.
    Replace {
        /// The order that is gone.
        old_ref: u64,
        /// The new one.
        order_ref: u64,
        /// Shares.
        shares: u32,
        /// Price, with four implied decimals.
        price: u32,
    },
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The number of the security; 0 for none.
    pub locate: u16,
    /// Nanoseconds since midnight; 48 bits go out.
    pub time: u64,
    /// What it says.
    pub said: Said,
}

/// Bytes of the longest message.
pub const LONGEST: usize = 39;

/// Fields of a directory message behind the symbol.
const COMMON_STOCK: &[u8] = b"QN\0\0\0\x64NCZ PNN1N\0\0\0\0N";

impl Message {
    /// Writes the message behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        let kind = match self.said {
            Said::System(_) => b'S',
            Said::Directory(_) => b'R',
            Said::Add { .. } => b'A',
            Said::Executed { .. } => b'E',
            Said::Cancel { .. } => b'X',
            Said::Delete { .. } => b'D',
            Said::Replace { .. } => b'U',
        };
        // The tracking number is internal to the exchange.
        to.u8(kind).u16(self.locate).u16(0).u48(self.time);
        match self.said {
            Said::System(event) => to.u8(event),
            Said::Directory(symbol) => to.text(&symbol.0).text(COMMON_STOCK),
            Said::Add { order_ref, side, shares, symbol, price } => {
                let side = if side == Side::Buy { b'B' } else { b'S' };
                to.u64(order_ref).u8(side).u32(shares).text(&symbol.0).u32(price)
            }
            Said::Executed { order_ref, shares, match_number } => {
                to.u64(order_ref).u32(shares).u64(match_number)
            }
            Said::Cancel { order_ref, shares } => to.u64(order_ref).u32(shares),
            Said::Delete { order_ref } => to.u64(order_ref),
            Said::Replace { old_ref, order_ref, shares, price } => {
                to.u64(old_ref).u64(order_ref).u32(shares).u32(price)
            }
        };
    }

    /// Reads a message. `None`: it is not one of these, or damaged.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let mut reader = Reader(bytes);
        let r = &mut reader;
        let (kind, locate, _tracking, time) = (r.u8()?, r.u16()?, r.u16()?, r.u48()?);
        let said = match kind {
            b'S' => Said::System(r.u8()?),
            b'R' => {
                let symbol = Symbol(r.text()?);
                let _described: [u8; COMMON_STOCK.len()] = r.text()?;
                Said::Directory(symbol)
            }
            b'A' => {
                let order_ref = r.u64()?;
                let side = match r.u8()? {
                    b'B' => Side::Buy,
                    b'S' => Side::Sell,
                    _ => return None,
                };
                let (shares, symbol, price) = (r.u32()?, Symbol(r.text()?), r.u32()?);
                Said::Add { order_ref, side, shares, symbol, price }
            }
            b'E' => {
                Said::Executed { order_ref: r.u64()?, shares: r.u32()?, match_number: r.u64()? }
            }
            b'X' => Said::Cancel { order_ref: r.u64()?, shares: r.u32()? },
            b'D' => Said::Delete { order_ref: r.u64()? },
            b'U' => {
                let (old_ref, order_ref) = (r.u64()?, r.u64()?);
                Said::Replace { old_ref, order_ref, shares: r.u32()?, price: r.u32()? }
            }
            _ => return None,
        };
        r.end()?;
        Some(Message { locate, time, said })
    }
}
