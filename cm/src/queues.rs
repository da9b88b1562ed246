//! Completion queues and shared receive queues of Layer 0: shared by ids, each with the buffers
//! that belong to it.
#![expect(unsafe_code, reason = "posts buffers that it then owns")]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_engine::error::Code;
use doorbell_engine::provider::wake::WakeFds;
use doorbell_engine::provider::{CqInit, Poller, PollerEx, Provider, Sharing, Srq, WcEx, WcFields};
use doorbell_engine::wc::Wc;
use doorbell_engine::wr::{PostCause, RecvWr};

use crate::buffer::Buffer;
use crate::completion::{Completion, completion};
use crate::error::{CmError, PostFailed};
use crate::wait::readable;
use crate::xrc::{SrqInit, XrcDomain};

/// Set in the `wr_id` of a receive: on an error a completion does not say what it was (CP-1).
const RECEIVE: u64 = 1 << 63;

/// How long a wait sleeps between polls.
const NAP: Duration = Duration::from_micros(50);

/// Numbers each queue has: so many low bits.
const NUMBERS: u32 = 40;

/// Fields that every completion has here.
const NEEDED: WcFields =
    WcFields::BYTE_LEN.union(WcFields::IMM).union(WcFields::QP_NUM).union(WcFields::SRC_QP);

/// Completions taken with one poll.
const BATCH: usize = 16;

/// Where the numbers of a queue begin: each has 2^40 that no other ever uses, so that a completion
/// of a queue pair that is gone is never taken for one of another that got its number.
pub(crate) fn first_number() -> u64 {
    static QUEUES: AtomicU64 = AtomicU64::new(0);
    (QUEUES.fetch_add(1, Ordering::Relaxed) << NUMBERS) & !RECEIVE
}

/// The queue that a number is of.
fn queue_of(number: u64) -> u64 {
    (number & !RECEIVE) >> NUMBERS
}

/// A lock over state that is whole whenever it is free, also after a panic elsewhere.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A completion queue (`ibv_create_cq`) that ids may share. Cloning gives another handle.
pub struct CompletionQueue<P: Provider>(Arc<Queue<P>>);

struct Queue<P: Provider> {
    cq: P::Cq,
    depth: AtomicU32,
    reader: Mutex<Reader<P>>,
}

/// The one reader, and what it has read for queue pairs that have not asked yet.
struct Reader<P: Provider> {
    poller: Source<P>,
    inboxes: HashMap<u32, Inbox>,
    /// Receives of shared queues that complete here, whichever queue pair took them.
    shared: HashMap<u64, VecDeque<Polled>>,
}

/// Where a reader reads.
enum Source<P: Provider> {
    Plain(P::Poller),
    Extended(P::PollerEx),
}

/// A completion that was polled.
pub(crate) struct Polled {
    pub(crate) wc: Wc,
    /// The same, of an extended queue.
    pub(crate) extended: Option<Box<WcEx>>,
}

impl<P: Provider> Source<P> {
    /// As far as all are alike.
    fn waker(&mut self) -> &mut dyn Poller {
        match self {
            Source::Plain(poller) => poller,
            Source::Extended(poller) => poller,
        }
    }
}

impl<P: Provider> Reader<P> {
    /// Polls once, and gives each completion to whom it is for.
    fn poll(&mut self) {
        let mut out = [Wc::default(); BATCH];
        match &mut self.poller {
            Source::Plain(poller) => {
                let count = poller.poll(&mut out);
                for wc in &out[..count] {
                    self.hand_out(Polled { wc: *wc, extended: None });
                }
            }
            Source::Extended(poller) => {
                if let Some(whole) = poller.next() {
                    self.hand_out(Polled { wc: whole.plain(), extended: Some(Box::new(whole)) });
                }
            }
        }
    }

    fn hand_out(&mut self, polled: Polled) {
        let receive = polled.wc.wr_id & RECEIVE != 0;
        if receive && let Some(inbox) = self.shared.get_mut(&queue_of(polled.wc.wr_id)) {
            inbox.push_back(polled);
            return;
        }
        // Of a queue pair that is gone: nobody waits for it (QX-17).
        let Some(inbox) = self.inboxes.get_mut(&polled.wc.qp_num) else { return };
        if receive {
            inbox.receives.push_back(polled);
        } else {
            inbox.sends.push_back(polled);
        }
    }
}

#[derive(Default)]
struct Inbox {
    sends: VecDeque<Polled>,
    receives: VecDeque<Polled>,
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
        CompletionQueue::with(device, &CqInit::new(depth))
    }

    /// Makes one as `init` says: on a completion vector, or extended (`ibv_create_cq_ex`, CP-9):
    /// then each [`Completion`] has the fields asked for in [`Completion::extended`], besides those
    /// that each has.
    ///
    /// # Errors
    /// As for [`CompletionQueue::new`]; `Invalid`: the device has no such vector; `NotSupported`:
    /// it lacks a field or a flag ([`doorbell_engine::provider::Caps::wc_fields`]).
    pub fn with(device: &P, init: &CqInit) -> Result<CompletionQueue<P>, CmError> {
        let depth = init.depth;
        let (cq, poller) = if init.is_extended() {
            let fields = init.fields | NEEDED;
            let (cq, poller) = device.create_cq_ex(&CqInit { fields, ..*init })?;
            (cq, Source::Extended(poller))
        } else {
            let (cq, poller) = device.create_cq_on(depth, Sharing::Shared, init.comp_vector)?;
            (cq, Source::Plain(poller))
        };
        let reader = Mutex::new(Reader { poller, inboxes: HashMap::new(), shared: HashMap::new() });
        Ok(CompletionQueue(Arc::new(Queue { cq, depth: AtomicU32::new(depth), reader })))
    }

    /// The depth asked for, or that came back when its size was changed last.
    pub fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    /// Gives it room for at least `depth` entries (`ibv_resize_cq`, CP-8), and says for how many.
    /// What is in it stays, and it stays armed. One that is larger may stay so.
    ///
    /// # Errors
    /// `Invalid`: more than that are in it, `depth` is 0 or over the device's limit, or the queue
    /// is another device's. It stays as it was.
    pub fn resize(&self, device: &P, depth: u32) -> Result<u32, CmError> {
        let real = device.resize_cq(&self.0.cq, depth)?;
        self.0.depth.store(real, Ordering::Relaxed);
        Ok(real)
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
        Ok(lock(&self.0.reader).poller.waker().arm(solicited)?)
    }

    /// The descriptors of its completion channel, to wait on for several queues and other things at
    /// once; good as long as the queue. When one is readable, [`CompletionQueue::wait`] for no time
    /// says whether it was this queue. `None` where nobody can be woken.
    pub fn wake_fds(&self) -> Option<WakeFds> {
        lock(&self.0.reader).poller.waker().wake_fds()
    }

    /// Sleeps until the completion that the queue was armed for has come, or `limit` is over (none:
    /// for ever). True if it came; it is acknowledged (`ibv_get_cq_event`, `ibv_ack_cq_events`),
    /// and the queue is armed no more.
    ///
    /// # Errors
    /// What the system answers; `NotSupported` where nobody can be woken.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool, CmError> {
        let asked = "wait for a completion";
        let fds = self.wake_fds().ok_or_else(|| {
            CmError::new(Code::NotSupported, asked, "nobody can be woken on this device")
        })?;
        let fds = [fds.device, fds.queue.unwrap_or(fds.device)];
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let ready = readable(&fds, left).map_err(|error| CmError::from_io(asked, &error))?;
            if lock(&self.0.reader).poller.waker().woken() {
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
    pub(crate) fn take(&self, qp: u32, receive: bool) -> Option<Polled> {
        let reader = &mut *lock(&self.0.reader);
        let waiting = |inboxes: &mut HashMap<u32, Inbox>| {
            let inbox = inboxes.get_mut(&qp)?;
            if receive { inbox.receives.pop_front() } else { inbox.sends.pop_front() }
        };
        if let Some(wc) = waiting(&mut reader.inboxes) {
            return Some(wc);
        }
        reader.poll();
        waiting(&mut reader.inboxes)
    }

    /// Keeps receives of that shared queue from now on, or no more.
    fn serve_shared(&self, queue: u64, on: bool) {
        let shared = &mut lock(&self.0.reader).shared;
        if on {
            shared.entry(queue).or_default();
        } else {
            shared.remove(&queue);
        }
    }

    /// The oldest completion of a shared queue's receives.
    fn take_shared(&self, queue: u64) -> Option<Polled> {
        let reader = &mut *lock(&self.0.reader);
        let waiting = reader.shared.get_mut(&queue)?.pop_front();
        waiting.or_else(|| {
            reader.poll();
            reader.shared.get_mut(&queue)?.pop_front()
        })
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

    /// The queue that its numbers are of.
    fn queue(&self) -> u64 {
        queue_of(self.next)
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
    xrc: Option<Xrc<P>>,
}

/// What one of an XRC domain has besides.
struct Xrc<P: Provider> {
    cq: CompletionQueue<P>,
    domain: XrcDomain<P>,
    /// As its receives are called there.
    queue: u64,
    /// Receives that may be outstanding, polled or not, so that a completion queue made here never
    /// overruns.
    posted_max: AtomicUsize,
    /// Grows that queue along with this one.
    device: P,
}

impl<P: Provider> Drop for Xrc<P> {
    fn drop(&mut self) {
        self.cq.serve_shared(self.queue, false);
        self.domain.count_user(false);
    }
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
        SharedReceive::with(device, &SrqInit::new(depth))
    }

    /// Makes one as `init` says (`ibv_create_srq_ex`): also of an XRC domain, to which queue pairs
    /// of XRC_RECV bring what senders name it for (SRQ-10). Where no completion queue is given for
    /// that, one is made (SRQ-5).
    ///
    /// # Errors
    /// As for [`SharedReceive::new`]; `NotSupported`: the device has no XRC.
    pub fn with(device: &P, init: &SrqInit<P>) -> Result<SharedReceive<P>, CmError> {
        let device = init.pd.as_ref().unwrap_or(device);
        let posted = Posted::new();
        let (srq, xrc) = match &init.xrc {
            None => (device.create_srq(init.depth)?, None),
            Some(wanted) => {
                let domain = match &wanted.domain {
                    Some(domain) => domain.clone(),
                    None => XrcDomain::common(device)?,
                };
                let (cq, posted_max) = match &wanted.cq {
                    Some(cq) => (cq.clone(), usize::MAX),
                    None => (CompletionQueue::new(device, init.depth)?, init.depth as usize),
                };
                let srq = device.create_xrc_srq(domain.raw(), cq.raw(), init.depth)?;
                let queue = posted.queue();
                cq.serve_shared(queue, true);
                domain.count_user(true);
                let (posted_max, device) = (AtomicUsize::new(posted_max), device.clone());
                (srq, Some(Xrc { cq, domain, queue, posted_max, device }))
            }
        };
        let (users, posted) = (AtomicUsize::new(0), Mutex::new(posted));
        Ok(SharedReceive(Arc::new(Shared { srq, users, posted, xrc })))
    }

    /// The number by which senders name it, of one that is of an XRC domain (`ibv_get_srq_num`).
    pub fn number(&self) -> Option<u32> {
        self.0.srq.number()
    }

    /// Where its receives complete, of one that is of an XRC domain; otherwise each queue pair
    /// says.
    pub fn cq(&self) -> Option<&CompletionQueue<P>> {
        self.0.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// The oldest completed receive, if there is one, of one that is of an XRC domain.
    pub fn poll(&self) -> Option<Completion<P>> {
        let xrc = self.0.xrc.as_ref()?;
        loop {
            let polled = xrc.cq.take_shared(xrc.queue)?;
            // A device that names what it does not have is not believed.
            if let Some(buffer) = self.take(&polled.wc) {
                return Some(completion(polled, Some(buffer)));
            }
        }
    }

    /// As [`SharedReceive::poll`], within `limit`.
    ///
    /// # Errors
    /// `Invalid`: it is of no XRC domain; `TimedOut`.
    pub fn next(&self, limit: Duration) -> Result<Completion<P>, CmError> {
        let asked = "wait for a receive of a shared receive queue";
        if self.0.xrc.is_none() {
            let answer = "its queue pairs say where it completes";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        let end = Instant::now().checked_add(limit);
        loop {
            if let Some(completion) = self.poll() {
                return Ok(completion);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                let answer = format!("none came within {limit:?}");
                return Err(CmError::new(Code::TimedOut, asked, answer));
            }
            std::thread::sleep(NAP);
        }
    }

    /// The depth that came back (SRQ-3).
    pub fn depth(&self) -> u32 {
        self.0.srq.depth()
    }

    /// Gives it room for at least `depth` receives (`ibv_modify_srq` with `IBV_SRQ_MAX_WR`, section
    /// 2.7); [`SharedReceive::depth`] says for how many. What is in it stays. One that is larger
    /// may stay so. A completion queue that was made along with it grows, too. Those of its queue
    /// pairs do not: give them room first ([`CompletionQueue::resize`]), that none overruns (CP-5).
    ///
    /// # Errors
    /// `Invalid`: more receives are outstanding, or the limit is more, or `depth` is 0 or over the
    /// device's limit; `NotSupported`: the device cannot
    /// ([`doorbell_engine::provider::Caps::srq_resize`]). It stays as it was.
    pub fn resize(&self, depth: u32) -> Result<(), CmError> {
        // No receive is posted meanwhile.
        let posted = lock(&self.0.posted);
        if posted.len() > depth as usize {
            let answer = format!("{} receives are outstanding", posted.len());
            let asked = format!("a shared receive queue of {depth}");
            return Err(CmError::new(Code::Invalid, asked, answer).cure("take some back first"));
        }
        let own = |xrc: &&Xrc<P>| xrc.posted_max.load(Ordering::Relaxed) != usize::MAX;
        let own = self.0.xrc.as_ref().filter(own);
        if let Some(xrc) = own
            && xrc.cq.depth() < depth
        {
            xrc.cq.resize(&xrc.device, depth)?;
        }
        self.0.srq.resize(depth)?;
        if let Some(xrc) = own {
            xrc.posted_max.store(depth as usize, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Posts receives in order, with one doorbell (`ibv_post_srq_recv`). What was taken leaves
    /// `list`; on an error the rest stays in it (PL-1).
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(&self, list: &mut Vec<Buffer<P>>) -> Result<(), PostFailed> {
        let mut posted = lock(&self.0.posted);
        let most = |xrc: &Xrc<P>| xrc.posted_max.load(Ordering::Relaxed);
        let most = self.0.xrc.as_ref().map_or(usize::MAX, most);
        let room = most.saturating_sub(posted.len());
        let mut beyond = list.split_off(list.len().min(room));
        // SAFETY: the buffers stay in `posted`, registered and out of reach, until the device
        // gave each back, or this queue and all queue pairs on it are gone: each of those holds
        // a handle, and drops it after itself. One of an XRC domain is let go of by the device
        // first, and then nothing fills its receives.
        let result = posted.post(list, |wrs| unsafe { self.0.srq.post(wrs) });
        let full = result.is_ok() && !beyond.is_empty();
        list.append(&mut beyond);
        if full { Err(PostFailed { cause: PostCause::Full }) } else { result }
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
