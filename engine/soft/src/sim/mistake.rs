//! Deliberate mistakes of the wire, which no network and no port may make. Checks must find them.

use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::super::wire::{Psn, Record};
use super::flow::Receiver;
use crate::shm::layout::{KIND_SEND, KIND_WRITE, RESPONSE_OPERANDS};

/// A mistake to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// An atomic that arrives a second time is carried out a second time.
    ReplayedAtomic,
    /// A resent piece of a READ response has the bytes of the piece before it.
    StaleRead,
    /// A message overtakes the WRITE before it.
    LateWrite,
    /// A response waits until the far domain has taken all messages of its line.
    ResponseBehindMessages,
    /// A datagram arrives without its end.
    ShortDatagram,
    /// A datagram names the sender of the previous one as its own.
    WrongSender,
}

/// The pieces of a response as a port resends them after losing its place.
pub(super) fn stale(again: &mut [(Psn, Record)]) {
    for at in (1..again.len()).rev() {
        let (before, now) = (&again[at - 1].1, &again[at].1);
        let pieces = before.is_answer() && now.is_answer() && !before.is_last();
        if !pieces || before.payload.len() < now.payload.len() {
            continue;
        }
        let (status, _) = now.payload.split_at(RESPONSE_OPERANDS as usize);
        let length = now.payload.len() - status.len();
        let old = before.payload.iter().skip(status.len()).take(length);
        let bytes: Vec<u8> = status.iter().chain(old).copied().collect();
        again[at].1.payload = Arc::from(bytes);
    }
}

/// Swaps the next record with the one behind it, if they are a WRITE without immediate data and a
/// message.
pub(super) fn overtake(receiver: &mut Receiver) {
    let kinds = receiver.ready.iter().take(2).map(|(_, record)| record.header.kind());
    let is_silent = |record: &Record| record.is_last() && record.header.immediate_bytes() == 0;
    if kinds.eq([KIND_WRITE, KIND_SEND]) && is_silent(&receiver.ready[0].1) {
        let numbers = [receiver.ready[0].0, receiver.ready[1].0];
        receiver.ready.swap(0, 1);
        (receiver.ready[0].0, receiver.ready[1].0) = (numbers[0], numbers[1]);
    }
}
