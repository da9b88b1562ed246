//! The feed: messages in numbered packets at one side, and at the other the two lines A and B put
//! together again, with gaps found and filled.

use std::collections::BTreeMap;

use crate::itch::Message;
use crate::mold::{self, HEAD, Head, Packet, Session};

/// Messages that an arbiter holds while earlier ones are missing.
const HELD_MAX: usize = 1 << 16;

/// Most messages that one request asks for.
const ASK_MAX: u64 = 256;

/// Numbers the messages of a day, keeps them all, and makes packets.
pub struct Publisher {
    session: Session,
    packet_max: usize,
    bytes: Vec<u8>,
    /// Where each message ends in `bytes`.
    ends: Vec<usize>,
    /// Messages that went out.
    sent: usize,
}

impl Publisher {
    /// A feed with packets of at most that many bytes: at least 64, so that each message fits one.
    pub fn new(session: Session, packet_max: usize) -> Publisher {
        let packet_max = packet_max.max(64);
        Publisher { session, packet_max, bytes: Vec::new(), ends: Vec::new(), sent: 0 }
    }

    /// Adds a message.
    pub fn push(&mut self, message: &Message) {
        message.write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// The number that the next message gets.
    pub fn next_sequence(&self) -> u64 {
        self.ends.len() as u64 + 1
    }

    /// Makes the next packet of messages that have not gone out. False: there are none.
    pub fn next_packet(&mut self, packet: &mut Vec<u8>) -> bool {
        let count = self.write(self.sent, self.ends.len(), self.packet_max, packet);
        self.sent += count;
        count > 0
    }

    /// Counts all messages as gone out: another has sent them, or clients ask for them.
    pub fn skip(&mut self) {
        self.sent = self.ends.len();
    }

    /// Makes a packet without messages, which says what comes next.
    pub fn heartbeat(&self, packet: &mut Vec<u8>) {
        self.write(self.sent, self.sent, self.packet_max, packet);
    }

    /// Makes a packet of at most `most` bytes with messages that were asked for, from the first one
    /// on, as many as fit. False: none of them has gone out, or the session is another.
    pub fn again(&self, request: &Head, most: usize, packet: &mut Vec<u8>) -> bool {
        let first = usize::try_from(request.sequence.wrapping_sub(1)).unwrap_or(usize::MAX);
        let end = first.saturating_add(request.count.into()).min(self.sent);
        request.session == self.session && first < end && self.write(first, end, most, packet) > 0
    }

    /// Writes the messages from `first` on, up to `end`, and returns how many fitted.
    fn write(&self, first: usize, end: usize, most: usize, packet: &mut Vec<u8>) -> usize {
        let message = |n: usize| {
            let from = n.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.bytes[from..self.ends[n]]
        };
        let (mut count, mut length) = (0, HEAD);
        while first + count < end && count < usize::from(u16::MAX) {
            length += 2 + message(first + count).len();
            if length > most {
                break;
            }
            count += 1;
        }
        packet.clear();
        let sequence = first as u64 + 1;
        Head { session: self.session, sequence, count: count as u16 }.write(packet);
        (first..first + count).for_each(|n| mold::put(packet, message(n)));
        count
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

    /// The request for the first messages that are missing.
    pub fn missing(&self) -> Option<Head> {
        let end = self.held.first_key_value().map_or(self.reached, |(number, _)| *number);
        let count = end.saturating_sub(self.next).min(ASK_MAX) as u16;
        (count > 0).then_some(Head { session: self.session, sequence: self.next, count })
    }
}
