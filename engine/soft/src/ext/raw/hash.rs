//! Receive-side scaling: the Toeplitz hash over selected fields of a frame.

use arrayvec::ArrayVec;

use super::packet::{Packet, TCP, UDP};
use crate::provider::{HASH_KEY_BYTES, HashFields, RxHash};

/// The longest hash input: addresses and ports of IPv6.
const INPUT: usize = 36;

/// The hash of a frame; 0 if the frame lacks the selected fields.
pub(super) fn of(frame: &[u8], by: &RxHash) -> u32 {
    let mut input: ArrayVec<u8, INPUT> = ArrayVec::new();
    // The longest combination of fields fills the buffer exactly, so nothing is cut off.
    let _ = gather(frame, by.fields, &mut input);
    toeplitz(&by.key, &input)
}

/// Collects the selected fields in the standard order: addresses, then ports; source first.
fn gather(frame: &[u8], fields: HashFields, input: &mut ArrayVec<u8, INPUT>) -> Option<()> {
    let packet = Packet::of(frame)?;
    let (source, destination) = packet.addresses(frame)?;
    let [from, to] = match packet.six {
        true => [HashFields::SRC_IPV6, HashFields::DST_IPV6],
        false => [HashFields::SRC_IPV4, HashFields::DST_IPV4],
    };
    let mut take = |field, bytes: &[u8]| match fields.contains(field) {
        true => input.try_extend_from_slice(bytes).ok(),
        false => Some(()),
    };
    take(from, source)?;
    take(to, destination)?;
    let (protocol, at) = packet.inner?;
    let [from, to] = match protocol {
        TCP => [HashFields::SRC_PORT_TCP, HashFields::DST_PORT_TCP],
        UDP => [HashFields::SRC_PORT_UDP, HashFields::DST_PORT_UDP],
        _ => return None,
    };
    let [a, b, c, d] = *frame.get(at..)?.first_chunk()?;
    take(from, &[a, b])?;
    take(to, &[c, d])
}

/// The Toeplitz function. For each set bit of the input, XOR in the 32 key bits that begin at that
/// position. Past its end the key reads as zero.
fn toeplitz(key: &[u8; HASH_KEY_BYTES], input: &[u8]) -> u32 {
    let byte = |at: usize| u64::from(key.get(at).copied().unwrap_or(0));
    let mut hash = 0;
    for (at, bits) in input.iter().enumerate() {
        let window = (0..5).fold(0, |window, n| window << 8 | byte(at + n));
        for bit in 0..8 {
            if bits & 0x80 >> bit != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::HashFunction;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec::Vec;

    /// The key of the published RSS verification suite.
    const KEY: [u8; HASH_KEY_BYTES] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    const FOUR: HashFields = HashFields::SRC_IPV4.union(HashFields::DST_IPV4);
    const SIX: HashFields = HashFields::SRC_IPV6.union(HashFields::DST_IPV6);
    const PORTS: HashFields = HashFields::SRC_PORT_TCP.union(HashFields::DST_PORT_TCP);

    fn by(fields: HashFields) -> RxHash {
        RxHash { function: HashFunction::Toeplitz, key: KEY, fields }
    }

    fn frame(kind: u16, ip: &[u8], ports: [u16; 2]) -> Vec<u8> {
        let mut frame = [2; 12].to_vec();
        frame.extend(kind.to_be_bytes());
        frame.extend(ip);
        ports.into_iter().for_each(|port| frame.extend(port.to_be_bytes()));
        frame.extend([0; 16]);
        frame
    }

    fn four(protocol: u8, source: (&str, u16), destination: (&str, u16)) -> Vec<u8> {
        let mut ip = Vec::from([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        for addr in [source.0, destination.0] {
            ip.extend(addr.parse::<Ipv4Addr>().expect("an address").octets());
        }
        frame(0x0800, &ip, [source.1, destination.1])
    }

    fn six(source: (&str, u16), destination: (&str, u16)) -> Vec<u8> {
        let mut ip = Vec::from([0x60, 0, 0, 0, 0, 20, TCP, 64]);
        for addr in [source.0, destination.0] {
            ip.extend(addr.parse::<Ipv6Addr>().expect("an address").octets());
        }
        frame(0x86dd, &ip, [source.1, destination.1])
    }

    /// The published suite: destination, source, hash of the addresses alone, hash with ports.
    #[test]
    fn qx_08_ipv4_as_in_the_published_suite() {
        for (destination, source, alone, with_ports) in [
            (("161.142.100.80", 1766), ("66.9.149.187", 2794), 0x323e_8fc2, 0x51cc_c178),
            (("65.69.140.83", 4739), ("199.92.111.2", 14230), 0xd718_262a, 0xc626_b0ea),
            (("12.22.207.184", 38024), ("24.19.198.95", 12898), 0xd2d0_a5de, 0x5c2b_394a),
            (("209.142.163.6", 2217), ("38.27.205.30", 48228), 0x8298_9176, 0xafc7_327f),
            (("202.188.127.2", 1303), ("153.39.163.191", 44251), 0x5d18_09c5, 0x10e8_28a2),
        ] {
            let frame = four(TCP, source, destination);
            assert_eq!(of(&frame, &by(FOUR)), alone, "{source:?}");
            assert_eq!(of(&frame, &by(FOUR | PORTS)), with_ports, "{source:?}");
        }
    }

    #[test]
    fn qx_08_ipv6_as_in_the_published_suite() {
        let far = "3ffe:1900:4545:3:200:f8ff:fe21:67cf";
        for (destination, source, alone, with_ports) in [
            (
                ("3ffe:2501:200:3::1", 1766),
                ("3ffe:2501:200:1fff::7", 2794),
                0x2cc1_8cd5,
                0x4020_7d3d,
            ),
            (
                ("ff02::1", 4739),
                ("3ffe:501:8::260:97ff:fe40:efab", 14230),
                0x0f0c_461c,
                0xdde5_1bbf,
            ),
            (("fe80::200:f8ff:fe21:67cf", 38024), (far, 44251), 0x4b61_e985, 0x02d1_feef),
        ] {
            let frame = six(source, destination);
            assert_eq!(of(&frame, &by(SIX)), alone, "{source:?}");
            assert_eq!(of(&frame, &by(SIX | PORTS)), with_ports, "{source:?}");
        }
    }

    #[test]
    fn fields_that_are_not_there_do_not_count() {
        let (one, two) = (("66.9.149.187", 2794), ("161.142.100.80", 1766));
        let udp = four(UDP, one, two);
        assert_eq!(of(&udp, &by(FOUR | PORTS)), 0x323e_8fc2, "its ports are not of TCP");
        let ports = HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
        assert_eq!(of(&udp, &by(FOUR | ports)), 0x51cc_c178, "the same bytes");
        assert_eq!(of(&udp, &by(SIX)), 0, "not of version 6");
        let mut arp = udp.clone();
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(of(&arp, &by(FOUR)), 0);
        let (mut from, mut to) = (of(&udp, &by(HashFields::SRC_IPV4)), 0);
        assert_ne!(from, of(&udp, &by(FOUR)));
        std::mem::swap(&mut from, &mut to);
        assert_ne!(to, of(&four(UDP, two, one), &by(HashFields::SRC_IPV4)));
    }
}
