//! Where the control plane meets the data plane: one mailbox per worker.

use core::ops::Deref;

use core::net::SocketAddr;
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use spin::{Mutex, MutexGuard};
use std_alloc::collections::VecDeque;

use std_alloc::sync::Arc;

use super::config::Retry;
use super::handshake::{Greeting, Refusal};
use super::peer_resources::{CreditWords, PeerResources};
use super::qp_domain::QpDomain;
use super::shared_recv::SharedRecv;
use super::shared_state::SharedState;
use super::watch::{Closings, Watch, Watches};
use crate::error::{Code, SetupError};
use crate::provider::wake::Notifier;
use crate::provider::{Provider, QpCaps};
use crate::sync::{ArrayQueue, AtomicBool, Ordering, pause};

/// What the control plane tells a worker.
pub(super) enum Mail<P: Provider> {
    /// A queue pair that may receive from now on, and is not up yet; its resources; the peer's
    /// address; the peer's greeting, if that has come; and where the worker leaves its number when
    /// the connection is to end.
    Admit(P::Qp, PeerResources<P>, Option<SocketAddr>, Option<Greeting>, Arc<Closings>),
    /// The queue pair for datagrams.
    Datagrams(P::Qp),
    /// The queue pair for datagrams is to go, if it has this number.
    NoDatagrams(u32),
    /// The queue pair with this number is connected.
    Up(u32, Greeting),
    /// The connection of this queue pair has ended, or never came up.
    Gone(u32),
}

/// The letters for which the queue had no room.
struct Late<P: Provider> {
    letters: VecDeque<Mail<P>>,
    /// The worker has ended: nothing is put any more.
    ended: bool,
}

/// The mailbox, and the way back.
pub(super) struct Mailbox<P: Provider> {
    queue: ArrayQueue<Mail<P>>,
    /// Only threads of the control plane wait for this lock. Each holds it while it puts a letter,
    /// so letters keep their order, and none is put after the worker's end.
    late: Mutex<Late<P>>,
    flag: AtomicBool,
    /// The worker takes no new peers. Never changes back.
    closed: AtomicBool,
    /// The control planes of its connections.
    pub(super) watches: Watches,
    /// What other threads have of the worker.
    pub(super) state: Arc<SharedState>,
}

impl<P: Provider> Mailbox<P> {
    pub(super) fn new(peers: u32, work: u32, notifier: Option<Notifier>) -> Mailbox<P> {
        // A peer has at most three letters on the way in.
        Mailbox {
            queue: ArrayQueue::new(peers as usize * 3 + 16),
            late: Mutex::new(Late { letters: VecDeque::new(), ended: false }),
            flag: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            watches: Watches::default(),
            state: Arc::new(SharedState::new(work, notifier)),
        }
    }

    /// With room for one letter.
    #[cfg(test)]
    #[cfg(loom)]
    pub(super) fn small() -> Mailbox<P> {
        Mailbox { queue: ArrayQueue::new(1), ..Mailbox::new(1, 1, None) }
    }

    /// True if there is mail. Relaxed, as all of the flag: `take` looks under the lock, which makes
    /// the letter visible.
    #[inline(always)]
    pub(super) fn has_mail(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
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
        // Lowered before the look under the lock: a letter that is put after that look raises the
        // flag again.
        self.flag.store(false, Ordering::Relaxed);
        // The late letters come behind the queue's: while there are any, nothing is put into the
        // queue. The lock is taken first: without it another thread could fill the queue after the
        // look there, and leave a letter among the late ones.
        match self.try_late() {
            Some(mut late) => self.queue.pop().or_else(|| late.letters.pop_front()),
            None => {
                // Another thread is putting a letter. The next turn looks again.
                self.call();
                None
            }
        }
    }

    /// Takes the lock if it is free.
    fn try_late(&self) -> Option<MutexGuard<'_, Late<P>>> {
        let late = self.late.try_lock();
        #[cfg(loom)]
        let late = late.ok();
        late
    }

    /// Waits for the lock. The worker does not call this while it turns.
    fn lock_late(&self) -> MutexGuard<'_, Late<P>> {
        loop {
            match self.try_late() {
                Some(late) => return late,
                None => pause(),
            }
        }
    }

    /// Leaves a letter. It comes back if there is no room, or if the worker has ended.
    #[expect(clippy::result_large_err, reason = "a box would be freed in a turn")]
    pub(super) fn put(&self, mail: Mail<P>) -> Result<(), Mail<P>> {
        {
            let late = self.lock_late();
            if late.ended || !late.letters.is_empty() {
                return Err(mail);
            }
            self.queue.push(mail)?;
        }
        self.announce();
        Ok(())
    }

    /// Leaves a letter about a queue pair that the worker has, whether there is room or not: there
    /// are at most two such letters for each that it has. False: the worker has ended.
    pub(super) fn put_always(&self, mail: Mail<P>) -> bool {
        {
            let mut late = self.lock_late();
            if late.ended {
                return false;
            }
            let fits = late.letters.is_empty();
            let rest = if fits { self.queue.push(mail).err() } else { Some(mail) };
            late.letters.extend(rest);
        }
        self.announce();
        true
    }

    /// A letter was left.
    fn announce(&self) {
        self.flag.store(true, Ordering::Relaxed);
        self.state.wake();
    }

    /// The worker takes no new peers from now on.
    pub(super) fn close_to_peers(&self) {
        // Relaxed: a hint for the control plane, which orders nothing. A peer that comes all the
        // same is turned away, or its letter comes back.
        self.closed.store(true, Ordering::Relaxed);
    }

    /// The worker takes no letter from now on but those that are there.
    pub(super) fn close(&self) {
        self.close_to_peers();
        self.lock_late().ended = true;
        // A letter may be there whose sender has not raised the flag yet.
        self.call();
    }

    /// The worker ends. What is in the mailbox goes: queue pairs and grants.
    fn end(&self) {
        self.close();
        self.state.end();
        // Nothing is put any more.
        let letters = core::mem::take(&mut self.lock_late().letters);
        while self.queue.pop().is_some() {}
        drop(letters);
        // They end the connections, so that the peers learn of it.
        self.watches.look_now();
        self.watches.clear();
    }
}

/// A worker's own mailbox: it closes when the worker is dropped, also by a panic.
pub(super) struct OwnMailbox<P: Provider>(pub(super) Arc<Mailbox<P>>);

impl<P: Provider> Deref for OwnMailbox<P> {
    type Target = Mailbox<P>;

    #[inline(always)]
    fn deref(&self) -> &Mailbox<P> {
        &self.0
    }
}

impl<P: Provider> Drop for OwnMailbox<P> {
    fn drop(&mut self) {
        self.0.end();
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
    /// The longest payload that goes inline to every peer, whatever its blocks hold.
    pub(super) inline_bytes: u32,
    pub(super) retry: Retry,
    pub(super) domain: QpDomain<P>,
    /// Of the control plane that has this intake.
    pub(super) closings: Arc<Closings>,
}

impl<P: Provider> Clone for Intake<P> {
    fn clone(&self) -> Self {
        Intake {
            mailbox: self.mailbox.clone(),
            cq: self.cq.clone(),
            shared: self.shared.clone(),
            words: self.words.clone(),
            caps: self.caps,
            inline_bytes: self.inline_bytes,
            retry: self.retry,
            domain: self.domain.clone(),
            closings: self.closings.clone(),
        }
    }
}

impl<P: Provider> Intake<P> {
    /// True if both belong to the same worker.
    pub fn is_same(&self, other: &Intake<P>) -> bool {
        Arc::ptr_eq(&self.mailbox, &other.mailbox)
    }

    /// True if the worker takes new peers: it neither drains ([`super::Worker::drain`]) nor has
    /// ended.
    pub fn is_open(&self) -> bool {
        !self.mailbox.closed.load(Ordering::Relaxed)
    }

    /// True if the worker was dropped: by its owner, or because a handler's panic unwound its
    /// thread. Its queue pairs are gone then. The control plane ends the connections.
    pub fn has_ended(&self) -> bool {
        self.mailbox.state.has_ended()
    }

    /// The intake for one of several control planes of the worker: [`Intake::next_closing`] of it,
    /// and of its clones, returns the connections that were made with it, and no others. The worker
    /// looks at the control plane when the program seems to have forgotten it: see [`Watch`]. Call
    /// it once for each control plane.
    #[must_use = "connections of this control plane are made with the intake that comes back"]
    pub fn watch(&self, watch: &Arc<dyn Watch>) -> Intake<P> {
        if !self.has_ended() {
            self.mailbox.watches.add(watch);
        }
        Intake { closings: Arc::new(Closings::new(self.words.peers())), ..self.clone() }
    }

    /// The control plane ends: the worker forgets it.
    pub fn unwatch(&self, watch: &Arc<dyn Watch>) {
        self.mailbox.watches.remove(watch);
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
    /// Returns the queue pair: the worker has ended, or its mailbox is full because it does not
    /// turn.
    pub fn open_datagrams(&self, qp: P::Qp) -> Result<(), P::Qp> {
        match self.mailbox.put(Mail::Datagrams(qp)) {
            Err(Mail::Datagrams(qp)) => Err(qp),
            _ => Ok(()),
        }
    }

    /// Reserves a place for one more peer. Send its [`PeerResources::handshake`] to the peer as the
    /// private data of the connect or the accept.
    ///
    /// # Errors
    /// `NoMemory`: the worker has no slot left for a peer ([`Config::peers`]); or workers that
    /// share the receives have more peers than that together, and no receives are left. `Reset`:
    /// the worker has ended, or drains.
    ///
    /// [`Config::peers`]: super::Config::peers
    pub fn reserve(&self) -> Result<PeerResources<P>, SetupError> {
        if !self.is_open() {
            let answer = match self.has_ended() {
                true => "the worker has ended",
                false => "the worker drains, and takes no new peers",
            };
            return Err(SetupError::new(Code::Reset, "one more peer", answer)
                .cure("connect another worker"));
        }
        PeerResources::new(&self.words)
    }

    /// What to tell a peer after [`Intake::reserve`] found no place for it.
    pub fn no_place(&self) -> Refusal {
        PeerResources::<P>::refusal(&self.words)
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
        let inline = self.inline_bytes.min(self.shared.block_bytes());
        match greeting.block_bytes() {
            Some(block) if block < inline => Err(Refusal::blocks(inline, block)),
            _ => Ok(greeting),
        }
    }

    /// Hands over a queue pair and its grant before the peer may send. `addr` is for
    /// [`super::Outbox::peer_info`]. `greeting` is what the peer said, if it has come:
    /// it comes with a request, but not with a connect.
    ///
    /// # Errors
    /// Returns the queue pair: the worker has ended, or its mailbox is full because it does not
    /// turn.
    pub fn admit(
        &self,
        qp: P::Qp,
        grant: PeerResources<P>,
        addr: Option<SocketAddr>,
        greeting: Option<Greeting>,
    ) -> Result<(), P::Qp> {
        match self.mailbox.put(Mail::Admit(qp, grant, addr, greeting, self.closings.clone())) {
            Ok(()) => Ok(()),
            Err(Mail::Admit(qp, ..)) => Err(qp),
            Err(_) => Ok(()),
        }
    }

    /// Tells the worker to give up its queue pair for datagrams, if it has this number; then it may
    /// get another. False: the worker has ended.
    pub fn close_datagrams(&self, qp_num: u32) -> bool {
        self.mailbox.put_always(Mail::NoDatagrams(qp_num))
    }

    /// The queue pair with that number is connected. What the peer said counts if nothing came
    /// before. False: the worker has ended.
    pub fn up(&self, qp_num: u32, greeting: Greeting) -> bool {
        self.mailbox.put_always(Mail::Up(qp_num, greeting))
    }

    /// The connection of that queue pair has ended. False: the worker has ended.
    pub fn gone(&self, qp_num: u32) -> bool {
        self.mailbox.put_always(Mail::Gone(qp_num))
    }

    /// A queue pair whose connection the worker wants ended, if there is one: of those that were
    /// admitted by this intake or a clone of it.
    pub fn next_closing(&self) -> Option<u32> {
        self.closings.take()
    }
}
