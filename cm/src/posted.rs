//! Receives that a device holds, by their numbers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use doorbell_seam::provider::Provider;
use doorbell_seam::wc::Wc;
use doorbell_seam::wr::{PostError, RecvWr};

use crate::buffer::Buffer;
use crate::error::PostFailed;

/// Set in the `wr_id` of a receive, because an error completion does not say what it was (CP-1).
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Low bits of a number that count within one queue.
const NUMBERS: u32 = 40;

/// The first number of a new queue. Each queue has 2^40 numbers that no other ever uses, so that a
/// completion of a destroyed queue pair is never taken for one of a later queue pair with the same
/// queue pair number.
pub(crate) fn first_number() -> u64 {
    static QUEUES: AtomicU64 = AtomicU64::new(0);
    (QUEUES.fetch_add(1, Ordering::Relaxed) << NUMBERS) & !RECEIVE
}

/// The queue that a number belongs to.
pub(crate) fn queue_of(number: u64) -> u64 {
    (number & !RECEIVE) >> NUMBERS
}

/// Locks state that is consistent whenever the lock is free, even after a panic elsewhere.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Buffers that a receive queue holds, each under a number that no other post ever had.
pub(crate) struct Posted<P: Provider> {
    next: u64,
    buffers: HashMap<u64, Buffer<P>>,
}

impl<P: Provider> Posted<P> {
    pub(crate) fn new() -> Posted<P> {
        Posted { next: first_number(), buffers: HashMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }

    /// The queue that its numbers belong to.
    pub(crate) fn queue(&self) -> u64 {
        queue_of(self.next)
    }

    /// Posts with `post` and keeps what the device took; the rest stays in `list`.
    pub(crate) fn post(
        &mut self,
        list: &mut Vec<Buffer<P>>,
        post: impl FnOnce(&[RecvWr]) -> Result<(), PostError>,
    ) -> Result<(), PostFailed> {
        let first = self.next;
        let wr = |(wr_id, buffer): (u64, &Buffer<P>)| RecvWr {
            wr_id: wr_id | RECEIVE,
            sge: buffer.sge(buffer.len() as u32),
        };
        let wrs: Vec<RecvWr> = (first..).zip(list.iter()).map(wr).collect();
        let result = post(&wrs);
        let accepted = match &result {
            Ok(()) => list.len(),
            Err(error) => error.accepted.min(list.len()),
        };
        self.buffers.extend((first..).zip(list.drain(..accepted)));
        self.next = first + accepted as u64;
        result.map_err(PostFailed::from)
    }

    /// The buffer that a completion returns; `None` if the device names one it does not hold.
    pub(crate) fn take(&mut self, wc: &Wc) -> Option<Buffer<P>> {
        self.buffers.remove(&(wc.wr_id & !RECEIVE))
    }
}
