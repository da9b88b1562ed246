//! Progress without polls of the program. The soft device does a NIC's work in polls; a program
//! that sleeps, or watches memory, makes none. So each process has one thread that polls in its
//! place.
//!
//! While the program polls by itself, the thread only looks each millisecond whether it still does.
//! Otherwise it sleeps until a peer rings, does the work, goes on for a moment, and sleeps again.
#![expect(unsafe_code, reason = "epoll, and objects of the program")]

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use doorbell_seam::event::{AsyncEvent, Object as Subject};
use doorbell_seam::provider::{AsyncEvents, Poller, Provider, Sharing};
use doorbell_soft::{SoftDevice, SoftPoller};
use libc::c_int;

use crate::abi::{ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::border::{Errno, lock, object};
use crate::cq::Cq;
use crate::device::context;
use crate::events::{clear, eventfd, last, ring};
use crate::qp::Qp;

/// The polls of the program, all threads and queues.
pub(crate) static POLLS: AtomicUsize = AtomicUsize::new(0);

/// How often the thread looks whether the program still polls, in milliseconds.
const LOOK_MS: c_int = 1;
/// Polls within that time that show that the program polls by itself.
const BUSY_LOOK: usize = 50;
/// How long the thread goes on after it was woken.
const GO_ON: Duration = Duration::from_micros(50);
/// Polls within that time that show the same.
const BUSY_GO_ON: usize = 20;

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
    /// Addresses of objects of the program.
    pub(crate) contexts: Mutex<Vec<usize>>,
    pub(crate) cqs: Mutex<HashMap<u64, usize>>,
    pub(crate) qps: Mutex<HashMap<u32, usize>>,
    pub(crate) srqs: Mutex<HashMap<u64, usize>>,
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

    /// The keys that are ready; waits for that many milliseconds, or for ever if negative.
    fn wait(&self, millis: c_int) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let (epoll, most) = (self.0.as_raw_fd(), events.len() as c_int);
        // SAFETY: there is room for as many events.
        let got = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, millis) };
        let ready = events.iter().take(usize::try_from(got).unwrap_or(0));
        ready.map(|event| event.u64).collect()
    }
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
            contexts: Mutex::default(),
            cqs: Mutex::default(),
            qps: Mutex::default(),
            srqs: Mutex::default(),
        })
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

    /// The thread must not sleep its millisecond now.
    pub(crate) fn call(&self) {
        if self.driven.load(Ordering::SeqCst) {
            ring(self.kick.as_raw_fd());
        }
    }

    /// A completion queue is not waited for any more.
    pub(crate) fn disarm(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    /// The program has posted something. Its completion may come without a peer, who would wake
    /// this process: if the program waits for it, it must be made now.
    pub(crate) fn posted(&self) {
        if self.armed.load(Ordering::SeqCst) > 0 {
            self.work();
        }
    }

    /// Does the work that there is.
    pub(crate) fn work(&self) {
        lock(&self.own).poll(&mut []);
    }

    fn run(&self) {
        loop {
            self.driven.store(true, Ordering::SeqCst);
            loop {
                let before = POLLS.load(Ordering::Relaxed);
                if !self.rare.wait(LOOK_MS).is_empty() {
                    self.attend();
                }
                let polls = POLLS.load(Ordering::Relaxed).wrapping_sub(before);
                if self.armed.load(Ordering::SeqCst) > 0 || polls < BUSY_LOOK {
                    break;
                }
            }
            self.driven.store(false, Ordering::SeqCst);
            // It has notifiers, as seen when it was made.
            let _ = lock(&self.own).arm(false);
            self.work();
            self.attend();
            self.stand_in();
        }
    }

    /// Does the work in place of the program, until that polls by itself.
    fn stand_in(&self) {
        loop {
            if self.all.wait(-1).contains(&WORK) {
                lock(&self.own).woken();
            }
            self.attend();
            let (before, since) = (POLLS.load(Ordering::Relaxed), Instant::now());
            while since.elapsed() < GO_ON {
                self.work();
            }
            self.attend();
            let polls = POLLS.load(Ordering::Relaxed).wrapping_sub(before);
            if self.armed.load(Ordering::SeqCst) == 0 && polls >= BUSY_GO_ON {
                return;
            }
        }
    }

    /// Attends to everything but work.
    fn attend(&self) {
        for key in self.rare.wait(0) {
            match key {
                KICK => clear(self.kick.as_raw_fd()),
                PEERS => self.attend_peers(),
                EVENTS => self.attend_events(),
                id => self.attend_cq(id),
            }
        }
    }

    fn attend_peers(&self) {
        for num in self.device.rendezvous_step() {
            let qps = lock(&self.qps);
            let Some(at) = qps.get(&num) else { continue };
            // SAFETY: it leaves the list before it is destroyed, and the list is locked.
            if let Ok(qp) = unsafe { object::<Qp>(*at as *mut ibv_qp) } {
                qp.own.peer_left();
            }
        }
    }

    /// A completion queue that the program waits for may have an entry.
    fn attend_cq(&self, id: u64) {
        let cqs = lock(&self.cqs);
        let Some(at) = cqs.get(&id) else { return };
        let at = *at as *mut ibv_cq;
        // SAFETY: as in `attend_peers`.
        if let Ok(cq) = unsafe { object::<Cq>(at) } {
            cq.own.wake(at, self);
        }
    }

    fn attend_events(&self) {
        while let Some(AsyncEvent { kind, object: subject }) = self.device.next_async_event() {
            let event_type = kind as c_int;
            match subject {
                Subject::Device => self.raise_all(0, event_type),
                Subject::Port(port) => self.raise_all(port.into(), event_type),
                Subject::Qp(num) => {
                    let qps = lock(&self.qps);
                    let Some(at) = qps.get(&num) else { continue };
                    // SAFETY: as in `attend_peers`; the program does not change its context.
                    self.raise(unsafe { (*(*at as *mut ibv_qp)).context }, *at, event_type);
                }
                Subject::Cq(id) => {
                    let cqs = lock(&self.cqs);
                    let Some(at) = cqs.get(&id) else { continue };
                    // SAFETY: as above.
                    self.raise(unsafe { (*(*at as *mut ibv_cq)).context }, *at, event_type);
                }
                Subject::Srq(id) => {
                    let srqs = lock(&self.srqs);
                    let Some(at) = srqs.get(&id) else { continue };
                    // SAFETY: as above.
                    self.raise(unsafe { (*(*at as *mut ibv_srq)).context }, *at, event_type);
                }
                _ => {}
            }
        }
    }

    fn raise_all(&self, element: usize, event_type: c_int) {
        for at in lock(&self.contexts).iter() {
            raise_in(*at as *mut ibv_context, element, event_type);
        }
    }

    fn raise(&self, of: *mut ibv_context, element: usize, event_type: c_int) {
        let contexts = lock(&self.contexts);
        if contexts.contains(&(of as usize)) {
            raise_in(of, element, event_type);
        }
    }
}

/// Queues an event for a context that is in the list, which is locked.
fn raise_in(at: *mut ibv_context, element: usize, event_type: c_int) {
    // SAFETY: it leaves the list before it is closed.
    if let Ok(open) = unsafe { context(at) } {
        open.own.events.push(ibv_async_event { element, event_type });
    }
}

/// The device whose thread runs, for the end of the process.
static RUNNING: Mutex<Option<&'static Progress>> = Mutex::new(None);

/// Tells peers how far this process has read, before it ends.
extern "C" fn finish() {
    let running = RUNNING.try_lock().ok().and_then(|running| *running);
    if let Some(mut own) = running.and_then(|progress| progress.own.try_lock().ok()) {
        for _ in 0..2 {
            own.poll(&mut []);
        }
    }
}

/// Starts the thread of the device, once.
pub(crate) fn start(progress: &'static Progress) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        *lock(&RUNNING) = Some(progress);
        // SAFETY: the function stays, and may run at any time.
        unsafe { libc::atexit(finish) };
        let mut before: libc::sigset_t = crate::device::zeroed();
        let mut all: libc::sigset_t = crate::device::zeroed();
        // SAFETY: both sets are alive. The thread inherits that it takes no signals: they are for
        // the threads of the program.
        unsafe {
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        }
        let thread = std::thread::Builder::new().name("doorbell".into());
        // Without it, programs that poll still work.
        let _ = thread.spawn(|| progress.run());
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, &raw mut all) };
    });
}
