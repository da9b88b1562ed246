//! Requests to the other side's memory. A ping-pong of WRITEs: each side watches the last word of
//! its memory, as ucx_perftest's `ucp_put_lat` does. WRITEs and READs one way with several
//! outstanding. Neither side writes or reads more of a message than its last word, and ucx_perftest
//! does not either.

use doorbell::alloc::{Ask, MapRequest};
use doorbell::prelude::*;
use doorbell::wc::Status;
use doorbell::worker::{Piece, RegionId, Request};

use crate::error::Failure;
use crate::ours::session::{Link, Linked, Session};
use crate::ours::{Side, SideArgs, Task};
use crate::peer::Figure;
use crate::timing::{self, Stream, Trips};

/// The most requests outstanding.
const OUTSTANDING: u32 = 16;

/// Bytes of the requests outstanding, about. They and the bytes that they go to stay in the second
/// cache of one core, as the two buffers of ucx_perftest do. With twice as many, WRITEs and READs
/// of 64 KiB were 0.8 times as fast.
const WINDOW_BYTES: u32 = 256 << 10;

/// Bytes of the word at the end of a message.
const WORD: usize = 8;

/// The worker's only region.
struct Memory {
    /// Bytes of a message.
    size: usize,
    slots: u64,
    region: RegionId,
}

impl Memory {
    fn slots(size: u32) -> u32 {
        (WINDOW_BYTES / size.max(1)).clamp(2, OUTSTANDING)
    }

    fn offset(&self, number: u64) -> usize {
        (number % self.slots) as usize * self.size
    }

    /// The slot of message `number`.
    fn piece(&self, number: u64) -> Piece {
        Piece { region: self.region, offset: self.offset(number), length: self.size as u32 }
    }
}

/// The handler of both sides.
#[derive(Default)]
struct OneSided {
    link: Link,
    /// The whole of this side's memory, and of the other side's.
    here: Option<RemoteMemory>,
    there: Option<RemoteMemory>,
}

impl Handler<SoftDevice> for OneSided {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, SoftDevice>) -> Verdict {
        self.there = message.bytes().try_into().ok().map(RemoteMemory::from_bytes);
        Verdict::Done
    }

    fn on_send_done(
        &mut self,
        _peer: PeerId,
        _token: u64,
        result: Result<(), Status>,
        _out: &mut Outbox<'_, SoftDevice>,
    ) {
        self.link.end(result);
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, SoftDevice>) {
        self.link.peer = Some(peer);
        let told = self.here.map(|here| out.send(peer, &here.to_bytes()));
        if let Some(Err(error)) = told {
            self.link.failed = Some(error.to_string());
        }
    }

    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _out: &mut Outbox<'_, SoftDevice>) {
        self.link.down = Some(why);
    }
}

impl Linked for OneSided {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// One side, with memory for the other.
struct Party {
    session: Session<OneSided>,
    memory: Memory,
    /// This side's messages lie behind those that the other side writes.
    from: Memory,
    there: RemoteMemory,
    reads: bool,
    posted: u64,
}

/// Runs one side; the client returns its figure.
pub(crate) fn run(args: &SideArgs) -> Result<Option<Figure>, Failure> {
    let mut party = Party::open(args)?;
    let figure = match (args.side, args.task) {
        (Side::Server, Task::Put) => party.answer().map(|()| None)?,
        (Side::Server, _) => party.session.serve().map(|()| None)?,
        (Side::Client, Task::Put) => Some(timing::half_trips(&mut party, args.time())?),
        (Side::Client, _) => Some(timing::rate(&mut party, args.size as usize, args.time())?),
    };
    if args.side == Side::Client {
        party.session.leave()?;
    }
    Ok(figure)
}

impl Party {
    fn open(args: &SideArgs) -> Result<Party, Failure> {
        let config = Config {
            peers: 1,
            recv_blocks: 64,
            refill: 8,
            send_blocks: 16,
            requests: OUTSTANDING,
            block_bytes: 64,
            ..Config::DEFAULT
        };
        let mut session = Session::new(&config, OneSided::default())?;
        let (size, slots) = (args.size as usize, Memory::slots(args.size));
        let bytes = size * slots as usize;
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
        let mut region = || {
            let mapping = MapRequest::new(bytes).pages(Ask::Huge2M).shared(true).map();
            let mapping = mapping.map_err(Failure::at("memory"))?;
            let region = session.nic.register(mapping, rights).map_err(Failure::at("a region"))?;
            Ok::<_, Failure>(session.worker.adopt(region))
        };
        let memory = Memory { size, slots: slots.into(), region: region()? };
        let from = Memory { size, slots: slots.into(), region: region()? };
        let all = Piece { region: memory.region, offset: 0, length: bytes as u32 };
        let here = session.worker.outbox().remote_memory(all).map_err(Failure::at("memory"))?;
        session.worker.handler_mut().here = Some(here);
        session.connect(args)?;
        let there = loop {
            session.turn()?;
            if let Some(there) = session.worker.handler().there {
                break there;
            }
        };
        let reads = args.task == Task::GetStream;
        Ok(Party { session, memory, from, there, reads, posted: 0 })
    }

    /// The last word of the slot of message `number`.
    #[inline(always)]
    fn last_word(&mut self, number: u64) -> Result<u64, Failure> {
        let mut word = [0; WORD];
        let at = self.memory.offset(number) + self.memory.size - WORD;
        let read = self.session.worker.outbox().copy_out(self.memory.region, at, &mut word);
        read.map_err(Failure::at("read our own memory"))?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes the last word of message `number`. It is never 0, as fresh memory is.
    #[inline(always)]
    fn write_word(&mut self, number: u64) -> Result<(), Failure> {
        let at = self.from.offset(number) + self.from.size - WORD;
        let word = (number + 1).to_ne_bytes();
        let written = self.session.worker.outbox().copy_in(self.from.region, at, &word);
        written.map_err(Failure::at("write our own memory"))
    }

    /// Posts a WRITE or a READ of the slot of message `number`.
    #[inline(always)]
    fn post(&mut self, number: u64) -> Result<(), Failure> {
        let (peer, piece) = (self.session.peer()?, self.from.piece(number));
        let at = piece.offset as u64;
        let op = match self.reads {
            true => self.there.read(at, piece.length),
            false => self.there.write(at, piece.length),
        };
        let op = op.map_err(Failure::at("the other side's memory"))?;
        self.session.when_room(|_, out| {
            let request = Request { op, pieces: &[piece], fence: false, token: number };
            out.request(peer, &request)
        })?;
        self.posted += 1;
        Ok(())
    }

    /// Waits until no more than `most` requests are outstanding.
    #[inline(always)]
    fn wait(&mut self, most: u64) -> Result<(), Failure> {
        while self.session.worker.handler().link.ended + most < self.posted {
            self.session.turn()?;
        }
        Ok(())
    }

    /// Waits for a WRITE of the other side. False if it has left.
    #[inline(always)]
    fn seen(&mut self, number: u64) -> Result<bool, Failure> {
        while self.last_word(number)? != number + 1 {
            if let Err(failure) = self.session.turn() {
                return if self.session.is_left() { Ok(false) } else { Err(failure) };
            }
            if self.session.is_left() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The server of a ping-pong.
    fn answer(&mut self) -> Result<(), Failure> {
        for number in 0.. {
            self.write_word(number)?;
            if !self.seen(number)? {
                break;
            }
            self.post(number)?;
            self.session.worker.outbox().flush();
            // The slot is free again before its next turn comes.
            self.wait(self.memory.slots - 2)?;
        }
        Ok(())
    }
}

impl Trips for Party {
    #[inline(always)]
    fn prepare(&mut self, number: u64) -> Result<(), Failure> {
        self.wait(self.memory.slots - 2)?;
        self.write_word(number)
    }

    #[inline(always)]
    fn trip(&mut self, number: u64) -> Result<(), Failure> {
        self.post(number)?;
        self.session.worker.outbox().flush();
        match self.seen(number)? {
            true => Ok(()),
            false => Err(Failure::new("the other side of doorbell has left")),
        }
    }
}

impl Stream for Party {
    /// Posts half of the requests that may be outstanding, with one doorbell. The other half is in
    /// flight meanwhile.
    #[inline(always)]
    fn send(&mut self) -> Result<u64, Failure> {
        let batch = self.memory.slots / 2;
        self.wait(self.memory.slots - batch)?;
        for _ in 0..batch {
            self.post(self.posted)?;
        }
        self.session.worker.outbox().flush();
        Ok(batch)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.wait(0)?;
        self.session.check()
    }
}
