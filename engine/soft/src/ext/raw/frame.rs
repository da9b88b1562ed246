//! Ethernet frames: destination, VLAN tag, check sequence.

use crate::provider::Mac;
use crate::shm::inbox::DATAGRAM_MAX;

/// Bytes of an Ethernet header: two addresses and the type of the contents.
pub(super) const HEADER: usize = 14;
/// The shortest frame. The sender pads shorter ones with zeros.
pub(super) const FRAME_MIN: usize = 60;
/// The longest frame.
pub(super) const FRAME_MAX: usize = DATAGRAM_MAX as usize;
/// Bytes of the check sequence after the frame.
pub(super) const FCS: usize = 4;

/// The type value of a customer VLAN tag.
pub(super) const CVLAN: u16 = 0x8100;

/// Bytes of a VLAN tag.
pub(super) const TAG: usize = 4;

/// Reads two bytes in network byte order.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

/// The destination address of a frame.
pub(super) fn destination(frame: &[u8]) -> Option<Mac> {
    frame.first_chunk().map(|mac| Mac(*mac))
}

/// The check sequence of a frame, as it follows the frame on a wire.
pub(super) fn fcs(frame: &[u8]) -> [u8; FCS] {
    crc32fast::hash(frame).to_le_bytes()
}

/// Removes the customer VLAN tag from a frame and returns it. The frame is then [`TAG`] bytes
/// shorter.
pub(super) fn take_tag(frame: &mut [u8]) -> Option<u16> {
    const AT: usize = HEADER - 2;
    if frame.len() < HEADER + TAG || word(frame, AT)? != CVLAN {
        return None;
    }
    let tag = word(frame, AT + 2)?;
    frame.copy_within(AT + TAG.., AT);
    Some(tag)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::vec::Vec;

    const SVLAN: u16 = 0x88a8;

    /// The check value of this code, as published for its parameters.
    #[test]
    fn the_check_sequence_is_ethernets() {
        assert_eq!(fcs(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
        // Running the code over the frame and its sequence gives the well-known residue.
        let mut frame = b"a frame of some length".to_vec();
        frame.extend(fcs(&frame));
        assert_eq!(crc32fast::hash(&frame), 0x2144_df1c);
    }

    /// A frame with addresses and these types. A tag type is followed by its tag.
    pub(in super::super) fn tagged(kinds: &[u16]) -> Vec<u8> {
        let mut frame = [2; 12].to_vec();
        for kind in kinds {
            frame.extend(kind.to_be_bytes());
            if matches!(*kind, CVLAN | SVLAN) {
                frame.extend([0x60, 0x07]);
            }
        }
        frame
    }

    #[test]
    fn a_customers_tag_comes_out_and_others_stay() {
        let mut frame = tagged(&[CVLAN, 0x1234]);
        frame.push(9);
        assert_eq!(take_tag(&mut frame), Some(0x6007));
        frame.truncate(frame.len() - TAG);
        let mut plain = tagged(&[0x1234]);
        plain.push(9);
        assert_eq!(frame, plain);
        for mut frame in [plain, tagged(&[SVLAN, CVLAN, 1]), tagged(&[CVLAN])] {
            let before = frame.clone();
            assert_eq!(take_tag(&mut frame), None);
            assert_eq!(frame, before);
        }
    }
}
