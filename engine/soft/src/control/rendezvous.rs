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
//! A GID names one device of one process, so a number need not be unique among processes. The first
//! side does not wait: its queue pair works at once, and what it sends stays in the link until the
//! other side has come. The name of the pair is an abstract socket, so only one side can have it.
//!
//! Peers are not trusted: an offer counts only if the kernel says that its sender is the process
//! that its GID names, and of this user.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::ErrorKind;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_fabric::{CmError, Credentials};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Gid;
use doorbell_seam::provider::wake::Notifier;

use super::files;
use super::links;
use super::sys::{self, Epoll, READY_MAX, Received, Socket};
use super::wire::{ByNumber, MESSAGE_MAX, Message};
use crate::device::host::device_of;
use crate::{LinkShared, QpControl, Wiring};

/// How long the second side waits for an offer that the first is just making.
const OFFER_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two looks for it.
const PAUSE: Duration = Duration::from_micros(100);
/// Offers that wait to be taken; further ones are refused.
const OFFERS_MAX: usize = 4096;
/// Peers that have connected and not said a word; the oldest gives way.
const SILENT_MAX: usize = 32;
/// The key of the listener; other keys are numbers of queue pairs, which have 24 bits.
const LISTENER: u64 = u64::MAX;

/// The place where peers leave offers for the queue pairs of one device.
pub(super) struct Rendezvous {
    /// The name of the device.
    device: String,
    gid: Gid,
    listener: Socket,
    pub(super) watch: Epoll,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    silent: Vec<(Socket, Credentials)>,
    offers: Vec<Offer>,
    /// By the number of this side's queue pair.
    pairs: HashMap<u32, Pair>,
}

/// A link that a peer has made.
struct Offer {
    socket: Socket,
    what: ByNumber,
    files: Vec<OwnedFd>,
}

/// A queue pair that was connected.
pub(super) struct Pair {
    qp: QpControl,
    pub(super) link: Arc<LinkShared>,
    /// To the peer's process; `None` once that has ended or said goodbye.
    socket: Option<Socket>,
    /// The process ended without a goodbye.
    pub(super) died: bool,
    /// The name of the pair, if this side came first, until the peer leaves: it may come again
    /// before this side has left.
    name: Option<Socket>,
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

/// The name of a pair, the same on both sides.
fn pair_name(one: (Gid, u32), other: (Gid, u32)) -> String {
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
        let (listener, watch) = (Socket::new()?, Epoll::new()?);
        listener.bind(&listener_name(device, gid))?;
        listener.listen(OFFERS_MAX as u32)?;
        watch.add(listener.fd(), LISTENER)?;
        let device = device.to_owned();
        Ok(Rendezvous { device, gid, listener, watch, lists: Mutex::default() })
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects a queue pair to the one of that GID and number.
    pub(super) fn connect(
        &self,
        qp: &QpControl,
        to: (Gid, u32),
        wiring: &Wiring,
    ) -> Result<(), CmError> {
        let asked = || format!("connect queue pair {} to {} of {}", qp.num(), to.1, to.0);
        let here = (self.gid, qp.num());
        if here == to {
            let answer = "a queue pair cannot be its own peer";
            return Err(CmError::new(Code::NotSupported, asked(), answer));
        }
        drop(self.take_out(qp.num()));
        let name = pair_name(here, to);
        let until = Instant::now() + OFFER_LIMIT;
        loop {
            if let Some(offer) = self.take_offer(qp.num(), to) {
                return self.join(qp, offer, wiring);
            }
            let socket = Socket::new().map_err(|error| CmError::from_io(asked(), &error))?;
            match socket.bind(&name) {
                Ok(()) => return self.offer(qp, to, socket, wiring),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(CmError::from_io(asked(), &error)),
            }
            if Instant::now() >= until {
                let answer = "the peer is connected under this number and has made no offer";
                return Err(CmError::new(Code::TimedOut, asked(), answer)
                    .cure("take the peer's queue pair to RESET and RTR as well"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// This side comes first: makes the link, and leaves an offer with the peer.
    fn offer(
        &self,
        qp: &QpControl,
        (gid, num): (Gid, u32),
        name: Socket,
        wiring: &Wiring,
    ) -> Result<(), CmError> {
        let asked = || format!("leave an offer with the device of GID {gid}");
        let peer = device_of(gid);
        let socket = Socket::new().map_err(|error| CmError::from_io(asked(), &error))?;
        let to = listener_name(&self.device, gid);
        socket.connect(&to).map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => {
                CmError::new(Code::NoDevice, asked(), "there is no such device, or not any more")
                    .cure("use the GID that the peer's query_gid gives")
            }
            _ => CmError::from_io(asked(), &error),
        })?;
        let found = socket.peer().map_err(|error| CmError::from_io(asked(), &error))?;
        if !is_of(found, gid) {
            let answer = "it is of another process or user";
            return Err(CmError::new(Code::Denied, asked(), answer));
        }
        let link = Arc::new(links::make(peer, None)?);
        let notifier = qp.notifier();
        let files = [link.memory().fd(), notifier.as_ref().map(Notifier::fd)];
        let files: Vec<RawFd> = files.into_iter().flatten().collect();
        let offer = ByNumber { gid: self.gid.0, from: qp.num(), to: num };
        socket
            .send(&Message::ByNumber(offer).encode(), &files)
            .map_err(|error| CmError::from_io(asked(), &error))?;
        self.add(qp, link, socket, Some(name), wiring)
    }

    /// This side comes second.
    fn join(&self, qp: &QpControl, offer: Offer, wiring: &Wiring) -> Result<(), CmError> {
        let Offer { socket, what, files } = offer;
        let asked = || format!("take the offer of queue pair {}", what.from);
        let mut files = files.into_iter();
        let file = files.next().ok_or_else(|| {
            CmError::new(Code::Invalid, asked(), "it brought no descriptor of the link")
        })?;
        let link = Arc::new(links::join(device_of(Gid(what.gid)), file, files.next())?);
        let notifier = qp.notifier();
        let files: Vec<RawFd> = notifier.iter().map(Notifier::fd).collect();
        // If this fails the peer has left, and the next step says so.
        let _ = socket.send(&Message::Ready.encode(), &files);
        self.add(qp, link, socket, None, wiring)
    }

    fn add(
        &self,
        qp: &QpControl,
        link: Arc<LinkShared>,
        socket: Socket,
        name: Option<Socket>,
        wiring: &Wiring,
    ) -> Result<(), CmError> {
        let mut lists = self.lists();
        self.watch
            .add(socket.fd(), qp.num().into())
            .map_err(|error| CmError::from_io("watch a connection", &error))?;
        qp.attach(&link);
        qp.connect(&link, *wiring);
        let qp = qp.clone();
        let num = qp.num();
        let pair = Pair { qp, link, socket: Some(socket), died: false, name };
        lists.pairs.insert(num, pair);
        Ok(())
    }

    pub(super) fn take_out(&self, num: u32) -> Option<Pair> {
        let pair = self.lists().pairs.remove(&num)?;
        if let Some(socket) = &pair.socket {
            self.watch.remove(socket.fd());
        }
        Some(pair)
    }

    /// The offer of that peer for that queue pair. One whose maker has left does not count.
    fn take_offer(&self, num: u32, (gid, from): (Gid, u32)) -> Option<Offer> {
        let wanted = ByNumber { gid: gid.0, from, to: num };
        let mut lists = self.lists();
        self.admit(&mut lists);
        while let Some(at) = lists.offers.iter().position(|offer| offer.what == wanted) {
            let offer = lists.offers.remove(at);
            if matches!(offer.socket.receive(&mut [0; MESSAGE_MAX]), Ok(Received::Nothing)) {
                return Some(offer);
            }
        }
        None
    }

    /// Takes the peers that have connected to the listener, and reads their offers.
    fn admit(&self, lists: &mut Lists) {
        while let Ok(Some(socket)) = self.listener.accept() {
            if let Ok(peer) = socket.peer()
                && peer.uid == sys::user()
            {
                lists.silent.push((socket, peer));
            }
        }
        let before = std::mem::take(&mut lists.silent);
        for (socket, peer) in before {
            let mut bytes = [0; MESSAGE_MAX];
            let (message, files) = match socket.receive(&mut bytes) {
                Ok(Received::Nothing) => {
                    lists.silent.push((socket, peer));
                    continue;
                }
                Ok(Received::Message(length, files)) => {
                    (bytes.get(..length).and_then(Message::decode), files)
                }
                // Closed, broken, or without its files.
                _ => continue,
            };
            let Some(Message::ByNumber(what)) = message else { continue };
            if is_of(peer, Gid(what.gid)) && lists.offers.len() < OFFERS_MAX {
                lists.offers.push(Offer { socket, what, files });
            }
        }
        let beyond = lists.silent.len().saturating_sub(SILENT_MAX);
        lists.silent.drain(..beyond);
    }

    /// See [`SoftDevice::rendezvous_step`](crate::SoftDevice::rendezvous_step).
    pub(super) fn step(&self) -> Vec<u32> {
        let mut keys = [0; READY_MAX];
        let mut left = Vec::new();
        let Ok(keys) = self.watch.wait(Some(Duration::ZERO), &mut keys) else { return left };
        let mut lists = self.lists();
        for key in keys {
            if *key == LISTENER {
                self.admit(&mut lists);
                continue;
            }
            let Ok(num) = u32::try_from(*key) else { continue };
            let Some(pair) = lists.pairs.get_mut(&num) else { continue };
            if self.read(pair) {
                pair.qp.peer_left();
                left.push(num);
            }
        }
        lists.pairs.retain(|_, pair| !pair.qp.is_gone());
        left
    }

    /// Reads one message of a peer. True if the peer has left.
    fn read(&self, pair: &mut Pair) -> bool {
        let Some(socket) = &pair.socket else { return false };
        let mut bytes = [0; MESSAGE_MAX];
        let (message, files) = match socket.receive(&mut bytes) {
            Ok(Received::Nothing) => return false,
            Ok(Received::Message(length, files) | Received::Short(length, files)) => {
                (bytes.get(..length).and_then(Message::decode), files)
            }
            Ok(Received::Closed) | Err(_) => (None, Vec::new()),
        };
        match message {
            Some(Message::Ready) => {
                let notifier = files.into_iter().next().and_then(files::notifier_from_peer);
                if let Some(notifier) = notifier {
                    pair.link.set_notifier(notifier);
                }
                return false;
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

/// True if that process of this user has the device of that GID.
fn is_of(peer: Credentials, gid: Gid) -> bool {
    peer.uid == sys::user() && peer.pid == device_of(gid).0
}
