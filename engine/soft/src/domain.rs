//! A domain: everything one thread drives. Its completion queues, the queue pairs on them, and
//! the links to other domains.
//!
//! An exclusive domain belongs to one worker and takes no lock. The control plane never touches
//! its inside: it leaves a command, and the domain carries it out on its next poll or post.
#![expect(unsafe_code, reason = "one owner at a time, kept by contract or by the lock")]

use core::cell::UnsafeCell;

use spin::Mutex;
use std_alloc::boxed::Box;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::Host;
use super::cq::{CompletionQueue, Retire};
use super::inboxes::Inboxes;
use super::layout::{Header, KIND_SEND, RecordFlags};
use super::link::{Link, LinkShared};
use super::link_scheduler::Links;
use super::local_waker::LocalWaker;
use super::memory::qp_word;
use super::nic::{Nic, QPS};
use super::predicted::PredictedReceive;
use super::qp::{CLOSED, QpContext, State};
use super::qp_table::{Owned, QpTable};
use super::recvq::{Prefetch, RecvQueue, Used};
use super::reset_sqd::Reset;
use super::sync::{AtomicBool, Ordering};
use super::xrc::{NewXrcQueue, XrcQueues};
use crate::provider::{Access, QpType, Sharing};
use crate::room::{Grow, Room};
use crate::wc::{Status, Wc};

/// What the control plane wants of a domain.
pub(super) enum Command {
    /// A new queue pair with its receive queue.
    Add(Owned, Arc<RecvQueue>, Used),
    /// A new shared receive queue of an XRC domain, and that it goes.
    AddSrq(Box<NewXrcQueue>),
    RemoveSrq(u32),
    /// A new link, not yet used.
    AddLink(Box<Link>),
    /// The queue pair is connected over that link.
    Connect(Connect),
    /// The queue pair's peer waits that long between its retries.
    SetRnrTimer {
        num: u32,
        rnr_timer_ns: u64,
    },
    /// The queue pair goes to ERR; the peer is gone for good if `lost`.
    Fail {
        num: u32,
        lost: bool,
    },
    /// A queue pair of UD has that key.
    SetQkey {
        num: u32,
        qkey: u32,
    },
    /// A queue pair of UD goes to RTS.
    Open {
        num: u32,
        /// What came before that ticket is dropped.
        first: u64,
    },
    /// The queue pair begins no more sends, and an event says when none is under way if `notify`;
    /// or it begins them again.
    Pause {
        num: u32,
        notify: bool,
    },
    Resume {
        num: u32,
    },
    /// The queue pair begins anew, in INIT.
    Reset(Box<Reset>),
    /// An unreliable queue pair goes from SQE back to RTS.
    Recover {
        num: u32,
    },
    /// The queue pair goes away without completions (QX-17).
    Destroy {
        num: u32,
    },
}

/// What waits for a domain. The control plane makes room, also for what the data plane will say:
/// that needs no memory, and the end of a thing always finds its place.
struct Commands {
    list: VecDeque<Command>,
    /// Things in the domain that somebody will end with a command.
    owned: usize,
}

/// The figures of a connection.
pub(super) struct Connect {
    pub(super) num: u32,
    pub(super) peer: u32,
    pub(super) link: Arc<LinkShared>,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer_ns: u64,
    pub(super) initiator_depth: u8,
    pub(super) responder_depth: u8,
}

/// A receive queue as one domain sees it.
pub(super) struct RqUse {
    pub(super) queue: Arc<RecvQueue>,
    pub(super) prefetch: Prefetch,
    users: u32,
}

/// A domain.
pub(super) struct Domain {
    /// Unique within the device.
    pub(super) id: u32,
    host: Host,
    sharing: Sharing,
    lock: Mutex<()>,
    attention: Arc<AtomicBool>,
    pub(super) local_waker: Arc<LocalWaker>,
    commands: Mutex<Commands>,
    state: UnsafeCell<DomainState>,
}

/// What a domain holds: its links, and what serves them. Only the thread that is inside the domain
/// touches it.
pub(super) struct DomainState {
    pub(super) links: Links,
    /// The message a poll waits for.
    pub(super) predicted: PredictedReceive,
    pub(super) transport: Transport,
}

/// The queue pairs of a domain and what they use: what serves one link.
pub(super) struct Transport {
    pub(super) qps: QpTable,
    pub(super) res: Resources,
}

/// What the queue pairs of a domain share.
pub(super) struct Resources {
    pub(super) nic: Arc<Nic>,
    /// Commands wait.
    pub(super) attention: Arc<AtomicBool>,
    pub(super) local_waker: Arc<LocalWaker>,
    /// The domain's number.
    pub(super) id: u32,
    pub(super) rqs: Vec<RqUse>,
    /// The shared receive queues of XRC domains; only the shared domain has any.
    pub(super) xrc: XrcQueues,
    pub(super) cqs: Vec<CompletionQueue>,
    /// Numbers of queue pairs that need work without a message: they fail or flush, or something
    /// has come to their inbox.
    pub(super) service_queue: Vec<u32>,
    pub(super) inboxes: Inboxes,
    pub(super) sharing: Sharing,
}

// SAFETY: `state` is reached only through `enter`, whose contract allows one thread at a time;
// the raw pointers in it are owned boxes. Everything else is atomic or a concurrent queue.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Command {
    /// True if it brings what another command will end.
    fn gives(&self) -> bool {
        matches!(self, Command::Add(..) | Command::AddSrq(_))
    }
}

impl Domain {
    pub(super) fn new(nic: &Arc<Nic>, sharing: Sharing) -> Domain {
        let attention = Arc::new(AtomicBool::new(false));
        let local_waker = Arc::new(LocalWaker::new((nic.host.bell)()));
        let id = nic.next_domain();
        Domain {
            id,
            host: nic.host,
            sharing,
            lock: Mutex::new(()),
            attention: attention.clone(),
            local_waker: local_waker.clone(),
            commands: Mutex::new(Commands { list: VecDeque::new(), owned: 0 }),
            state: UnsafeCell::new(DomainState {
                links: Links::new(64),
                predicted: PredictedReceive::nothing(),
                transport: Transport {
                    qps: QpTable::new(),
                    res: Resources {
                        nic: nic.clone(),
                        attention,
                        local_waker,
                        id,
                        rqs: Vec::with_capacity(16),
                        xrc: XrcQueues::new(),
                        cqs: Vec::with_capacity(4),
                        service_queue: Vec::with_capacity(QPS),
                        inboxes: Inboxes::new(),
                        sharing,
                    },
                },
            }),
        }
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    pub(super) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Adds a completion queue; its index. Exclusive domains have one, made with the domain.
    pub(super) fn add_cq(&self, queue: CompletionQueue) -> usize {
        // SAFETY: a shared domain is locked by `enter`; an exclusive one is not yet handed out.
        unsafe {
            self.enter(|state| {
                let cqs = &mut state.transport.res.cqs;
                let free = cqs.iter().position(CompletionQueue::is_gone);
                let index = free.unwrap_or(cqs.len());
                match cqs.get_mut(index) {
                    Some(place) => *place = queue,
                    None => cqs.push(queue),
                }
                index
            })
        }
    }

    /// Nobody has a handle on that queue any more, and no queue pair uses it. An exclusive domain
    /// goes along with its one queue.
    pub(super) fn remove_cq(&self, index: usize) {
        if self.sharing == Sharing::Exclusive {
            return;
        }
        // SAFETY: a shared domain is locked by `enter`.
        unsafe {
            self.enter(|state| {
                if let Some(place) = state.transport.res.cqs.get_mut(index) {
                    *place = CompletionQueue::gone();
                }
            });
        }
    }

    /// Gives a completion queue another size; what is in it is too many otherwise. One of an
    /// exclusive domain has no entries.
    pub(super) fn resize_cq(&self, index: usize, depth: u32) -> Result<(), u32> {
        if self.sharing == Sharing::Exclusive {
            return Ok(());
        }
        // SAFETY: a shared domain is locked by `enter`.
        unsafe { self.enter(|state| state.transport.res.cqs[index].resize(depth)) }
    }

    /// By what number events name a completion queue.
    pub(super) fn cq_id(&self, index: usize) -> u64 {
        u64::from(self.id) << 32 | index as u64
    }

    /// Leaves a command of the control plane; a shared domain carries it out at once.
    pub(super) fn command(&self, command: Command) {
        {
            let mut commands = self.commands.lock();
            commands.owned += usize::from(command.gives());
            let more = 1 + commands.owned;
            commands.list.reserve(more);
            commands.list.put(command);
        }
        self.call();
    }

    /// Leaves a command of the data plane, which may be dropped: there is room, unless somebody
    /// says the same again and again and never polls.
    pub(super) fn ask(&self, command: Command) {
        {
            let mut commands = self.commands.lock();
            let all = commands.list.len() + 1 + commands.owned;
            if commands.list.make_room(all) {
                commands.list.put(command);
            }
        }
        self.call();
    }

    /// Leaves the command that ends what a command has brought.
    pub(super) fn end(&self, command: Command) {
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

    /// There is a command.
    fn call(&self) {
        // Release pairs with the Acquire in `enter`: who sees the flag sees the command.
        self.attention.store(true, Ordering::Release);
        if self.sharing == Sharing::Shared {
            // SAFETY: `enter` locks a shared domain.
            unsafe { self.enter(|_| ()) };
        }
        self.local_waker.wake();
    }

    /// Runs `f` on the inside, after the commands that wait.
    ///
    /// # Safety
    /// On an exclusive domain no other thread is inside at the same time: the contract of
    /// [`Sharing::Exclusive`]. `f` does not enter again.
    #[inline(always)]
    pub(super) unsafe fn enter<R>(&self, f: impl FnOnce(&mut DomainState) -> R) -> R {
        if self.sharing == Sharing::Exclusive {
            // SAFETY: the caller keeps everybody else out.
            return unsafe { self.enter_alone(f) };
        }
        let _guard = self.lock.lock();
        // SAFETY: the guard keeps everybody else out.
        unsafe { self.enter_alone(f) }
    }

    /// `enter` for a caller who is known to be alone.
    ///
    /// # Safety
    /// No other thread is inside at the same time. `f` does not enter again.
    #[inline(always)]
    pub(super) unsafe fn enter_alone<R>(&self, f: impl FnOnce(&mut DomainState) -> R) -> R {
        // SAFETY: by this function's contract there is no other reference.
        f(unsafe { self.alone() })
    }

    /// The inside, after the commands that wait: `enter_alone` where it must be inlined.
    ///
    /// # Safety
    /// No other thread is inside as long as the reference lives, and nobody enters again.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "one at a time, by contract")]
    pub(super) unsafe fn alone(&self) -> &mut DomainState {
        // SAFETY: by this function's contract there is no other reference.
        let state = unsafe { &mut *self.state.get() };
        if self.attention.load(Ordering::Acquire) {
            self.attend(state);
        }
        state
    }

    /// Carries out what the control plane left.
    #[cold]
    #[inline(never)]
    fn attend(&self, state: &mut DomainState) {
        // Cleared first: a command pushed after the last pop raises it again. A swap, because it
        // also reads: whoever's flag it takes away, it sees that one's command.
        self.attention.swap(false, Ordering::AcqRel);
        state.drop_prediction();
        while let Some(command) = self.next_command() {
            state.execute(command);
        }
        state.links.activate_all();
        state.links.set_inboxes(!state.transport.res.inboxes.is_empty());
    }
}

#[cfg(test)]
#[cfg(loom)]
#[path = "domain_models.rs"]
pub(super) mod models;

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

impl Resources {
    /// Puts a queue pair on the list of those that need work without a message.
    pub(super) fn schedule(&mut self, qp: &mut QpContext) {
        if !qp.is_scheduled {
            qp.is_scheduled = true;
            self.service_queue.put(qp.num);
        }
    }
}

impl Transport {
    /// Moves completions from a queue's ring to its reader, and retires what they stand for.
    pub(super) fn take_completions(&mut self, index: usize, out: &mut [Wc]) -> usize {
        let mut taken = 0;
        for place in out {
            let Some((wc, retire)) = self.res.cqs.get_mut(index).and_then(CompletionQueue::pop)
            else {
                break;
            };
            *place = wc;
            taken += 1;
            self.retire(retire);
        }
        taken
    }

    /// As `take_completions`, one with the times it was made at, as far as it has any.
    pub(super) fn take_stamped(&mut self, index: usize) -> Option<(Wc, [Option<u64>; 2])> {
        let cq = self.res.cqs.get_mut(index)?;
        let times = cq.first_times();
        let (wc, retire) = cq.pop()?;
        self.retire(retire);
        Some((wc, times))
    }

    fn retire(&mut self, retire: Retire) {
        if let Some(qp) = self.qps.get_mut(retire.qp) {
            qp.retired = retire.upto;
        }
    }
}

impl DomainState {
    fn execute(&mut self, command: Command) {
        let DomainState { links, transport, .. } = self;
        let Transport { qps, res } = transport;
        match command {
            Command::Add(qp, queue, used) => transport.add(qp, queue, used),
            Command::AddSrq(new) => res.add_srq(*new),
            Command::RemoveSrq(number) => transport.remove_srq(number),
            Command::AddLink(link) => links.add(link),
            Command::Connect(connect) => self.connect(&connect),
            Command::SetRnrTimer { num, rnr_timer_ns } => {
                if let Some(qp) = qps.get_mut(num) {
                    qp.rnr_timer_ns = rnr_timer_ns;
                }
            }
            Command::Fail { num, lost } => self.fail(num, lost),
            Command::SetQkey { num, qkey } => {
                let datagrams = qps.get_mut(num).and_then(|qp| qp.datagrams.as_mut());
                if let Some(datagrams) = datagrams {
                    datagrams.qkey = qkey;
                }
            }
            Command::Open { num, first } => {
                if let Some(qp) = qps.get_mut(num) {
                    if qp.open(first, res.nic.host.clock) {
                        res.inboxes.add(num);
                    }
                    res.schedule(qp);
                }
            }
            Command::Pause { num, notify } => {
                if let Some(qp) = qps.get_mut(num) {
                    res.pause(links, qp, notify);
                }
            }
            Command::Resume { num } => {
                if let Some(qp) = qps.get_mut(num) {
                    res.resume(links, qp);
                }
            }
            Command::Reset(new) => {
                self.begin_again(*new);
                self.links.ack_all();
            }
            Command::Recover { num } => {
                if let Some(qp) = qps.get_mut(num) {
                    qp.recover();
                }
            }
            Command::Destroy { num } => {
                if self.remove(num) {
                    self.links.ack_all();
                }
            }
        }
    }

    /// The queue pair goes to ERR; its peer is gone for good if `lost`.
    fn fail(&mut self, num: u32, lost: bool) {
        let Some(qp) = self.transport.qps.get_mut(num) else { return };
        let res = &mut self.transport.res;
        if lost && qp.state.is_unreliable() {
            if qp.kind == QpType::Uc {
                res.peer_lost(qp);
            }
            return;
        }
        let upto = self.links.acked_position(qp);
        res.fail_qp(qp, upto, lost.then_some(Status::RetryExceeded));
        self.links.ack_all();
    }

    fn connect(&mut self, connect: &Connect) {
        let index = self.links.index_of(&connect.link);
        let Transport { qps, res } = &mut self.transport;
        let (Some(qp), Some(index)) = (qps.get_mut(connect.num), index) else {
            return self.decline(connect);
        };
        if qp.state != State::Init {
            return self.decline(connect);
        }
        qp.link = index;
        qp.peer = connect.peer;
        let mut flags = RecordFlags::FIRST | RecordFlags::LAST;
        let reliable = !qp.kind.is_unreliable();
        flags.set(RecordFlags::ACK_REQ, qp.signal_all && reliable);
        flags.set(RecordFlags::UNRELIABLE, !reliable);
        qp.common = Header::new(KIND_SEND, flags, 0, connect.peer).0;
        qp.rnr_retry = connect.rnr_retry;
        qp.rnr_timer_ns = connect.rnr_timer_ns;
        if reliable {
            qp.initiator_depth = connect.initiator_depth;
            qp.responder_depth = connect.responder_depth;
        }
        let takes = qp.kind != QpType::XrcSend;
        if !takes {
            qp.responder_depth = 0;
        }
        qp.rights = Access::REMOTE_WRITE;
        if qp.responder_depth > 0 {
            qp.rights |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        if !takes {
            qp.rights = Access::empty();
        }
        qp.state = if reliable { State::Rts } else { State::Unreliable };
        if qp.kind == QpType::Rc {
            let word = qp_word(qp.who(), qp.rights);
            res.nic.memory.table().qps[qp.num as usize % QPS].store(word, Ordering::Release);
        }
        if let Some(link) = self.links.get_mut(index) {
            if link.users == 0 {
                link.rq = qp.rq;
            }
            qp.open_on = if link.rq == qp.rq && !qp.kind.is_xrc() { index } else { CLOSED };
            if !takes {
                link.always_slow();
            }
            link.users += 1;
            let room = link.reserve_responses(qp.responder_depth);
            if link.is_broken() || !link.reserve_waiting() || !room {
                res.fail_qp(qp, 0, Some(Status::RetryExceeded));
            }
        }
    }

    /// The queue pair to connect is gone or in error: its end of the link goes back.
    fn decline(&mut self, connect: &Connect) {
        connect.link.release_end();
        self.links.drop_unused();
    }

    /// Takes a queue pair out and frees it; its link goes with the last user. False: there is no
    /// such queue pair.
    fn remove(&mut self, num: u32) -> bool {
        let Some(qp) = self.take_out(num).map(Owned::into_box) else { return false };
        let nic = &self.transport.res.nic;
        if let Some(place) = qp.datagrams.as_ref().and_then(|datagrams| datagrams.place) {
            nic.memory.hide_inbox(place);
        }
        nic.free_number(qp.num);
        self.links.drop_unused();
        true
    }

    /// Takes a queue pair out of the table, and off its link and its receive queue.
    pub(super) fn take_out(&mut self, num: u32) -> Option<Owned> {
        let mut owned = self.transport.qps.remove(num)?;
        let (qp, res) = (owned.get_mut(), &mut self.transport.res);
        res.nic.memory.table().qps[qp.num as usize % QPS].store(0, Ordering::Release);
        res.service_queue.retain(|num| *num != qp.num);
        res.inboxes.remove(qp.num);
        if let (true, Some(assembly)) = (qp.rq_shared, qp.assembly)
            && let Some(rq) = res.rqs.get_mut(qp.rq)
        {
            // A message had begun to fill this receive, and it would never complete. There is
            // room: it was taken from there.
            let _ = rq.queue.post(&[assembly.wr]);
        }
        res.leave_queue(qp.own_rq());
        if let Some(link) = self.links.get_mut(qp.link) {
            link.waits_no_more(qp.num);
            link.release_responses(qp.responder_depth);
            link.users -= 1;
            link.shared.release_end();
            if qp.paused {
                link.pause(false);
            }
        }
        Some(owned)
    }
}

impl Transport {
    /// Takes a queue pair in.
    pub(super) fn add(&mut self, mut owned: Owned, queue: Arc<RecvQueue>, used: Used) {
        let qp = owned.get_mut();
        match self.res.use_queue(queue, used) {
            Some(rq) => qp.set_own_rq(rq),
            // Without memory to note its receive queue it is in error, and is never connected.
            None => qp.state = State::Err,
        }
        self.qps.insert(owned);
    }
}

impl Resources {
    /// One more user of a receive queue, counted in `used`; its index here. `None`: there is no
    /// memory for it.
    pub(super) fn use_queue(&mut self, queue: Arc<RecvQueue>, used: Used) -> Option<usize> {
        let found = self.rqs.iter().position(|rq| Arc::ptr_eq(&rq.queue, &queue));
        let free = || self.rqs.iter().position(|rq| rq.users == 0);
        let index = found.or_else(free).unwrap_or(self.rqs.len());
        if found.is_none() && !self.rqs.make_room(index + 1) {
            return None;
        }
        match self.rqs.get_mut(index) {
            Some(rq) if found.is_some() && rq.users > 0 => rq.users += 1,
            _ => {
                let prefetch = queue.attach(&self.local_waker, used)?;
                if !self.rqs.place(index, RqUse { prefetch, queue, users: 1 }) {
                    return None;
                }
            }
        }
        Some(index)
    }

    /// One user less.
    pub(super) fn leave_queue(&mut self, index: usize) {
        let Some(rq) = self.rqs.get_mut(index) else { return };
        rq.users -= 1;
        if rq.users == 0 {
            rq.queue.detach(&mut rq.prefetch);
        }
    }
}
