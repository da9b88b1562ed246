//! Completion queues of Layer 0, which ids may share.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::wake::WakeFds;
use doorbell_seam::provider::{CqInit, Poller, PollerEx, Sharing, WcFields};
use doorbell_seam::wc::Wc;

use crate::completion::Polled;
use crate::posted::{RECEIVE, lock, queue_of};
use crate::wait::{Found, found_until};

/// Fields that every completion has here.
const NEEDED: WcFields =
    WcFields::BYTE_LEN.union(WcFields::IMM).union(WcFields::QP_NUM).union(WcFields::SRC_QP);

/// Maximum number of completions taken with one poll.
const BATCH: usize = 16;

/// A completion queue (`ibv_create_cq`) that ids may share. Cloning gives another handle.
pub struct CompletionQueue<F: Fabric>(Arc<Queue<F>>);

struct Queue<F: Fabric> {
    cq: F::Cq,
    depth: AtomicU32,
    reader: Mutex<Reader<F>>,
}

/// The one reader, and the completions it has read for queue pairs that have not asked for them
/// yet.
struct Reader<F: Fabric> {
    poller: Source<F>,
    /// Each poll looks here. Few queue pairs share a queue, and a tree finds one of few with less
    /// work than a hash.
    inboxes: BTreeMap<u32, Inbox>,
    /// Receives of shared queues that complete here, whichever queue pair took them.
    shared: BTreeMap<u64, VecDeque<Polled>>,
}

/// The poller that a reader uses.
enum Source<F: Fabric> {
    Plain(F::Poller),
    Extended(F::PollerEx),
}

impl<F: Fabric> Source<F> {
    /// The poller, through the interface that both kinds share.
    fn waker(&mut self) -> &mut dyn Poller {
        match self {
            Source::Plain(poller) => poller,
            Source::Extended(poller) => poller,
        }
    }
}

impl<F: Fabric> Reader<F> {
    /// Polls once, and sorts the completions by receiver.
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
        // The queue pair is gone, and nobody waits for this (QX-17).
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

impl<F: Fabric> Clone for CompletionQueue<F> {
    fn clone(&self) -> Self {
        CompletionQueue(self.0.clone())
    }
}

impl<F: Fabric> CompletionQueue<F> {
    /// Makes a queue of at least `depth` entries. It must hold what its queue pairs can have
    /// outstanding together: a queue that overruns is dead (CP-5).
    ///
    /// # Errors
    /// `Invalid`: `depth` 0 or over the device's limit.
    pub fn new(device: &F, depth: u32) -> Result<CompletionQueue<F>, CmError> {
        CompletionQueue::with(device, &CqInit::new(depth))
    }

    /// Makes a queue as `init` says: on a completion vector, or extended (`ibv_create_cq_ex`,
    /// CP-9). In an extended queue [`crate::Completion::extended`] holds the requested fields, in
    /// addition to those that every completion has.
    ///
    /// # Errors
    /// As for [`CompletionQueue::new`]; `Invalid`: the device has no such vector; `NotSupported`:
    /// it lacks a field or a flag ([`doorbell_seam::provider::Caps::wc_fields`]).
    pub fn with(device: &F, init: &CqInit) -> Result<CompletionQueue<F>, CmError> {
        let depth = init.depth;
        let (cq, poller) = if init.is_extended() {
            let fields = init.fields | NEEDED;
            let (cq, poller) = device.create_cq_ex(&CqInit { fields, ..*init })?;
            (cq, Source::Extended(poller))
        } else {
            let (cq, poller) = device.create_cq_on(depth, Sharing::Shared, init.comp_vector)?;
            (cq, Source::Plain(poller))
        };
        let reader =
            Mutex::new(Reader { poller, inboxes: BTreeMap::new(), shared: BTreeMap::new() });
        Ok(CompletionQueue(Arc::new(Queue { cq, depth: AtomicU32::new(depth), reader })))
    }

    /// The requested depth, or the one granted when the queue was last resized.
    pub fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    /// Gives it room for at least `depth` entries (`ibv_resize_cq`, CP-8), and returns the new
    /// capacity. Its entries stay, and it stays armed. A larger queue may keep its size.
    ///
    /// # Errors
    /// `Invalid`: it holds more entries than `depth`, `depth` is 0 or over the device's limit, or
    /// the queue belongs to another device. The queue is unchanged.
    pub fn resize(&self, device: &F, depth: u32) -> Result<u32, CmError> {
        let real = device.resize_cq(&self.0.cq, depth)?;
        self.0.depth.store(real, Ordering::Relaxed);
        Ok(real)
    }

    pub(crate) fn raw(&self) -> &F::Cq {
        &self.0.cq
    }

    /// The number by which asynchronous events name it.
    pub fn id(&self, device: &F) -> u64 {
        device.cq_id(&self.0.cq)
    }

    /// Asks for one wake-up by the next completion, or by the next that is solicited or an error
    /// (`ibv_req_notify_cq`, CP-6). Completions already in the queue wake nobody: poll for them
    /// after this and before [`CompletionQueue::wait`].
    ///
    /// # Errors
    /// The device's refusal.
    pub fn arm(&self, solicited: bool) -> Result<(), CmError> {
        Ok(lock(&self.0.reader).poller.waker().arm(solicited)?)
    }

    /// The descriptors of its completion channel, for waiting on several queues and other things at
    /// once; valid as long as the queue. When one is readable, [`CompletionQueue::wait`] with a
    /// limit of zero tells whether it was this queue. `None` if the device cannot wake anyone.
    pub fn wake_fds(&self) -> Option<WakeFds> {
        lock(&self.0.reader).poller.waker().wake_fds()
    }

    /// How long a wait of your own on these descriptors may last, when the queue is armed and was
    /// then polled: the device has something to do by itself then, see [`Poller::look_again`].
    /// [`CompletionQueue::wait`] asks for it by itself.
    pub fn look_again(&self) -> Option<Duration> {
        lock(&self.0.reader).poller.waker().look_again()
    }

    /// Sleeps until the completion that the queue was armed for has come, or `limit` is over
    /// (`None`: for ever). True if it came. It is acknowledged (`ibv_get_cq_event`,
    /// `ibv_ack_cq_events`), and the queue is no longer armed, unless it was armed again after that
    /// completion had come. Arm it again before the next wait.
    ///
    /// # Errors
    /// The system's error; ENODEV if the device has gone; `NotSupported` if it cannot wake anyone.
    pub fn wait(&self, limit: Option<Duration>) -> Result<bool, CmError> {
        self.wait_beside(None, limit)
    }

    /// The same, but `other` also ends the wait when it is readable: a socket or another thing that
    /// the caller waits for at the same time. Then the queue stays armed.
    ///
    /// # Errors
    /// As for [`CompletionQueue::wait`].
    pub fn wait_beside(
        &self,
        other: Option<BorrowedFd<'_>>,
        limit: Option<Duration>,
    ) -> Result<bool, CmError> {
        let fds = self.wake_fds().ok_or_else(|| {
            CmError::new(Code::NotSupported, WAIT, "this device cannot wake anybody")
                .cure("poll the queue instead")
        })?;
        wait(fds, other, limit, self)
    }

    /// Starts or stops keeping completions of that queue pair.
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
        let waiting = |inboxes: &mut BTreeMap<u32, Inbox>| {
            let inbox = inboxes.get_mut(&qp)?;
            if receive { inbox.receives.pop_front() } else { inbox.sends.pop_front() }
        };
        if let Some(wc) = waiting(&mut reader.inboxes) {
            return Some(wc);
        }
        reader.poll();
        waiting(&mut reader.inboxes)
    }

    /// Starts or stops keeping receives of that shared queue.
    pub(crate) fn serve_shared(&self, queue: u64, on: bool) {
        let shared = &mut lock(&self.0.reader).shared;
        if on {
            shared.entry(queue).or_default();
        } else {
            shared.remove(&queue);
        }
    }

    /// The oldest completion of a shared queue's receives.
    pub(crate) fn take_shared(&self, queue: u64) -> Option<Polled> {
        let reader = &mut *lock(&self.0.reader);
        let waiting = reader.shared.get_mut(&queue)?.pop_front();
        waiting.or_else(|| {
            reader.poll();
            reader.shared.get_mut(&queue)?.pop_front()
        })
    }
}

/// What a wait asks for.
const WAIT: &str = "wait for a completion";

/// The queue that is waited for.
trait Sleeper {
    /// [`Poller::look_again`].
    fn look_again(&self) -> Option<Duration>;
    /// [`Poller::woken`].
    fn woken(&self) -> bool;
}

impl<F: Fabric> Sleeper for CompletionQueue<F> {
    fn look_again(&self) -> Option<Duration> {
        CompletionQueue::look_again(self)
    }

    fn woken(&self) -> bool {
        lock(&self.0.reader).poller.waker().woken()
    }
}

/// See [`CompletionQueue::wait_beside`].
fn wait(
    fds: WakeFds,
    other: Option<BorrowedFd<'_>>,
    limit: Option<Duration>,
    queue: &impl Sleeper,
) -> Result<bool, CmError> {
    let [device, own] = fds.all();
    // The system ignores a negative number.
    let fds = [device, own, other.map_or(-1, |other| other.as_raw_fd())];
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut left = limit;
    loop {
        let look = queue.look_again().filter(|look| left.is_none_or(|left| *look < left));
        let look_end = look.and_then(|look| Instant::now().checked_add(look));
        let found = found_until(fds, look.or(left), look_end.or(end));
        let found = found.map_err(|error| CmError::from_io(WAIT, &error))?;
        if queue.woken() {
            return Ok(true);
        }
        if found[..2].contains(&Found::Gone) {
            let gone = Code::from_errno(libc::ENODEV);
            return Err(CmError::new(gone, WAIT, "the device has gone")
                .cure("drop what was made on it, and open a device again"));
        }
        // A look for the device's own sake is no reason to return.
        let nothing = found == [Found::Nothing; 3];
        if nothing && look.is_none() || !nothing && other.is_some() {
            return Ok(false);
        }
        left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// True if the completion has come.
    struct Fixed(bool);

    impl Sleeper for Fixed {
        fn look_again(&self) -> Option<Duration> {
            None
        }

        fn woken(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_wait_ends_with_an_error_when_the_device_has_gone() {
        let limit = Some(Duration::from_secs(60));
        let (device, writer) = std::io::pipe().expect("the system has descriptors");
        drop(writer);
        let gone = WakeFds { device: device.as_raw_fd(), queue: None };
        let error = wait(gone, None, limit, &Fixed(false)).expect_err("nothing can come");
        assert!(error.to_string().contains("the device has gone"), "{error}");
        assert_eq!(wait(gone, None, limit, &Fixed(true)), Ok(true), "the last event comes first");
        let (alive, _writer) = std::io::pipe().expect("the system has descriptors");
        let here = WakeFds { device: alive.as_raw_fd(), queue: None };
        let beside = wait(here, Some(device.as_fd()), limit, &Fixed(false));
        assert_eq!(beside, Ok(false), "the end of another thing is not the device's");
    }
}
