//! What goes over a connection: a byte that names the channel, and a message of it.

use crate::field::{Reader, Side, Symbol, Write};

/// The channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// OUCH, both ways.
    Orders,
    /// To the exchange: a request for messages of the feed. Back: packets with them.
    Recovery,
    /// To the exchange: nothing more. Back: a [`Digest`].
    Digest,
}

impl Channel {
    const ALL: [Channel; 3] = [Channel::Orders, Channel::Recovery, Channel::Digest];

    /// Begins a message of the channel.
    pub fn begin(self, message: &mut Vec<u8>) {
        message.clear();
        message.u8(self as u8);
    }

    /// The channel of a message, and the rest of it. `None`: it is of none.
    pub fn split(message: &[u8]) -> Option<(Channel, &[u8])> {
        let (channel, rest) = message.split_first()?;
        Some((*Channel::ALL.get(usize::from(*channel))?, rest))
    }
}

/// All books at a moment, as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The number of the next message of the feed then.
    pub sequence: u64,
    /// The sum over all books.
    pub sum: u64,
}

impl Digest {
    /// The sum over the books of these securities, as `book` has them: number, shares and price of
    /// each order.
    pub fn sum(symbols: &[Symbol], book: impl Fn(Symbol, Side) -> Vec<(u64, u32, u64)>) -> u64 {
        let mut sum = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |word: u64| {
            sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        };
        for symbol in symbols {
            for side in [Side::Buy, Side::Sell] {
                add(u64::from_be_bytes(symbol.0));
                for (order_ref, shares, price) in book(*symbol, side) {
                    [order_ref, shares.into(), price].into_iter().for_each(&mut add);
                }
            }
        }
        sum
    }

    /// Writes it behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.u64(self.sequence).u64(self.sum);
    }

    /// Reads it. `None`: it is damaged.
    pub fn read(bytes: &[u8]) -> Option<Digest> {
        let mut reader = Reader(bytes);
        let digest = Digest { sequence: reader.u64()?, sum: reader.u64()? };
        reader.end()?;
        Some(digest)
    }
}

/// The securities of an exchange with that many of them.
pub fn symbols(count: u16) -> Vec<Symbol> {
    (0..count).map(|n| Symbol::new(&format!("SYM{n}"))).collect()
}

/// The session of the feed.
pub const SESSION: crate::mold::Session = *b"DOORBELL 1";
