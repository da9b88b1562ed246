//! Messages larger than a block, over a worker: the sender offers a piece of its registered memory;
//! the receiver chooses where to put it, reads it with RDMA, and tells the sender when it is done.
//! Optional, like [`crate::rpc`]: a [`Handler`](crate::worker::Handler) keeps a [`Large`] and
//! passes it the events that concern it. It allocates nothing after set-up, and uses no memory but
//! the piece at either end.
//!
//! Offers and their answers are known by a magic word at their beginning, and by their length. A
//! message of your own that looks so would be taken for one. So do not mix them with free-form
//! messages on one connection, or put a byte of zero in front of those.
//!
//! Each offer ends exactly once at the sender ([`Received::Done`], or [`Large::lost`]), and the
//! bytes must not change until then. Each accepted offer ends exactly once at the receiver
//! ([`Large::read`], [`Large::progress`], or [`Large::lost`]). Take or decline an offer once.

use std_alloc::collections::VecDeque;
use std_alloc::vec;
use std_alloc::vec::Vec;

use crate::provider::{Access, Provider};
use crate::remote::{RemoteError, RemoteMemory};
use crate::room::FixedCapacity;
use crate::search;
use crate::wc::Status;
use crate::worker::{Message, Outbox, PeerId, Piece, Request, SendError};
use crate::wr::Remote;

/// The longest message, in bytes.
pub const LENGTH_MAX: u32 = 1 << 30;

/// Bytes read with one request. On soft, posting it copies them, and other peers wait that long:
/// some 11 us between near cores. Behind each copy the worker's own lines have left the nearest
/// cache. So a stream of 1 MiB both ways reaches 0.96 of memcpy with these chunks, and 0.93 with
/// chunks of 256 KiB (medians of five rounds in turn); chunks of 1 MiB gain nothing more.
const CHUNK: u32 = 512 << 10;

/// Requests in flight for one message: while one is carried out, the next are on their way.
const IN_FLIGHT: u32 = 4;

/// Requests posted in one turn, for all messages. On soft, posting a READ copies its bytes at once,
/// and this side acknowledges nothing during the copy. With many READs in a turn, two sides that
/// read from each other block each other: together they are no faster than one side alone.
const IN_TURN: u32 = 1;

const OFFER: u32 = 0xdb1c_0011;
const TAKEN: u32 = 0xdb1c_0012;
const DECLINED: u32 = 0xdb1c_0013;

/// Bytes of an offer, and of the reply to one.
const OFFER_BYTES: usize = 32;
const ANSWER_BYTES: usize = 8;

/// An offer from a peer: see [`Large::take`] and [`Large::decline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    peer: PeerId,
    number: u32,
    at: Remote,
    length: u32,
    tag: u64,
}

impl Offer {
    /// The peer that offers it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// Bytes of the message, at most [`LENGTH_MAX`].
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The sender's tag.
    pub fn tag(&self) -> u64 {
        self.tag
    }
}

/// What a message means to [`Large`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The peer offers a large message.
    Offered(Offer),
    /// The peer has finished with the offer of this key; `taken` says whether it has read it.
    Done {
        /// As given to [`Large::offer`].
        key: u64,
        /// True if it was read, false if it was declined.
        taken: bool,
    },
    /// The message does not belong to [`Large`].
    Foreign,
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The offer that was taken.
    pub offer: Offer,
    /// As given to [`Large::take`].
    pub key: u64,
    /// Success if all of it has arrived; otherwise the error.
    pub result: Result<(), Status>,
}

/// A transfer that ended because its peer went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// An offer to the peer, read or not. The bytes are yours again.
    Offer {
        /// As given to [`Large::offer`].
        key: u64,
    },
    /// A read from the peer.
    Read(Arrived),
}

#[derive(Clone, Copy)]
enum Transfer {
    Free,
    /// Offered to a peer.
    Out {
        peer: PeerId,
        key: u64,
    },
    /// Read from a peer.
    In {
        offer: Offer,
        key: u64,
        to: Piece,
        /// Bytes that have arrived, and bytes that were asked for.
        got: u32,
        asked: u32,
        /// Requests in flight. They end in the order in which they were made.
        in_flight: u32,
        /// Why the first request that failed did.
        failed: Option<Status>,
    },
}

/// A slot for a transfer.
#[derive(Clone)]
struct Slot {
    generation: u16,
    /// It has an entry in [`Large::asking`].
    asks: bool,
    /// It has an entry in [`Large::ending`].
    ends: bool,
    transfer: Transfer,
}

/// Large messages of one worker, in transit in either direction.
pub struct Large {
    slots: Vec<Slot>,
    /// The slot that has been free for longest comes first.
    free: VecDeque<u16>,
    /// Messages with bytes to ask for, in turn. A call looks at these alone, however many others
    /// are in transit: in an idle turn, a look at 16 slots took some 1 500 instructions. A slot has
    /// one entry at most, and the message that the entry was made for may be over.
    asking: VecDeque<u16>,
    /// The same for messages that end without one more request.
    ending: VecDeque<u16>,
    tokens: u64,
    /// The last turn in which READs were posted, and how many.
    posted: (u64, u32),
    /// Where the next search for lost ones begins.
    next: usize,
}

impl Large {
    /// Makes room for at most `most` messages at a time, in and out together. A `most` above 65 536
    /// counts as 65 536. Its requests use the tokens `tokens` to `tokens + most - 1`. A message
    /// that is being read has up to four requests in flight, and waits if
    /// [`Config::requests`](crate::worker::Config::requests), 64 by default, allows no more.
    pub fn new(most: u32, tokens: u64) -> Large {
        let most = most.min(1 << 16) as usize;
        let slot = Slot { generation: 0, asks: false, ends: false, transfer: Transfer::Free };
        Large {
            slots: vec![slot; most],
            free: (0..most).map(|index| index as u16).collect(),
            asking: VecDeque::with_capacity(most),
            ending: VecDeque::with_capacity(most),
            tokens,
            posted: (0, 0),
            next: 0,
        }
    }

    fn transfer(&mut self, index: usize) -> Option<&mut Transfer> {
        self.slots.get_mut(index).map(|slot| &mut slot.transfer)
    }

    /// The transfer of that slot is over.
    fn set_free(&mut self, index: usize) {
        if let Some(transfer) = self.transfer(index) {
            *transfer = Transfer::Free;
            self.free.put(index as u16);
        }
    }

    /// The transfer of that slot has bytes to ask for.
    fn will_ask(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index)
            && !core::mem::replace(&mut slot.asks, true)
        {
            self.asking.put(index as u16);
        }
    }

    /// The transfer of that slot ends without one more request.
    fn will_end(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index)
            && !core::mem::replace(&mut slot.ends, true)
        {
            self.ending.put(index as u16);
        }
    }

    /// Offers a piece of memory that was registered for remote reads. `tag` goes to the peer; `key`
    /// comes back when the peer has finished with the offer.
    ///
    /// # Errors
    /// As [`Outbox::send`]. `TooMany`: no slot is free. `TooLong`: beyond [`LENGTH_MAX`].
    /// `OutOfBounds`: the piece is not in the worker's memory. `NoRights`: the region was not
    /// registered for remote reads. Then nothing is offered.
    pub fn offer<P: Provider>(
        &mut self,
        out: &mut Outbox<'_, P>,
        peer: PeerId,
        piece: Piece,
        key: u64,
        tag: u64,
    ) -> Result<(), SendError> {
        if piece.length > LENGTH_MAX {
            return Err(SendError::TooLong);
        }
        let memory = out.remote_memory(piece).map_err(|error| match error {
            RemoteError::NoRights => SendError::NoRights,
            _ => SendError::OutOfBounds,
        })?;
        if !memory.rights().contains(Access::REMOTE_READ) {
            return Err(SendError::NoRights);
        }
        let at = memory.remote();
        let index = usize::from(*self.free.front().ok_or(SendError::TooMany)?);
        let slot = self.slots.get_mut(index).ok_or(SendError::TooMany)?;
        let number = number(slot.generation, index);
        let mut bytes = [0; OFFER_BYTES];
        bytes[..4].copy_from_slice(&OFFER.to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&at.addr.to_le_bytes());
        bytes[16..20].copy_from_slice(&at.rkey.to_le_bytes());
        bytes[20..28].copy_from_slice(&tag.to_le_bytes());
        bytes[28..].copy_from_slice(&piece.length.to_le_bytes());
        out.send(peer, &bytes)?;
        slot.transfer = Transfer::Out { peer, key };
        self.free.pop_front();
        Ok(())
    }

    /// What a message means to [`Large`].
    pub fn received(&mut self, message: &Message<'_>) -> Received {
        let bytes = message.bytes();
        let Some((kind, rest)) = bytes.split_first_chunk::<4>() else { return Received::Foreign };
        match (u32::from_le_bytes(*kind), bytes.len()) {
            (OFFER, OFFER_BYTES) => {
                parse(message.peer(), rest).map_or(Received::Foreign, Received::Offered)
            }
            (kind @ (TAKEN | DECLINED), ANSWER_BYTES) => {
                let number = rest.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
                match self.end_out(message.peer(), number) {
                    Some(key) => Received::Done { key, taken: kind == TAKEN },
                    None => Received::Foreign,
                }
            }
            _ => Received::Foreign,
        }
    }

    /// Accepts an offer: reads it into `to`, which must be registered for local writes and long
    /// enough.
    ///
    /// # Errors
    /// `NotConnected`: the peer is gone. `FinishedSending`: this side may neither read from it nor
    /// answer. `TooMany`: no slot is free. `OutOfBounds`: the piece is too short. It never fails
    /// for lack of room: the reads begin when there is room, see [`Large::progress`].
    pub fn take<P: Provider>(
        &mut self,
        out: &mut Outbox<'_, P>,
        offer: Offer,
        to: Piece,
        key: u64,
    ) -> Result<(), SendError> {
        let last = to.offset.checked_add((offer.length as usize).saturating_sub(1));
        if to.length < offer.length || last.and_then(|at| out.remote(to.region, at)).is_none() {
            return Err(SendError::OutOfBounds);
        }
        // Of a peer that is gone no event would come to end the transfer.
        out.accepts(offer.peer)?;
        let index = usize::from(self.free.pop_front().ok_or(SendError::TooMany)?);
        if let Some(transfer) = self.transfer(index) {
            *transfer =
                Transfer::In { offer, key, to, got: 0, asked: 0, in_flight: 0, failed: None };
        }
        match offer.length {
            0 => self.will_end(index),
            _ => self.will_ask(index),
        }
        self.ask_in_turn(out);
        Ok(())
    }

    /// Tells the sender that its offer is declined.
    ///
    /// # Errors
    /// As [`Outbox::send`]; then the sender was not told.
    pub fn decline<P: Provider>(
        &mut self,
        out: &mut Outbox<'_, P>,
        offer: Offer,
    ) -> Result<(), SendError> {
        out.send(offer.peer, &answer(DECLINED, offer.number))
    }

    /// Handles the end of a request of the worker. Returns the message that has now arrived or
    /// failed. `None`: more is to come, or the request does not belong to [`Large`]. For
    /// [`crate::worker::Handler::on_send_done`].
    pub fn read<P: Provider>(
        &mut self,
        out: &mut Outbox<'_, P>,
        token: u64,
        result: Result<(), Status>,
    ) -> Option<Arrived> {
        let index = usize::try_from(token.checked_sub(self.tokens)?).ok()?;
        let transfer = self.transfer(index)?;
        let Transfer::In { offer, got, in_flight, failed, .. } = transfer else { return None };
        *in_flight = in_flight.saturating_sub(1);
        match result {
            Ok(()) => *got += (offer.length - *got).min(CHUNK),
            Err(status) => *failed = failed.or(Some(status)),
        }
        let arrived = self.finish(out, index);
        self.ask_in_turn(out);
        arrived
    }

    /// Continues transfers that found no room before. Returns a message that has arrived or failed,
    /// if there is one: a transfer fails if this side has finished sending to the peer before it
    /// has asked for all bytes. Call it in [`crate::worker::Handler::on_idle`] until it returns
    /// `None`.
    pub fn progress<P: Provider>(&mut self, out: &mut Outbox<'_, P>) -> Option<Arrived> {
        // Idle turns follow each other without a number of their own.
        self.posted.1 = 0;
        self.ask_in_turn(out);
        for _ in 0..self.ending.len() {
            let index = usize::from(self.ending.pop_front()?);
            self.slots.get_mut(index)?.ends = false;
            if let Some(arrived) = self.finish(out, index) {
                return Some(arrived);
            }
        }
        None
    }

    /// Returns one more message that was in transit to or from a peer that is gone; `None` after
    /// the last. Call it in [`crate::worker::Handler::on_peer_down`], when the worker has completed
    /// all requests to that peer.
    pub fn lost(&mut self, peer: PeerId) -> Option<Lost> {
        let lost = |transfer: &Transfer| match *transfer {
            Transfer::Out { peer: to, key } if to == peer => Some(Lost::Offer { key }),
            Transfer::In { offer, key, .. } if offer.peer == peer => {
                Some(Lost::Read(Arrived { offer, key, result: Err(Status::Flushed) }))
            }
            _ => None,
        };
        let is_lost = |slot: &Slot| lost(&slot.transfer).is_some();
        let index = search::resume(&self.slots, &mut self.next, is_lost)?;
        let slot = self.slots.get_mut(index)?;
        let lost = lost(&slot.transfer)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.set_free(index);
        Some(lost)
    }

    /// Number of messages in transit.
    pub fn pending(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Entries of messages that a call looks at.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        (self.asking.len(), self.ending.len())
    }

    /// Requests in flight, of all messages.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u32 {
        let of = |slot: &Slot| match slot.transfer {
            Transfer::In { in_flight, .. } => in_flight,
            _ => 0,
        };
        self.slots.iter().map(of).sum()
    }

    /// Asks for the next bytes of the messages that have some, in turn, as far as this turn allows:
    /// a long message does not keep others waiting, and neither does one whose peer has no room.
    fn ask_in_turn<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        if self.posted.0 != out.turn() {
            self.posted = (out.turn(), 0);
        }
        for _ in 0..self.asking.len() {
            if self.posted.1 >= IN_TURN {
                return;
            }
            let Some(index) = self.asking.pop_front() else { return };
            self.ask(out, index.into());
        }
    }

    /// Asks for the next bytes of a message whose entry was taken out of [`Large::asking`], if
    /// there is room for a request. If the worker will not accept the request later either, the
    /// transfer has failed.
    fn ask<P: Provider>(&mut self, out: &mut Outbox<'_, P>, index: usize) {
        let token = self.tokens + index as u64;
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.asks = false;
        let Transfer::In { offer, to, asked, in_flight, failed, .. } = &mut slot.transfer else {
            return;
        };
        let length = (offer.length - *asked).min(CHUNK);
        if failed.is_some() || length == 0 {
            return;
        }
        if *in_flight < IN_FLIGHT {
            // The offer says that these bytes may be read, and how many there are.
            let there = RemoteMemory::new(offer.at, offer.length.into(), Access::REMOTE_READ);
            let piece = Piece { offset: to.offset + *asked as usize, length, ..*to };
            let Ok(op) = there.read((*asked).into(), length) else { return };
            let request = Request { op, pieces: &[piece], fence: false, token };
            // The offered bytes do not change before the answer to this offer, so the READ need not
            // wait until the peer has taken the answers to others. On soft it then reads at once:
            // in order it went through the ring, and a stream of 1 MiB took 12 times as long.
            match out.request_unordered(offer.peer, &request) {
                Ok(()) => {
                    *asked += length;
                    *in_flight += 1;
                    self.posted.1 += 1;
                }
                Err(error) if error.is_back_pressure() => {}
                Err(error) => {
                    *failed = Some(match error {
                        SendError::NotConnected => Status::Flushed,
                        _ => Status::LocalQpOperation,
                    });
                    if *in_flight == 0 {
                        self.will_end(index);
                    }
                    return;
                }
            }
            if *asked == offer.length {
                return;
            }
        }
        self.will_ask(index);
    }

    /// Ends a transfer. Once all bytes have arrived: tells the sender, if there is room to tell. A
    /// sender that can no longer be told learns from the end of the connection.
    fn finish<P: Provider>(&mut self, out: &mut Outbox<'_, P>, index: usize) -> Option<Arrived> {
        let transfer = self.transfer(index)?;
        let Transfer::In { offer, key, got, in_flight, failed, .. } = *transfer else {
            return None;
        };
        let result = match failed {
            // The others in flight are flushed, and use the memory until then.
            Some(status) if in_flight == 0 => Err(status),
            None if got == offer.length => {
                let told = out.send(offer.peer, &answer(TAKEN, offer.number));
                if told.is_err_and(SendError::is_back_pressure) {
                    self.will_end(index);
                    return None;
                }
                Ok(())
            }
            _ => return None,
        };
        self.set_free(index);
        Some(Arrived { offer, key, result })
    }

    fn end_out(&mut self, from: PeerId, said: u32) -> Option<u64> {
        let index = said as u16 as usize;
        let slot = self.slots.get_mut(index)?;
        match slot.transfer {
            Transfer::Out { peer, key }
                if peer == from && number(slot.generation, index) == said =>
            {
                slot.generation = slot.generation.wrapping_add(1);
                self.set_free(index);
                Some(key)
            }
            _ => None,
        }
    }
}

/// The number by which both sides name a slot.
fn number(generation: u16, index: usize) -> u32 {
    u32::from(generation) << 16 | index as u32
}

fn answer(kind: u32, number: u32) -> [u8; ANSWER_BYTES] {
    let mut bytes = [0; ANSWER_BYTES];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn parse(peer: PeerId, rest: &[u8]) -> Option<Offer> {
    let (number, rest) = rest.split_first_chunk()?;
    let (addr, rest) = rest.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let (tag, rest) = rest.split_first_chunk()?;
    let (length, _) = rest.split_first_chunk()?;
    let at = Remote { addr: u64::from_le_bytes(*addr), rkey: u32::from_le_bytes(*rkey) };
    let length = u32::from_le_bytes(*length);
    let (number, tag) = (u32::from_le_bytes(*number), u64::from_le_bytes(*tag));
    (length <= LENGTH_MAX).then_some(Offer { peer, number, at, length, tag })
}
