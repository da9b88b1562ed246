//! Completion queues and shared receive queues of Layer 0: shared by ids, each with the buffers
//! that belong to it.
#![expect(unsafe_code, reason = "posts buffers that it then owns")]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_engine::error::Code;
use doorbell_engine::provider::{Poller, Provider, Sharing, Srq};
use doorbell_engine::wc::Wc;
use doorbell_engine::wr::RecvWr;

use crate::buffer::Buffer;
use crate::error::{CmError, PostFailed};
use crate::wait::readable;

/// Set in the `wr_id` of a receive: on an error a completion does not say what it was (CP-1).
const RECEIVE: u64 = 1 << 63;

/// Completions taken with one poll.
const BATCH: usize = 16;

/// Where the numbers of a queue begin: each has 2^40 that no other ever uses, so that a completion
/// of a queue pair that is gone is never taken for one of another that got its number.
pub(crate) fn first_number() -> u64 {
    static QUEUES: AtomicU64 = AtomicU64::new(0);
    (QUEUES.fetch_add(1, Ordering::Relaxed) << 40) & !RECEIVE
}

/// A lock over state that is whole whenever it is free, also after a panic elsewhere.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A completion queue (`ibv_create_cq`) that ids may share. Cloning gives another handle.
pub struct CompletionQueue<P: Provider>(Arc<Queue<P>>);

struct Queue<P: Provider> {
    cq: P::Cq,
    depth: u32,
    reader: Mutex<Reader<P>>,
}

/// The one reader, and what it has read for queue pairs that have not asked yet.
struct Reader<P: Provider> {
    poller: P::Poller,
    inboxes: HashMap<u32, Inbox>,
}

#[derive(Default)]
struct Inbox {
    sends: VecDeque<Wc>,
    receives: VecDeque<Wc>,
}

impl<P: Provider> Clone for CompletionQueue<P> {
    fn clone(&self) -> Self {
        CompletionQueue(self.0.clone())
    }
}

impl<P: Provider> CompletionQueue<P> {
    /// Makes a queue of at least `depth` entries. It must hold what its queue pairs can have
    /// outstanding together: one that runs over is dead (CP-5).
    ///
    /// # Errors
    /// `Invalid`: `depth` 0 or over the device's limit.
    pub fn new(device: &P, depth: u32) -> Result<CompletionQueue<P>, CmError> {
        let (cq, poller) = device.create_cq(depth, Sharing::Shared)?;
        let reader = Mutex::new(Reader { poller, inboxes: HashMap::new() });
        Ok(CompletionQueue(Arc::new(Queue { cq, depth, reader })))
    }

    /// The depth asked for.
    pub fn depth(&self) -> u32 {
        self.0.depth
    }

    pub(crate) fn raw(&self) -> &P::Cq {
        &self.0.cq
    }

    /// By what number asynchronous events name it.
    pub fn id(&self, device: &P) -> u64 {
        device.cq_id(&self.0.cq)
    }

    /// Asks for one wake-up by the next completion, or by the next that is solicited or an error
    /// (`ibv_req_notify_cq`, CP-6). Completions that are there already wake nobody: look for them
    /// after this and before [`CompletionQueue::wait`].
    ///
    /// # Errors
    /// The device's refusal.
    pub fn arm(&self, solicited: bool) -> Result<(), CmError> {
        Ok(lock(&self.0.reader).poller.arm(solicited)?)
    }

    /// Sleeps until the completion that the queue was armed for has come, or `limit` is over (none:
    /// for ever). True if it came; it is acknowledged (`ibv_get_cq_event`, `ibv_ack_cq_events`),
    /// and the queue is armed no more.
    ///
    /// # Errors
    /// What the system answers; `NotSupported` where nobody can be woken.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool, CmError> {
        let asked = "wait for a completion";
        let fds = lock(&self.0.reader).poller.wake_fds();
        let fds = fds.ok_or_else(|| {
            CmError::new(Code::NotSupported, asked, "nobody can be woken on this device")
        })?;
        let fds = [fds.device, fds.queue.unwrap_or(fds.device)];
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let ready = readable(&fds, left).map_err(|error| CmError::from_io(asked, &error))?;
            if lock(&self.0.reader).poller.woken() {
                return Ok(true);
            }
            if !ready {
                return Ok(false);
            }
        }
    }

    /// Keeps completions of that queue pair from now on, or no more.
    pub(crate) fn serve(&self, qp: u32, on: bool) {
        let inboxes = &mut lock(&self.0.reader).inboxes;
        if on {
            inboxes.entry(qp).or_default();
        } else {
            inboxes.remove(&qp);
        }
    }

    /// The oldest completion of a queue pair's sends or receives.
    pub(crate) fn take(&self, qp: u32, receive: bool) -> Option<Wc> {
        let reader = &mut *lock(&self.0.reader);
        let waiting = |inboxes: &mut HashMap<u32, Inbox>| {
            let inbox = inboxes.get_mut(&qp)?;
            if receive { inbox.receives.pop_front() } else { inbox.sends.pop_front() }
        };
        if let Some(wc) = waiting(&mut reader.inboxes) {
            return Some(wc);
        }
        let mut out = [Wc::default(); BATCH];
        let count = reader.poller.poll(&mut out);
        for wc in &out[..count] {
            // Of a queue pair that is gone: nobody waits for it (QX-17).
            let Some(inbox) = reader.inboxes.get_mut(&wc.qp_num) else { continue };
            if wc.wr_id & RECEIVE != 0 {
                inbox.receives.push_back(*wc);
            } else {
                inbox.sends.push_back(*wc);
            }
        }
        waiting(&mut reader.inboxes)
    }
}

/// Buffers that a receive queue has, each under a number that no other post ever had.
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

    /// Posts with `post` and keeps what the device took; the rest stays in `list`.
    pub(crate) fn post(
        &mut self,
        list: &mut Vec<Buffer<P>>,
        post: impl FnOnce(&[RecvWr]) -> Result<(), doorbell_engine::wr::PostError>,
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

    /// The buffer a completion brings back; `None` if the device names one it does not have.
    pub(crate) fn take(&mut self, wc: &Wc) -> Option<Buffer<P>> {
        self.buffers.remove(&(wc.wr_id & !RECEIVE))
    }
}

/// A shared receive queue (`rdma_create_srq`) with the buffers posted to it. Cloning gives
/// another handle.
pub struct SharedReceive<P: Provider>(Arc<Shared<P>>);

struct Shared<P: Provider> {
    // Before the buffers: the device lets go of them first.
    srq: P::Srq,
    users: AtomicUsize,
    posted: Mutex<Posted<P>>,
}

impl<P: Provider> Clone for SharedReceive<P> {
    fn clone(&self) -> Self {
        SharedReceive(self.0.clone())
    }
}

impl<P: Provider> SharedReceive<P> {
    /// Makes a queue for at least `depth` receives, for queue pairs of any id of this device.
    ///
    /// # Errors
    /// `Invalid`: `depth` 0 or over the device's limit.
    pub fn new(device: &P, depth: u32) -> Result<SharedReceive<P>, CmError> {
        let srq = device.create_srq(depth)?;
        let posted = Mutex::new(Posted::new());
        Ok(SharedReceive(Arc::new(Shared { srq, users: AtomicUsize::new(0), posted })))
    }

    /// The depth that came back (SRQ-3).
    pub fn depth(&self) -> u32 {
        self.0.srq.depth()
    }

    /// Posts receives in order, with one doorbell (`ibv_post_srq_recv`). What was taken leaves
    /// `list`; on an error the rest stays in it (PL-1).
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(&self, list: &mut Vec<Buffer<P>>) -> Result<(), PostFailed> {
        // SAFETY: the buffers stay in `posted`, registered and out of reach, until the device
        // gave each back, or this queue and all queue pairs on it are gone: each of those holds
        // a handle, and drops it after itself.
        lock(&self.0.posted).post(list, |wrs| unsafe { self.0.srq.post(wrs) })
    }

    /// By what number asynchronous events name it.
    pub fn id(&self) -> u64 {
        self.0.srq.id()
    }

    /// Asks for one event, SRQ_LIMIT_REACHED, when fewer receives than that are left
    /// (`ibv_modify_srq`, section 2.7); 0 asks for none.
    ///
    /// # Errors
    /// A limit over the depth, or the device's refusal.
    pub fn set_limit(&self, limit: u32) -> Result<(), CmError> {
        Ok(self.0.srq.set_limit(limit)?)
    }

    /// The limit as it stands: 0 once the event has come.
    ///
    /// # Errors
    /// The device's refusal.
    pub fn limit(&self) -> Result<u32, CmError> {
        Ok(self.0.srq.limit()?)
    }

    /// Queue pairs that use it now.
    pub fn users(&self) -> usize {
        self.0.users.load(Ordering::Relaxed)
    }

    pub(crate) fn raw(&self) -> &P::Srq {
        &self.0.srq
    }

    pub(crate) fn count_user(&self, on: bool) {
        if on {
            self.0.users.fetch_add(1, Ordering::Relaxed);
        } else {
            self.0.users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn take(&self, wc: &Wc) -> Option<Buffer<P>> {
        lock(&self.0.posted).take(wc)
    }

    /// Fails while queue pairs use it (SRQ-9).
    pub(crate) fn check_idle(&self) -> Result<(), CmError> {
        match self.users() {
            0 => Ok(()),
            users => Err(CmError::new(
                Code::Busy,
                "destroy a shared receive queue",
                format!("{users} queue pairs use it (SRQ-9)"),
            )
            .cure("destroy their ids first")),
        }
    }
}
