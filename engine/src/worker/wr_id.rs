//! The contents of a `wr_id`: kind, and which block or which send of which peer.

/// A request number, taken apart. What a device returns is checked against what is outstanding
/// before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    /// A receive into a block of the shared memory.
    Recv {
        /// Which block.
        block: u32,
    },
    /// A send: the peer's slot and generation, and the low bits of its count.
    Send {
        /// Slot in the peer table.
        slot: u32,
        /// The slot's generation.
        generation: u16,
        /// The low 24 bits of the send's index.
        index: u32,
    },
}

const SEND: u64 = 1 << 63;
const INDEX_BITS: u32 = 24;
const SLOT_BITS: u32 = 20;

/// Mask of the index bits a number carries.
pub(super) const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

#[inline(always)]
pub(super) fn recv(block: u32) -> u64 {
    u64::from(block)
}

#[inline(always)]
pub(super) fn send(slot: u32, generation: u16, index: u32) -> u64 {
    SEND | u64::from(generation) << (INDEX_BITS + SLOT_BITS)
        | u64::from(slot) << INDEX_BITS
        | u64::from(index & INDEX_MASK)
}

#[inline(always)]
pub(super) fn parse(wr_id: u64) -> WrId {
    if wr_id & SEND == 0 {
        return WrId::Recv { block: wr_id as u32 };
    }
    WrId::Send {
        slot: (wr_id >> INDEX_BITS) as u32 & ((1 << SLOT_BITS) - 1),
        generation: (wr_id >> (INDEX_BITS + SLOT_BITS)) as u16,
        index: wr_id as u32 & INDEX_MASK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_were() {
        assert_eq!(parse(recv(0xff_ffff)), WrId::Recv { block: 0xff_ffff });
        for (slot, generation, index) in [(0, 0, 0), (65535, u16::MAX, INDEX_MASK), (7, 1, 2)] {
            let number = parse(send(slot, generation, index));
            assert_eq!(number, WrId::Send { slot, generation, index });
        }
        assert_eq!(send(1, 2, INDEX_MASK + 1), send(1, 2, 0));
    }
}
