//! Commands of the I/O set: read once into a plan, then carried out on a store.

use crate::store::{Move, Store, Transfer};
use crate::subsystem::{Counters, Namespace, Subsystem};
use crate::wire::command::{Command, opcode};
use crate::wire::status::Status;
use crate::wire::{BLOCK_BYTES, TRANSFER_BYTES};

/// Bytes of a range of Dataset Management.
const RANGE_BYTES: usize = 16;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read blocks.
    Read,
    /// Write blocks.
    Write,
    /// Compare blocks with the host's.
    Compare,
    /// Write zeros.
    Zero,
    /// Give back the room of blocks.
    Discard,
    /// Give back the room of the ranges that the data lists, or only look at them.
    Ranges {
        /// Give it back.
        discard: bool,
    },
    /// Make everything last.
    Flush,
}

/// The way of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It has none.
    None,
    /// From the host.
    Take,
    /// To the host.
    Give,
}

/// A command that has been checked.
#[derive(Clone)]
pub struct Io {
    op: Op,
    space: Namespace,
    /// The others, if a Flush is for all.
    others: Vec<Namespace>,
    at: u64,
    len: u64,
    /// The data must last before the response.
    force: bool,
}

impl Io {
    /// Checks a command.
    ///
    /// # Errors
    /// The status that answers it.
    pub fn read(subsystem: &Subsystem, command: &Command) -> Result<Io, Status> {
        let id = command.namespace();
        let space = || subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE).cloned();
        let plain =
            |op, at, len, force| Ok(Io { op, space: space()?, others: Vec::new(), at, len, force });
        let force = command.is_forced();
        match command.opcode() {
            opcode::FLUSH if id == u32::MAX => {
                let (space, others) =
                    subsystem.namespaces().split_first().ok_or(Status::INVALID_NAMESPACE)?;
                let (space, others) = (space.clone(), others.to_vec());
                Ok(Io { op: Op::Flush, space, others, at: 0, len: 0, force: false })
            }
            opcode::FLUSH => plain(Op::Flush, 0, 0, false),
            opcode::READ => {
                blocks(command, &space()?).and_then(|(at, len)| plain(Op::Read, at, len, force))
            }
            opcode::WRITE => {
                blocks(command, &space()?).and_then(|(at, len)| plain(Op::Write, at, len, force))
            }
            opcode::COMPARE => {
                blocks(command, &space()?).and_then(|(at, len)| plain(Op::Compare, at, len, force))
            }
            opcode::WRITE_ZEROES => {
                let (at, len) = range(command, &space()?)?;
                let op = if command.dword(12) & 1 << 25 != 0 { Op::Discard } else { Op::Zero };
                plain(op, at, len, force)
            }
            opcode::DATASET_MANAGEMENT => {
                let count = u64::from(command.dword(10) & 0xff) + 1;
                let discard = command.dword(11) & 1 << 2 != 0;
                plain(Op::Ranges { discard }, 0, count * RANGE_BYTES as u64, false)
            }
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Which way its data goes.
    pub fn way(&self) -> Way {
        match self.op {
            Op::Read => Way::Give,
            Op::Write | Op::Compare | Op::Ranges { .. } => Way::Take,
            Op::Zero | Op::Discard | Op::Flush => Way::None,
        }
    }

    /// Bytes of its data.
    pub fn data_len(&self) -> usize {
        if self.way() == Way::None { 0 } else { self.len as usize }
    }

    /// True if carrying it out does not wait for a device.
    pub fn is_quick(&self) -> bool {
        self.spaces().all(|space| space.store().is_quick())
    }

    fn spaces(&self) -> impl Iterator<Item = &Namespace> {
        std::iter::once(&self.space).chain(&self.others)
    }

    /// The one transfer of a file that it is, if it is one. `data` is where its bytes will be.
    pub fn transfer(&self, data: &[u8]) -> Option<Transfer> {
        if !self.others.is_empty() {
            return None;
        }
        let (at, len) = (self.at, self.data_len());
        let how = match self.op {
            Op::Read => Move::Read,
            Op::Write => Move::Write { force: self.force },
            Op::Flush => Move::Flush,
            _ => return None,
        };
        let file = self.space.store().descriptor(at, data.get(..len)?)?;
        Some(Transfer { file, how, at, len })
    }

    /// How it ended as a transfer that moved that many bytes. `None` if it must be done again.
    pub fn ended(&self, moved: &std::io::Result<usize>) -> Option<Status> {
        match moved {
            Ok(moved) => (*moved == self.data_len()).then_some(Status::SUCCESS),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) if self.op == Op::Read => Some(Status::READ_ERROR),
            Err(_) => Some(Status::WRITE_FAULT),
        }
    }

    /// Carries it out. `data` has its bytes from the host, or takes those for it.
    pub fn run(&self, data: &mut [u8]) -> Status {
        let mut done = self.spaces().map(|space| self.run_on(space, data));
        done.find(|done| !done.is_ok()).unwrap_or(Status::SUCCESS)
    }

    fn run_on(&self, space: &Namespace, data: &mut [u8]) -> Status {
        let store = space.store();
        let done = match self.op {
            Op::Read => return or(store.read(self.at, data), Status::READ_ERROR),
            Op::Compare => return compare(store, self.at, data),
            Op::Write => store.write(self.at, data),
            Op::Zero => store.zero(self.at, self.len),
            Op::Discard => store.discard(self.at, self.len),
            Op::Flush => store.flush(),
            Op::Ranges { discard } => return ranges(space, data, discard),
        };
        let done = if self.force { done.and_then(|()| store.flush()) } else { done };
        or(done, Status::WRITE_FAULT)
    }

    /// Counts a command that has ended.
    pub fn count(&self, counters: &Counters, status: Status) {
        let blocks = self.len / BLOCK_BYTES;
        if [Status::READ_ERROR, Status::WRITE_FAULT].contains(&status) {
            Counters::add(&counters.media_errors, 1);
        }
        match self.op {
            Op::Read | Op::Compare => {
                Counters::add(&counters.reads, 1);
                Counters::add(&counters.read_blocks, blocks);
            }
            Op::Write => {
                Counters::add(&counters.writes, 1);
                Counters::add(&counters.written_blocks, blocks);
            }
            _ => {}
        }
    }
}

fn or(done: std::io::Result<()>, failed: Status) -> Status {
    if done.is_ok() { Status::SUCCESS } else { failed }
}

/// The bytes that a command names.
fn range(command: &Command, space: &Namespace) -> Result<(u64, u64), Status> {
    let (start, count) = command.range();
    let end = start.checked_add(count).ok_or(Status::OUT_OF_RANGE)?;
    if end > space.shown().blocks {
        return Err(Status::OUT_OF_RANGE);
    }
    Ok((start * BLOCK_BYTES, count * BLOCK_BYTES))
}

/// The same for a command that moves them.
fn blocks(command: &Command, space: &Namespace) -> Result<(u64, u64), Status> {
    let (at, len) = range(command, space)?;
    if len > TRANSFER_BYTES as u64 {
        return Err(Status::INVALID_FIELD);
    }
    Ok((at, len))
}

fn compare(store: &dyn Store, at: u64, data: &[u8]) -> Status {
    let mut kept = vec![0; data.len()];
    match store.read(at, &mut kept) {
        Err(_) => Status::READ_ERROR,
        Ok(()) if kept == data => Status::SUCCESS,
        Ok(()) => Status::COMPARE,
    }
}

/// Gives back the ranges that the data lists. None is touched if one is out of range.
fn ranges(space: &Namespace, data: &[u8], discard: bool) -> Status {
    let field = |range: &[u8], at: usize, len: usize| {
        let bytes = range.iter().skip(at).take(len).rev();
        bytes.fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
    };
    let list = data.chunks_exact(RANGE_BYTES).map(|range| (field(range, 8, 8), field(range, 4, 4)));
    let fits = |(start, count): (u64, u64)| {
        start.checked_add(count).is_some_and(|end| end <= space.shown().blocks)
    };
    if !list.clone().all(fits) {
        return Status::OUT_OF_RANGE;
    }
    for (start, count) in list.filter(|_| discard) {
        if space.store().discard(start * BLOCK_BYTES, count * BLOCK_BYTES).is_err() {
            return Status::WRITE_FAULT;
        }
    }
    Status::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Memory;
    use std::sync::Arc;

    fn subsystem() -> Subsystem {
        Subsystem::new("nqn.test", vec![Arc::new(Memory::new(1 << 20))], 4)
    }

    fn read(command: &Command) -> Result<Io, Status> {
        Io::read(&subsystem(), command)
    }

    #[test]
    fn blocks_outside_the_namespace_are_refused() {
        for code in [opcode::READ, opcode::WRITE, opcode::COMPARE, opcode::WRITE_ZEROES] {
            let status = |start, count| read(&Command::blocks(code, 1, start, count)).err();
            assert_eq!(status(2047, 1), None);
            assert_eq!(status(2047, 2), Some(Status::OUT_OF_RANGE), "{code:#x}");
            assert_eq!(status(u64::MAX, 2), Some(Status::OUT_OF_RANGE), "{code:#x}");
        }
        let long = read(&Command::blocks(opcode::READ, 1, 0, 257));
        assert_eq!(long.err(), Some(Status::INVALID_FIELD), "over the limit of a transfer");
        let space = read(&Command::blocks(opcode::READ, 2, 0, 1));
        assert_eq!(space.err(), Some(Status::INVALID_NAMESPACE));
        assert_eq!(read(&Command::new(0x7e, 1)).err(), Some(Status::INVALID_OPCODE));
    }

    #[test]
    fn blocks_are_written_read_compared_and_given_back() {
        let subsystem = subsystem();
        let run = |command: Command, data: &mut [u8]| {
            Io::read(&subsystem, &command).expect("a good command").run(data)
        };
        let mut data = [7; 1024];
        assert_eq!(run(Command::blocks(opcode::WRITE, 1, 3, 2), &mut data), Status::SUCCESS);
        let mut back = [0; 1024];
        assert_eq!(run(Command::blocks(opcode::READ, 1, 3, 2), &mut back), Status::SUCCESS);
        assert_eq!(back, data);
        let compare = Command::blocks(opcode::COMPARE, 1, 3, 2);
        assert_eq!(run(compare, &mut data), Status::SUCCESS);
        data[1023] = 8;
        assert_eq!(run(compare, &mut data), Status::COMPARE);
        let mut list = [0; 32];
        (list[4], list[8], list[20], list[24]) = (1, 3, 1, 255);
        let discard = Command::new(opcode::DATASET_MANAGEMENT, 1).with(10, 1).with(11, 4);
        assert_eq!(run(discard, &mut list), Status::SUCCESS);
        assert_eq!(run(Command::blocks(opcode::READ, 1, 3, 2), &mut back), Status::SUCCESS);
        assert!(back[..512].iter().all(|byte| *byte == 0) && back[512..] == [7; 512]);
        list[31] = 1;
        assert_eq!(run(discard, &mut list), Status::OUT_OF_RANGE);
    }

    #[test]
    fn flush_reaches_one_namespace_or_all() {
        assert!(read(&Command::new(opcode::FLUSH, 1)).is_ok());
        assert!(read(&Command::new(opcode::FLUSH, u32::MAX)).is_ok());
        assert_eq!(read(&Command::new(opcode::FLUSH, 9)).err(), Some(Status::INVALID_NAMESPACE));
    }
}
