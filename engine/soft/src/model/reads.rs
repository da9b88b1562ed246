//! READs and atomics of a queue pair, from the request to the response (SQ-7).

use crate::model::limits::READS_MAX;

/// Those in flight.
#[derive(Default)]
pub(crate) struct Reads {
    /// How many it may have in flight.
    pub(crate) depth: u8,
    /// Requests put on the wire, and the number of them whose response has come whole; both wrap.
    sent: u32,
    done: u32,
    /// Index behind the last request that was carried out in the peer's memory at once. Since the
    /// peer was seen to have taken everything, only such requests were posted.
    pub(crate) local_until: u32,
    /// The index of the last WRITE that went to the ring and that the peer may not have taken.
    pub(crate) write_in_ring: Option<u32>,
    /// The requests in flight, by their count modulo the size: their indexes in the send queue.
    places: [u32; READS_MAX],
    /// Bytes of the oldest request's response that have come.
    pub(crate) response_bytes: u32,
    /// The next request waits for a response: it is fenced, or the maximum is in flight. Until a
    /// response comes the queue pair is in no backlog.
    pub(crate) waits: bool,
    /// Nobody waits for the responses of those in flight any more.
    given_up: bool,
}

impl Reads {
    /// Request `index` is on the wire.
    pub(crate) fn note_sent(&mut self, index: u32) {
        self.places[self.sent as usize % READS_MAX] = index;
        self.sent = self.sent.wrapping_add(1);
    }

    /// The oldest request has its whole response.
    pub(crate) fn note_done(&mut self) {
        self.done = self.done.wrapping_add(1);
        self.response_bytes = 0;
    }

    /// The queue pair has failed, or goes away. Returns how many responses were awaited.
    pub(crate) fn give_up(&mut self) -> u32 {
        if core::mem::replace(&mut self.given_up, true) { 0 } else { self.in_flight() }
    }

    /// How many are in flight.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        self.sent.wrapping_sub(self.done)
    }

    /// The oldest one in flight.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> Option<u32> {
        let oldest = self.places[self.done as usize % READS_MAX];
        (self.sent != self.done).then_some(oldest)
    }
}
