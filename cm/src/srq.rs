//! Shared receive queues of Layer 0, each with the buffers that belong to it.
#![expect(unsafe_code, reason = "posts buffers that it then owns")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Srq, SrqLimits, XrcSrq};
use doorbell_seam::wc::Wc;
use doorbell_seam::wr::PostCause;

use crate::buffer::Buffer;
use crate::completion::{Completion, completion, wait_for};
use crate::cq::CompletionQueue;
use crate::error::PostFailed;
use crate::posted::{Posted, lock};
use crate::xrc::XrcDomain;

/// Attributes for making a shared receive queue (`struct ibv_srq_init_attr_ex`).
pub struct SrqInit<F: Fabric> {
    pub(crate) depth: u32,
    pub(crate) pd: Option<F>,
    pub(crate) xrc: Option<Wanted<F>>,
}

/// The part for a queue of an XRC domain.
pub(crate) struct Wanted<F: Fabric> {
    pub(crate) domain: Option<XrcDomain<F>>,
    pub(crate) cq: Option<CompletionQueue<F>>,
}

impl<F: Fabric> SrqInit<F> {
    /// A plain one (`IBV_SRQT_BASIC`), for at least `depth` receives.
    pub fn new(depth: u32) -> SrqInit<F> {
        SrqInit { depth, pd: None, xrc: None }
    }

    /// A queue of an XRC domain (`IBV_SRQT_XRC`): of the default domain and with a completion queue
    /// of its own (SRQ-5), unless others are named.
    pub fn xrc(depth: u32) -> SrqInit<F> {
        SrqInit { xrc: Some(Wanted { domain: None, cq: None }), ..SrqInit::new(depth) }
    }

    /// The handle to whose protection domain it belongs; by default the handle it is made on.
    #[must_use]
    pub fn pd(mut self, pd: &F) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    /// The domain it belongs to; makes it an XRC queue.
    #[must_use]
    pub fn domain(mut self, domain: &XrcDomain<F>) -> Self {
        self.wanted().domain = Some(domain.clone());
        self
    }

    /// The completion queue of its receives; makes it an XRC queue.
    #[must_use]
    pub fn cq(mut self, cq: &CompletionQueue<F>) -> Self {
        self.wanted().cq = Some(cq.clone());
        self
    }

    fn wanted(&mut self) -> &mut Wanted<F> {
        self.xrc.get_or_insert(Wanted { domain: None, cq: None })
    }
}

/// A shared receive queue (`rdma_create_srq`) with the buffers posted to it. Cloning gives
/// another handle.
pub struct SharedReceive<F: Fabric>(Arc<Shared<F>>);

struct Shared<F: Fabric> {
    // Before the buffers: the device lets go of them first.
    srq: F::Srq,
    users: AtomicUsize,
    posted: Mutex<Posted<F>>,
    xrc: Option<Xrc<F>>,
}

/// The part for a queue of an XRC domain.
struct Xrc<F: Fabric> {
    cq: CompletionQueue<F>,
    domain: XrcDomain<F>,
    /// The number of its receives there.
    queue: u64,
    /// Receives that may be outstanding, polled or not, so that a completion queue made here never
    /// overruns.
    posted_max: AtomicUsize,
    /// Grows that completion queue along with this queue.
    device: F,
}

impl<F: Fabric> Drop for Xrc<F> {
    fn drop(&mut self) {
        self.cq.serve_shared(self.queue, false);
        self.domain.count_user(false);
    }
}

impl<F: Fabric> Clone for SharedReceive<F> {
    fn clone(&self) -> Self {
        SharedReceive(self.0.clone())
    }
}

impl<F: Fabric> SharedReceive<F> {
    /// Makes a queue for at least `depth` receives, for queue pairs of any id of this device.
    ///
    /// # Errors
    /// `Invalid`: `depth` 0 or over the device's limit.
    pub fn new(device: &F, depth: u32) -> Result<SharedReceive<F>, CmError> {
        SharedReceive::with(device, &SrqInit::new(depth))
    }

    /// Makes a queue as `init` says (`ibv_create_srq_ex`). A queue of an XRC domain gets the
    /// messages that senders address to it through queue pairs of type XRC_RECV (SRQ-10). Unless a
    /// completion queue is given for it, one is made (SRQ-5).
    ///
    /// # Errors
    /// As for [`SharedReceive::new`]; `NotSupported`: the device has no XRC.
    pub fn with(device: &F, init: &SrqInit<F>) -> Result<SharedReceive<F>, CmError> {
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

    /// The number by which senders name a queue of an XRC domain (`ibv_get_srq_num`).
    pub fn number(&self) -> Option<u32> {
        self.0.srq.number()
    }

    /// The completion queue of a queue of an XRC domain; for others each queue pair has its own.
    pub fn cq(&self) -> Option<&CompletionQueue<F>> {
        self.0.xrc.as_ref().map(|xrc| &xrc.cq)
    }

    /// The oldest completed receive, if there is one, of a queue of an XRC domain.
    pub fn poll(&self) -> Option<Completion<F>> {
        let xrc = self.0.xrc.as_ref()?;
        loop {
            let polled = xrc.cq.take_shared(xrc.queue)?;
            // Ignore a device that names a buffer it does not have.
            if let Some(buffer) = self.take(&polled.wc) {
                return Some(completion(polled, Some(buffer)));
            }
        }
    }

    /// As [`SharedReceive::poll`], within `limit`.
    ///
    /// # Errors
    /// `Invalid`: it is of no XRC domain; `TimedOut`.
    pub fn next(&self, limit: Duration) -> Result<Completion<F>, CmError> {
        let asked = "wait for a receive of a shared receive queue";
        if self.0.xrc.is_none() {
            let answer = "its queue pairs say where it completes";
            return Err(CmError::new(Code::Invalid, asked, answer)
                .cure("ask a queue pair that takes receives from it"));
        }
        wait_for(limit, || asked.to_owned(), || self.poll())
    }

    /// The granted depth (SRQ-3).
    pub fn depth(&self) -> u32 {
        self.0.srq.depth()
    }

    /// Gives it room for at least `depth` receives (`ibv_modify_srq`, `IBV_SRQ_MAX_WR`, SRQ-15);
    /// [`SharedReceive::depth`] returns the new capacity. Its receives stay. A larger queue may
    /// keep its size. A completion queue that was made along with it grows, too. The completion
    /// queues of its queue pairs do not: resize them first ([`CompletionQueue::resize`]), so that
    /// none overruns (CP-5).
    ///
    /// # Errors
    /// `Invalid`: more receives are outstanding, the limit is higher, or `depth` is 0 or over the
    /// device's limit; `NotSupported`: the device cannot resize
    /// ([`doorbell_seam::provider::Caps::srq_resize`]). The queue stays as it was.
    pub fn resize(&self, depth: u32) -> Result<(), CmError> {
        // No receive is posted meanwhile.
        let posted = lock(&self.0.posted);
        if posted.len() > depth as usize {
            let answer = format!("{} receives are outstanding", posted.len());
            let asked = format!("a shared receive queue of {depth}");
            return Err(
                CmError::new(Code::Invalid, asked, answer).cure("let some of them complete first")
            );
        }
        let own = |xrc: &&Xrc<F>| xrc.posted_max.load(Ordering::Relaxed) != usize::MAX;
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

    /// Posts receives in order, with one doorbell (`ibv_post_srq_recv`). Receives that were taken
    /// leave `list`; on an error the rest stays in it (PL-1).
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(&self, list: &mut Vec<Buffer<F>>) -> Result<(), PostFailed> {
        let mut posted = lock(&self.0.posted);
        let most = |xrc: &Xrc<F>| xrc.posted_max.load(Ordering::Relaxed);
        let most = self.0.xrc.as_ref().map_or(usize::MAX, most);
        let room = most.saturating_sub(posted.len());
        let mut beyond = list.split_off(list.len().min(room));
        // SAFETY: the buffers stay in `posted`, registered and out of reach, until the device gave
        // each back, or this queue and all queue pairs on it are gone: each of those holds a
        // handle, and drops it after itself. The device lets go of a queue of an XRC domain first,
        // and then nothing fills its receives.
        let result = posted.post(list, |wrs| unsafe { self.0.srq.post(wrs) });
        let full = result.is_ok() && !beyond.is_empty();
        list.append(&mut beyond);
        if full { Err(PostFailed { cause: PostCause::Full }) } else { result }
    }

    /// The number by which asynchronous events name it.
    pub fn id(&self) -> u64 {
        self.0.srq.id()
    }

    /// Asks for one event, SRQ_LIMIT_REACHED, when fewer than `limit` receives are left
    /// (`ibv_modify_srq`, SRQ-14); 0 asks for none.
    ///
    /// # Errors
    /// A limit over the depth, or the device's refusal.
    pub fn set_limit(&self, limit: u32) -> Result<(), CmError> {
        Ok(self.0.srq.set_limit(limit)?)
    }

    /// The current limit: 0 once the event has come.
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

    pub(crate) fn raw(&self) -> &F::Srq {
        &self.0.srq
    }

    pub(crate) fn count_user(&self, on: bool) {
        if on {
            self.0.users.fetch_add(1, Ordering::Relaxed);
        } else {
            self.0.users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn take(&self, wc: &Wc) -> Option<Buffer<F>> {
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
