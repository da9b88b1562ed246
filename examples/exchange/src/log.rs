//! The log of all requests, and its way to the standby.
//!
//! The primary writes each request into the standby's memory by RDMA WRITE. Its engine takes a
//! request only when the WRITE has ended, so everything that anybody was told of is in the
//! standby's memory. A WRITE may be seen in part while it is under way, so each record begins with
//! a seal: a hash of all its other bytes, its number among them.

use doorbell::prelude::*;
use doorbell::worker::{OwnRegion, Request as Work};
use xxhash_rust::xxh3::xxh3_64;

use crate::field::{Reader, Write};
use crate::kept::Kept;
use crate::ouch::Request;

/// Bytes of a record.
pub const RECORD: usize = 96;

/// Records in the standby's memory: a ring.
pub const SLOTS: u64 = 1 << 12;

/// Records under way at a time.
pub const STAGE: u64 = 64;

/// A request as the engine takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since midnight.
    pub time: u64,
    /// Who sent it.
    pub user: u32,
    /// The request, without its appendage.
    pub request: Request,
}

impl Record {
    /// The record with that number, from 0 on.
    pub fn to_bytes(self, number: u64) -> [u8; RECORD] {
        let (mut request, mut bytes) = (Vec::with_capacity(RECORD), Vec::with_capacity(RECORD));
        self.request.write(&mut request);
        // One more than the number: memory that was never written is no record.
        bytes.u64(0).u64(number + 1).u64(self.time).u32(self.user).u8(request.len() as u8);
        bytes.text(&request);
        let mut record = [0; RECORD];
        record.iter_mut().zip(&bytes).for_each(|(to, byte)| *to = *byte);
        let seal = xxh3_64(&record[8..]);
        record[..8].copy_from_slice(&seal.to_be_bytes());
        record
    }

    /// Reads the record with that number. `None`: it is not there, or not whole yet.
    pub fn read(bytes: &[u8; RECORD], number: u64) -> Option<Record> {
        let mut reader = Reader(bytes);
        let r = &mut reader;
        let seal = r.u64()?;
        if seal != xxh3_64(&bytes[8..]) || r.u64()? != number + 1 {
            return None;
        }
        let (time, user, length) = (r.u64()?, r.u32()?, usize::from(r.u8()?));
        let request = Request::read(r.0.get(..length)?)?;
        Some(Record { time, user, request })
    }
}

/// The standby as the primary knows it.
struct Standby {
    peer: PeerId,
    memory: RemoteMemory,
    /// Records posted, of those with an ended WRITE, and of those that it has taken.
    posted: u64,
    ended: u64,
    taken: u64,
}

/// The log.
#[derive(Default)]
pub struct Log {
    records: Kept<[u8; RECORD]>,
    standby: Option<Standby>,
    stage: Option<OwnRegion>,
}

impl Log {
    /// Sends records from this memory: room for [`STAGE`] records.
    pub fn send_from(&mut self, stage: OwnRegion) {
        self.stage = Some(stage);
    }

    /// Records.
    pub fn len(&self) -> u64 {
        self.records.len() as u64
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        let bytes = record.to_bytes(self.len());
        self.records.push(bytes);
    }

    /// The record with that number, if the engine may take it.
    pub fn safe(&self, number: u64) -> Option<Record> {
        let end = self.standby.as_ref().map_or(self.len(), |standby| standby.ended);
        let bytes = self.records.get(number as usize).filter(|_| number < end)?;
        Record::read(bytes, number)
    }

    /// A standby has come. It gets all records from the first one on.
    pub fn begin(&mut self, peer: PeerId, memory: RemoteMemory) {
        if memory.len() >= SLOTS * RECORD as u64 && self.stage.is_some() {
            self.standby = Some(Standby { peer, memory, posted: 0, ended: 0, taken: 0 });
        }
    }

    /// The standby has taken `count` records.
    pub fn taken(&mut self, peer: PeerId, count: u64) {
        if let Some(standby) = self.standby.as_mut().filter(|standby| standby.peer == peer) {
            standby.taken = count.clamp(standby.taken, standby.ended);
        }
    }

    /// A WRITE has ended, or failed: then the standby is lost.
    pub fn ended(&mut self, peer: PeerId, number: u64, ok: bool) {
        match self.standby.as_mut().filter(|standby| standby.peer == peer) {
            Some(standby) if ok => standby.ended = standby.ended.max(number + 1),
            Some(_) => self.standby = None,
            None => {}
        }
    }

    /// The standby is gone: from now on the primary is alone.
    pub fn lost(&mut self, peer: PeerId) {
        self.standby.take_if(|standby| standby.peer == peer);
    }

    /// Posts what the standby does not have, as far as there is room.
    pub fn pump<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let (Some(standby), Some(stage)) = (&mut self.standby, self.stage) else { return };
        while let Some(record) = self.records.get(standby.posted as usize) {
            let number = standby.posted;
            if number - standby.ended >= STAGE || number - standby.taken >= SLOTS {
                return;
            }
            let piece = stage.piece((number % STAGE) as usize * RECORD, RECORD as u32);
            let Ok(bytes) = out.bytes_mut(piece) else { return };
            bytes.copy_from_slice(record);
            let at = number % SLOTS * RECORD as u64;
            let Ok(op) = standby.memory.write(at, RECORD as u32) else { return };
            let pieces = [piece.into()];
            let work = Work { op, pieces: &pieces, fence: false, token: number };
            if out.request(standby.peer, &work).is_err() {
                return;
            }
            standby.posted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::prng::Prng;

    fn record(user: u32) -> Record {
        Record { time: 5, user, request: Request::Cancel { user_ref: user, quantity: 100 } }
    }

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let bytes = record(7).to_bytes(9);
        assert_eq!(Record::read(&bytes, 9), Some(record(7)));
        assert_eq!(Record::read(&bytes, 10), None);
        assert_eq!(Record::read(&[0; RECORD], 0), None);
        let old = record(3).to_bytes(9 - 9);
        let mut prng = Prng::new(3);
        for _ in 0..5000 {
            let mut mix = old;
            for at in 0..RECORD / 8 {
                if prng.chance(512) {
                    mix[at * 8..at * 8 + 8].copy_from_slice(&bytes[at * 8..at * 8 + 8]);
                }
            }
            assert!(mix == bytes || Record::read(&mix, 9).is_none());
        }
    }

    #[test]
    fn without_a_standby_every_record_is_safe() {
        let mut log = Log::default();
        log.push(record(1));
        assert_eq!((log.safe(0), log.safe(1)), (Some(record(1)), None));
    }
}
