//! The feed: messages in numbered packets at one side, and at the other the two lines A and B put
//! together again, with gaps found and filled.

use std::collections::BTreeMap;

use crate::itch::{LONGEST, Message};
use crate::mold::{self, HEAD, Head, Packet, Session};

/// Messages that an arbiter holds while earlier ones are missing.
const HELD_MAX: usize = 1 << 16;

/// Most messages that one request asks for.
const ASK_MAX: u64 = 256;

/// A message as it is kept.
#[derive(Clone, Copy)]
struct Slot {
    length: u8,
    bytes: [u8; LONGEST],
}

/// What became of a request for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// The packet holds them, or the first of them.
    Packet,
    /// The first of them is too old. The oldest that is kept has this number.
    Gone(u64),
    /// They have not gone out, or the session is another.
    Nothing,
}

/// Numbers the messages of a day, keeps the last of them, and makes packets.
pub struct Publisher {
    session: Session,
    packet_max: usize,
    /// A ring: message `n`, from 0 on, is in slot `n` modulo its length.
    slots: Vec<Slot>,
    scratch: Vec<u8>,
    /// Messages, and those that went out.
    pushed: u64,
    sent: u64,
}

impl Publisher {
    /// A feed with packets of at most that many bytes: at least 64, so that each message fits one.
    /// It keeps `kept` messages, at least one.
    pub fn new(session: Session, packet_max: usize, kept: usize) -> Publisher {
        let (packet_max, empty) = (packet_max.max(64), Slot { length: 0, bytes: [0; LONGEST] });
        let (slots, scratch) = (vec![empty; kept.max(1)], Vec::with_capacity(LONGEST));
        Publisher { session, packet_max, slots, scratch, pushed: 0, sent: 0 }
    }

    /// Adds a message. The oldest one goes if there is no room.
    pub fn push(&mut self, message: &Message) {
        self.scratch.clear();
        message.write(&mut self.scratch);
        let at = self.slot(self.pushed);
        let slot = &mut self.slots[at];
        slot.length = self.scratch.len() as u8;
        slot.bytes[..self.scratch.len()].copy_from_slice(&self.scratch);
        self.pushed += 1;
        // If it never went out, those who miss it get a snapshot.
        self.sent = self.sent.max(self.oldest());
    }

    fn slot(&self, n: u64) -> usize {
        (n % self.slots.len() as u64) as usize
    }

    /// The oldest message that is kept, from 0 on.
    fn oldest(&self) -> u64 {
        self.pushed.saturating_sub(self.slots.len() as u64)
    }

    /// The number that the next message gets.
    pub fn next_sequence(&self) -> u64 {
        self.pushed + 1
    }

    /// Makes the next packet of messages that have not gone out. False: there are none.
    pub fn next_packet(&mut self, packet: &mut Vec<u8>) -> bool {
        let count = self.write(self.sent, self.pushed, self.packet_max, packet);
        self.sent += count;
        count > 0
    }

    /// Counts all messages as gone out: another has sent them, or clients ask for them.
    pub fn skip(&mut self) {
        self.sent = self.pushed;
    }

    /// Makes a packet without messages, which says what comes next.
    pub fn heartbeat(&self, packet: &mut Vec<u8>) {
        self.write(self.sent, self.sent, self.packet_max, packet);
    }

    /// Makes a packet of at most `most` bytes with messages that were asked for, from the first one
    /// on, as many as fit.
    pub fn again(&self, request: &Head, most: usize, packet: &mut Vec<u8>) -> Again {
        let first = request.sequence.wrapping_sub(1);
        let end = first.saturating_add(request.count.into()).min(self.sent);
        if request.session != self.session || first >= end {
            return Again::Nothing;
        }
        if first < self.oldest() {
            return Again::Gone(self.oldest() + 1);
        }
        if self.write(first, end, most, packet) > 0 { Again::Packet } else { Again::Nothing }
    }

    /// Writes the messages from `first` on, up to `end`, and returns how many fitted. All of them
    /// are kept.
    fn write(&self, first: u64, end: u64, most: usize, packet: &mut Vec<u8>) -> u64 {
        packet.clear();
        Head { session: self.session, sequence: first + 1, count: 0 }.write(packet);
        let mut count = 0;
        while first + u64::from(count) < end && count < u16::MAX {
            let slot = &self.slots[self.slot(first + u64::from(count))];
            let message = &slot.bytes[..usize::from(slot.length)];
            if packet.len() + 2 + message.len() > most {
                break;
            }
            mold::put(packet, message);
            count += 1;
        }
        packet[HEAD - 2..HEAD].copy_from_slice(&count.to_be_bytes());
        count.into()
    }
}

/// What an arbiter has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Packets that were whole, and others.
    pub packets: u64,
    /// Damaged packets, and those of another session.
    pub damaged: u64,
    /// Messages handed on.
    pub messages: u64,
    /// Messages that had come before, mostly by the other line.
    pub twice: u64,
    /// Messages that came too early.
    pub early: u64,
}

/// Puts lines together: hands on each message once and in order, whichever line brings it first.
pub struct Arbiter {
    session: Session,
    next: u64,
    /// A number that the feed has reached: all before it have gone out.
    reached: u64,
    held: BTreeMap<u64, Vec<u8>>,
    seen: Seen,
}

impl Arbiter {
    /// An arbiter that begins with the first message of a session.
    pub fn new(session: Session) -> Arbiter {
        Arbiter { session, next: 1, reached: 1, held: BTreeMap::new(), seen: Seen::default() }
    }

    /// The number of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// What it has seen.
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Takes a packet of any line, or one that was asked for. Hands on what is now in order, with
    /// the number of the message behind it.
    pub fn packet(&mut self, bytes: &[u8], mut hand_on: impl FnMut(&[u8], u64)) {
        let Some(packet) = Packet::read(bytes).filter(|read| read.head.session == self.session)
        else {
            self.seen.damaged += 1;
            return;
        };
        self.seen.packets += 1;
        let Head { sequence, count, .. } = packet.head;
        self.reached = self.reached.max(sequence + u64::from(count));
        for (number, message) in (sequence..).zip(packet.messages()) {
            if number == self.next {
                self.next += 1;
                self.seen.messages += 1;
                hand_on(message, self.next);
            } else if number < self.next || self.held.contains_key(&number) {
                self.seen.twice += 1;
            } else if self.held.len() < HELD_MAX {
                self.seen.early += 1;
                self.held.insert(number, message.to_vec());
            }
        }
        self.release(hand_on);
    }

    /// Hands on what was held and is in order now.
    fn release(&mut self, mut hand_on: impl FnMut(&[u8], u64)) {
        while let Some(entry) = self.held.first_entry() {
            if *entry.key() > self.next {
                break;
            }
            let (number, message) = entry.remove_entry();
            if number == self.next {
                self.next += 1;
                self.seen.messages += 1;
                hand_on(&message, self.next);
            }
        }
    }

    /// Goes on with the message of that number: a snapshot stands for all before it. Hands on what
    /// is in order then, as [`Arbiter::packet`] does.
    pub fn jump(&mut self, next: u64, hand_on: impl FnMut(&[u8], u64)) {
        self.next = self.next.max(next);
        self.reached = self.reached.max(next);
        self.release(hand_on);
    }

    /// The request for the first messages that are missing.
    pub fn missing(&self) -> Option<Head> {
        let end = self.held.first_key_value().map_or(self.reached, |(number, _)| *number);
        let count = end.saturating_sub(self.next).min(ASK_MAX) as u16;
        (count > 0).then_some(Head { session: self.session, sequence: self.next, count })
    }
}
