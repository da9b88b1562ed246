//! Filters of flow rules: which headers a frame must have.

use super::frame::HEADER;
use super::packet::{Packet, contents};
use crate::provider::{FrameFilter, IpFilter};

/// True if the frame has the headers. One that is cut off in a header has not.
pub(super) fn matches(filter: &FrameFilter, frame: &[u8]) -> bool {
    ethernet(filter, frame) == Some(true) && above(filter, frame) == Some(true)
}

fn ethernet(filter: &FrameFilter, frame: &[u8]) -> Option<bool> {
    let mut header = *frame.first_chunk::<HEADER>()?;
    let (_, kind) = contents(frame)?;
    let [.., high, low] = &mut header;
    [*high, *low] = kind.to_be_bytes();
    Some(filter.ethernet.match_bytes(&header))
}

fn above(filter: &FrameFilter, frame: &[u8]) -> Option<bool> {
    if filter.ip.is_none() && filter.ports.is_none() {
        return Some(true);
    }
    let packet = Packet::of(frame)?;
    let ip = frame.get(packet.at..)?;
    let has_ip = match &filter.ip {
        None => true,
        Some(IpFilter::Four(bits)) => !packet.six && bits.match_bytes(ip),
        Some(IpFilter::Six(bits)) => packet.six && bits.match_bytes(ip),
    };
    let Some((wanted, bits)) = &filter.ports else { return Some(has_ip) };
    let (protocol, at) = packet.inner?;
    Some(has_ip && protocol == *wanted && bits.match_bytes(frame.get(at..)?))
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::tagged;
    use super::*;
    use crate::provider::Bits;
    use std::vec::Vec;

    /// A UDP packet from 1.2.3.4, port 0x0506, to 5.6.7.8, port 0x0708.
    fn frame(kinds: &[u16]) -> Vec<u8> {
        let mut frame = tagged(kinds);
        frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        frame.extend([5, 6, 7, 8, 0, 8, 0, 0]);
        frame
    }

    fn filter() -> FrameFilter {
        let mut filter = FrameFilter::default();
        filter.ethernet.set(6, [2; 6], [0xff; 6]);
        filter.ethernet.set(12, [8, 0], [0xff; 2]);
        let (mut four, mut ports) = (Bits::default(), Bits::default());
        four.set(12, [1, 2, 3, 9], [0xff, 0xff, 0xff, 0]);
        ports.set(2, [7, 8], [0xff; 2]);
        filter.ip = Some(IpFilter::Four(four));
        filter.ports = Some((17, ports));
        filter
    }

    #[test]
    fn each_layer_counts_behind_tags_too() {
        assert!(matches(&FrameFilter::default(), &frame(&[0x800])), "no layer is asked for");
        for kinds in [&[0x800][..], &[0x8100, 0x800]] {
            let (good, at) = (frame(kinds), 12 + 4 * (kinds.len() - 1));
            assert!(matches(&filter(), &good));
            // Source address, protocol, IP source, UDP destination.
            for byte in [6, at + 11, at + 14, at + 25] {
                let mut bad = good.clone();
                bad[byte] ^= 1;
                assert!(!matches(&filter(), &bad), "byte {byte}");
            }
            // The last byte of the IP source, UDP source, the destination.
            for byte in [at + 17, at + 22, 0] {
                let mut other = good.clone();
                other[byte] ^= 1;
                assert!(matches(&filter(), &other), "byte {byte}");
            }
            for length in 0..at + 26 {
                assert!(!matches(&filter(), &good[..length]), "the first {length}");
            }
        }
    }

    #[test]
    fn a_version_of_ip_is_not_the_other() {
        let six = IpFilter::Six(Bits::default());
        let wants_six = FrameFilter { ip: Some(six), ..FrameFilter::default() };
        assert!(!matches(&wants_six, &frame(&[0x800])));
        let mut packet = tagged(&[0x86dd]);
        packet.extend([0x60, 0, 0, 0, 0, 0, 59, 64]);
        packet.extend([7; 32]);
        assert!(matches(&wants_six, &packet));
        let four = FrameFilter { ip: Some(IpFilter::Four(Bits::default())), ..wants_six };
        assert!(!matches(&four, &packet));
    }
}
