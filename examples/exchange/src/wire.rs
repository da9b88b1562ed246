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
    /// To the exchange: a [`Login`]. Back: a [`LoginAnswer`].
    Login,
    /// From a standby: where its memory for the log is; later, how many records it has taken. To
    /// it: how many records there are.
    Standby,
    /// To the exchange: a request for a snapshot, nothing more. Back: the pieces of one.
    Snapshot,
    /// To a client that has asked for messages which are gone: the number of the oldest that is
    /// kept. A snapshot has to do.
    Gone,
}

impl Channel {
    const ALL: [Channel; 7] = [
        Channel::Orders,
        Channel::Recovery,
        Channel::Digest,
        Channel::Login,
        Channel::Standby,
        Channel::Snapshot,
        Channel::Gone,
    ];

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

/// A user comes, again or for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: u32,
    /// Answers that it has: the exchange sends those behind them.
    pub answers: u64,
}

impl Login {
    /// Writes it behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.u32(self.user).u64(self.answers);
    }

    /// Reads it. `None`: it is damaged.
    pub fn read(bytes: &[u8]) -> Option<Login> {
        let mut reader = Reader(bytes);
        let login = Login { user: reader.u32()?, answers: reader.u64()? };
        reader.end()?;
        Some(login)
    }
}

/// What an exchange says to a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginAnswer {
    /// This exchange is in charge: answers and orders may come.
    Welcome {
        /// Answers that it has for the user.
        answers: u64,
    },
    /// It is in charge from now on. The user has waited, so it has to say again how many answers
    /// it has.
    Again,
}

impl LoginAnswer {
    /// Writes it behind what `to` holds.
    pub fn write(self, to: &mut Vec<u8>) {
        match self {
            LoginAnswer::Welcome { answers } => drop(to.u8(0).u64(answers)),
            LoginAnswer::Again => drop(to.u8(1)),
        }
    }

    /// Reads it. `None`: it is damaged.
    pub fn read(bytes: &[u8]) -> Option<LoginAnswer> {
        match bytes {
            [0, answers @ ..] => {
                read_number(answers).map(|answers| LoginAnswer::Welcome { answers })
            }
            [1] => Some(LoginAnswer::Again),
            _ => None,
        }
    }
}

/// Eight bytes as a number.
pub fn read_number(bytes: &[u8]) -> Option<u64> {
    let mut reader = Reader(bytes);
    let number = reader.u64()?;
    reader.end()?;
    Some(number)
}

/// All books at a moment, and all answers to a user, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// The number of the next message of the feed then.
    pub sequence: u64,
    /// The sum over all books.
    pub sum: u64,
    /// Answers to the user who asks, and their sum.
    pub answers: Answers,
}

/// Answers in their order: how many, and a sum over their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// How many.
    pub count: u64,
    /// The sum.
    pub sum: u64,
}

impl Answers {
    /// Adds the next answer.
    pub fn add(&mut self, bytes: &[u8]) {
        self.count += 1;
        self.sum = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.sum);
    }
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
        let Answers { count, sum } = self.answers;
        to.u64(self.sequence).u64(self.sum).u64(count).u64(sum);
    }

    /// Reads it. `None`: it is damaged.
    pub fn read(bytes: &[u8]) -> Option<Digest> {
        let mut reader = Reader(bytes);
        let (sequence, sum) = (reader.u64()?, reader.u64()?);
        let answers = Answers { count: reader.u64()?, sum: reader.u64()? };
        let digest = Digest { sequence, sum, answers };
        reader.end()?;
        Some(digest)
    }
}

/// The securities of an exchange with that many of them.
pub fn symbols(count: u16) -> Vec<Symbol> {
    (0..count).map(|n| Symbol::new(&format!("SYM{n}"))).collect()
}

/// What an exchange says to each peer when it accepts it.
pub const GREETING: &[u8] = b"exchange";

/// The session of the feed.
pub const SESSION: crate::mold::Session = *b"DOORBELL 1";
