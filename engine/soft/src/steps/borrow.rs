//! The receiver's side of a long message that is copied once: see [`crate::steps::lend`].

use crate::model::buffers::Target;
use crate::shm::layout::{Header, KIND_LENT, KIND_TO_SRQ, LINE, SRQ_OPERANDS};
use crate::shm::offer::Offer;
use crate::shm::remote_map::NotLent;
use crate::state::link::Link;

/// The most bytes that a poll copies for one link: the other links wait meanwhile.
pub(crate) const PULL_MAX: u32 = 256 << 10;

/// The shortest lent message behind which this side prefetches the next receive while it waits. It
/// prefetches the lines that a message of the same length fills. The peer's core has them, if the
/// program has sent a message from there. Near cores, half a round trip of 4 KiB then takes 531 ns
/// in place of 561, and of 16 KiB 1077 in place of 1210. Far cores, 2200 in place of 2350 and 7310
/// in place of 7640; but 2 KiB takes 1380 in place of 1304.
const PREFETCH_MIN: u32 = 2049;

/// The most bytes of a receive that it prefetches. With more, 64 KiB were no faster.
const PREFETCH_MAX: u32 = 16 << 10;

/// How many lines behind the first of the next receive to prefetch after a lent message of that
/// length.
pub(crate) fn lines_to_prefetch(length: u32) -> usize {
    match length < PREFETCH_MIN {
        true => 0,
        false => (length.min(PREFETCH_MAX) as usize - 1) / LINE,
    }
}

/// The bytes of a message, or of a piece of one, that a record brings.
#[derive(Clone, Copy)]
pub(crate) enum Payload {
    /// In the record, behind that many bytes.
    Here { skip: u32, length: u32 },
    /// In the sender's memory.
    Lent(Offer),
}

impl Payload {
    /// Of the record whose header was read; `None` if no honest sender writes it.
    pub(crate) fn of(link: &Link, header: Header) -> Option<Payload> {
        if header.kind() == KIND_LENT {
            return Offer::of(link.rx.operands::<3>(header)?).map(Payload::Lent);
        }
        let skip = if header.kind() == KIND_TO_SRQ { SRQ_OPERANDS } else { 0 };
        let length = header.length().checked_sub(skip)?;
        Some(Payload::Here { skip, length })
    }

    /// How many there are.
    pub(crate) fn length(self) -> u32 {
        match self {
            Payload::Here { length, .. } => length,
            Payload::Lent(offer) => offer.length,
        }
    }

    /// Copies them from a record of queue pair `peer` to a receive. After an error some of them may
    /// be there.
    pub(crate) fn fetch(
        self,
        link: &mut Link,
        (header, peer): (Header, u32),
        to: Target<'_>,
    ) -> Result<(), NotLent> {
        match self {
            Payload::Here { skip, .. } => {
                link.rx.fetch(header, skip, to);
                Ok(())
            }
            Payload::Lent(offer) => {
                link.pulled = link.pulled.saturating_add(offer.length);
                pull(link, peer, offer, to)
            }
        }
    }
}

/// Copies the bytes that queue pair `peer` lends. After an error some of them may be there.
///
/// The copy is one call, without prefetches: on the machines measured that was the fastest from 4
/// KiB to 1 MiB. Prefetches of 8 to 24 lines ahead, for reading alone or for writing too, took 1.3
/// times as long from 16 KiB on, and a loop of 16 bytes 1.2 times. To prefetch what the next record
/// lends gained nothing at 1 and 4 KiB; `rep movsb` in place of the call took 1.25 times as long at
/// 1 KiB, and as long from 4 KiB on.
///
/// Where the sender writes every byte, its lines cross twice for each message. Two cores with only
/// flags between them then reach 33 GB/s at 64 KiB if they are near and 7 if they are far, and this
/// device 0.9 of that.
pub(crate) fn pull(link: &Link, peer: u32, offer: Offer, to: Target<'_>) -> Result<(), NotLent> {
    let map = link.remote_map.as_ref().ok_or(NotLent::Nowhere)?;
    let lent = map.borrow(peer, offer)?;
    to.copy(lent.bytes);
    lent.check()
}

impl Link {
    /// Maps the region that the peer asks for, and tells the peer. False: no honest peer writes
    /// such a record.
    pub(crate) fn take_show(&mut self, header: Header) -> bool {
        let Some([key]) = self.rx.operands::<1>(header) else { return false };
        let map = self.remote_map.clone();
        if let (Some(map), Ok(key)) = (map, u32::try_from(key))
            && self.lending.may_tell()
            && map.show(key)
        {
            self.lending.tell(key);
        }
        self.consume(header);
        true
    }
}
