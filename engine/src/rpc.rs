//! Requests and replies over a worker: many calls at a time to any number of peers, answered in any
//! order, with deadlines. Optional: a [`Handler`](crate::worker::Handler) keeps [`Calls`] and
//! passes them the events that concern them. It allocates nothing after set-up.
//!
//! A call is a message with a header of [`HEADER`] bytes in front: the call's number, and whether
//! this is the call or its answer. The answering side has no state: it answers in the block of the
//! call, at once, or later if it keeps the message.
//!
//! A call and its answer are known by a magic word in bytes 4 to 7. A message of your own that
//! holds that word there would be taken for one. So do not mix calls with free-form messages on one
//! connection, or begin those with [`HEADER`] bytes of zero.
//!
//! Each call ends exactly once: with its answer ([`Calls::incoming`]), its deadline
//! ([`Calls::expired`]), the end of its peer ([`Calls::lost`]) or its cancellation
//! ([`Calls::cancel`]). An answer that comes after that is late and is ignored.
//!
//! A call's number has 32 bits. Slots are used in turn, so a caller with few calls in progress at a
//! time uses a number again after 2^31 calls at the earliest. A server must not keep a call longer.

use std_alloc::boxed::Box;
use std_alloc::collections::VecDeque;
use std_alloc::vec;
use std_alloc::vec::Vec;

use crate::latency::Latency;
use crate::provider::Provider;
use crate::room::FixedCapacity;
use crate::search;
use crate::worker::{Message, Outbox, PeerId, SendError, TimerId};

/// Bytes in front of the payload.
pub const HEADER: usize = 8;

const CALL: u32 = 0xdb1c_0001;
const ANSWER: u32 = 0xdb1c_0002;

/// Names a call in progress. The id of a call that has ended names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(u32);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming<'m> {
    /// A call from the peer, with its payload; answer it with [`answer`].
    Call(&'m [u8]),
    /// The answer to the call with this key, which has ended.
    Answer {
        /// As given to [`Calls::call`].
        key: u64,
        /// The payload.
        bytes: &'m [u8],
    },
    /// The answer to a call that has already ended in another way.
    Late,
    /// Neither a call nor an answer.
    Foreign,
}

/// One slot for a call.
#[derive(Clone, Copy)]
struct Slot {
    /// The number of the call here, or of the next one: the lower bits are the slot's index, and
    /// the others count its calls.
    number: u32,
    call: Option<Call>,
}

#[derive(Clone, Copy)]
struct Call {
    peer: PeerId,
    key: u64,
    timer: Option<TimerId>,
    /// The worker's clock at the call.
    began: u64,
}

/// Unanswered calls of one worker.
pub struct Calls {
    slots: Vec<Slot>,
    /// The bits of a number that are an index.
    mask: u32,
    /// The slot that has been free for longest comes first.
    free: VecDeque<u16>,
    stage: Box<[u8]>,
    timers: u64,
    latency: Option<Latency>,
    /// Where the next search begins.
    next: usize,
}

impl Calls {
    /// Makes room for at most `most` calls at a time, each with a payload of at most `bytes`. A
    /// `most` above 65 536 counts as 65 536. Deadlines are timers of the worker, with the keys
    /// `timers` to `timers + most - 1`: so [`Config::timers`](crate::worker::Config::timers), 64 by
    /// default, must allow one for each call with a deadline. A side that keeps calls to answer
    /// them later needs [`Config::keeps`](crate::worker::Config::keeps) for them.
    pub fn new(most: u32, bytes: usize, timers: u64) -> Calls {
        let most = most.min(1 << 16);
        Calls {
            slots: (0..most).map(|number| Slot { number, call: None }).collect(),
            mask: most.next_power_of_two() - 1,
            free: (0..most).map(|index| index as u16).collect(),
            stage: vec![0; HEADER + bytes].into_boxed_slice(),
            timers,
            latency: None,
            next: 0,
        }
    }

    /// Records from now on how long each call takes until its answer, on the worker's clock
    /// ([`Outbox::now`]): so advance the clock often. Calls that end otherwise do not count.
    pub fn measure(&mut self) {
        self.latency.get_or_insert_default();
    }

    /// How long answered calls took, in the unit of the worker's clock; `None` without
    /// [`Calls::measure`].
    pub fn latency(&self) -> Option<&Latency> {
        self.latency.as_ref()
    }

    /// Calls a peer. `key` comes back when the call ends; `deadline` is a time on the worker's
    /// clock, not a duration: add the time that you allow to `out.now()`. It passes only if
    /// somebody advances that clock: see [`Outbox::set_timer`].
    ///
    /// # Errors
    /// As [`Outbox::send`]; `TooLong`: the payload is longer than the `bytes` of [`Calls::new`], or
    /// than a block without [`HEADER`]; `TooMany`: the maximum number of calls is in progress;
    /// `NoTimer`: no timer is left for the deadline. Then nothing was sent and the call does not
    /// exist.
    pub fn call<P: Provider>(
        &mut self,
        out: &mut Outbox<'_, P>,
        peer: PeerId,
        payload: &[u8],
        key: u64,
        deadline: Option<u64>,
    ) -> Result<CallId, SendError> {
        let index = *self.free.front().ok_or(SendError::TooMany)?;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else {
            return Err(SendError::TooMany);
        };
        let number = slot.number;
        let all = HEADER + payload.len();
        let Some(stage) = self.stage.get_mut(..all) else { return Err(SendError::TooLong) };
        write_header(stage, number, CALL);
        stage[HEADER..].copy_from_slice(payload);
        let timer = match deadline {
            Some(at) => {
                let timer = out.set_timer(at, self.timers + u64::from(index));
                Some(timer.ok_or(SendError::NoTimer)?)
            }
            None => None,
        };
        if let Err(error) = out.send(peer, stage) {
            timer.map(|timer| out.cancel_timer(timer));
            return Err(error);
        }
        slot.call = Some(Call { peer, key, timer, began: out.now() });
        self.free.pop_front();
        Ok(CallId(number))
    }

    /// Tells what a message is; an answer ends its call.
    pub fn incoming<'m, P: Provider>(
        &mut self,
        out: &mut Outbox<'_, P>,
        message: &'m Message<'_>,
    ) -> Incoming<'m> {
        let Some((number, kind, bytes)) = read_header(message.bytes()) else {
            return Incoming::Foreign;
        };
        match kind {
            CALL => Incoming::Call(bytes),
            ANSWER => match self.end(CallId(number), Some(message.peer())) {
                Some(Call { key, timer, began, .. }) => {
                    if let Some(latency) = &mut self.latency {
                        latency.record(out.now().saturating_sub(began));
                    }
                    timer.map(|timer| out.cancel_timer(timer));
                    Incoming::Answer { key, bytes }
                }
                None => Incoming::Late,
            },
            _ => Incoming::Foreign,
        }
    }

    /// Handles a timer of the worker that has fired. Returns the key of the call whose deadline it
    /// was; that call has ended. `None`: the timer belongs to no call.
    pub fn expired(&mut self, timer: u64) -> Option<u64> {
        let index = usize::try_from(timer.checked_sub(self.timers)?).ok()?;
        let number = self.slots.get(index)?.number;
        self.end(CallId(number), None).map(|call| call.key)
    }

    /// Cancels a call. Returns its key; its answer is late from now on. `None`: the call has
    /// already ended.
    pub fn cancel<P: Provider>(&mut self, out: &mut Outbox<'_, P>, id: CallId) -> Option<u64> {
        let call = self.end(id, None)?;
        call.timer.map(|timer| out.cancel_timer(timer));
        Some(call.key)
    }

    /// Ends one more call to a peer that is gone and returns its key; `None` after the last. Call
    /// it in [`crate::worker::Handler::on_peer_down`].
    pub fn lost<P: Provider>(&mut self, out: &mut Outbox<'_, P>, peer: PeerId) -> Option<u64> {
        let of = |slot: &Slot| slot.call.is_some_and(|call| call.peer == peer);
        let index = search::resume(&self.slots, &mut self.next, of)?;
        let number = self.slots.get(index)?.number;
        self.cancel(out, CallId(number))
    }

    /// Number of calls that have not ended.
    pub fn pending(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Ends a call, if the id names it and it belongs to that peer.
    fn end(&mut self, id: CallId, peer: Option<PeerId>) -> Option<Call> {
        let index = id.0 & self.mask;
        let slot = self.slots.get_mut(index as usize)?;
        let call = slot.call.filter(|_| slot.number == id.0)?;
        if peer.is_some_and(|peer| peer != call.peer) {
            return None;
        }
        slot.number = slot.number.wrapping_add(self.mask + 1);
        slot.call = None;
        self.free.put(index as u16);
        Some(call)
    }
}

fn write_header(block: &mut [u8], number: u32, kind: u32) {
    if let Some(header) = block.first_chunk_mut::<HEADER>() {
        header[..4].copy_from_slice(&number.to_le_bytes());
        header[4..].copy_from_slice(&kind.to_le_bytes());
    }
}

fn read_header(bytes: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*number), u32::from_le_bytes(*kind), rest))
}

/// Turns a call into its answer, in place: `write` gets the room for the payload, which still holds
/// the call's payload, and returns how many bytes it has written. The result is the length for
/// [`crate::worker::Verdict::Reply`], or for [`Outbox::reply`] if the message was kept. `None`: the
/// message is not a call.
pub fn answer(message: &mut Message<'_>, write: impl FnOnce(&mut [u8]) -> usize) -> Option<usize> {
    let (number, kind, _) = read_header(message.bytes())?;
    if kind != CALL {
        return None;
    }
    let block = message.block();
    write_header(block, number, ANSWER);
    let room = block.get_mut(HEADER..)?;
    let most = room.len();
    Some(HEADER + write(room).min(most))
}
