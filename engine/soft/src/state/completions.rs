//! The completion queues of a domain. Sends and receives that end go through here to the sink of
//! the poll that is under way.

use std_alloc::boxed::Box;
use std_alloc::vec::Vec;

use crate::model::cq::{CompletionQueue, Retire, Sink};
use crate::state::completion::{error_wc, send_wc};
use crate::state::qp::QpContext;
use crate::wc::{Status, Wc};

/// The index of no completion queue.
pub(crate) const NO_QUEUE: usize = usize::MAX;

/// The completion queues of a domain, by the index that queue pairs name.
pub(crate) struct Completions {
    queues: Vec<CompletionQueue>,
}

/// Hears of receives that end without a completion that anybody can poll.
#[derive(Default)]
pub(crate) struct LostReceives(Option<Box<dyn Fn(u64) + Send>>);

impl LostReceives {
    /// From now on `told` is called with the number of each, inside the domain.
    #[cfg(feature = "std")]
    pub(crate) fn listen(&mut self, told: impl Fn(u64) + Send + 'static) {
        self.0 = Some(Box::new(told));
    }

    pub(crate) fn tell(&self, wr_id: u64) {
        if let Some(told) = &self.0 {
            told(wr_id);
        }
    }
}

impl Completions {
    pub(crate) fn new() -> Completions {
        Completions { queues: Vec::with_capacity(4) }
    }

    /// Adds a queue and returns its index.
    pub(crate) fn add(&mut self, queue: CompletionQueue) -> usize {
        let free = self.queues.iter().position(CompletionQueue::is_gone);
        let index = free.unwrap_or(self.queues.len());
        match self.queues.get_mut(index) {
            Some(place) => *place = queue,
            None => self.queues.push(queue),
        }
        index
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut CompletionQueue> {
        self.queues.get_mut(index)
    }

    /// True if an entry waits in that queue.
    #[inline(always)]
    pub(crate) fn has_some(&self, index: usize) -> bool {
        self.queues.get(index).is_some_and(|queue| !queue.is_empty())
    }

    /// True if an entry for that queue may go straight to its poll: none waits there, and see
    /// [`CompletionQueue::passes`].
    #[inline(always)]
    pub(crate) fn passes(&self, index: usize) -> bool {
        self.queues.get(index).is_some_and(|queue| queue.is_empty() && queue.passes() > 0)
    }

    /// The same without a look at what an extended queue keeps.
    #[inline(always)]
    pub(crate) fn passes_plain(&self, index: usize) -> bool {
        self.queues.get(index).is_some_and(CompletionQueue::passes_plain)
    }

    /// All of them, by index.
    pub(crate) fn all(&mut self) -> &mut [CompletionQueue] {
        &mut self.queues
    }

    /// True if one has overrun, and its queue pairs do not know it yet.
    #[inline(always)]
    pub(crate) fn has_overrun(&self) -> bool {
        self.queues.iter().any(CompletionQueue::has_overrun)
    }

    /// True if a thread waits for an entry of that one.
    #[inline(always)]
    pub(crate) fn is_queue_armed(&self, index: usize) -> bool {
        self.queues.get(index).is_some_and(CompletionQueue::is_armed)
    }

    /// True if a thread waits for an entry of one of them.
    pub(crate) fn is_armed(&self) -> bool {
        self.queues.iter().any(CompletionQueue::is_armed)
    }

    /// Wakes the threads that wait for entries, although none has come.
    pub(crate) fn ring_armed(&self) {
        self.queues.iter().filter(|queue| queue.is_armed()).for_each(CompletionQueue::ring);
    }

    /// A receive ends; its sender wanted an event (CP-6) if `solicited`.
    #[inline(always)]
    pub(crate) fn receive<S: Sink>(&mut self, cq: usize, wc: Wc, solicited: bool, sink: &mut S) {
        sink.put(&mut self.queues, cq, wc, Retire::receive(solicited));
    }

    /// A receive of the queue pair ends with an error.
    pub(crate) fn receive_failed<S: Sink>(
        &mut self,
        qp: &QpContext,
        wr_id: u64,
        status: Status,
        sink: &mut S,
    ) {
        self.receive(qp.recv_cq, error_wc(wr_id, qp.num, status), false, sink);
    }

    /// A send has succeeded.
    #[inline(always)]
    pub(crate) fn send<S: Sink>(&mut self, qp: &mut QpContext, index: u32, sink: &mut S) {
        let wc = send_wc(qp.num, *qp.sq.entry(index));
        self.put_send(qp, index, wc, sink);
    }

    /// A send has failed, or was flushed.
    pub(crate) fn send_failed<S: Sink>(
        &mut self,
        qp: &mut QpContext,
        index: u32,
        status: Status,
        sink: &mut S,
    ) {
        let wr_id = qp.sq.entry(index).wr_id;
        self.put_send(qp, index, error_wc(wr_id, qp.num, status), sink);
    }

    #[inline(always)]
    fn put_send<S: Sink>(&mut self, qp: &mut QpContext, index: u32, wc: Wc, sink: &mut S) {
        qp.sq.completed = index.wrapping_add(1);
        let retire = Retire { qp: qp.num, upto: qp.sq.completed, solicited: false };
        if sink.put(&mut self.queues, qp.send_cq, wc, retire) {
            qp.sq.retired = qp.sq.completed;
        }
    }
}
