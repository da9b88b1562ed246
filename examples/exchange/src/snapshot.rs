//! Snapshots: all books as they are at a moment, for those who come late.
//!
//! As in Nasdaq's GLIMPSE 5.0 a snapshot is a row of ITCH messages, the directory and an Add Order
//! for each order that rests, and at its end a Snapshot message, `G`: the number of the message of
//! the feed that comes next. It goes over RC in pieces, each of them whole messages with their
//! lengths in front, as in a packet of the feed.

use std::collections::VecDeque;

use doorbell::prelude::*;

use crate::engine::Engine;
use crate::field::{Reader, Write};
use crate::itch::Message;
use crate::mold;
use crate::view::View;
use crate::wire::Channel;

/// Bytes of the Snapshot message: its type, and a number as text.
const END: usize = 21;

/// A snapshot's last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The number of the message of the feed that comes next.
    pub sequence: u64,
}

impl End {
    /// Writes it behind what `to` holds.
    pub fn write(&self, to: &mut Vec<u8>) {
        to.u8(b'G').text(format!("{:<20}", self.sequence).as_bytes());
    }

    /// Reads it. `None`: it is another message, or damaged.
    pub fn read(bytes: &[u8]) -> Option<End> {
        let bytes: &[u8; END] = bytes.try_into().ok()?;
        let number = std::str::from_utf8(bytes.strip_prefix(b"G")?).ok()?.trim_matches(' ');
        let plain = number.bytes().all(|byte| byte.is_ascii_digit());
        Some(End { sequence: number.parse().ok().filter(|_| plain)? })
    }
}

/// The pieces of a snapshot, each of at most `most` bytes.
pub fn pieces(engine: &Engine, time: u64, next: u64, most: usize) -> VecDeque<Vec<u8>> {
    let (mut pieces, mut message) = (VecDeque::from([Vec::new()]), Vec::new());
    let mut put = |message: &[u8]| match pieces.back_mut() {
        Some(piece) if piece.len() + 2 + message.len() <= most => mold::put(piece, message),
        _ => {
            let mut piece = Vec::with_capacity(most);
            mold::put(&mut piece, message);
            pieces.push_back(piece);
        }
    };
    engine.snapshot(time, |said| {
        message.clear();
        said.write(&mut message);
        put(&message);
    });
    message.clear();
    End { sequence: next }.write(&mut message);
    put(&message);
    pieces
}

/// Snapshots on their way, at most one to each peer.
#[derive(Default)]
pub struct Snapshots {
    open: Vec<(PeerId, VecDeque<Vec<u8>>)>,
    message: Vec<u8>,
}

impl Snapshots {
    /// True if one is on its way to that peer.
    pub fn is_under_way(&self, peer: PeerId) -> bool {
        self.open.iter().any(|(to, _)| *to == peer)
    }

    /// Begins to send one.
    pub fn begin(&mut self, peer: PeerId, pieces: VecDeque<Vec<u8>>) {
        self.open.push((peer, pieces));
    }

    /// A connection has ended.
    pub fn gone(&mut self, peer: PeerId) {
        self.open.retain(|(to, _)| *to != peer);
    }

    /// Sends what there is room for.
    pub fn send<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for (peer, pieces) in &mut self.open {
            while let Some(piece) = pieces.front() {
                Channel::Snapshot.begin(&mut self.message);
                self.message.extend_from_slice(piece);
                if out.send(*peer, &self.message).is_err() {
                    break;
                }
                pieces.pop_front();
            }
        }
        self.open.retain(|(_, pieces)| !pieces.is_empty());
    }
}

/// Applies a piece to the view that a snapshot builds. `None`: it is damaged. At the end of the
/// snapshot it returns that.
pub fn take(bytes: &[u8], view: &mut View) -> Option<Option<End>> {
    let mut reader = Reader(bytes);
    while !reader.0.is_empty() {
        let length = usize::from(reader.u16()?);
        let (message, rest) = reader.0.split_at_checked(length)?;
        reader.0 = rest;
        if let Some(end) = End::read(message) {
            reader.end()?;
            return Some(Some(end));
        }
        view.apply(&Message::read(message)?).ok()?;
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_a_number_as_text() {
        let mut bytes = Vec::new();
        End { sequence: 1234 }.write(&mut bytes);
        assert_eq!(bytes, b"G1234                ");
        assert_eq!(End::read(&bytes), Some(End { sequence: 1234 }));
        assert_eq!(End::read(b"G                1234"), Some(End { sequence: 1234 }));
        for wrong in [
            &b"G                    "[..],
            b"G+1                  ",
            b"G1",
            b"G99999999999999999999",
        ] {
            assert_eq!(End::read(wrong), None);
        }
    }
}
