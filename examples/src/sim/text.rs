//! The content of a message. It follows from the seed, the connection, the sending side, the stream
//! and the number, so a receiver knows every byte it must get.

use doorbell::soft::sim::mix;

/// Sends and replies are numbered separately, because a send may overtake a reply that waits for
/// room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Sent by itself.
    Send,
    /// A reply in place.
    Reply,
}

impl Stream {
    fn tag(self) -> u8 {
        match self {
            Stream::Send => 0x5e,
            Stream::Reply => 0x4e,
        }
    }

    /// The stream of a received message; an empty one is always a send.
    pub fn of(bytes: &[u8]) -> Option<Stream> {
        match bytes.first() {
            None => Some(Stream::Send),
            Some(tag) => [Stream::Send, Stream::Reply].into_iter().find(|s| s.tag() == *tag),
        }
    }
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    key: u64,
    stream: Stream,
    number: u32,
    /// Bytes.
    pub length: usize,
    /// Immediate data; replies have none.
    pub imm: Option<u32>,
}

/// Bytes before the pattern, in messages that are long enough: the tag and the number.
const HEAD: usize = 5;

impl Text {
    /// Message `number` of a stream, for blocks of `block` bytes and an inline limit of `inline`.
    /// `way` names the seed, the connection and the direction.
    pub fn of(way: u64, stream: Stream, number: u32, (block, inline): (u32, u32)) -> Text {
        let key = mix(way ^ mix(u64::from(number) << 8 | u64::from(stream.tag())));
        let die = mix(key);
        let most = match die & 15 {
            0..4 => 12,
            4..9 => inline + 2,
            9..14 => block / 2,
            _ => block,
        };
        let length = match die >> 4 & 63 {
            // Sometimes the whole block.
            0 => block,
            _ => (die >> 16) as u32 % (most.min(block) + 1),
        };
        let length = if stream == Stream::Reply { length.max(1) } else { length };
        let imm = stream == Stream::Send && die >> 60 < 4;
        let imm = imm.then_some((die >> 20) as u32);
        Text { key, stream, number, length: length as usize, imm }
    }

    /// Writes the first `length` bytes of `to`, which must be long enough.
    pub fn write(&self, to: &mut [u8]) {
        let to = &mut to[..self.length];
        for (n, part) in to.chunks_mut(8).enumerate() {
            part.copy_from_slice(&self.word(n)[..part.len()]);
        }
    }

    /// True if the bytes and the immediate data are exactly this message's.
    pub fn is(&self, bytes: &[u8], imm: Option<u32>) -> bool {
        let mut parts = bytes.chunks(8).enumerate();
        bytes.len() == self.length
            && imm == self.imm
            && parts.all(|(n, part)| *part == self.word(n)[..part.len()])
    }

    /// The number in a message, if it is long enough to hold one.
    pub fn number_in(bytes: &[u8]) -> Option<u32> {
        let number = bytes.get(1..HEAD)?.try_into().ok()?;
        Some(u32::from_le_bytes(number))
    }

    fn word(&self, n: usize) -> [u8; 8] {
        let mut word = self.key.wrapping_add(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if n == 0 {
            word = word << 40 | u64::from(self.number) << 8 | u64::from(self.stream.tag());
        }
        word.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_knows_itself_and_no_other() {
        let mut block = [0xaa; 300];
        for number in 0..500 {
            for stream in [Stream::Send, Stream::Reply] {
                let text = Text::of(1, stream, number, (256, 64));
                text.write(&mut block);
                let bytes = &block[..text.length];
                assert!(text.is(bytes, text.imm));
                assert!(bytes.is_empty() || Stream::of(bytes) == Some(stream));
                assert_eq!(Text::number_in(bytes), (bytes.len() >= HEAD).then_some(number));
                let other = Text::of(1, stream, number + 1, (256, 64));
                assert!(text.length < 2 || !other.is(bytes, text.imm));
                for at in 0..text.length {
                    let mut bytes = bytes.to_vec();
                    bytes[at] ^= 1;
                    assert!(!text.is(&bytes, text.imm), "byte {at} of {}", text.length);
                }
            }
        }
    }
}
