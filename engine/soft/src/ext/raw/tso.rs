//! Segmentation: one send becomes several TCP frames, each with its own header (QX-7).

use super::frame::word;
use super::packet::{Packet, Sum, TCP};

/// The shortest TCP header.
const TCP_MIN: usize = 20;

/// TCP flags, in byte 13 of the header.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The offsets of the headers within the template that begins each frame of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    packet: Packet,
    tcp: usize,
    header: usize,
}

/// One frame of a send: its index, where its payload begins, and whether it is the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) number: u32,
    pub(super) offset: u32,
    pub(super) last: bool,
}

impl Plan {
    /// `None` unless the bytes are exactly one complete header of Ethernet, IP and TCP.
    pub(super) fn of(header: &[u8]) -> Option<Plan> {
        let packet = Packet::of(header)?;
        let (TCP, tcp) = packet.inner? else { return None };
        let length = usize::from(*header.get(tcp + 12)? >> 4) * 4;
        let whole = length >= TCP_MIN && tcp + length == header.len();
        whole.then_some(Plan { packet, tcp, header: header.len() })
    }

    /// Adapts the header of one frame. The frame begins with the template header, and its length
    /// fits the length field of IP.
    pub(super) fn finish(self, frame: &mut [u8], place: Place) {
        let Plan { packet, tcp, .. } = self;
        if frame.len() < self.header {
            return;
        }
        let carried = (frame.len() - tcp) as u32;
        let ip = frame.get_mut(packet.at..).unwrap_or_default();
        if packet.six {
            write(ip, 4, carried as u16);
        } else {
            let (length, header) = (ip.len() as u16, tcp - packet.at);
            write(ip, 2, length);
            let id = word(ip, 4).unwrap_or(0).wrapping_add(place.number as u16);
            write(ip, 4, id);
            write(ip, 10, 0);
            let sum = Sum::default().add(ip.get(..header).unwrap_or_default()).checksum();
            write(ip, 10, u16::from_be_bytes(sum));
        }
        let pseudo = match packet.addresses(frame) {
            Some((from, to)) => Sum::default().add(from).add(to),
            None => return,
        };
        let pseudo = pseudo.add(&carried.to_be_bytes()).add(&[0, TCP]);
        let tcp = frame.get_mut(tcp..).unwrap_or_default();
        if let Some(sequence) = tcp.get_mut(4..).and_then(|bytes| bytes.first_chunk_mut()) {
            *sequence = u32::from_be_bytes(*sequence).wrapping_add(place.offset).to_be_bytes();
        }
        if let Some(flags) = tcp.get_mut(13) {
            *flags &= if place.number > 0 { !CWR } else { 0xff };
            *flags &= if place.last { 0xff } else { !(FIN | PSH) };
        }
        write(tcp, 16, 0);
        let sum = pseudo.add(tcp).checksum();
        write(tcp, 16, u16::from_be_bytes(sum));
    }
}

/// Writes two bytes in network byte order, if both are in range.
fn write(bytes: &mut [u8], at: usize, word: u16) {
    if let Some(place) = bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
        *place = word.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn four() -> Vec<u8> {
        let mut header = [2; 12].to_vec();
        header.extend([8, 0, 0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, TCP, 0, 0]);
        header.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        header.extend(tcp());
        header
    }

    fn six() -> Vec<u8> {
        let mut header = [2; 12].to_vec();
        header.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, TCP, 64]);
        header.extend([7; 32]);
        header.extend(tcp());
        header
    }

    /// A TCP header with four bytes of options and a sequence number about to wrap.
    fn tcp() -> [u8; 24] {
        let flags = FIN | PSH | CWR | 0x10;
        [
            0, 80, 1, 0, 0xff, 0xff, 0xff, 0xf0, 1, 2, 3, 4, 0x60, flags, 0, 99, 0xaa, 0xbb, 0, 0,
            2, 4, 5, 0xb4,
        ]
    }

    fn segment(header: &[u8], payload: &[u8], place: Place) -> Vec<u8> {
        let mut frame = [header, payload].concat();
        Plan::of(header).expect("a header").finish(&mut frame, place);
        frame
    }

    /// True if a header, its checksum and what it covers add up to all ones.
    fn is_right(sum: Sum) -> bool {
        sum.checksum() == [0, 0]
    }

    #[test]
    fn qx_07_each_frame_of_ipv4_has_a_header_of_its_own() {
        let header = four();
        for (number, length, last) in [(0, 1000, false), (1, 1000, false), (2, 33, true)] {
            let place = Place { number, offset: number * 1000, last };
            let frame = segment(&header, &[0x5a; 1000][..length], place);
            let (ip, tcp) = (&frame[14..34], &frame[34..]);
            assert_eq!(u16::from_be_bytes([ip[2], ip[3]]) as usize, 20 + 24 + length);
            assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), 0xfffe_u16.wrapping_add(number as u16));
            assert!(is_right(Sum::default().add(ip)), "the checksum of IP");
            let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            assert_eq!(sequence, 0xffff_fff0_u32.wrapping_add(number * 1000));
            let (first, last) = (number == 0, number == 2);
            let flags = [(CWR, first), (FIN, last), (PSH, last), (0x10, true)];
            assert!(flags.iter().all(|(flag, set)| (tcp[13] & flag != 0) == *set), "{number}");
            let pseudo = Sum::default().add(&ip[12..20]).add(&[0, TCP]);
            let pseudo = pseudo.add(&(tcp.len() as u16).to_be_bytes());
            assert!(is_right(pseudo.add(tcp)), "the checksum of TCP");
            assert_eq!((&frame[..14], &tcp[8..13]), (&header[..14], &header[42..47]));
        }
    }

    #[test]
    fn qx_07_each_frame_of_ipv6_has_a_header_of_its_own() {
        let header = six();
        for (number, length, last) in [(0, 999, false), (1, 1, true)] {
            let place = Place { number, offset: number * 999, last };
            let frame = segment(&header, &[0x5a; 999][..length], place);
            let (ip, tcp) = (&frame[14..54], &frame[54..]);
            assert_eq!(u16::from_be_bytes([ip[4], ip[5]]) as usize, 24 + length);
            let pseudo = Sum::default().add(&ip[8..40]).add(&[0, TCP]);
            let pseudo = pseudo.add(&(tcp.len() as u16).to_be_bytes());
            assert!(is_right(pseudo.add(tcp)), "the checksum of TCP, with an odd length too");
        }
    }

    #[test]
    fn qx_07_a_header_is_whole_and_of_tcp() {
        for header in [four(), six()] {
            assert!(Plan::of(&header).is_some());
            for len in 0..header.len() {
                assert_eq!(Plan::of(&header[..len]), None, "{len}");
            }
            assert_eq!(Plan::of(&[&header[..], &[0]].concat()), None, "one more");
            let mut udp = header.clone();
            let protocol = if header[14] >> 4 == 4 { 23 } else { 20 };
            udp[protocol] = 17;
            assert_eq!(Plan::of(&udp), None);
            let mut short = header.clone();
            let tcp = header.len() - 24;
            short[tcp + 12] = 0x40;
            assert_eq!(Plan::of(&short), None);
        }
    }
}
