//! IP packets in frames: the fields that a NIC inspects. Lengths and offsets come from the sender
//! of the frame, so each is checked where it is used.

use super::frame::{CVLAN, HEADER, TAG, word};

/// Ethernet types: IP, and a second tag before it.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const SVLAN: u16 = 0x88a8;

/// IP protocols.
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// The position of an IP packet in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// True for IPv6, false for IPv4.
    pub(super) six: bool,
    /// The offset of the IP header.
    pub(super) at: usize,
    /// The protocol of the payload and its offset; `None` for a fragment.
    pub(super) inner: Option<(u8, usize)>,
}

/// Where the contents of a frame begin, behind any tags, and their type.
pub(super) fn contents(frame: &[u8]) -> Option<(usize, u16)> {
    let (mut at, mut kind) = (HEADER, word(frame, HEADER - 2)?);
    for _ in 0..2 {
        if matches!(kind, CVLAN | SVLAN) {
            kind = word(frame, at + 2)?;
            at += TAG;
        }
    }
    Some((at, kind))
}

impl Packet {
    /// Finds the packet behind any tags; `None` if there is none or it is malformed.
    pub(super) fn of(frame: &[u8]) -> Option<Packet> {
        let (at, kind) = contents(frame)?;
        match kind {
            IPV4 => Packet::of_four(frame, at),
            IPV6 => Packet::of_six(frame, at),
            _ => None,
        }
    }

    fn of_four(frame: &[u8], at: usize) -> Option<Packet> {
        let ip = frame.get(at..)?;
        let header = usize::from(*ip.first()? & 15) * 4;
        if ip[0] >> 4 != 4 || header < 20 || ip.len() < header {
            return None;
        }
        // More fragments follow, or this is not the first.
        let fragment = word(ip, 6)? & 0x3fff != 0;
        let inner = (!fragment).then_some((ip[9], at + header));
        Some(Packet { six: false, at, inner })
    }

    fn of_six(frame: &[u8], at: usize) -> Option<Packet> {
        let ip = frame.get(at..)?;
        if ip.len() < 40 || ip[0] >> 4 != 6 {
            return None;
        }
        Some(Packet { six: true, at, inner: Some((ip[6], at + 40)) })
    }

    /// The source and destination addresses.
    pub(super) fn addresses(self, frame: &[u8]) -> Option<(&[u8], &[u8])> {
        let (from, len) = if self.six { (8, 16) } else { (12, 4) };
        let both = frame.get(self.at + from..)?.get(..2 * len)?;
        both.split_at_checked(len)
    }
}

/// A ones' complement sum over 16-bit words in network byte order.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Adds these bytes. An odd last byte is padded with a zero.
    #[must_use]
    pub(super) fn add(mut self, bytes: &[u8]) -> Sum {
        for two in bytes.chunks(2) {
            let low = two.get(1).copied().unwrap_or(0);
            let high = two.first().copied().unwrap_or(0);
            self.0 += u64::from(u16::from_be_bytes([high, low]));
        }
        self
    }

    /// The value of the checksum field.
    pub(super) fn checksum(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::tagged;
    use super::*;
    use std::vec::Vec;

    /// The words of a header and their checksum add up to all ones (RFC 1071).
    #[test]
    fn the_checksum_of_a_known_header() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(Sum::default().add(&header).checksum(), [0xb8, 0x61]);
        assert_eq!(Sum::default().add(&[1]).checksum(), Sum::default().add(&[1, 0]).checksum());
        assert_eq!(Sum::default().add(&[0xff; 64]).checksum(), [0, 0], "carries come around");
    }

    fn four(kinds: &[u16]) -> Vec<u8> {
        let mut frame = tagged(kinds);
        frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        frame
    }

    #[test]
    fn packets_are_found_behind_tags() {
        for (kinds, at) in
            [(&[IPV4][..], 14), (&[CVLAN, IPV4][..], 18), (&[SVLAN, CVLAN, IPV4][..], 22)]
        {
            let frame = four(kinds);
            let packet = Packet::of(&frame).expect("IPv4");
            assert_eq!(packet, Packet { six: false, at, inner: Some((TCP, at + 20)) });
            assert_eq!(packet.addresses(&frame), Some((&[1, 2, 3, 4][..], &[5, 6, 7, 8][..])));
        }
        let mut fragment = four(&[IPV4]);
        fragment[20] = 0x20;
        assert_eq!(Packet::of(&fragment).expect("IPv4").inner, None);
    }

    /// Truncated frames, and frames with one corrupt byte: no panic and no made-up address.
    #[test]
    fn broken_frames_have_no_packet_or_a_whole_one() {
        let mut six = tagged(&[IPV6]);
        six.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
        six.extend([7; 32]);
        for whole in [four(&[IPV4]), four(&[CVLAN, IPV4]), six] {
            assert!(Packet::of(&whole).is_some());
            for len in 0..whole.len() {
                assert_eq!(Packet::of(&whole[..len]), None, "{len} of {}", whole.len());
            }
            for at in 0..whole.len() {
                for byte in 0..=255 {
                    let mut frame = whole.clone();
                    frame[at] = byte;
                    if let Some(packet) = Packet::of(&frame) {
                        assert!(packet.addresses(&frame).is_some());
                    }
                }
            }
        }
    }
}
