//! Progress without polls of the program. The soft device does a NIC's work in polls; a program
//! that sleeps, or watches memory, makes none. So each process has one thread that polls in its
//! place.
//!
//! While the program polls by itself, the thread only looks each millisecond whether it still does,
//! also if it has asked for events: its polls ring for those. Otherwise the thread sleeps until a
//! peer rings, or the program after some posts. It does the work, goes on for a moment, and sleeps
//! again.
#![expect(unsafe_code, reason = "epoll, signals, the end of the process")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, mpsc};
use std::time::{Duration, Instant};

use doorbell_seam::event::{AsyncEvent, Object as Subject};
use doorbell_seam::provider::{AsyncEvents, Poller, Provider, Sharing};
use doorbell_soft::{SoftDevice, SoftPoller};
use libc::c_int;

use crate::abi::{ibv_async_event, ibv_context};
use crate::border::{Errno, lock, zeroed};
use crate::queue::{AsyncQueue, Unacknowledged, clear, eventfd, last, ring};
use crate::scatter::Scatter;

/// Polls of all threads and queues. Load and store instead of an atomic add, which is slow here; so
/// some may be lost.
static POLLS: AtomicUsize = AtomicUsize::new(0);

/// The program polls.
#[inline(always)]
pub(crate) fn count_poll() {
    POLLS.store(POLLS.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// How often the thread looks whether the program still polls, in milliseconds. After a program has
/// asked for an event, the thread leaves the device to it only when it has polled for this long
/// without asking again.
const LOOK_MS: c_int = 1;
const LOOK: Duration = Duration::from_millis(LOOK_MS as u64);
/// This many polls within `LOOK` show that the program polls by itself.
const BUSY_LOOK: usize = 50;
/// The thread takes over after this many looks in a row without such polls. On a busy machine a
/// polling program may be without a core for some time.
const QUIET_LOOKS: u32 = 4;
/// How often the thread lets others go first where somebody is in the device.
const PATIENCE: u32 = 100;
/// How long the thread goes on after it was woken.
const GO_ON: Duration = Duration::from_micros(50);
/// Polls between two wake-ups that show the same. They may all come while the thread sleeps: on a
/// busy machine it takes the core of the program for as long as it goes on.
const BUSY_GO_ON: usize = 20;
/// A program that waits for an event wakes the thread at every 64th post.
const WAKE_EVERY: usize = 64;
/// Pauses between two looks while it goes on: each look takes the device from the program.
const PAUSES: usize = 32;

/// How long the program waits for the thread to begin. It takes microseconds. Only a thread that
/// waits for something that the program holds, such as the lock of the loader, would take longer.
const BEGIN_LIMIT: Duration = Duration::from_secs(1);

/// Keys of descriptors; others are numbers of completion queues.
const RARE: u64 = u64::MAX;
const WORK: u64 = u64::MAX - 1;
const PEERS: u64 = u64::MAX - 2;
const EVENTS: u64 = u64::MAX - 3;
const KICK: u64 = u64::MAX - 4;

/// The device of this process, with its thread and what the thread must find.
pub(crate) struct Progress {
    pub(crate) device: SoftDevice,
    /// Polls of this queue do the work of all; no completion ever comes to it.
    own: Mutex<SoftPoller>,
    /// Everything but work: completion queues that are waited for, peers, events.
    rare: Epoll,
    /// `rare`, and work.
    all: Epoll,
    kick: OwnedFd,
    /// The program polls by itself.
    driven: AtomicBool,
    /// Completion queues that a program waits for.
    armed: AtomicUsize,
    /// How often the program has asked for an event.
    requests: AtomicUsize,
    /// Posts that did the work themselves, because the program waits for an event.
    worked_posts: AtomicUsize,
    /// The events of each context, by its address.
    pub(crate) contexts: Mutex<HashMap<usize, Arc<AsyncQueue>>>,
    /// Those that the program has got.
    pub(crate) unacknowledged: Unacknowledged,
    /// Objects of the program. Each leaves its list before it is destroyed, and is used only while
    /// the list is locked.
    pub(crate) cqs: Mutex<HashMap<u64, Listed>>,
    pub(crate) qps: Mutex<HashMap<u32, Listed>>,
    pub(crate) srqs: Mutex<HashMap<u64, Listed>>,
    /// Receives of several pieces.
    pub(crate) scatter: Scatter,
    /// Its thread runs.
    started: Once,
}

/// An object of the program in one of the lists of [`Progress`]: there may be news of it.
pub(crate) struct Listed {
    pub(crate) at: usize,
    /// The address of its context.
    pub(crate) context: usize,
    /// Tells the object at that address.
    pub(crate) tell: fn(at: usize, news: News),
}

impl Listed {
    /// One that only events name.
    pub(crate) fn silent(at: usize, context: *mut ibv_context) -> Listed {
        Listed { at, context: context as usize, tell: |_, _| () }
    }
}

/// What may have happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The notifier of a completion queue has rung.
    Rang,
    /// The peer of a queue pair has left, by the connection with that key: a reset changes it.
    PeerLeft { key: u32 },
    /// A request of a queue pair has failed.
    Failed,
}

/// Watches descriptors, each under a key.
struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> Result<Epoll, Errno> {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(last());
        }
        // SAFETY: new, and nobody else's.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn add(&self, fd: c_int, key: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: key };
        let epoll = self.0.as_raw_fd();
        // SAFETY: `event` is alive during the call.
        let answer = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if answer < 0 { Err(last()) } else { Ok(()) }
    }

    fn remove(&self, fd: c_int) {
        let (epoll, none) = (self.0.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: a null event is allowed here.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, none) };
    }

    /// The keys that are ready; waits for that many milliseconds, or for ever if negative. `None`
    /// if waiting is not possible any more: the program has closed all descriptors, say.
    fn wait(&self, millis: c_int) -> Option<Vec<u64>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let (epoll, most) = (self.0.as_raw_fd(), events.len() as c_int);
        // SAFETY: there is room for as many events.
        let got = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, millis) };
        let count = match usize::try_from(got) {
            Ok(count) => count,
            Err(_) if last() == Errno(libc::EINTR) => 0,
            Err(_) => return None,
        };
        Some(events.iter().take(count).map(|event| event.u64).collect())
    }
}

/// A time to wait, in whole milliseconds. A time that is shorter than one is longer then, and so
/// the wait does not end before it.
fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

impl Progress {
    pub(crate) fn new(device: SoftDevice) -> Result<Progress, Errno> {
        let (_, own) = device.create_cq(1, Sharing::Shared)?;
        let (rare, all) = (Epoll::new()?, Epoll::new()?);
        let kick = eventfd(libc::EFD_NONBLOCK)?;
        rare.add(kick.as_raw_fd(), KICK)?;
        let peers = device.rendezvous_fd();
        for (fd, key) in [(peers, PEERS), (device.async_fd(), EVENTS)] {
            rare.add(fd.ok_or(Errno(libc::EMFILE))?, key)?;
        }
        let scatter = Scatter::default();
        scatter.listen(&device);
        let work = own.wake_fds().ok_or(Errno(libc::EMFILE))?.device;
        all.add(rare.0.as_raw_fd(), RARE)?;
        all.add(work, WORK)?;
        Ok(Progress {
            device,
            own: Mutex::new(own),
            rare,
            all,
            kick,
            driven: AtomicBool::new(true),
            armed: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            worked_posts: AtomicUsize::new(0),
            contexts: Mutex::default(),
            unacknowledged: Unacknowledged::default(),
            cqs: Mutex::default(),
            qps: Mutex::default(),
            srqs: Mutex::default(),
            scatter,
            started: Once::new(),
        })
    }

    /// An object is about to be destroyed: takes it out of its list, forgets its events, and waits
    /// until the program has acknowledged those that it has got.
    pub(crate) fn unlist<K: Eq + Hash>(&self, list: &Mutex<HashMap<K, Listed>>, key: &K) {
        let known = lock(list).remove(key);
        let Some(Listed { at, context, .. }) = known else { return };
        // From here on no event names it.
        let events = lock(&self.contexts).get(&context).cloned();
        if let Some(events) = events {
            events.forget(|event| event.element == at);
        }
        self.unacknowledged.wait(at);
    }

    /// Watches a completion queue with a channel.
    pub(crate) fn watch(&self, fd: c_int, id: u64) -> Result<(), Errno> {
        self.rare.add(fd, id)
    }

    /// Before its descriptor is closed.
    pub(crate) fn unwatch(&self, fd: c_int) {
        self.rare.remove(fd);
    }

    /// The program is about to wait for a completion queue.
    pub(crate) fn arm(&self) {
        self.armed.fetch_add(1, Ordering::SeqCst);
    }

    /// The program may sleep from now on: the thread must not sleep its millisecond.
    pub(crate) fn call(&self) {
        // SeqCst: the thread sees this request after it has set `driven`, or this call sees that.
        self.requests.fetch_add(1, Ordering::SeqCst);
        if self.driven.load(Ordering::SeqCst) {
            ring(self.kick.as_raw_fd());
        }
    }

    /// A completion queue is not waited for any more.
    pub(crate) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// True if the program may wait for a completion queue.
    #[inline(always)]
    pub(crate) fn may_wait(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    /// The program has posted something. Its completion may come without a peer, who would wake
    /// this process: if the program waits for it, it must be made now. True if it may be there.
    /// Where the program polls too, a poll makes it, or the thread when it takes over.
    pub(crate) fn posted(&self) -> bool {
        let waits = self.may_wait();
        // SeqCst: whoever reads the old value has posted before the thread does its work.
        let waits = waits && !self.driven.load(Ordering::SeqCst);
        if waits {
            self.work();
            // While the thread stands in, it sees only what wakes it. A program that reads and
            // writes remote memory and polls all the time wakes it now and then, so that it leaves
            // the device to the program.
            if self.worked_posts.fetch_add(1, Ordering::Relaxed) % WAKE_EVERY == WAKE_EVERY - 1 {
                ring(self.kick.as_raw_fd());
            }
        }
        waits
    }

    /// Does the work that there is.
    pub(crate) fn work(&self) {
        lock(&self.own).poll(&mut []);
    }

    /// The thread's own queue, once nobody is in the device, or after a while.
    fn wait_for_own(&self) -> MutexGuard<'_, SoftPoller> {
        let own = lock(&self.own);
        for _ in 0..PATIENCE {
            if !own.is_busy() {
                break;
            }
            std::thread::yield_now();
        }
        own
    }

    /// Tells peers how far this process has read, before a connection ends: what was taken from a
    /// peer must not fail there.
    pub(crate) fn settle(&self) {
        settle(lock(&self.own));
    }

    /// Runs until waiting is not possible any more. Until then somebody polls: this thread, as long
    /// as the program does not. Its polls acknowledge whatever waits for that.
    fn run(&self) {
        self.wait_for_own().promise_polls(true);
        let _: Option<Infallible> = self.take_turns();
        self.wait_for_own().promise_polls(false);
        self.work();
    }

    /// Leaves the device to the program, or does its work, in turn.
    fn take_turns(&self) -> Option<Infallible> {
        let mut requests = 0;
        loop {
            self.look_on(requests)?;
            self.driven.store(false, Ordering::SeqCst);
            // It has notifiers, as seen when it was made.
            let _ = self.wait_for_own().arm(false);
            self.work();
            self.attend()?;
            requests = self.stand_in()?;
        }
    }

    /// Leaves the device to the program until the program polls no more, or asks for an event
    /// again: `requests` is how often it has asked so far.
    fn look_on(&self, requests: usize) -> Option<()> {
        self.driven.store(true, Ordering::SeqCst);
        let mut quiet = 0;
        let (mut before, mut since) = (POLLS.load(Ordering::Relaxed), Instant::now());
        loop {
            // First: a request may have come before `driven` was set, and have rung nobody.
            if self.requests.load(Ordering::SeqCst) != requests {
                return Some(());
            }
            if !self.rare.wait(LOOK_MS)?.is_empty() {
                self.attend()?;
            }
            if since.elapsed() < LOOK {
                continue;
            }
            since = Instant::now();
            let now = POLLS.load(Ordering::Relaxed);
            let polls = now.wrapping_sub(std::mem::replace(&mut before, now));
            if polls == 0 && quiet == 0 {
                // An acknowledgement may wait for it.
                self.wait_for_own().poll(&mut []);
            }
            quiet = if polls < BUSY_LOOK { quiet + 1 } else { 0 };
            let waits = self.armed.load(Ordering::SeqCst) > 0;
            if quiet >= if waits { 1 } else { QUIET_LOOKS } {
                return Some(());
            }
        }
    }

    /// Does the work in place of the program, until the program polls by itself. Returns how often
    /// the program has asked for an event so far.
    fn stand_in(&self) -> Option<usize> {
        let mut before = POLLS.load(Ordering::Relaxed);
        let (mut requests, mut asked) = (self.requests.load(Ordering::SeqCst), Instant::now());
        loop {
            let look = self.wait_for_own().look_again();
            let found = self.all.wait(look.map_or(-1, millis))?;
            // Nothing was found: it is time to look for the device's own sake.
            if found.is_empty() || found.contains(&WORK) {
                self.wait_for_own().woken();
            }
            self.attend()?;
            self.go_on();
            self.attend()?;
            let polls = POLLS.load(Ordering::Relaxed);
            let polls = polls.wrapping_sub(std::mem::replace(&mut before, polls));
            let now = self.requests.load(Ordering::SeqCst);
            if std::mem::replace(&mut requests, now) != now {
                asked = Instant::now();
            }
            // A program may ask for events that seldom come, and poll all the time, as UCX does.
            let sleeps = self.armed.load(Ordering::SeqCst) > 0 && asked.elapsed() < LOOK;
            if !sleeps && polls >= BUSY_GO_ON {
                return Some(requests);
            }
        }
    }

    /// Does the work for a moment.
    fn go_on(&self) {
        let since = Instant::now();
        while since.elapsed() < GO_ON {
            // Whoever is in the device does the work.
            let mut own = lock(&self.own);
            if !own.is_busy() {
                own.poll(&mut []);
            }
            drop(own);
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Attends to everything but work.
    fn attend(&self) -> Option<()> {
        for key in self.rare.wait(0)? {
            match key {
                KICK => clear(self.kick.as_raw_fd()),
                PEERS => self.attend_peers(),
                EVENTS => self.attend_events(),
                id => self.attend_cq(id),
            }
        }
        Some(())
    }

    fn attend_peers(&self) {
        // What a peer has sent before it left counts.
        self.wait_for_own().poll(&mut []);
        for qp in self.device.rendezvous_step() {
            let (_, key) = qp.place();
            self.tell_qp(qp.num(), News::PeerLeft { key });
        }
    }

    /// Tells a queue pair.
    #[cold]
    pub(crate) fn tell_qp(&self, num: u32, news: News) {
        if let Some(known) = lock(&self.qps).get(&num) {
            (known.tell)(known.at, news);
        }
    }

    /// A completion queue that the program waits for may have an entry.
    fn attend_cq(&self, id: u64) {
        if let Some(known) = lock(&self.cqs).get(&id) {
            (known.tell)(known.at, News::Rang);
        }
    }

    fn attend_events(&self) {
        while let Some(AsyncEvent { kind, object: subject }) = self.device.next_async_event() {
            let event_type = kind as c_int;
            match subject {
                Subject::Device => self.raise_all(0, event_type),
                Subject::Port(port) => self.raise_all(port.into(), event_type),
                Subject::Qp(num) => self.raise(lock(&self.qps).get(&num), event_type),
                Subject::Cq(id) => self.raise(lock(&self.cqs).get(&id), event_type),
                Subject::Srq(id) => self.raise(lock(&self.srqs).get(&id), event_type),
                _ => {}
            }
        }
    }

    fn raise_all(&self, element: usize, event_type: c_int) {
        for events in lock(&self.contexts).values() {
            events.push(ibv_async_event { element, event_type });
        }
    }

    fn raise(&self, of: Option<&Listed>, event_type: c_int) {
        let Some(known) = of else { return };
        if let Some(events) = lock(&self.contexts).get(&known.context) {
            events.push(ibv_async_event { element: known.at, event_type });
        }
    }
}

/// The device whose thread runs, for the end of the process, and the process.
static RUNNING: Mutex<Option<(u32, &'static Progress)>> = Mutex::new(None);

/// Tells peers how far this process has read, before it ends.
extern "C" fn finish() {
    // A child of fork must not read what is for its parent.
    let own = std::process::id();
    let running = RUNNING.try_lock().ok().and_then(|running| *running);
    let running = running.filter(|(of, _)| *of == own).map(|(_, progress)| progress);
    if let Some(own) = running.and_then(|progress| progress.own.try_lock().ok()) {
        settle(own);
    }
}

/// See [`Progress::settle`]. The second poll tells what no answer has told.
fn settle(mut own: MutexGuard<'_, SoftPoller>) {
    for _ in 0..2 {
        own.poll(&mut []);
    }
}

/// Starts the thread of the device, once.
pub(crate) fn start(progress: &'static Progress) {
    static REGISTERED: Once = Once::new();
    progress.started.call_once(|| {
        *lock(&RUNNING) = Some((std::process::id(), progress));
        // A child of fork has it from its parent.
        REGISTERED.call_once(|| {
            // SAFETY: the function stays, and may run at any time.
            unsafe { libc::atexit(finish) };
        });
        let mut before: libc::sigset_t = zeroed();
        let mut all: libc::sigset_t = zeroed();
        // SAFETY: both sets are alive. The thread inherits that it takes no signals: they are for
        // the threads of the program.
        unsafe {
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        }
        let thread = std::thread::Builder::new().name("doorbell".into());
        let (begins, begun) = mpsc::sync_channel(1);
        let thread = thread.spawn(move || {
            // The first use of the allocator maps memory for this thread.
            drop(std::hint::black_box(Box::new(0_u64)));
            let _ = begins.send(());
            progress.run();
        });
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, &raw mut all) };
        // libfabric writes jumps over the first instructions of `munmap` and its like. A thread in
        // such a function then goes on in the middle of a jump. libfabric does so after it has
        // opened the device, so the thread must have its memory by then. Without the thread,
        // programs that poll still work.
        if thread.is_ok() {
            let _ = begun.recv_timeout(BEGIN_LIMIT);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::abi::*;
    use crate::cq::{ibv_create_cq, ibv_destroy_cq};
    use crate::device::{ibv_ack_async_event, ibv_get_async_event, ibv_get_device_list};
    use crate::memory::ibv_alloc_pd;
    use crate::open::ibv_open_device;
    use crate::qp::{ibv_create_qp, ibv_destroy_qp};
    use crate::srq::{ibv_create_srq, ibv_destroy_srq};

    /// A device whose thread runs, and whose program waits for an event.
    fn armed() -> &'static Progress {
        let device = SoftDevice::open().unwrap();
        device.connect_by_number().unwrap();
        let progress: &'static Progress = Box::leak(Box::new(Progress::new(device).unwrap()));
        std::thread::spawn(|| progress.run());
        progress.arm();
        progress
    }

    /// UCX waits for datagrams that seldom come, in a thread of its own, and polls all the time.
    #[test]
    fn a_program_that_waits_and_polls_has_the_device_to_itself_until_it_waits_anew() {
        let progress = armed();
        let until = |driven: bool| {
            let begin = Instant::now();
            while progress.driven.load(Ordering::SeqCst) != driven {
                assert!(begin.elapsed() < Duration::from_secs(60), "driven stays {}", !driven);
                (0..BUSY_LOOK).for_each(|_| count_poll());
                // As a peer would.
                ring(progress.kick.as_raw_fd());
            }
        };
        for _ in 0..20 {
            until(true);
            progress.call();
            until(false);
        }
    }

    /// UCX reads and writes remote memory, and no peer wakes the thread then.
    #[test]
    fn a_program_that_waits_and_posts_and_polls_has_the_device_to_itself() {
        let progress = armed();
        progress.call();
        let begin = Instant::now();
        let mut stood_in = false;
        while !(stood_in && progress.driven.load(Ordering::SeqCst)) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it stood in: {stood_in}");
            (0..BUSY_LOOK).for_each(|_| count_poll());
            stood_in |= progress.posted();
        }
    }

    /// A program may close descriptors that it does not know, as daemons do when they start.
    #[test]
    fn the_thread_ends_when_its_descriptors_are_gone() {
        for both in [true, false] {
            let device = SoftDevice::open().unwrap();
            device.connect_by_number().unwrap();
            let mut progress = Progress::new(device).unwrap();
            // To wait for something else is an error, as it is after a close.
            progress.all = Epoll(eventfd(0).unwrap());
            if both {
                progress.rare = Epoll(eventfd(0).unwrap());
            }
            let (done, ended) = mpsc::channel();
            std::thread::spawn(move || {
                progress.run();
                done.send(()).unwrap();
            });
            let limit = Duration::from_secs(60);
            assert!(ended.recv_timeout(limit).is_ok(), "it goes on");
        }
    }

    /// Events come for an object, of which the program gets one. Its destruction waits until that
    /// one is acknowledged, and takes the others with it.
    fn check_events_of(
        context: *mut ibv_context,
        raise: impl Fn(),
        destroy: impl FnOnce() -> c_int + Send,
    ) {
        (0..2).for_each(|_| raise());
        let mut event = ibv_async_event { element: 0, event_type: 0 };
        // SAFETY: an open context, and room for an event.
        assert_eq!(unsafe { ibv_get_async_event(context, &raw mut event) }, 0);
        std::thread::scope(|scope| {
            let destruction = scope.spawn(destroy);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!destruction.is_finished(), "the event is not acknowledged");
            // SAFETY: the event that came.
            unsafe { ibv_ack_async_event(&raw mut event) };
            assert_eq!(destruction.join().unwrap(), 0);
        });
        // SAFETY: an open context.
        let fd = unsafe { (*context).async_fd };
        let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one `pollfd`.
        assert_eq!(unsafe { libc::poll(&raw mut asked, 1, 0) }, 0, "an event is left");
    }

    #[test]
    fn no_event_names_an_object_that_is_gone() {
        let progress = crate::context::device().unwrap();
        // SAFETY: our own calls, with what they gave.
        unsafe {
            let context = ibv_open_device(*ibv_get_device_list(null_mut()));
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 4, null_mut(), null_mut(), 0);
            let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
            let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
            let srq = ibv_create_srq(pd, &raw mut init);
            let mut attr: ibv_qp_init_attr = std::mem::zeroed();
            (attr.send_cq, attr.recv_cq, attr.srq, attr.qp_type) = (cq, cq, srq, 2);
            let qp = ibv_create_qp(pd, &raw mut attr);
            let (num, cq_id, srq_id) = ((*qp).handle, (*cq).handle.into(), (*srq).handle.into());
            let (qp, srq, cq) = (qp as usize, srq as usize, cq as usize);
            let raise = || progress.raise(lock(&progress.qps).get(&num), 1);
            check_events_of(context, raise, move || ibv_destroy_qp(qp as *mut ibv_qp));
            let raise = || progress.raise(lock(&progress.srqs).get(&srq_id), 15);
            check_events_of(context, raise, move || ibv_destroy_srq(srq as *mut ibv_srq));
            let raise = || progress.raise(lock(&progress.cqs).get(&cq_id), 0);
            check_events_of(context, raise, move || ibv_destroy_cq(cq as *mut ibv_cq));
        }
    }
}
