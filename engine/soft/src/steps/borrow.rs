//! The receiver's side of a long message that is copied once: see [`crate::steps::lend`].

use crate::model::buffers::{Source, Target};
use crate::prefetch;
use crate::shm::layout::{Header, KIND_LENT, KIND_TO_SRQ, SRQ_OPERANDS};
use crate::shm::offer::Offer;
use crate::shm::remote_map::NotLent;
use crate::state::link::Link;
use crate::state::policy::copying::Copying;

/// A poll that has copied as many bytes for one link leaves the rest to the next poll, because the
/// other links wait meanwhile. The last record may take it to almost twice as many.
pub(crate) const PULL_MAX: u32 = 256 << 10;

/// The most bytes whose lines this side gets at once before it copies as many.
const OWN_STEP: u32 = 4 << 10;

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
/// The copy is a call, without prefetches: on the machines measured that was the fastest from 4 KiB
/// to 1 MiB. Prefetches of 8 to 24 lines ahead, for reading alone or for writing too, took 1.3
/// times as long from 16 KiB on, and a loop of 16 bytes 1.2 times. To prefetch what the next record
/// lends gained nothing at 1 and 4 KiB; `rep movsb` in place of the call took 1.25 times as long at
/// 1 KiB, and as long from 4 KiB on.
///
/// On an Intel processor (family 6, model 207), a copy of lines that the other core had written
/// took 12.5 us in place of 17 for 256 KiB if it went on at four places in turn. With prefetches 2
/// KiB ahead, 64 KiB took 3.9, 4.3 and 6.5 us in three runs, and 4.8, 6.4 and 4.9 without. In a
/// ping-pong neither gained anything: half a round trip took 8.2 to 10.2 us for 64 KiB and 143 to
/// 196 for 1 MiB, with or without. With a flush behind the copy it took 15 to 18 and 240 to 310.
pub(crate) fn pull(
    link: &mut Link,
    peer: u32,
    offer: Offer,
    to: Target<'_>,
) -> Result<(), NotLent> {
    let map = link.remote_map.as_ref().ok_or(NotLent::Nowhere)?;
    let lent = map.borrow(peer, offer)?;
    let answers = core::mem::take(&mut link.lending.lent);
    let distance = &mut link.lending.distance;
    match Copying::of(offer.length, answers, || distance.is_far(lent.bytes)) {
        Copying::Plain => to.copy(lent.bytes),
        Copying::Own => own_and_copy(to, lent.bytes),
        Copying::Flush => {
            to.copy(lent.bytes);
            lent.bytes.but_last_line().flush();
        }
    }
    lent.check()
}

/// Copies as many bytes as there are on both sides, and gets the lines that it writes before.
fn own_and_copy(to: Target<'_>, from: Source<'_>) {
    let length = to.length().min(from.length());
    for at in (0..length).step_by(OWN_STEP as usize) {
        let part = OWN_STEP.min(length - at);
        let to = to.part(at, part);
        prefetch::own(to.as_ptr(), part as usize);
        to.copy(from.part(at, part));
    }
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
