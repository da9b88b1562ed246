//! OUCH 5.0, the order entry protocol of Nasdaq: the layout of its messages for continuous trading.
//!
//! Prices have four implied decimals. Optional fields in an appendage (a length, a tag and a value
//! each) are checked for their form and ignored.

use crate::field::{Reader, Side, Symbol, Write};

/// Order identifier of a customer, echoed in answers.
pub type ClOrdId = [u8; 14];

/// How long an order stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeInForce {
    /// Until the end of the day.
    Day,
    /// What does not match at once is canceled.
    Ioc,
    /// Another of the protocol's, by its code.
    Other(u8),
}

impl TimeInForce {
    fn read(code: u8) -> TimeInForce {
        match code {
            b'0' => TimeInForce::Day,
            b'3' => TimeInForce::Ioc,
            other => TimeInForce::Other(other),
        }
    }

    fn code(self) -> u8 {
        match self {
            TimeInForce::Day => b'0',
            TimeInForce::Ioc => b'3',
            TimeInForce::Other(code) => code,
        }
    }
}

/// Fields that an order has besides its terms: capacity, eligibility for sweeps, and cross type;
/// and how it is displayed. As their codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// `Y`: visible.
    pub display: u8,
    /// `A` agency, `P` principal, `R` riskless, `O` other.
    pub capacity: u8,
    /// `Y` or `N`.
    pub sweep: u8,
    /// `N`: continuous market.
    pub cross: u8,
}

impl Flags {
    /// A visible order in the continuous market.
    pub const VISIBLE: Flags = Flags { display: b'Y', capacity: b'P', sweep: b'N', cross: b'N' };
}

/// Enter Order, `O`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enter {
    /// The order's number: each is larger than all before it of this user.
    pub user_ref: u32,
    /// `B`, `S`, `T` (short) or `E` (short, exempt).
    pub side: u8,
    /// Shares.
    pub quantity: u32,
    /// The security.
    pub symbol: Symbol,
    /// Price.
    pub price: u64,
    /// How long it stays.
    pub time_in_force: TimeInForce,
    /// The rest.
    pub flags: Flags,
    /// The customer's own name for it.
    pub cl_ord_id: ClOrdId,
}

/// Replace Order Request, `U`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replace {
    /// The order to be replaced.
    pub old_user_ref: u32,
    /// Its new number.
    pub user_ref: u32,
    /// Shares, with those that were executed before.
    pub quantity: u32,
    /// Price.
    pub price: u64,
    /// How long it stays.
    pub time_in_force: TimeInForce,
    /// As [`Flags::display`].
    pub display: u8,
    /// As [`Flags::sweep`].
    pub sweep: u8,
    /// The customer's own name for it.
    pub cl_ord_id: ClOrdId,
}

/// A message from a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A new order.
    Enter(Enter),
    /// Another order in the place of one.
    Replace(Replace),
    /// Less of an order.
    Cancel {
        /// The order.
        user_ref: u32,
        /// Shares it may have in all, executed ones included; 0 cancels it.
        quantity: u32,
    },
}

/// Checks the form of an appendage: its length, and in it fields of a length, a tag and a value.
fn appendage(reader: &mut Reader<'_>) -> Option<()> {
    let length = usize::from(reader.u16()?);
    if reader.0.len() != length {
        return None;
    }
    while let Some(field) = reader.u8() {
        let (_tag_and_value, rest) = reader.0.split_at_checked(usize::from(field))?;
        if field == 0 {
            return None;
        }
        reader.0 = rest;
    }
    Some(())
}

impl Request {
    /// Reads a message. `None`: it is not one of these, or damaged.
    pub fn read(bytes: &[u8]) -> Option<Request> {
        let mut reader = Reader(bytes);
        let r = &mut reader;
        match r.u8()? {
            b'O' => {
                let (user_ref, side, quantity) = (r.u32()?, r.u8()?, r.u32()?);
                let (symbol, price) = (Symbol(r.text()?), r.u64()?);
                let time_in_force = TimeInForce::read(r.u8()?);
                let [display, capacity, sweep, cross] = r.text()?;
                let flags = Flags { display, capacity, sweep, cross };
                let cl_ord_id = r.text()?;
                appendage(r)?;
                Some(Request::Enter(Enter {
                    user_ref,
                    side,
                    quantity,
                    symbol,
                    price,
                    time_in_force,
                    flags,
                    cl_ord_id,
                }))
            }
            b'U' => {
                let (old_user_ref, user_ref, quantity) = (r.u32()?, r.u32()?, r.u32()?);
                let (price, time_in_force) = (r.u64()?, TimeInForce::read(r.u8()?));
                let ([display, sweep], cl_ord_id) = (r.text()?, r.text()?);
                appendage(r)?;
                Some(Request::Replace(Replace {
                    old_user_ref,
                    user_ref,
                    quantity,
                    price,
                    time_in_force,
                    display,
                    sweep,
                    cl_ord_id,
                }))
            }
            b'X' => {
                let (user_ref, quantity) = (r.u32()?, r.u32()?);
                // Later revisions of the protocol have an appendage here too.
                if r.end().is_none() {
                    appendage(r)?;
                }
                Some(Request::Cancel { user_ref, quantity })
            }
            _ => None,
        }
    }

    /// Writes the message behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Request::Enter(enter) => {
                let Flags { display, capacity, sweep, cross } = enter.flags;
                to.u8(b'O').u32(enter.user_ref).u8(enter.side).u32(enter.quantity);
                to.text(&enter.symbol.0).u64(enter.price).u8(enter.time_in_force.code());
                to.text(&[display, capacity, sweep, cross]).text(&enter.cl_ord_id).u16(0);
            }
            Request::Replace(replace) => {
                to.u8(b'U').u32(replace.old_user_ref).u32(replace.user_ref).u32(replace.quantity);
                to.u64(replace.price).u8(replace.time_in_force.code());
                to.text(&[replace.display, replace.sweep]).text(&replace.cl_ord_id).u16(0);
            }
            Request::Cancel { user_ref, quantity } => {
                to.u8(b'X').u32(*user_ref).u32(*quantity);
            }
        }
    }
}

impl Enter {
    /// Its side. `None`: the code is none of the protocol's.
    pub fn side(&self) -> Option<Side> {
        match self.side {
            b'B' => Some(Side::Buy),
            b'S' | b'T' | b'E' => Some(Side::Sell),
            _ => None,
        }
    }
}

/// Why an order was rejected: the protocol's codes, as far as this exchange uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// Its display is not offered.
    InvalidDisplay = 0x0003,
    /// Its side is none.
    InvalidSide = 0x0009,
    /// Something that is not offered.
    Other = 0x000f,
    /// No shares, or too many.
    InvalidQuantity = 0x0013,
    /// Its cross type is not offered.
    InvalidCross = 0x0014,
    /// The order to be replaced is not there.
    ReplaceNotAllowed = 0x0015,
    /// Nobody trades that.
    InvalidSymbol = 0x0017,
    /// The price is 0 or too high.
    InvalidPrice = 0x001d,
}

impl Reason {
    const ALL: [Reason; 8] = [
        Reason::InvalidDisplay,
        Reason::InvalidSide,
        Reason::Other,
        Reason::InvalidQuantity,
        Reason::InvalidCross,
        Reason::ReplaceNotAllowed,
        Reason::InvalidSymbol,
        Reason::InvalidPrice,
    ];
}

/// An order as it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its terms; the quantity is what is open.
    pub order: Enter,
    /// Its number on the feed.
    pub order_ref: u64,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// System Event, `S`: `S` begins the day, `E` ends it.
    System(u8),
    /// Order Accepted, `A`.
    Accepted(Accepted),
    /// Replaced, `U`.
    Replaced {
        /// The order that is gone.
        old_user_ref: u32,
        /// The new one.
        new: Accepted,
    },
    /// Canceled, `C`.
    Canceled {
        /// The order.
        user_ref: u32,
        /// Shares less.
        quantity: u32,
        /// `U`: the user asked for it; `I`: what was left of an immediate order.
        reason: u8,
    },
    /// Executed, `E`.
    Executed {
        /// The order.
        user_ref: u32,
        /// Shares.
        quantity: u32,
        /// Price.
        price: u64,
        /// `A` added liquidity, `R` removed it.
        liquidity: u8,
        /// Both sides of a trade have the same.
        match_number: u64,
    },
    /// Rejected, `J`.
    Rejected {
        /// The order.
        user_ref: u32,
        /// Why.
        reason: Reason,
        /// The customer's own name for it.
        cl_ord_id: ClOrdId,
    },
}

/// Bytes of the longest answer.
pub const ANSWER_LONGEST: usize = 68;

/// A message to a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Nanoseconds since midnight.
    pub time: u64,
    /// What it says.
    pub told: Told,
}

fn write_accepted(to: &mut Vec<u8>, Accepted { order, order_ref }: &Accepted) {
    let Flags { display, capacity, sweep, cross } = order.flags;
    to.u32(order.user_ref).u8(order.side).u32(order.quantity).text(&order.symbol.0);
    to.u64(order.price).u8(order.time_in_force.code()).u8(display).u64(*order_ref);
    to.text(&[capacity, sweep, cross, b'L']).text(&order.cl_ord_id).u16(0);
}

fn read_accepted(r: &mut Reader<'_>) -> Option<Accepted> {
    let (user_ref, side, quantity) = (r.u32()?, r.u8()?, r.u32()?);
    let (symbol, price) = (Symbol(r.text()?), r.u64()?);
    let (time_in_force, display, order_ref) = (TimeInForce::read(r.u8()?), r.u8()?, r.u64()?);
    let ([capacity, sweep, cross, _state], cl_ord_id) = (r.text()?, r.text()?);
    appendage(r)?;
    let flags = Flags { display, capacity, sweep, cross };
    let order = Enter { user_ref, side, quantity, symbol, price, time_in_force, flags, cl_ord_id };
    Some(Accepted { order, order_ref })
}

impl Answer {
    /// Writes the message behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        let time = self.time;
        match &self.told {
            Told::System(event) => {
                to.u8(b'S').u64(time).u8(*event);
            }
            Told::Accepted(accepted) => write_accepted(to.u8(b'A').u64(time), accepted),
            Told::Replaced { old_user_ref, new } => {
                write_accepted(to.u8(b'U').u64(time).u32(*old_user_ref), new);
            }
            Told::Canceled { user_ref, quantity, reason } => {
                to.u8(b'C').u64(time).u32(*user_ref).u32(*quantity).u8(*reason);
            }
            Told::Executed { user_ref, quantity, price, liquidity, match_number } => {
                to.u8(b'E').u64(time).u32(*user_ref).u32(*quantity).u64(*price);
                to.u8(*liquidity).u64(*match_number).u16(0);
            }
            Told::Rejected { user_ref, reason, cl_ord_id } => {
                to.u8(b'J').u64(time).u32(*user_ref).u16(*reason as u16).text(cl_ord_id);
            }
        }
    }

    /// Reads a message. `None`: it is not one of these, or damaged.
    pub fn read(bytes: &[u8]) -> Option<Answer> {
        let mut reader = Reader(bytes);
        let r = &mut reader;
        let (kind, time) = (r.u8()?, r.u64()?);
        let told = match kind {
            b'S' => Told::System(r.u8()?),
            b'A' => Told::Accepted(read_accepted(r)?),
            b'U' => Told::Replaced { old_user_ref: r.u32()?, new: read_accepted(r)? },
            b'C' => Told::Canceled { user_ref: r.u32()?, quantity: r.u32()?, reason: r.u8()? },
            b'E' => {
                let (user_ref, quantity, price) = (r.u32()?, r.u32()?, r.u64()?);
                let (liquidity, match_number) = (r.u8()?, r.u64()?);
                appendage(r)?;
                Told::Executed { user_ref, quantity, price, liquidity, match_number }
            }
            b'J' => {
                let (user_ref, code) = (r.u32()?, r.u16()?);
                let reason = *Reason::ALL.iter().find(|reason| **reason as u16 == code)?;
                Told::Rejected { user_ref, reason, cl_ord_id: r.text()? }
            }
            _ => return None,
        };
        r.end()?;
        Some(Answer { time, told })
    }
}
