//! A domain: everything that one thread drives. It holds completion queues, their queue pairs, and
//! the links to other domains.
//!
//! An exclusive domain belongs to one worker and takes no lock. The control plane never touches its
//! state: it leaves a command, and the domain carries it out on its next poll or post.
#![expect(unsafe_code, reason = "one owner at a time, kept by contract or by the lock")]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use spin::Mutex;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;

use crate::device::host::Host;
use crate::device::nic::Nic;
use crate::ext::xrc_part::XrcQueues;
use crate::model::biased::{Biased, Guard};
use crate::model::cq::CompletionQueue;
use crate::model::local_waker::LocalWaker;
use crate::provider::Sharing;
use crate::room::{FixedCapacity, TryGrow};
use crate::state::completions::{Completions, LostReceives, NO_QUEUE};
use crate::state::domain_state::DomainState;
use crate::state::inboxes::Inboxes;
use crate::state::link_scheduler::Links;
use crate::state::next_look::NextLook;
use crate::state::predicted::PredictedReceive;
use crate::state::qp_table::QpTable;
use crate::state::ready::Ready;
use crate::state::receives::Receives;
use crate::state::resources::Resources;
use crate::state::service_queue::ServiceQueue;
use crate::state::transport::Transport;
use crate::steps::command::Command;
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The commands that wait for a domain. The control plane reserves room for the data plane's
/// commands too. So those need no allocation, and the command that ends an object always fits.
struct Commands {
    list: VecDeque<Command>,
    /// Objects in the domain that a later command will end.
    owned: usize,
}

/// A domain.
pub(crate) struct Domain {
    /// Unique within the device.
    pub(crate) id: u32,
    host: Host,
    sharing: Sharing,
    lock: Biased<()>,
    attention: Arc<AtomicBool>,
    pub(crate) local_waker: Arc<LocalWaker>,
    commands: Mutex<Commands>,
    /// The queue for which the last poll has left a message, [`NO_QUEUE`] if it has left none. Only
    /// a hint: it may be old.
    left: AtomicU64,
    state: UnsafeCell<DomainState>,
}

// SAFETY: `state` is reached only through `enter`, whose contract allows one thread at a time;
// the raw pointers in it are owned boxes. Everything else is atomic or a concurrent queue.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(nic: &Arc<Nic>, sharing: Sharing) -> Domain {
        let attention = Arc::new(AtomicBool::new(false));
        let local_waker = Arc::new(LocalWaker::new((nic.host.notifier)()));
        let id = nic.next_domain();
        Domain {
            id,
            host: nic.host,
            sharing,
            lock: Biased::new((), nic.host.threads),
            attention: attention.clone(),
            local_waker: local_waker.clone(),
            commands: Mutex::new(Commands { list: VecDeque::new(), owned: 0 }),
            left: AtomicU64::new(NO_QUEUE as u64),
            state: UnsafeCell::new(DomainState {
                links: Links::new(64),
                predicted: PredictedReceive::nothing(),
                ready: Ready::nothing(),
                transport: Transport {
                    qps: QpTable::new(),
                    res: Resources {
                        nic: nic.clone(),
                        attention,
                        local_waker,
                        id,
                        receives: Receives::new(nic.clone(), sharing),
                        xrc: XrcQueues::new(),
                        completions: Completions::new(),
                        service_queue: ServiceQueue::new(),
                        inboxes: Inboxes::new(),
                        attended: false,
                        lost_receives: LostReceives::default(),
                        next_look: NextLook::default(),
                    },
                },
            }),
        }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// True if its one reader enters it without a lock.
    fn is_exclusive(&self) -> bool {
        self.sharing == Sharing::Exclusive
    }

    /// Adds a completion queue and returns its index. An exclusive domain has one, made with the
    /// domain.
    pub(crate) fn add_cq(&self, queue: CompletionQueue) -> usize {
        // SAFETY: a shared domain is locked by `enter`; an exclusive one is not yet handed out.
        unsafe { self.enter(|state| state.transport.res.completions.add(queue)) }
    }

    /// Removes a queue that has no handles and no queue pairs left. An exclusive domain goes away
    /// with its one queue.
    pub(crate) fn remove_cq(&self, index: usize) {
        self.enter_shared(|state| {
            state.ready.forget();
            if let Some(place) = state.transport.res.completions.get_mut(index) {
                *place = CompletionQueue::gone();
            }
        });
    }

    /// Resizes a completion queue. Fails with the number of entries if they do not fit. The queue
    /// of an exclusive domain has no entries.
    pub(crate) fn resize_cq(&self, index: usize, depth: u32) -> Result<(), u32> {
        let done = self.enter_shared(|state| {
            state.ready.forget();
            let cq = state.transport.res.completions.get_mut(index);
            cq.map_or(Ok(()), |cq| cq.resize(depth))
        });
        done.unwrap_or(Ok(()))
    }

    /// The number by which events name a completion queue.
    pub(crate) fn cq_id(&self, index: usize) -> u64 {
        u64::from(self.id) << 32 | index as u64
    }

    /// Leaves a command of the control plane; a shared domain carries it out at once.
    pub(crate) fn command(&self, command: Command) {
        {
            let mut commands = self.commands.lock();
            commands.owned += usize::from(command.gives());
            let more = 1 + commands.owned;
            commands.list.reserve(more);
            commands.list.put(command);
        }
        self.call();
    }

    /// Leaves a command of the data plane, which may be dropped. There is room for it unless a
    /// caller repeats the same command and never polls.
    pub(crate) fn ask(&self, command: Command) {
        {
            let mut commands = self.commands.lock();
            let all = commands.list.len() + 1 + commands.owned;
            if commands.list.make_room(all) {
                commands.list.put(command);
            }
        }
        self.call();
    }

    /// Leaves the command that ends an object that an earlier command brought.
    pub(crate) fn end(&self, command: Command) {
        {
            let mut commands = self.commands.lock();
            commands.owned = commands.owned.saturating_sub(1);
            commands.list.put(command);
        }
        self.call();
    }

    fn next_command(&self) -> Option<Command> {
        self.commands.lock().list.pop_front()
    }

    /// Announces a command.
    fn call(&self) {
        // Release pairs with the Acquire in `enter`: a thread that sees the flag sees the command.
        self.attention.store(true, Ordering::Release);
        self.enter_shared(|_| ());
        self.local_waker.wake();
    }

    /// Runs `f` on the state, after the pending commands.
    ///
    /// # Safety
    /// On an exclusive domain no other thread is inside at the same time: the contract of
    /// [`Sharing::Exclusive`]. `f` does not enter again.
    #[inline(always)]
    pub(crate) unsafe fn enter<R>(&self, f: impl FnOnce(&mut DomainState) -> R) -> R {
        if self.sharing == Sharing::Exclusive {
            // SAFETY: the caller keeps everybody else out.
            return unsafe { self.enter_alone(f) };
        }
        let _guard = self.lock.lock();
        // SAFETY: the guard keeps everybody else out.
        unsafe { self.enter_alone(f) }
    }

    /// True while somebody is in the shared domain.
    pub(crate) fn is_entered(&self) -> bool {
        self.lock.is_locked()
    }

    /// Runs `f` on the state of a shared domain, after the pending commands, under its lock.
    /// `None`: the domain is exclusive, and `f` did not run. `f` that enters again waits forever.
    #[inline(always)]
    pub(crate) fn enter_shared<R>(&self, f: impl FnOnce(&mut DomainState) -> R) -> Option<R> {
        self.shared().map(|mut state| f(&mut state))
    }

    /// The state of a shared domain, after the pending commands, as long as the result lives:
    /// `enter_shared` where it must be inlined.
    #[inline(always)]
    pub(crate) fn shared(&self) -> Option<Shared<'_>> {
        if self.sharing != Sharing::Shared {
            return None;
        }
        let guard = self.lock.lock();
        // SAFETY: the guard keeps everybody else out.
        unsafe { self.alone() };
        Some(Shared { domain: self, _guard: guard })
    }

    /// The same without a call, if the lock belongs to this thread. The lock of an exclusive domain
    /// never does. A command that is pending stays so: the thread that has left it is about to
    /// enter, and carries it out behind what is done here.
    #[inline(always)]
    pub(crate) fn own(&self) -> Option<Shared<'_>> {
        let guard = self.lock.lock_own()?;
        Some(Shared { domain: self, _guard: guard })
    }

    /// A poll has left a message for that queue, or none ([`NO_QUEUE`]). Relaxed: it is a hint.
    #[inline(always)]
    pub(crate) fn note_left(&self, queue: usize) {
        self.left.store(queue as u64, Ordering::Relaxed);
    }

    /// True if a poll has left a message for that queue, as far as is known.
    #[inline(always)]
    pub(crate) fn has_left_for(&self, queue: usize) -> bool {
        self.left.load(Ordering::Relaxed) == queue as u64
    }

    /// `enter` for a caller that is known to be alone.
    ///
    /// # Safety
    /// No other thread is inside at the same time. `f` does not enter again.
    #[inline(always)]
    pub(crate) unsafe fn enter_alone<R>(&self, f: impl FnOnce(&mut DomainState) -> R) -> R {
        // SAFETY: by this function's contract there is no other reference.
        f(unsafe { self.alone() })
    }

    /// The state, after the pending commands: `enter_alone` where it must be inlined.
    ///
    /// # Safety
    /// No other thread is inside as long as the reference lives, and nobody enters again.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "one at a time, by contract")]
    pub(crate) unsafe fn alone(&self) -> &mut DomainState {
        // SAFETY: by this function's contract there is no other reference.
        let state = unsafe { &mut *self.state.get() };
        if self.attention.load(Ordering::Acquire) {
            self.attend(state);
        }
        state
    }

    /// Carries out the commands that the control plane left.
    #[cold]
    #[inline(never)]
    fn attend(&self, state: &mut DomainState) {
        // Cleared first: a command pushed after the last pop raises it again. A swap, because it
        // also reads: this thread sees the command behind every flag that it clears.
        self.attention.swap(false, Ordering::AcqRel);
        state.drop_prediction();
        // A link that goes closes files.
        (self.host.threads.uncancelled)(&mut || {
            while let Some(command) = self.next_command() {
                state.execute(command);
            }
        });
        // A link may have gone, so none rests: see `state::quiet`.
        state.links.activate_all();
        state.links.set_inboxes(!state.transport.res.inboxes.is_empty());
    }
}

/// The state of a shared domain, whose lock is held.
pub(crate) struct Shared<'a> {
    domain: &'a Domain,
    _guard: Guard<'a, ()>,
}

impl Deref for Shared<'_> {
    type Target = DomainState;

    #[inline(always)]
    fn deref(&self) -> &DomainState {
        // SAFETY: the guard keeps everybody else out.
        unsafe { &*self.domain.state.get() }
    }
}

impl DerefMut for Shared<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut DomainState {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.domain.state.get() }
    }
}

/// The reader of a completion queue, which enters the queue's domain. An exclusive domain has one.
pub(crate) struct Reader {
    domain: Arc<Domain>,
    /// The domain is exclusive, and this is its reader.
    alone: bool,
}

impl Reader {
    /// The one reader of a new domain.
    pub(crate) fn of_new(domain: Domain) -> Reader {
        let alone = domain.is_exclusive();
        Reader { domain: Arc::new(domain), alone }
    }

    /// A reader of the shared domain, which it enters under the lock.
    pub(crate) fn of_shared(domain: &Arc<Domain>) -> Reader {
        Reader { domain: domain.clone(), alone: false }
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The state of an exclusive domain, after the pending commands; `None` if it is shared.
    #[inline(always)]
    pub(crate) fn alone(&mut self) -> Option<&mut DomainState> {
        // SAFETY: this is the one reader, borrowed for as long. By the contract of `Qp::post` the
        // thread that posts on the domain's queue pairs is this one.
        if self.alone { Some(unsafe { self.domain.alone() }) } else { None }
    }

    /// [`Domain::enter`].
    pub(crate) fn enter<R>(&mut self, f: impl FnOnce(&mut DomainState) -> R) -> Option<R> {
        match self.alone() {
            Some(state) => Some(f(state)),
            None => self.domain.enter_shared(f),
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
#[path = "domain_models.rs"]
pub(crate) mod models;

impl Drop for Domain {
    fn drop(&mut self) {
        while let Some(command) = self.next_command() {
            self.state.get_mut().execute(command);
        }
        let state = self.state.get_mut();
        while let Some(num) = state.transport.qps.any() {
            state.remove(num);
        }
    }
}
