//! Responses to READs and atomics, and the rings they go through. No message is in these rings, so
//! no response waits behind a message for which its receiver has no receive.
//!
//! A response has no acknowledgement and is never refused. The receiver only gives ring space back.

use std_alloc::collections::VecDeque;

use crate::model::pd::Who;
use crate::room::{FixedCapacity, TryGrow};
use crate::shm::reader::Rx;
use crate::shm::ring::{Traffic, Tx};

/// A response that is still to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Response {
    /// Our queue pair that the request was for, and the number of the peer's queue pair.
    pub(crate) who: Who,
    pub(crate) peer: u32,
    pub(crate) unsent: Unsent,
}

/// The unsent part.
#[derive(Clone, Copy)]
pub(crate) enum Unsent {
    /// Bytes of a region, from `addr` on.
    Bytes { addr: u64, rkey: u32, left: u32 },
    /// The value before an atomic.
    Value(u64),
}

/// The responses of a link, both ways.
pub(crate) struct Responses {
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    /// Responses to the peer, in order. There is room for as many as all queue pairs of the link
    /// allow.
    unsent: VecDeque<Response>,
    unsent_max: usize,
    /// Responses that queue pairs of this side wait for.
    awaited: u32,
    /// This side has sent such a request. A response may come for a queue pair that has failed.
    asked: bool,
}

impl Responses {
    pub(crate) fn new(tx: Tx, rx: Rx) -> Responses {
        let unsent = VecDeque::new();
        Responses { tx, rx, unsent, unsent_max: 0, awaited: 0, asked: false }
    }

    /// True if polls must look for responses, or write some.
    pub(crate) fn are_due(&self) -> bool {
        self.awaited > 0 || !self.unsent.is_empty()
    }

    /// True if responses may come.
    pub(crate) fn may_come(&self) -> bool {
        self.asked
    }

    /// True if a response has come, or a part of one.
    pub(crate) fn have_news(&self) -> bool {
        self.asked && self.rx.has_news()
    }

    /// A request of this side goes out.
    pub(super) fn note_asked(&mut self) {
        self.awaited += 1;
        self.asked = true;
    }

    /// That many requests of this side have their response, or nobody waits for it any more.
    pub(super) fn note_over(&mut self, requests: u32) {
        self.awaited = self.awaited.saturating_sub(requests);
    }

    /// Queues a response for the peer.
    pub(super) fn put(&mut self, response: Response) {
        self.unsent.put(response);
    }

    /// The oldest response that is not written whole.
    pub(crate) fn first(&mut self) -> Option<&mut Response> {
        self.unsent.front_mut()
    }

    pub(super) fn pop(&mut self) -> Option<Response> {
        self.unsent.pop_front()
    }

    /// Makes room for the responses of one more queue pair, whose peer may have `more` READs in
    /// flight. The data plane never grows the list. False: there is no memory for them.
    #[must_use]
    pub(crate) fn reserve(&mut self, more: u8) -> bool {
        self.unsent_max += usize::from(more);
        // Those of queue pairs that are gone may still be in the list.
        self.unsent.make_room(self.unsent.len() + self.unsent_max)
    }

    /// A queue pair gives its room back.
    pub(crate) fn release(&mut self, less: u8) {
        self.unsent_max -= usize::from(less);
    }

    /// A queue pair is reset: its responses belong to nobody now.
    pub(super) fn forget(&mut self, qp: u32) {
        for response in self.unsent.iter_mut().filter(|response| response.who.qp == qp) {
            response.who.qp = 0;
        }
    }

    /// True if there is space for a record of `bytes`. May write a jump.
    pub(crate) fn has_space(&mut self, bytes: u32) -> bool {
        if self.tx.fits(bytes) {
            return true;
        }
        // Reads the line of the receiver once in every segment at least, so that a position is
        // never mistaken for one 4 GiB older.
        self.tx.read_taken();
        self.tx.widen(bytes) || self.tx.find(bytes, Traffic::BothWays)
    }

    /// Publishes what was written.
    pub(crate) fn publish(&mut self) {
        if self.tx.unpublished() > 0 {
            // The receiver's own line says how far it has read.
            self.tx.publish(0);
        }
    }

    /// Tells the sender how far this side has read, if that is due. The sender may write there
    /// again.
    pub(crate) fn give_back(&mut self) {
        if self.rx.ack_is_due() {
            self.rx.write_ack(self.rx.at);
        }
    }
}
