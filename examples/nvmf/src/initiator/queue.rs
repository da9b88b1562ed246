//! One queue pair to a target: commands go out, responses come in, in any order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use doorbell::error::Code;
use doorbell::provider::Access;
use doorbell::wr::{PostCause, SendFlags, SendOp};
use doorbell::{
    AddrInfo, Buffer, CmError, Completion, CompletionQueue, ConnParam, Endpoint, Exposed, Fabric,
    Hints, Id, QpInit, SendRequest, message_memory,
};

use super::error::Error;
use crate::wire::cm::{QueueRequest, Reject};
use crate::wire::command::Command;
use crate::wire::response::{RESPONSE_BYTES, Response};
use crate::wire::sgl::{Data, Keyed};
use crate::wire::{CAPSULE_BYTES, COMMAND_BYTES};

/// Empty polls between two looks whether the target is still there.
const LOOK: u32 = 1 << 12;
/// Empty polls before a wait begins to sleep, and how long it sleeps until it looks again, on a
/// device that wakes it and on another.
const SPINS: u32 = 256;
const SLEEP: Duration = Duration::from_millis(10);
const NAP: Duration = Duration::from_micros(50);

/// A command in flight, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(u16);

impl Tag {
    /// Its place among the tags of its queue, from 0.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The data of a command.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// None.
    None,
    /// Bytes for the target.
    Out(&'a [u8]),
    /// Room for that many bytes of the target.
    In(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    InFlight,
    /// Answered, and not yet released.
    Answered,
}

/// A queue pair to a target. Its end is that of its id: the target is told, and not waited for,
/// because it may be dead.
pub struct Queue<F: Fabric> {
    id: Id<F>,
    /// Data of all slots, for the target's READs and WRITEs.
    memory: Exposed<F>,
    slot_bytes: usize,
    slots: Vec<Slot>,
    free: Vec<u16>,
    capsules: Vec<Buffer<F>>,
    cq: CompletionQueue<F>,
    list: Vec<SendRequest<F>>,
    inline: usize,
    /// Bytes of data that go in the capsule instead.
    in_capsule: usize,
    empty: u32,
    /// Responses that came just before a sleep.
    early: VecDeque<Completion<F>>,
}

impl<F: Fabric> Queue<F> {
    /// Connects the queue pair of a queue; commands may have `slot_bytes` of data.
    ///
    /// # Errors
    /// Nobody listens there, or the target rejects the queue.
    pub fn connect(
        fabric: &F,
        addr: SocketAddr,
        request: &QueueRequest,
        slot_bytes: usize,
    ) -> Result<Queue<F>, Error> {
        // One entry stays empty, by which a full queue differs from an empty one.
        let count = request.depth.saturating_sub(1).max(1);
        let depth = u32::from(count);
        let inline = (fabric.caps().inline_max as usize).min(COMMAND_BYTES);
        let init = QpInit::rc().send_wr(depth * 2).recv_wr(depth * 2).inline(inline as u32);
        let cq = CompletionQueue::new(fabric, depth * 4)?;
        let init = init.send_cq(&cq).recv_cq(&cq);
        let info = AddrInfo::of(addr, &Hints::active());
        let mut id = Endpoint::create(fabric, &info, Some(&init))?.into_id();
        let mut responses = Buffer::many(fabric, usize::from(count) * 2, RESPONSE_BYTES)?;
        id.queues().post_recvs(&mut responses).map_err(CmError::from)?;
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = Exposed::new(fabric, usize::from(count) * slot_bytes, rights)?;
        let capsules = capsules(fabric, usize::from(count) * 2)?;
        let param = ConnParam { private_data: &request.bytes(), ..ConnParam::default() };
        if let Err(error) = id.connect(&param) {
            let reason = Reject::read(id.private_data());
            return Err(reason.map_or(Error::Cm(error), Error::Rejected));
        }
        Ok(Queue {
            id,
            memory,
            slot_bytes,
            slots: vec![Slot::Free; usize::from(count)],
            free: (0..count).rev().collect(),
            capsules,
            cq,
            list: Vec::new(),
            inline,
            in_capsule: 0,
            empty: 0,
            early: VecDeque::new(),
        })
    }

    /// From now on, up to that many bytes for the target go in the capsule.
    pub fn set_in_capsule(&mut self, bytes: usize) {
        self.in_capsule = bytes.min(CAPSULE_BYTES - COMMAND_BYTES);
    }

    /// Commands that may be in flight.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Commands in flight or not yet released.
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a command, to go out with the next [`Queue::flush`].
    ///
    /// # Errors
    /// `Full`; `Unfit` for more data than a slot has.
    pub fn submit(&mut self, command: Command, payload: Payload<'_>) -> Result<Tag, Error> {
        let len = match payload {
            Payload::None => 0,
            Payload::Out(bytes) => bytes.len(),
            Payload::In(len) => len,
        };
        if len > self.slot_bytes {
            return Err(Error::Unfit("the command has more data than a transfer may have"));
        }
        if self.capsules.is_empty() {
            self.sends()?;
        }
        let Some(mut capsule) = self.capsules.pop() else { return Err(Error::Full) };
        let Some(slot) = self.free.pop() else {
            self.capsules.push(capsule);
            return Err(Error::Full);
        };
        let start = usize::from(slot) * self.slot_bytes;
        let (data, extra) = match payload {
            Payload::Out(bytes) if !bytes.is_empty() && len <= self.in_capsule => {
                (Data::InCapsule { offset: 0, len: len as u32 }, bytes)
            }
            _ => {
                if let Payload::Out(bytes) = payload {
                    self.memory.write(start, bytes)?;
                }
                let remote = self.memory.remote(start);
                let key = if len == 0 { 0 } else { remote.rkey };
                let addr = if len == 0 { 0 } else { remote.addr };
                (Data::Keyed(Keyed { addr, len: len as u32, key, invalidate: false }), &[][..])
            }
        };
        let command = command.numbered(slot).data(data);
        let total = COMMAND_BYTES + extra.len();
        // `CAPSULE_BYTES` is the longest capsule, and `in_capsule` keeps the data within it.
        if let Some((first, rest)) = capsule.split_at_mut_checked(COMMAND_BYTES) {
            first.copy_from_slice(command.bytes());
            rest.iter_mut().zip(extra).for_each(|(to, from)| *to = *from);
        }
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::INLINE, total <= self.inline);
        self.list.push(SendRequest { buffer: capsule, len: total, op: SendOp::Send, flags });
        if let Some(state) = self.slots.get_mut(usize::from(slot)) {
            *state = Slot::InFlight;
        }
        Ok(Tag(slot))
    }

    /// Posts what was submitted, with one doorbell.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.list.is_empty() {
            return Ok(());
        }
        self.sends()?;
        match self.id.queues().post_sends(&mut self.list) {
            Ok(()) => Ok(()),
            Err(failed) if failed.cause == PostCause::Full => Ok(()),
            Err(failed) => Err(Error::Cm(failed.into())),
        }
    }

    /// The next response, if one has come. Its tag stays in use until [`Queue::release`].
    ///
    /// # Errors
    /// `Lost`; `Unfit` for a response to no command.
    pub fn poll(&mut self) -> Result<Option<(Tag, Response)>, Error> {
        self.flush()?;
        let Some(done) = self.receive() else {
            self.empty = self.empty.wrapping_add(1);
            if self.empty.is_multiple_of(LOOK) {
                self.look()?;
            }
            return Ok(None);
        };
        self.empty = 0;
        if !done.status.is_ok() {
            return Err(Error::Lost("a receive failed"));
        }
        let response = Response::read(done.bytes()).ok_or(Error::Unfit("a short response"))?;
        if let Some(buffer) = done.buffer {
            let posted = self.id.queues().post_recv(buffer);
            posted.map_err(|refused| Error::Cm(refused.into()))?;
        }
        match self.slots.get_mut(usize::from(response.id)) {
            Some(state @ Slot::InFlight) => {
                *state = Slot::Answered;
                Ok(Some((Tag(response.id), response)))
            }
            _ => Err(Error::Unfit("a response to no command")),
        }
    }

    /// Looks whether the target is still there.
    ///
    /// # Errors
    /// `Lost`.
    pub fn look(&mut self) -> Result<(), Error> {
        self.sends()?;
        if self.id.peer_left() {
            return Err(Error::Lost("the target has closed it"));
        }
        Ok(())
    }

    /// Waits for the response to one command.
    ///
    /// # Errors
    /// As for [`Queue::poll`]; `TimedOut`; `Unfit` for a response to another command.
    pub fn wait(
        &mut self,
        tag: Tag,
        what: &'static str,
        limit: Duration,
    ) -> Result<Response, Error> {
        let (end, mut spins) = (Instant::now() + limit, 0);
        loop {
            match self.poll()? {
                Some((other, response)) if other == tag => return Ok(response),
                Some(_) => return Err(Error::Unfit("a response to another command")),
                None => {}
            }
            spins += 1;
            if spins > SPINS {
                if Instant::now() >= end {
                    return Err(Error::TimedOut(what));
                }
                self.look()?;
                self.sleep(None, SLEEP)?;
            }
        }
    }

    /// Sleeps until a response may have come, `other` is readable, or the time is over.
    ///
    /// # Errors
    /// As for [`Queue::poll`]; the system's error.
    pub fn sleep(&mut self, other: Option<BorrowedFd<'_>>, limit: Duration) -> Result<(), Error> {
        self.flush()?;
        if self.cq.arm(false).is_err() {
            std::thread::sleep(limit.min(NAP));
            return Ok(());
        }
        // A response that came before the queue was armed wakes nobody; the wait then only ends
        // what arming has begun.
        let early = self.receive();
        self.cq.wait_beside(other, Some(if early.is_some() { Duration::ZERO } else { limit }))?;
        self.early.extend(early);
        Ok(())
    }

    fn receive(&mut self) -> Option<Completion<F>> {
        self.early.pop_front().or_else(|| self.id.queues().poll_recv())
    }

    /// Copies data of an answered command out.
    ///
    /// # Errors
    /// `Unfit` for more than a slot has.
    pub fn read(&self, tag: Tag, to: &mut [u8]) -> Result<(), Error> {
        if to.len() > self.slot_bytes {
            return Err(Error::Unfit("more data than a transfer may have"));
        }
        Ok(self.memory.read(tag.index() * self.slot_bytes, to)?)
    }

    /// Gives an answered command's slot back.
    pub fn release(&mut self, tag: Tag) {
        if let Some(state @ Slot::Answered) = self.slots.get_mut(tag.index()) {
            *state = Slot::Free;
            self.free.push(tag.0);
        }
    }

    /// Takes back the buffers of sends that have completed.
    fn sends(&mut self) -> Result<(), Error> {
        while let Some(done) = self.id.queues().poll_send() {
            if !done.status.is_ok() {
                return Err(Error::Lost("a send failed"));
            }
            self.capsules.extend(done.buffer);
        }
        Ok(())
    }
}

/// Buffers for command capsules, from memory that a device may read where it is.
fn capsules<F: Fabric>(fabric: &F, count: usize) -> Result<Vec<Buffer<F>>, CmError> {
    let memory = message_memory(fabric, count * CAPSULE_BYTES).map_err(|error| {
        let asked = format!("{count} command capsules");
        CmError::new(Code::from_errno(error.errno()), asked, error.to_string())
    })?;
    Buffer::over(fabric, memory, count, CAPSULE_BYTES)
}
