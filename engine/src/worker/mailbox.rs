//! Where the control plane meets the data plane: one mailbox per worker.

use std_alloc::sync::Arc;

use super::config::Retry;
use super::credit_grant::{CreditGrant, CreditWords};
use super::handshake::{Greeting, Refusal};
use super::qp_domain::QpDomain;
use super::shared_recv::SharedRecv;
use super::shared_state::SharedState;
use crate::error::SetupError;
use crate::provider::{Provider, QpCaps};
use crate::sync::{ArrayQueue, AtomicBool, Ordering};

/// What the control plane tells a worker.
pub(super) enum Mail<P: Provider> {
    /// A queue pair that may receive from now on; not yet up. With what the peer said, if that has
    /// come.
    Admit(P::Qp, CreditGrant<P>, Option<Greeting>),
    /// The queue pair for datagrams.
    Datagrams(P::Qp),
    /// The queue pair for datagrams is to go, if it has this number.
    NoDatagrams(u32),
    /// It is connected.
    Up(u32, Greeting),
    /// Its connection has ended, or never came up.
    Gone(u32),
}

/// The mailbox, and the way back.
pub(super) struct Mailbox<P: Provider> {
    queue: ArrayQueue<Mail<P>>,
    flag: AtomicBool,
    /// Queue pairs whose connection the worker wants ended.
    closing: ArrayQueue<u32>,
    closing_flag: AtomicBool,
    /// What other threads have of the worker.
    pub(super) state: Arc<SharedState>,
}

impl<P: Provider> Mailbox<P> {
    pub(super) fn new(peers: u32, work: u32) -> Mailbox<P> {
        // A peer has at most three letters on the way in, and one on the way out.
        Mailbox {
            queue: ArrayQueue::new(peers as usize * 3 + 16),
            flag: AtomicBool::new(false),
            closing: ArrayQueue::new(peers as usize + 16),
            closing_flag: AtomicBool::new(false),
            state: Arc::new(SharedState::new(work)),
        }
    }

    /// True if there is mail. Acquire pairs with the Release in `put`: the letter is visible with
    /// the flag.
    #[inline(always)]
    pub(super) fn has_mail(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Raises the flag without mail, so that the next turn is a full one.
    pub(super) fn call(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Takes the oldest letter; lowers the flag when there is none.
    pub(super) fn take(&self) -> Option<Mail<P>> {
        if let Some(mail) = self.queue.pop() {
            return Some(mail);
        }
        // Lowered before the last look: a later letter raises the flag again.
        self.flag.swap(false, Ordering::AcqRel);
        self.queue.pop()
    }

    #[expect(clippy::result_large_err, reason = "a box would be freed in a turn")]
    pub(super) fn put(&self, mail: Mail<P>) -> Result<(), Mail<P>> {
        self.queue.push(mail)?;
        self.flag.store(true, Ordering::Release);
        self.state.wake();
        Ok(())
    }

    /// Asks the control plane to end a connection. False if too many requests wait.
    pub(super) fn close(&self, qp_num: u32) -> bool {
        let fits = self.closing.push(qp_num).is_ok();
        self.closing_flag.store(true, Ordering::Release);
        fits
    }

    /// A queue pair whose connection the worker wants ended, if there is one.
    pub(super) fn next_closing(&self) -> Option<u32> {
        if !self.closing_flag.load(Ordering::Acquire) {
            return None;
        }
        if let Some(qp_num) = self.closing.pop() {
            return Some(qp_num);
        }
        self.closing_flag.swap(false, Ordering::AcqRel);
        let last = self.closing.pop();
        if last.is_some() {
            // It came after the flag was lowered, and may not be the only one.
            self.closing_flag.store(true, Ordering::Relaxed);
        }
        last
    }
}

/// The control plane's end of a worker. It makes queue pairs for the worker with this, and hands
/// them over.
pub struct Intake<P: Provider> {
    pub(super) mailbox: Arc<Mailbox<P>>,
    pub(super) cq: P::Cq,
    pub(super) shared: SharedRecv<P>,
    pub(super) words: Arc<CreditWords<P>>,
    /// For queue pairs of peers, and for the one for datagrams.
    pub(super) caps: [QpCaps; 2],
    pub(super) retry: Retry,
    pub(super) domain: QpDomain<P>,
}

impl<P: Provider> Clone for Intake<P> {
    fn clone(&self) -> Self {
        Intake {
            mailbox: self.mailbox.clone(),
            cq: self.cq.clone(),
            shared: self.shared.clone(),
            words: self.words.clone(),
            caps: self.caps,
            retry: self.retry,
            domain: self.domain.clone(),
        }
    }
}

impl<P: Provider> Intake<P> {
    /// True if both belong to the same worker.
    pub fn is_same(&self, other: &Intake<P>) -> bool {
        Arc::ptr_eq(&self.mailbox, &other.mailbox)
    }

    /// The device handle on which the worker's queue pairs are made: a parent domain with the
    /// worker's own thread domain, if it [has one](Intake::has_thread_domain), else the handle that
    /// the worker was made with.
    ///
    /// # Safety
    /// Only queue pairs are made on it, and only for this worker: they are handed over, by
    /// [`Intake::admit`] or [`Intake::open_datagrams`], or dropped. Nobody else posts to them.
    #[expect(unsafe_code, reason = "what is made on it is one thread's")]
    pub unsafe fn nic(&self) -> &P {
        &self.domain.nic
    }

    /// True if the worker's queue pairs are on a thread domain of its own: the device offers that,
    /// and [`Config::thread_domain`](super::Config::thread_domain) is on.
    pub fn has_thread_domain(&self) -> bool {
        self.domain.own
    }

    /// The worker's completion queue, for sends and receives.
    pub fn cq(&self) -> &P::Cq {
        &self.cq
    }

    /// The shared receive queue of the worker's group.
    pub fn srq(&self) -> &P::Srq {
        self.shared.srq()
    }

    /// Capacities of its queue pairs.
    pub fn qp_caps(&self) -> QpCaps {
        self.caps[0]
    }

    /// How its connections retry.
    pub fn retry(&self) -> Retry {
        self.retry
    }

    /// Capacities of its queue pair for datagrams, which has no shared receive queue. Without
    /// receives, the worker takes no datagrams.
    pub fn datagram_caps(&self) -> QpCaps {
        self.caps[1]
    }

    /// Hands over the worker's queue pair for datagrams: a UD queue pair on its completion queue,
    /// in RTS. A second one is dropped.
    ///
    /// # Errors
    /// Returns the queue pair: the mailbox is full, because the worker does not turn.
    pub fn open_datagrams(&self, qp: P::Qp) -> Result<(), P::Qp> {
        match self.mailbox.put(Mail::Datagrams(qp)) {
            Err(Mail::Datagrams(qp)) => Err(qp),
            _ => Ok(()),
        }
    }

    /// Reserves a place for one more peer. Send its [`CreditGrant::handshake`] to the peer as the
    /// private data of the connect or the accept.
    ///
    /// # Errors
    /// `NoMemory`: all peers together would be promised more receives than there are, with the
    /// numbers; or the worker has no slot left for a peer.
    pub fn reserve(&self) -> Result<CreditGrant<P>, SetupError> {
        CreditGrant::new(&self.shared, &self.words)
    }

    /// What to tell a peer after [`Intake::reserve`] found no place for it.
    pub fn no_place(&self) -> Refusal {
        CreditGrant::refusal(&self.shared, &self.words)
    }

    /// Reads the private data of a peer that connects or accepts, and checks that the two sides can
    /// exchange messages: they speak the same version, and the peer's blocks hold what this worker
    /// sends inline. A plain RDMA program passes. Longer messages than the peer's blocks are
    /// refused by each send.
    ///
    /// # Errors
    /// Why the connection is to be refused.
    pub fn check_peer(&self, private_data: &[u8]) -> Result<Greeting, Refusal> {
        let greeting = Greeting::parse(private_data)?;
        let inline = self.caps[0].inline.min(self.shared.block_bytes());
        match greeting.block_bytes() {
            Some(block) if block < inline => Err(Refusal::blocks(inline, block)),
            _ => Ok(greeting),
        }
    }

    /// Hands over a queue pair and its grant before the peer may send. `greeting` is what the peer
    /// said, if it has come: it comes with a request, but not with a connect.
    ///
    /// # Errors
    /// Returns the queue pair: the mailbox is full, because the worker does not turn.
    pub fn admit(
        &self,
        qp: P::Qp,
        grant: CreditGrant<P>,
        greeting: Option<Greeting>,
    ) -> Result<(), P::Qp> {
        match self.mailbox.put(Mail::Admit(qp, grant, greeting)) {
            Ok(()) => Ok(()),
            Err(Mail::Admit(qp, ..)) => Err(qp),
            Err(_) => Ok(()),
        }
    }

    /// Tells the worker to give up its queue pair for datagrams, if it has this number; then it may
    /// get another. False: the mailbox is full; repeat the call.
    #[must_use]
    pub fn close_datagrams(&self, qp_num: u32) -> bool {
        self.mailbox.put(Mail::NoDatagrams(qp_num)).is_ok()
    }

    /// The queue pair with that number is connected. `greeting` is what the peer said; it counts if
    /// none came before. False: the mailbox is full; repeat the call.
    #[must_use]
    pub fn up(&self, qp_num: u32, greeting: Greeting) -> bool {
        self.mailbox.put(Mail::Up(qp_num, greeting)).is_ok()
    }

    /// The connection of that queue pair has ended. False: the mailbox is full; repeat the call.
    #[must_use]
    pub fn gone(&self, qp_num: u32) -> bool {
        self.mailbox.put(Mail::Gone(qp_num)).is_ok()
    }

    /// A queue pair whose connection the worker wants ended, if there is one.
    pub fn next_closing(&self) -> Option<u32> {
        self.mailbox.next_closing()
    }
}
