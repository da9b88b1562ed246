//! Calls to a worker and its answers: the payload of [`doorbell::rpc`]. All numbers are
//! little-endian.
//!
//! | call, byte | holds | | answer, byte | holds |
//! |---|---|---|---|---|
//! | 0 | operation | | 0 | status |
//! | 1 | length of the key | | 1 | slots from the key's home to its value |
//! | 4 to 7 | length of the value | | 8 to 15 | generation of the table |
//! | 8 to 15 | lifetime in ns; 0: for ever | | 16 to 23 | the server's clock, in ns; 0: not read |
//! | 16… | the key, then the value | | 24 to 31 | when the value expires; 0: never |
//! | | | | 32 to 39 | version of the value |
//! | | | | 40… | the value, or the table |
//!
//! The answer to `Table` describes where the worker's table is and which keys it has.

use doorbell::remote::RemoteMemory;

use crate::slot::KEY_MAX;
use crate::table::Geometry;

/// Bytes of a call in front of the key.
pub const CALL_HEAD: usize = 16;

/// Bytes of an answer in front of the value.
pub const ANSWER_HEAD: usize = 40;

/// Bytes of [`TableInfo`].
pub const INFO_BYTES: usize = 32 + RemoteMemory::BYTES;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Where is the table, and which keys are in it?
    Table,
    /// The value of a key.
    Get,
    /// Store a value under a key.
    Put,
    /// Delete a key.
    Delete,
}

impl Op {
    const ALL: [Op; 4] = [Op::Table, Op::Get, Op::Put, Op::Delete];
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The operation.
    pub op: Op,
    /// Lifetime of the value in nanoseconds; 0: for ever.
    pub ttl: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value, of a put.
    pub value: &'a [u8],
}

impl<'a> Call<'a> {
    /// Writes the call into `bytes`.
    pub fn write(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend([self.op as u8, self.key.len() as u8, 0, 0]);
        bytes.extend((self.value.len() as u32).to_le_bytes());
        bytes.extend(self.ttl.to_le_bytes());
        bytes.extend(self.key);
        bytes.extend(self.value);
    }

    /// Reads a call. `None`: it is malformed.
    pub fn read(bytes: &'a [u8]) -> Option<Call<'a>> {
        let (head, rest) = bytes.split_first_chunk::<CALL_HEAD>()?;
        let op = *Op::ALL.get(usize::from(head[0]))?;
        let (key, value) = rest.split_at_checked(usize::from(head[1]))?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if value.len() != length as usize {
            return None;
        }
        Some(Call { op, ttl: number(head, 8), key, value })
    }
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was done. A get brings the value, a delete has deleted one.
    Done,
    /// There is no such key.
    Missing,
    /// Key and value are too long for this server.
    TooLong,
    /// The server has no room.
    Full,
    /// The server does not understand the call.
    Malformed,
}

impl Status {
    const ALL: [Status; 5] =
        [Status::Done, Status::Missing, Status::TooLong, Status::Full, Status::Malformed];
}

/// The head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it went.
    pub status: Status,
    /// The generation of the table that clients may read.
    pub generation: u64,
    /// The server's clock in nanoseconds, if it was read for this call; 0 otherwise.
    pub time: u64,
    /// When the value expires, by the server's clock; 0: never.
    pub expires: u64,
    /// The version of the value.
    pub version: u64,
    /// Slots from the key's home to the one that holds the value. It spares the client the next
    /// call for a key that is too far for its search.
    pub probe: u8,
}

impl Answer {
    /// Writes the head into the first bytes of `room`.
    pub fn write(&self, room: &mut [u8]) {
        let Some(head) = room.first_chunk_mut::<ANSWER_HEAD>() else { return };
        head.fill(0);
        (head[0], head[1]) = (self.status as u8, self.probe);
        let numbers = [self.generation, self.time, self.expires, self.version];
        for (to, number) in head[8..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Reads an answer: its head and the rest. `None`: it is malformed.
    pub fn read(bytes: &[u8]) -> Option<(Answer, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<ANSWER_HEAD>()?;
        let status = *Status::ALL.get(usize::from(head[0]))?;
        let [generation, time, expires, version] = [8, 16, 24, 32].map(|at| number(head, at));
        let probe = head[1];
        Some((Answer { status, generation, time, expires, version, probe }, rest))
    }
}

/// Where a worker's table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// The number of the worker, and the number of workers.
    pub shard: (u32, u32),
    /// Where keys lie in it.
    pub geometry: Geometry,
    /// Its memory.
    pub memory: RemoteMemory,
}

impl TableInfo {
    /// The form in which an answer carries it; the generation is in the answer's head.
    pub fn to_bytes(self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        let (Geometry { seed, homes, slot_bytes, .. }, (shard, of)) = (self.geometry, self.shard);
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        for (to, number) in bytes[8..24].chunks_exact_mut(4).zip([homes, slot_bytes, shard, of]) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..].copy_from_slice(&self.memory.to_bytes());
        bytes
    }

    /// Reads what [`TableInfo::to_bytes`] wrote. `None`: it makes no sense.
    pub fn read(generation: u64, bytes: &[u8]) -> Option<TableInfo> {
        let (head, memory) = bytes.split_first_chunk::<32>()?;
        let word = |at: usize| {
            let bytes = head.get(at..at + 4)?.first_chunk()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let seed = number(head, 0);
        let (homes, slot_bytes, shard) = (word(8)?, word(12)?, (word(16)?, word(20)?));
        let memory = RemoteMemory::from_bytes(memory.first_chunk()?);
        let geometry = Geometry { generation, seed, homes, slot_bytes };
        let sound = geometry.is_sound() && geometry.bytes() as u64 <= memory.len();
        (sound && shard.0 < shard.1).then_some(TableInfo { shard, geometry, memory })
    }
}

/// Eight bytes of a head as a number.
fn number(head: &[u8], at: usize) -> u64 {
    let bytes = head.get(at..).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The number of the worker that owns a key, of that many.
pub fn owner(key: &[u8], workers: u32) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(key);
    ((u128::from(hash) * u128::from(workers)) >> 64) as u32
}

/// True if a client may ask for this key.
pub fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && key.len() <= KEY_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::prng::Prng;
    use doorbell::provider::Access;
    use doorbell::wr::Remote;

    #[test]
    fn calls_and_answers_say_everything() {
        let mut bytes = Vec::new();
        for op in Op::ALL {
            let call = Call { op, ttl: 77, key: b"key", value: b"a value" };
            call.write(&mut bytes);
            assert_eq!(Call::read(&bytes), Some(call));
        }
        for status in Status::ALL {
            let answer =
                Answer { status, generation: 1, time: 2, expires: 3, version: 4, probe: 5 };
            let mut room = [0xff; ANSWER_HEAD + 5];
            answer.write(&mut room);
            assert_eq!(Answer::read(&room), Some((answer, &[0xff; 5][..])));
        }
    }

    #[test]
    fn a_table_is_described_and_checked() {
        let geometry = Geometry { generation: 9, seed: 5, homes: 8, slot_bytes: 128 };
        let at = Remote { addr: 4096, rkey: 1 };
        let memory = RemoteMemory::new(at, geometry.bytes() as u64, Access::REMOTE_READ);
        let info = TableInfo { shard: (1, 3), geometry, memory };
        assert_eq!(TableInfo::read(9, &info.to_bytes()), Some(info));
        let short = RemoteMemory::new(at, geometry.bytes() as u64 - 1, Access::REMOTE_READ);
        let wrong = [
            TableInfo { memory: short, ..info },
            TableInfo { shard: (3, 3), ..info },
            TableInfo { geometry: Geometry { homes: 7, ..geometry }, ..info },
            TableInfo { geometry: Geometry { homes: 0, ..geometry }, ..info },
            TableInfo { geometry: Geometry { slot_bytes: 100, ..geometry }, ..info },
            TableInfo { geometry: Geometry { homes: 1 << 31, ..geometry }, ..info },
        ];
        for info in wrong {
            assert_eq!(TableInfo::read(9, &info.to_bytes()), None, "{info:?}");
        }
    }

    /// Random and damaged messages are refused or read, and never more than that.
    #[test]
    fn no_bytes_break_a_reader() {
        let mut prng = Prng::new(4);
        let mut good = Vec::new();
        Call { op: Op::Put, ttl: 1, key: b"key", value: &[3; 40] }.write(&mut good);
        for _ in 0..50_000 {
            let mut bytes = good.clone();
            for _ in 0..prng.below(5) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.word() as u8;
            }
            bytes.truncate(prng.below(2 * bytes.len() as u64) as usize);
            if let Some(call) = Call::read(&bytes) {
                assert_eq!(CALL_HEAD + call.key.len() + call.value.len(), bytes.len());
            }
            if let Some((answer, rest)) = Answer::read(&bytes) {
                let _ = TableInfo::read(answer.generation, rest);
            }
        }
        assert_eq!(Call::read(&good).unwrap().value, &[3; 40]);
    }

    #[test]
    fn every_worker_owns_keys() {
        let mut owned = [0; 3];
        (0..300_u32).for_each(|n| owned[owner(&n.to_le_bytes(), 3) as usize] += 1);
        assert!(owned.iter().all(|count| *count > 60), "{owned:?}");
    }
}
