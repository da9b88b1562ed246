//! A namespace of a target as a client's connection uses it: a controller with one I/O queue. Lost
//! connections are made again, and what was in flight is sent again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::Fabric;

use crate::initiator::{Controller, Error, Host, Payload, Queue, Tag};
use crate::wire::command::{Command, opcode};
use crate::wire::status::Status;
use crate::wire::{BLOCK_BYTES, IO_DEPTH};

/// How long the target bears silence, and how often the gateway breaks it.
const SILENCE: Duration = Duration::from_secs(15);
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);
/// Blocks of one Write Zeroes at most.
const ZEROES_MAX: u64 = 1 << 16;

/// What to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The target's address.
    pub target: SocketAddr,
    /// The subsystem.
    pub nqn: String,
    /// The namespace.
    pub namespace: u32,
    /// For how long a lost target is tried again.
    pub patience: Duration,
}

/// The operation of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Read,
    Write,
    Zero { keep: bool },
    Trim,
    Flush,
}

/// A piece of a request: one command.
#[derive(Debug)]
pub(super) struct Part {
    /// The request that it belongs to.
    pub(super) request: usize,
    pub(super) op: Op,
    /// Force it through to the medium.
    pub(super) force: bool,
    /// First byte, and bytes.
    pub(super) at: u64,
    pub(super) len: u64,
    /// Bytes from the beginning of the request.
    pub(super) offset: usize,
    /// What is written; kept until it is answered.
    pub(super) data: Vec<u8>,
}

/// An answered part. Its bytes can be read until the next call of [`Disk::poll`].
pub(super) struct Done {
    pub(super) part: Part,
    pub(super) status: Status,
    tag: Tag,
}

/// A connection to the namespace.
struct Link<F: Fabric> {
    // Before the controller: its queue ends first.
    queue: Queue<F>,
    controller: Controller<F>,
}

pub(super) struct Disk<'a, F: Fabric> {
    fabric: F,
    export: &'a Export,
    host: Host,
    stop: &'a AtomicBool,
    link: Link<F>,
    /// Blocks of the namespace; a namespace that has another number after a reconnect is another.
    blocks: u64,
    /// Parts in flight, by the number of their tag.
    flying: Vec<Option<Part>>,
    /// Parts that a lost connection has left.
    again: VecDeque<Part>,
    /// The part that was answered last.
    open: Option<Tag>,
}

impl<F: Fabric> Link<F> {
    fn new(fabric: &F, export: &Export, host: &Host) -> Result<(Link<F>, u64), Error> {
        let mut controller =
            Controller::connect(fabric, export.target, &export.nqn, host, SILENCE)?;
        controller.set_queues(1)?;
        let (blocks, block) = controller.namespace(export.namespace)?;
        if block != BLOCK_BYTES {
            return Err(Error::Unfit("its blocks do not have 512 bytes"));
        }
        let queue = controller.io_queue(IO_DEPTH)?;
        Ok((Link { queue, controller }, blocks))
    }
}

impl<'a, F: Fabric> Disk<'a, F> {
    /// Connects to the namespace; tries again for `patience` if the target cannot be reached.
    pub(super) fn open(
        fabric: &F,
        export: &'a Export,
        host: Host,
        stop: &'a AtomicBool,
        patience: Duration,
    ) -> Result<Disk<'a, F>, Error> {
        let (link, blocks) = patiently(fabric, export, &host, stop, patience)?;
        let (flying, again) = (Vec::new(), VecDeque::new());
        let fabric = fabric.clone();
        Ok(Disk { fabric, export, host, stop, link, blocks, flying, again, open: None })
    }

    /// Bytes of the namespace.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES
    }

    /// Bytes of a part with that operation at most.
    pub(super) fn part_bytes(&self, op: Op) -> u64 {
        match op {
            Op::Read | Op::Write => self.link.controller.transfer_bytes() as u64,
            Op::Zero { .. } => ZEROES_MAX * BLOCK_BYTES,
            Op::Trim | Op::Flush => u64::MAX,
        }
    }

    /// True if a part can be submitted now.
    pub(super) fn has_room(&self) -> bool {
        self.again.is_empty() && self.link.queue.in_use() < self.link.queue.capacity()
    }

    /// True if nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.again.is_empty() && self.link.queue.in_use() == usize::from(self.open.is_some())
    }

    /// Sends a part, with the next poll. Call it while there is room.
    pub(super) fn submit(&mut self, part: Part) -> Result<(), Error> {
        match self.try_submit(&part) {
            Ok(tag) => {
                if self.flying.len() <= tag.index() {
                    self.flying.resize_with(tag.index() + 1, || None);
                }
                if let Some(place) = self.flying.get_mut(tag.index()) {
                    *place = Some(part);
                }
                Ok(())
            }
            Err(Error::Full) => {
                self.again.push_back(part);
                Ok(())
            }
            Err(error) if error.is_lost() => {
                self.again.push_back(part);
                self.reconnect()
            }
            Err(error) => Err(error),
        }
    }

    fn try_submit(&mut self, part: &Part) -> Result<Tag, Error> {
        let (id, start) = (self.export.namespace, part.at / BLOCK_BYTES);
        let count = part.len / BLOCK_BYTES;
        let blocks = |code| Command::blocks(code, id, start, count as u32);
        let mut range = [0; 16];
        let (command, payload) = match part.op {
            Op::Read => (blocks(opcode::READ), Payload::In(part.len as usize)),
            Op::Write => (blocks(opcode::WRITE), Payload::Out(&part.data)),
            Op::Flush => (Command::new(opcode::FLUSH, id), Payload::None),
            Op::Zero { keep } => {
                let command = blocks(opcode::WRITE_ZEROES);
                let deallocate = command.with(12, command.dword(12) | 1 << 25);
                (if keep { command } else { deallocate }, Payload::None)
            }
            Op::Trim => {
                range[4..8].copy_from_slice(&(count as u32).to_le_bytes());
                range[8..].copy_from_slice(&start.to_le_bytes());
                let command = Command::new(opcode::DATASET_MANAGEMENT, id).with(11, 1 << 2);
                (command, Payload::Out(&range))
            }
        };
        let forced = part.force && matches!(part.op, Op::Write | Op::Zero { .. });
        self.link.queue.submit(if forced { command.forced() } else { command }, payload)
    }

    /// The next answered part, if there is one.
    pub(super) fn poll(&mut self) -> Result<Option<Done>, Error> {
        if let Some(tag) = self.open.take() {
            self.link.queue.release(tag);
        }
        while self.link.queue.in_use() < self.link.queue.capacity() {
            let Some(part) = self.again.pop_front() else { break };
            self.submit(part)?;
        }
        match self.link.queue.poll() {
            Ok(None) => Ok(None),
            Ok(Some((tag, response))) => {
                let part = self.flying.get_mut(tag.index()).and_then(Option::take);
                let part = part.ok_or(Error::Unfit("a strange answer"))?;
                self.open = Some(tag);
                Ok(Some(Done { part, status: response.status, tag }))
            }
            Err(error) if error.is_lost() => self.reconnect().map(|()| None),
            Err(error) => Err(error),
        }
    }

    /// Sleeps until an answer may have come, `other` is readable, or the time is over.
    pub(super) fn sleep(
        &mut self,
        other: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<(), Error> {
        match self.link.queue.sleep(other, limit) {
            Err(error) if error.is_lost() => self.reconnect(),
            slept => slept,
        }
    }

    /// Copies the bytes of an answered read.
    pub(super) fn read(&self, done: &Done, to: &mut [u8]) -> Result<(), Error> {
        self.link.queue.read(done.tag, to)
    }

    /// Keeps the controller alive, and notices a target that has gone while nothing moves.
    pub(super) fn tend(&mut self) -> Result<(), Error> {
        let looked = self.link.queue.look();
        match looked.and_then(|()| self.link.controller.keep_alive_after(HEARTBEAT)) {
            Err(error) if error.is_lost() => self.reconnect(),
            other => other,
        }
    }

    /// Connects again, and sends again what was in flight: each part does the same however often
    /// it is done, and nobody has heard that it was.
    fn reconnect(&mut self) -> Result<(), Error> {
        self.open = None;
        self.again.extend(self.flying.drain(..).flatten());
        let patience = self.export.patience;
        let (link, blocks) = patiently(&self.fabric, self.export, &self.host, self.stop, patience)?;
        if blocks != self.blocks {
            return Err(Error::Unfit("the namespace has another size now"));
        }
        self.link = link;
        Ok(())
    }
}

/// Connects, and tries again for a time.
fn patiently<F: Fabric>(
    fabric: &F,
    export: &Export,
    host: &Host,
    stop: &AtomicBool,
    patience: Duration,
) -> Result<(Link<F>, u64), Error> {
    let end = Instant::now() + patience;
    loop {
        match Link::new(fabric, export, host) {
            // Relaxed: the flag guards no other memory.
            Err(_) if Instant::now() < end && !stop.load(Ordering::Relaxed) => thread::sleep(RETRY),
            done => return done,
        }
    }
}
