//! `rstream` of rdmacm-utils, and with it the protocol of rsockets: a stream of bytes in RDMA
//! WRITEs with immediate data.
//!
//! Each side has a receive buffer of two halves, and a table of two entries in which the peer says
//! where this side may write. The private data of connect and accept announces the table and the
//! first half. From then on each side writes every half that is free again into the peer's table.
//!
//! The immediate data of a message gives its kind: bytes of the stream, and how many; credits,
//! which say how many messages may be sent, with or without a new entry of the table; or the end.

use std::collections::VecDeque;

use doorbell::provider::Access;
use doorbell::wr::{Remote, SendFlags, SendOp};
use doorbell::{Buffer, CmError, Completion, ConnParam, Exposed, Fabric, Id, Program, QpInit};

use super::common::{Plan, differs};

/// Number of receives that are kept posted, and so of messages that the peer may have in flight.
const DEPTH: u16 = 384;
/// Size of half of the receive buffer, bytes.
const HALF: usize = 64 << 10;
/// Number of entries of a table.
const ENTRIES: usize = 2;
/// Size of an entry, bytes.
const ENTRY: usize = 16;
/// Size of the private data of connect and accept, bytes.
const HELLO: usize = 40;
/// Bytes that each side sends before a test, so that both start together.
const SYNC: usize = 16;

/// Kinds of messages: the upper three bits of the immediate data.
const DATA: u32 = 0;
const CREDITS: u32 = 4;
const CONTROL: u32 = 7;
/// The other bits.
const VALUE: u32 = (1 << 29) - 1;

/// Memory that a side may write to: address, key and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Remote,
    len: usize,
}

impl Entry {
    fn of<F: Fabric>(memory: &Exposed<F>, offset: usize, len: usize) -> Entry {
        Entry { at: memory.remote(offset), len }
    }

    /// Encodes it in big-endian or in little-endian byte order.
    fn encode(self, big: bool) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let (addr, key, len) = (self.at.addr, self.at.rkey, self.len as u32);
        let order = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        bytes[..8].copy_from_slice(&if big { addr.to_be_bytes() } else { addr.to_le_bytes() });
        bytes[8..12].copy_from_slice(&order(key));
        bytes[12..].copy_from_slice(&order(len));
        bytes
    }

    fn decode(bytes: &[u8; ENTRY], big: bool) -> Entry {
        let four = |at: usize| {
            let part = std::array::from_fn(|n| bytes[at + n]);
            if big { u32::from_be_bytes(part) } else { u32::from_le_bytes(part) }
        };
        let part = std::array::from_fn(|n| bytes[n]);
        let addr = if big { u64::from_be_bytes(part) } else { u64::from_le_bytes(part) };
        Entry { at: Remote { addr, rkey: four(8) }, len: four(12) as usize }
    }
}

/// The private data of connect and accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    /// True if this side's table is big-endian.
    big: bool,
    credits: u16,
    table: Entry,
    first: Entry,
}

impl Hello {
    fn encode(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        // Version 1; flags: mapped memory is supported, although never used here; byte order.
        (bytes[0], bytes[1]) = (1, 2 | u8::from(self.big));
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.table.encode(true));
        bytes[24..].copy_from_slice(&self.first.encode(true));
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Hello, CmError> {
        let Some(bytes) = bytes.first_chunk::<HELLO>().filter(|bytes| bytes[0] == 1) else {
            let got = format!("{:?}", bytes.get(..HELLO.min(bytes.len())));
            return Err(differs("the peer's private data", "40 bytes of version 1", got));
        };
        let entry = |from: usize| Entry::decode(&std::array::from_fn(|n| bytes[from + n]), true);
        let credits = u16::from_be_bytes([bytes[2], bytes[3]]);
        Ok(Hello { big: bytes[1] & 1 != 0, credits, table: entry(8), first: entry(24) })
    }
}

/// The memory of a side.
struct Memory<F: Fabric> {
    /// Both halves of the receive buffer.
    inbox: Exposed<F>,
    /// The table that the peer fills, in the byte order of this host.
    table: Exposed<F>,
}

impl<F: Fabric> Memory<F> {
    fn new(fabric: &F) -> Result<Memory<F>, CmError> {
        let inbox = Exposed::new(fabric, 2 * HALF, Access::REMOTE_WRITE)?;
        let table = Exposed::new(fabric, ENTRIES * ENTRY, Access::REMOTE_WRITE)?;
        Ok(Memory { inbox, table })
    }

    fn hello(&self) -> [u8; HELLO] {
        let table = Entry { len: ENTRIES, ..Entry::of(&self.table, 0, 0) };
        let first = Entry::of(&self.inbox, 0, HALF);
        Hello { big: cfg!(target_endian = "big"), credits: DEPTH, table, first }.encode()
    }
}

/// One side of a stream, connected.
struct Stream<'a, F: Fabric> {
    plan: Plan,
    id: &'a mut Id<F>,
    memory: Memory<F>,
    /// The peer's private data.
    peer: Hello,
    /// The send buffer; `None` while a send is in flight.
    outgoing: Option<Buffer<F>>,
    /// Where this side may write at the peer.
    room: VecDeque<Entry>,
    /// The entry of our table that the peer fills next.
    filled_next: usize,
    /// Messages sent.
    sent: u16,
    /// Messages that the peer has allowed so far.
    allowed: u16,
    /// Lengths of messages that have arrived and were not read yet.
    waiting: VecDeque<usize>,
    /// Where the first of them starts in the receive buffer.
    read_at: usize,
    /// Messages read.
    taken: u16,
    /// The number of messages read at which the next credits are due.
    credits_at: u16,
    /// Free bytes of the receive buffer that the peer does not know of.
    free: usize,
    /// Where they start.
    free_at: usize,
    /// The entry of the peer's table that is filled next.
    fill_next: usize,
    /// Whether the peer has sent its end.
    ended: bool,
}

impl<'a, F: Fabric> Stream<'a, F> {
    fn new(
        fabric: &F,
        plan: Plan,
        id: &'a mut Id<F>,
        memory: Memory<F>,
    ) -> Result<Stream<'a, F>, CmError> {
        let peer = Hello::decode(id.private_data())?;
        Ok(Stream {
            plan,
            id,
            memory,
            peer,
            outgoing: Some(Buffer::new(fabric, HALF)?),
            room: VecDeque::from([peer.first]),
            filled_next: 1,
            sent: 0,
            allowed: peer.credits,
            waiting: VecDeque::new(),
            read_at: 0,
            taken: 0,
            credits_at: DEPTH / 2,
            free: HALF,
            free_at: HALF,
            fill_next: 1,
            ended: false,
        })
    }

    /// Writes bytes to the peer, with immediate data of this kind and value.
    fn write(&mut self, at: Remote, bytes: &[u8], kind: u32, value: u32) -> Result<(), CmError> {
        let lost = || differs("a request", "its buffer back", "none");
        let mut buffer = self.outgoing.take().ok_or_else(lost)?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        let op = SendOp::WriteWithImm(at, kind << 29 | value & VALUE);
        self.id.queues().post_send(buffer, bytes.len(), op, SendFlags::SIGNALED)?;
        let done = self.id.queues().next_send(self.plan.time_left())?.ok()?;
        self.outgoing = Some(done.buffer.ok_or_else(lost)?);
        Ok(())
    }

    /// Waits for one message, and handles it.
    fn handle_message(&mut self) -> Result<(), CmError> {
        let message = self.id.queues().next_recv(self.plan.time_left())?.ok()?;
        let Completion { buffer: Some(buffer), imm: Some(imm), len, .. } = message else {
            return Err(differs("a message", "immediate data", "none"));
        };
        self.id.queues().post_recv(buffer)?;
        let value = imm & VALUE;
        match imm >> 29 {
            DATA if len == value as usize && (1..=HALF).contains(&len) => {
                self.waiting.push_back(len);
            }
            CREDITS => {
                self.allowed = value as u16;
                if len == ENTRY {
                    self.take_entry()?;
                }
            }
            // Value 0 is the end. Others are keep-alives and half-closes, which need no action.
            CONTROL => self.ended |= value == 0,
            kind => {
                let got = format!("{len} bytes, kind {kind}, value {value}");
                return Err(differs("a message", "one of rsockets", got));
            }
        }
        Ok(())
    }

    /// Reads the entry of our table that the peer has just filled.
    fn take_entry(&mut self) -> Result<(), CmError> {
        let mut bytes = [0; ENTRY];
        self.memory.table.read(self.filled_next * ENTRY, &mut bytes)?;
        self.room.push_back(Entry::decode(&bytes, cfg!(target_endian = "big")));
        self.filled_next = (self.filled_next + 1) % ENTRIES;
        Ok(())
    }

    /// Sends credits, and a half that is free again, if one of them is due.
    fn send_credits(&mut self) -> Result<(), CmError> {
        let due = self.taken.wrapping_sub(self.credits_at) < u16::MAX / 2;
        if self.free < HALF && !due {
            return Ok(());
        }
        self.credits_at = self.taken.wrapping_add(DEPTH / 2);
        let credits = u32::from(self.taken.wrapping_add(DEPTH));
        if self.free < HALF {
            return self.write(self.peer.table.at, &[], CREDITS, credits);
        }
        let entry = Entry::of(&self.memory.inbox, self.free_at, HALF).encode(self.peer.big);
        let table = self.peer.table;
        let at = Remote { addr: table.at.addr + (self.fill_next * ENTRY) as u64, ..table.at };
        self.write(at, &entry, CREDITS, credits)?;
        self.free -= HALF;
        self.free_at = (self.free_at + HALF) % (2 * HALF);
        self.fill_next = (self.fill_next + 1) % table.len.max(1);
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), CmError> {
        while !bytes.is_empty() {
            if self.room.front().is_some_and(|room| room.len == 0) {
                self.room.pop_front();
                continue;
            }
            let has_credit = self.sent != self.allowed;
            let Some(room) = self.room.front_mut().filter(|_| has_credit) else {
                if self.ended {
                    return Err(differs("the peer", "ready for more", "at its end"));
                }
                self.handle_message()?;
                continue;
            };
            let at = room.at;
            let (now, later) = bytes.split_at(bytes.len().min(room.len).min(HALF));
            room.at.addr += now.len() as u64;
            room.len -= now.len();
            self.sent = self.sent.wrapping_add(1);
            self.write(at, now, DATA, now.len() as u32)?;
            bytes = later;
        }
        Ok(())
    }

    fn receive(&mut self, mut bytes: &mut [u8]) -> Result<(), CmError> {
        while !bytes.is_empty() {
            let Some(waiting) = self.waiting.front_mut() else {
                if self.ended {
                    return Err(differs("the peer", "in the middle of a test", "at its end"));
                }
                self.handle_message()?;
                continue;
            };
            let (now, later) = bytes.split_at_mut((*waiting).min(bytes.len()));
            if self.read_at % HALF + now.len() > HALF {
                return Err(differs("a message", "within what is free", *waiting));
            }
            self.memory.inbox.read(self.read_at, now)?;
            self.read_at = (self.read_at + now.len()) % (2 * HALF);
            self.free += now.len();
            *waiting -= now.len();
            if *waiting == 0 {
                self.waiting.pop_front();
                self.taken = self.taken.wrapping_add(1);
            }
            bytes = later;
            // A peer that has left after its last byte needs no credits.
            if let Err(error) = self.send_credits()
                && !self.id.peer_left()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sends this side's end, and waits for that of the peer.
    fn end(&mut self) -> Result<(), CmError> {
        let mut result = if self.ended { Ok(()) } else { self.send_end() };
        while result.is_ok() && !self.ended {
            result = self.handle_message();
        }
        // The peer may leave without waiting for our end, or without sending its own.
        if result.is_err() && !self.ended && !self.id.peer_left() {
            return result;
        }
        self.id.disconnect()
    }

    fn send_end(&mut self) -> Result<(), CmError> {
        self.write(self.peer.table.at, &[], CONTROL, 0)
    }
}

/// What both sides need.
#[derive(Clone, Copy, Debug)]
pub struct Rstream {
    /// Where to listen, or to connect to.
    pub plan: Plan,
    /// Number of transfers in a row each way (`-C`).
    pub count: u32,
    /// Bytes of each (`-S`).
    pub size: usize,
    /// Number of rounds (`-I`).
    pub rounds: u32,
}

impl Rstream {
    /// The test itself. The bytes of each direction count up from 0 (`-T v`).
    fn test<F: Fabric>(&self, stream: &mut Stream<'_, F>, first: bool) -> Result<(), CmError> {
        stream.send_credits()?;
        let mut next = [0_u8; 2];
        let [outgoing, incoming] = &mut next;
        let mut turn = |sends: bool, size: usize| {
            let counter = if sends { &mut *outgoing } else { &mut *incoming };
            let text: Vec<u8> = (0..size).map(|n| counter.wrapping_add(n as u8)).collect();
            *counter = counter.wrapping_add(size as u8);
            if sends {
                return stream.send(&text);
            }
            let mut received = vec![0; size];
            stream.receive(&mut received)?;
            match received.iter().zip(&text).position(|(got, want)| got != want) {
                Some(at) => Err(differs("a byte of the stream", text[at], received[at])),
                None => Ok(()),
            }
        };
        turn(first, SYNC)?;
        turn(!first, SYNC)?;
        for _ in 0..self.rounds {
            for sends in [first, !first] {
                for _ in 0..self.count {
                    turn(sends, self.size)?;
                }
            }
        }
        Ok(())
    }

    fn play<F: Fabric>(
        &self,
        fabric: &F,
        id: &mut Id<F>,
        memory: Memory<F>,
        first: bool,
    ) -> Result<(), CmError> {
        let mut stream = Stream::new(fabric, self.plan, id, memory)?;
        self.test(&mut stream, first)?;
        stream.end()
    }
}

fn queue_pair<F: Fabric>() -> QpInit<F> {
    QpInit::rc().send_wr(DEPTH.into()).recv_wr(DEPTH.into()).signal_all(true)
}

fn post_receives<F: Fabric>(fabric: &F, id: &mut Id<F>) -> Result<(), CmError> {
    // Their buffers stay empty: a WRITE with immediate data only consumes a receive.
    Ok(id.queues().post_recvs(&mut Buffer::many(fabric, DEPTH.into(), 1)?)?)
}

/// The counterpart of `rstream -s`.
#[derive(Clone, Copy, Debug)]
pub struct RstreamServer(pub Rstream);

impl Program for RstreamServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let plan = self.0.plan;
        let mut listener = plan.listen(&fabric, Some(&queue_pair()))?;
        let mut id = listener.get_request(Some(plan.time_left()))?;
        post_receives(&fabric, &mut id)?;
        let memory = Memory::new(&fabric)?;
        let hello = memory.hello();
        Hello::decode(id.private_data())?;
        id.accept(&ConnParam { private_data: &hello, ..ConnParam::default() })?;
        self.0.play(&fabric, &mut id, memory, false)
    }
}

/// The counterpart of `rstream` without `-s`.
#[derive(Clone, Copy, Debug)]
pub struct RstreamClient(pub Rstream);

impl Program for RstreamClient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.0.plan.active(&fabric, &queue_pair())?;
        post_receives(&fabric, &mut id)?;
        let memory = Memory::new(&fabric)?;
        let hello = memory.hello();
        id.connect(&ConnParam { private_data: &hello, ..ConnParam::default() })?;
        self.0.play(&fabric, &mut id, memory, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_is_decoded_as_it_was_encoded() {
        let at = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x0a0b_0c0d };
        let table = Entry { at, len: 2 };
        let hello = Hello { big: true, credits: 384, table, first: Entry { at, len: HALF } };
        let bytes = hello.encode();
        assert_eq!(bytes[..8], [1, 3, 1, 128, 0, 0, 0, 0]);
        assert_eq!(bytes[8..12], [1, 2, 3, 4], "big-endian");
        let mut padded = bytes.to_vec();
        padded.resize(56, 0);
        assert_eq!(Hello::decode(&padded), Ok(hello));
        assert!(Hello::decode(&bytes[..39]).is_err() && Hello::decode(&[2; HELLO]).is_err());
        for big in [false, true] {
            assert_eq!(Entry::decode(&table.encode(big), big), table);
        }
    }
}
