//! Connections by GID and number: two programs exchange GID and queue pair number by means of their
//! own, and each takes its queue pair to RTR (`ibv_modify_qp`). Nobody listens or connects.
//!
//! ```text
//! the side that comes first                    the side that comes second
//!   takes the name of the pair, makes the link   finds the name taken
//!   OFFER  the link  →  the other's listener     takes the offer out of its listener
//!                                          ←     READY  its notifier
//!   BYE, or the end of the socket, either way: the peer has left
//! ```
//! What a queue pair has sent fails some time after its peer has left, as on a NIC: when all
//! retries have run out. By then a program may have all that it wanted, and be gone.
//!
//! A queue pair that is its own peer needs none of this: its link has one side, which reads what it
//! writes ([`Side::Both`](crate::Side::Both)).
//!
//! A GID names one device of one process, so a number need not be unique among processes. The first
//! side does not wait: its queue pair works at once, and what it sends stays in the link until the
//! other side has come. The name of the pair is an abstract socket, so only one side can have it.
//!
//! Peers are not trusted: an offer counts only if the kernel says that its sender is the process
//! that its GID names, and of this user.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::Gid;
use doorbell_seam::provider::wake::Notifier;

use super::files;
use super::links;
use super::offers::{LISTENER, OFFERS_MAX, Offer, Offers, WAITING, is_of};
use super::sys::{self, Epoll, READY_MAX, Received, Socket, Timer};
use super::wire::{ByNumber, MESSAGE_MAX, Message};
use crate::device::host::device_of;
use crate::{LinkShared, QpControl, Wiring};

/// How long a side waits for the other: the second for an offer that the first is just making, the
/// first for room in the listener of the second.
const OFFER_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_micros(100);
/// The most time that retries may take, in place of the 35 hours that the fields allow.
const RETRIES_MAX: Duration = Duration::from_secs(1);
/// The key of the timer.
const TIMER: u64 = u64::MAX - 2;
/// Added to the keys of the connection manager's ends.
const END: u64 = 1 << 40;
/// Peers that may connect before this side takes them; a system may allow fewer.
const BACKLOG: u32 = 4096;

/// The place where peers leave offers for the queue pairs of one device.
pub(super) struct Rendezvous {
    /// The name of the device.
    device: String,
    gid: Gid,
    /// Under the keys of `offers`, the number of a queue pair, which has 24 bits, or [`END`].
    pub(super) watch: Epoll,
    /// Rings when the retries of a pair have run out whose peer has left.
    timer: Timer,
    lists: Mutex<Lists>,
}

struct Lists {
    offers: Offers,
    /// By the number of this side's queue pair.
    pairs: HashMap<u32, Pair>,
    /// Ends of the connection manager, by their keys.
    ends: HashMap<u64, Weak<dyn HangsUp>>,
}

/// An end of the connection manager, as far as it matters here.
pub(super) trait HangsUp: Send + Sync {
    /// The peer has closed its socket. The program still gets the event when it asks for one. If
    /// the peer said BYE, only the sends that it has not taken fail; if not, the queue pair fails.
    /// Returns the queue pair, or `None` if the connection was not made yet.
    fn hung_up(&self) -> Option<QpControl>;
}

/// A queue pair that was connected.
pub(super) struct Pair {
    qp: QpControl,
    /// The device of its peer.
    peer: Gid,
    pub(super) link: Arc<LinkShared>,
    /// To the peer's process; `None` once that has ended or said goodbye, or if the queue pair is
    /// its own peer.
    socket: Option<Socket>,
    /// The process ended without a goodbye.
    pub(super) died: bool,
    /// The name of the pair, if this side bound it. Kept until the peer leaves: then the peer may
    /// bind it and connect again, even if this side has not left yet.
    name: Option<Socket>,
    /// `timeout` and `retry_cnt`, once the program has set them.
    timeout: Option<u8>,
    retry_cnt: Option<u8>,
    /// The peer has left, and retries go on until then.
    until: Option<Instant>,
}

impl Pair {
    /// The time that all retries take. A peer whose process has ended gets no retries. Its memory
    /// is still mapped here, so a READ or WRITE tried again would seem to succeed.
    fn retries(&self) -> Duration {
        let (Some(timeout), Some(count), false) = (self.timeout, self.retry_cnt, self.died) else {
            return Duration::ZERO;
        };
        let once = match timeout {
            // For ever.
            0 => RETRIES_MAX,
            power => Duration::from_nanos(4096 << power.min(31)),
        };
        (once * (u32::from(count) + 1)).min(RETRIES_MAX)
    }
}

/// A step of [`SoftDevice::try_modify_qp`](crate::SoftDevice::try_modify_qp) that may have to wait
/// for a peer. Dropping it gives back what was made for it.
#[derive(Default)]
pub struct Attempt {
    /// It fails then.
    pub(super) until: Option<Instant>,
    /// This side comes first: the name of the pair and the link, until the peer has the offer.
    pub(super) first: Option<(Socket, Arc<LinkShared>)>,
}

impl Attempt {
    /// Sleeps until the next try.
    pub fn pause(&self) {
        std::thread::sleep(PAUSE);
    }
}

/// Tells the peer that a queue pair has left it, when it is dropped. Drop it after the queue pair
/// is gone, because only then all acknowledgements have been written.
pub struct Parting(pub(super) Option<Pair>);

impl Drop for Parting {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take().and_then(|pair| pair.socket) {
            // The peer may be gone already; then nobody needs to be told.
            let _ = socket.send(&Message::Bye.encode(), &[]);
        }
    }
}

/// The name of a device's listener.
pub(super) fn listener_name(device: &str, gid: Gid) -> String {
    let mut name = format!("doorbell/{}/{device}/gid/", sys::user());
    put_hex(&mut name, &gid.0);
    name
}

/// What the first side asks for.
fn asked_of(gid: Gid) -> String {
    format!("leave an offer with the device of GID {gid}")
}

/// The name of a pair, the same on both sides.
pub(super) fn pair_name(one: (Gid, u32), other: (Gid, u32)) -> String {
    let mut name = format!("doorbell/{:x}/", sys::user());
    for (gid, qp) in [one.min(other), one.max(other)] {
        put_hex(&mut name, &gid.0);
        put_hex(&mut name, &qp.to_be_bytes()[1..]);
    }
    name
}

fn put_hex(name: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
}

impl Rendezvous {
    pub(super) fn new(device: &str, gid: Gid) -> std::io::Result<Rendezvous> {
        let (listener, watch, timer) = (Socket::new()?, Epoll::new()?, Timer::new()?);
        listener.bind(&listener_name(device, gid))?;
        listener.listen(BACKLOG)?;
        let mut offers = Offers::new(listener, OFFERS_MAX);
        offers.listen(&watch);
        watch.add(timer.fd(), TIMER)?;
        let lists = Mutex::new(Lists { offers, pairs: HashMap::new(), ends: HashMap::new() });
        Ok(Rendezvous { device: device.to_owned(), gid, watch, timer, lists })
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a queue pair to the one of that GID and number. False if the peer must do something
    /// first: try again with the same attempt.
    pub(super) fn try_connect(
        &self,
        qp: &QpControl,
        to: (Gid, u32),
        wiring: &Wiring,
        attempt: &mut Attempt,
    ) -> Result<bool, CmError> {
        let asked = || format!("connect queue pair {} to {} of {}", qp.num(), to.1, to.0);
        let here = (self.gid, qp.num());
        drop(self.take_out(qp.num()));
        if here == to {
            return self.connect_to_itself(qp, wiring).map(|()| true);
        }
        let name = pair_name(here, to);
        let until = *attempt.until.get_or_insert_with(|| Instant::now() + OFFER_LIMIT);
        if attempt.first.is_none() {
            let wanted = ByNumber { gid: to.0.0, from: to.1, to: qp.num() };
            let found = self.lists().offers.take(wanted, &self.watch);
            if let Some(offer) = found {
                return self.join(qp, offer, wiring).map(|()| true);
            }
            let socket = Socket::new().map_err(|error| CmError::from_io(asked(), &error))?;
            match socket.bind(&name) {
                Ok(()) => {
                    let link = Arc::new(links::make(device_of(to.0), None)?.of_one_pair());
                    attempt.first = Some((socket, link));
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(CmError::from_io(asked(), &error)),
            }
        }
        if let Some(first) = attempt.first.take() {
            attempt.first = self.offer(qp, to, first, wiring, until)?;
            return Ok(attempt.first.is_none());
        }
        if Instant::now() >= until {
            let answer = "the peer is connected under this number and has made no offer";
            let cure = format!(
                "take the peer's queue pair to RESET and RTR as well, or end the process that \
                 holds the name {name} of /proc/net/unix"
            );
            return Err(CmError::new(Code::TimedOut, asked(), answer).cure(cure));
        }
        Ok(false)
    }

    /// Connects a queue pair to itself: it reads what it writes, and no peer can leave.
    fn connect_to_itself(&self, qp: &QpControl, wiring: &Wiring) -> Result<(), CmError> {
        let link = Arc::new(links::make_loop(device_of(self.gid), qp.notifier())?);
        self.add(qp, (self.gid, link), None, None, wiring)
    }

    /// This side comes first: leaves an offer of the link with the peer. Gives name and link back
    /// if too many peers wait there.
    fn offer(
        &self,
        qp: &QpControl,
        (gid, num): (Gid, u32),
        (name, link): (Socket, Arc<LinkShared>),
        wiring: &Wiring,
        until: Instant,
    ) -> Result<Option<(Socket, Arc<LinkShared>)>, CmError> {
        let notifier = qp.notifier();
        let files = [link.memory().fd(), notifier.as_ref().map(Notifier::fd)];
        let files: Vec<RawFd> = files.into_iter().flatten().collect();
        let offer = ByNumber { gid: self.gid.0, from: qp.num(), to: num };
        let message = Message::ByNumber(offer).encode();
        let Some(socket) = self.call(gid, until)? else { return Ok(Some((name, link))) };
        socket.send(&message, &files).map_err(|error| CmError::from_io(asked_of(gid), &error))?;
        self.add(qp, (gid, link), Some(socket), Some(name), wiring)?;
        Ok(None)
    }

    /// Connects to the listener of another device; `None` if its backlog is full.
    fn call(&self, gid: Gid, until: Instant) -> Result<Option<Socket>, CmError> {
        let asked = || asked_of(gid);
        let failed = |error| CmError::from_io(asked(), &error);
        let socket = Socket::new().map_err(failed)?;
        if let Err(error) = socket.connect(&listener_name(&self.device, gid)) {
            return match error.kind() {
                ErrorKind::WouldBlock if Instant::now() < until => Ok(None),
                ErrorKind::WouldBlock => {
                    let answer = "too many peers wait there already";
                    Err(CmError::new(Code::TimedOut, asked(), answer)
                        .cure("see that the peer's process runs and is not stopped"))
                }
                ErrorKind::ConnectionRefused => {
                    let answer = "there is no such device, or not any more";
                    Err(CmError::new(Code::NoDevice, asked(), answer)
                        .cure("use the GID that the peer's query_gid gives"))
                }
                _ => Err(failed(error)),
            };
        }
        if !is_of(socket.peer().map_err(failed)?, gid) {
            let answer = "it is of another process or user";
            return Err(CmError::new(Code::Denied, asked(), answer)
                .cure("run both processes in one PID name space, as one user"));
        }
        Ok(Some(socket))
    }

    /// This side comes second.
    fn join(&self, qp: &QpControl, offer: Offer, wiring: &Wiring) -> Result<(), CmError> {
        let Offer { socket, what, files } = offer;
        let asked = || format!("take the offer of queue pair {}", what.from);
        let mut files = files.into_iter();
        let file = files.next().ok_or_else(|| {
            CmError::new(Code::Invalid, asked(), "it brought no descriptor of the link")
        })?;
        let peer = Gid(what.gid);
        let link = links::join(device_of(peer), file, files.next())?;
        let link = Arc::new(link.of_one_pair());
        let notifier = qp.notifier();
        let files: Vec<RawFd> = notifier.iter().map(Notifier::fd).collect();
        // If this fails the peer has left, and the next step says so.
        let _ = socket.send(&Message::Ready.encode(), &files);
        self.add(qp, (peer, link), Some(socket), None, wiring)
    }

    /// Watches whether the peer of an end of the connection manager leaves: the program may read no
    /// events.
    pub(super) fn watch_end(&self, fd: RawFd, key: u64, end: Weak<dyn HangsUp>) {
        self.lists().ends.insert(key, end);
        // If this fails, the program must read its events.
        let _ = self.watch.add_end(fd, END + key);
    }

    pub(super) fn forget_end(&self, key: u64) {
        self.lists().ends.remove(&key);
    }

    fn add(
        &self,
        qp: &QpControl,
        (peer, link): (Gid, Arc<LinkShared>),
        socket: Option<Socket>,
        name: Option<Socket>,
        wiring: &Wiring,
    ) -> Result<(), CmError> {
        let mut lists = self.lists();
        if let Some(socket) = &socket {
            self.watch
                .add(socket.fd(), qp.num().into())
                .map_err(|error| CmError::from_io("watch a connection", &error))?;
        }
        qp.attach(&link);
        qp.connect(&link, *wiring);
        let qp = qp.clone();
        let num = qp.num();
        let pair = Pair {
            qp,
            peer,
            link,
            socket,
            died: false,
            name,
            timeout: None,
            retry_cnt: None,
            until: None,
        };
        lists.pairs.insert(num, pair);
        Ok(())
    }

    /// The device of a queue pair's peer.
    pub(super) fn peer(&self, num: u32) -> Option<Gid> {
        self.lists().pairs.get(&num).map(|pair| pair.peer)
    }

    /// Tells the peer of a queue pair how often this side sends again what finds no receive.
    pub(super) fn say_rnr_retry(&self, num: u32, retries: u8) {
        if let Some(pair) = self.lists().pairs.get(&num) {
            pair.link.say_rnr_retry(retries);
        }
    }

    /// Sets how long this side waits for an acknowledgement before it sends again, as a power of
    /// two of 4.096 us, and how often it sends again, as far as they are given.
    pub(super) fn set_retries(&self, num: u32, timeout: Option<u8>, retry_cnt: Option<u8>) {
        if let Some(pair) = self.lists().pairs.get_mut(&num) {
            pair.timeout = timeout.or(pair.timeout);
            pair.retry_cnt = retry_cnt.or(pair.retry_cnt);
        }
    }

    /// Offers and peers that wait here.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.lists().offers.len()
    }

    pub(super) fn take_out(&self, num: u32) -> Option<Pair> {
        let pair = self.lists().pairs.remove(&num)?;
        self.unwatch(&pair);
        Some(pair)
    }

    /// No longer watches the socket of a pair that goes: a child process may share its file.
    fn unwatch(&self, pair: &Pair) {
        if let Some(socket) = &pair.socket {
            self.watch.remove(socket.fd());
        }
    }

    /// The file of a pair's socket, held open as by a child process.
    #[cfg(test)]
    pub(super) fn shared_with_child(&self, num: u32) -> Socket {
        let lists = self.lists();
        let socket = lists.pairs.get(&num).and_then(|pair| pair.socket.as_ref());
        socket.expect("a connected pair").shared().unwrap()
    }

    /// See [`SoftDevice::rendezvous_step`](crate::SoftDevice::rendezvous_step).
    pub(super) fn step(&self) -> Vec<QpControl> {
        let mut keys = [0; READY_MAX];
        let mut left = Vec::new();
        let Ok(keys) = self.watch.wait(Some(Duration::ZERO), &mut keys) else { return left };
        let mut lists = self.lists();
        if keys.contains(&LISTENER) || keys.contains(&WAITING) {
            lists.offers.admit(&self.watch);
        }
        if keys.contains(&WAITING) {
            lists.offers.purge(&self.watch);
        }
        let now = Instant::now();
        for key in keys {
            let Ok(num) = u32::try_from(*key) else { continue };
            let Some(pair) = lists.pairs.get_mut(&num) else { continue };
            if self.read(pair) {
                pair.until = Some(now + pair.retries());
            }
        }
        lists.pairs.retain(|_, pair| {
            let is_gone = pair.qp.is_gone();
            if is_gone {
                self.unwatch(pair);
            }
            !is_gone
        });
        for pair in lists.pairs.values_mut() {
            if pair.until.take_if(|until| *until <= now).is_some() {
                pair.qp.peer_left();
                left.push(pair.qp.clone());
            }
        }
        self.timer.set(lists.pairs.values().filter_map(|pair| pair.until).min());
        let ended = |key: &u64| lists.ends.remove(&key.checked_sub(END)?)?.upgrade();
        let ended: Vec<Arc<dyn HangsUp>> = keys.iter().filter_map(ended).collect();
        // An end takes its own lock, and then this one.
        drop(lists);
        left.extend(ended.iter().filter_map(|end| end.hung_up()));
        left
    }

    /// Reads one message of a peer. True if the peer has left.
    fn read(&self, pair: &mut Pair) -> bool {
        let Some(socket) = &pair.socket else { return false };
        let mut bytes = [0; MESSAGE_MAX];
        let (message, files) = match socket.receive(&mut bytes) {
            Ok(Received::Nothing) => return false,
            Ok(Received::Message(length, files)) => {
                (bytes.get(..length).and_then(Message::decode), files)
            }
            // Without its notifier, nobody could wake the peer.
            Ok(Received::Short(..) | Received::Closed) | Err(_) => (None, Vec::new()),
        };
        match message {
            Some(Message::Ready) => {
                match files.into_iter().next().map(files::notifier_from_peer) {
                    None => return false,
                    Some(Ok(notifier)) => {
                        pair.link.set_notifier(notifier);
                        return false;
                    }
                    // As above.
                    Some(Err(_)) => pair.died = true,
                }
            }
            Some(Message::Bye) => {}
            // Its process has ended, or it broke the protocol.
            _ => pair.died = true,
        }
        self.watch.remove(socket.fd());
        (pair.socket, pair.name) = (None, None);
        true
    }
}
