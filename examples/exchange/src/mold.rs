//! MoldUDP64, the framing of Nasdaq's feeds: numbered messages in packets, and the request for
//! those that are missing.
//!
//! A packet has the session (10 bytes), the number of its first message (8), the count of its
//! messages (2), and for each its length (2) and its bytes. A packet without messages says which
//! number comes next.

use crate::field::{Reader, Write};

/// Bytes in front of the messages.
pub const HEAD: usize = 20;

/// The name of a session: a day of the feed.
pub type Session = [u8; 10];

/// The head of a packet; as a request it asks for these messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The session.
    pub session: Session,
    /// The number of the first message, from 1 on.
    pub sequence: u64,
    /// Messages.
    pub count: u16,
}

impl Head {
    /// Writes the head behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.text(&self.session).u64(self.sequence).u16(self.count);
    }

    /// Reads a request: a head and nothing more. `None`: it is none.
    pub fn read_request(bytes: &[u8]) -> Option<Head> {
        let mut reader = Reader(bytes);
        let head = Head::read(&mut reader)?;
        reader.end()?;
        Some(head)
    }

    fn read(r: &mut Reader<'_>) -> Option<Head> {
        Some(Head { session: r.text()?, sequence: r.u64()?, count: r.u16()? })
    }
}

/// Writes one message of a packet behind what `to` holds.
pub fn put(to: &mut Vec<u8>, message: &[u8]) {
    to.u16(message.len() as u16).text(message);
}

/// A packet that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its head.
    pub head: Head,
    body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet and checks the lengths of its messages. `None`: it is damaged.
    pub fn read(bytes: &'a [u8]) -> Option<Packet<'a>> {
        let mut reader = Reader(bytes);
        let head = Head::read(&mut reader)?;
        head.sequence.checked_add(head.count.into())?;
        let packet = Packet { head, body: reader.0 };
        let (count, bytes) =
            packet.messages().fold((0, 0), |(n, sum), message| (n + 1, sum + 2 + message.len()));
        (count == usize::from(head.count) && bytes == packet.body.len()).then_some(packet)
    }

    /// Its messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.body;
        std::iter::from_fn(move || {
            let (length, more) = rest.split_first_chunk()?;
            let (message, more) =
                more.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            rest = more;
            Some(message)
        })
    }
}
