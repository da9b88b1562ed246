//! One end of a connection, or a listener: its state, and what it does when its socket becomes
//! readable or its deadline passes.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use doorbell_fabric::{CmError, Credentials, Depths, EventKind, Join, PortSpace, UdParam};
use doorbell_seam::error::Code;
use doorbell_seam::provider::QpType;

use super::clock::RNR_TIMER_DEFAULT;
use super::device::DeviceInner;
use super::links::Offer;
use super::rendezvous::HangsUp;
use super::spare::Accepted;
use super::sys::{self, Epoll, Received, Socket};
use super::wire::{Instance, MESSAGE_MAX, Message, PeerQp, Request};
use crate::{LinkShared, QpControl};

/// How long a side waits for the other's answer: about as long as a kernel's connection manager
/// takes for all its retries.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How long a peer that has connected may take to send its request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The code of librdmacm on RoCE: 2.1 s (QP-20).
pub(super) const ACK_TIMEOUT_DEFAULT: u8 = 19;

/// The state of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    /// Nobody listens yet, or the listener's backlog is full. The end tries again.
    Connecting {
        since: Instant,
    },
    Requested,
    /// The peer has accepted. This side's queue pair belongs to no id and is not up yet.
    Answered,
    Listening,
    /// A peer has connected and has not sent its request.
    Incoming,
    Asked,
    Replied,
    Established,
    /// The peer has ended the connection; this side may still call disconnect (CM-10).
    HungUp,
    Closed,
}

/// Values set by [`doorbell_fabric::IdOption`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) reuse_addr: bool,
    pub(super) af_only: bool,
    /// The timeout that the id's queue pair reports. It has no effect: no packet is ever lost here.
    pub(super) ack_timeout: u8,
}

impl Default for Options {
    fn default() -> Options {
        Options { reuse_addr: false, af_only: false, ack_timeout: ACK_TIMEOUT_DEFAULT }
    }
}

/// An event on its way to the channel.
#[derive(Clone)]
pub(super) struct Raised {
    pub(super) kind: EventKind,
    pub(super) status: i32,
    pub(super) data: Vec<u8>,
    /// The depths that the peer asks for or grants, as this side sees them.
    pub(super) depths: Option<Depths>,
    /// Where to send datagrams.
    pub(super) ud: Option<UdParam>,
    pub(super) request: Option<Arc<End>>,
}

impl Raised {
    pub(super) fn plain(kind: EventKind) -> Raised {
        Raised { kind, status: 0, data: Vec::new(), depths: None, ud: None, request: None }
    }

    pub(super) fn failed(kind: EventKind, status: i32) -> Raised {
        Raised { status, ..Raised::plain(kind) }
    }
}

/// The part of an end for a queue pair that belongs to no id.
#[derive(Default)]
pub(super) struct External {
    /// The queue pair on whose behalf this end connects or accepts.
    pub(super) qp: Option<QpControl>,
    /// The peer's queue pair, once it has answered.
    pub(super) answer: Option<u32>,
    /// The link of the answer is not joined to the queue pair yet.
    pub(super) unwired: bool,
    /// The link made for the queue pair of that number, before the request is accepted.
    pub(super) offered: Option<(Offer, u32)>,
    /// The number of the first packet, which was given out with the fields.
    pub(super) psn: Option<u32>,
}

/// One end, shared between its id and its channel.
pub(super) struct End {
    pub(super) key: u64,
    core: Mutex<Core>,
    /// The private data of the peer, which it sends at most once.
    pub(super) data: OnceLock<Vec<u8>>,
    /// The depths that came with the peer's request or answer.
    pub(super) depths: OnceLock<Depths>,
    /// The peer's queue pair, which came with them.
    pub(super) peer_qp: OnceLock<PeerQp>,
    /// User data.
    context: AtomicU64,
}

/// The state of an end, under its lock.
pub(super) struct Core {
    pub(super) device: Arc<DeviceInner>,
    pub(super) space: PortSpace,
    /// The type of its queue pair.
    pub(super) kind: QpType,
    /// Where to send datagrams, by its last event.
    pub(super) ud: Option<UdParam>,
    /// The event of the last call of a synchronous id.
    pub(super) taken: Option<Raised>,
    /// A thread waits in a call on a synchronous id, with nothing locked.
    pub(super) is_waited: bool,
    /// The multicast groups it has joined.
    pub(super) groups: Vec<(IpAddr, Join)>,
    pub(super) state: State,
    pub(super) socket: Option<Socket>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) qp: Option<QpControl>,
    /// The part for a queue pair that belongs to no id.
    pub(super) external: External,
    pub(super) options: Options,
    /// The epoll of the channel that has this end.
    pub(super) channel: Option<Arc<Epoll>>,
    /// It watches the socket.
    pub(super) watched: bool,
    /// When this end stops waiting for the other, or tries again.
    pub(super) deadline: Option<Instant>,
    /// The peer's request, until it is accepted.
    pub(super) request: Option<Box<Request>>,
    /// This side's request, until the listener has room.
    pub(super) pending_request: Option<Message>,
    /// The program's own figures, by its connect or accept.
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// The code last set for the queue pair's timer.
    pub(super) rnr_timer: u8,
    pub(super) depths: Depths,
    /// This process had no descriptor left for the connection: it is refused.
    pub(super) short_of_files: bool,
    /// The notifier of the connecting peer's domain.
    pub(super) peer_notifier: Option<OwnedFd>,
    pub(super) peer: Option<Credentials>,
    /// The peer's device, once it has answered.
    pub(super) peer_instance: Option<Instance>,
    pub(super) link: Option<Arc<LinkShared>>,
}

impl End {
    pub(super) fn new(device: Arc<DeviceInner>, space: PortSpace, kind: QpType) -> End {
        End::with(device, space, kind, State::Idle)
    }

    /// The end of a peer that has connected to a listener and is one of this user's processes.
    pub(super) fn incoming(listener: &Core, accepted: Accepted) -> Option<End> {
        let Accepted { socket, last } = accepted;
        let peer = socket.peer().ok()?;
        if peer.uid != sys::user() {
            return None;
        }
        let device = listener.device.clone();
        let end = End::with(device, listener.space, listener.kind, State::Incoming);
        {
            let mut core = end.lock();
            core.socket = Some(socket);
            core.local = listener.local;
            core.peer = Some(peer);
            core.short_of_files = last;
            core.deadline = Some(Instant::now() + REQUEST_LIMIT);
        }
        Some(end)
    }

    fn with(device: Arc<DeviceInner>, space: PortSpace, kind: QpType, state: State) -> End {
        let key = device.next_key();
        let core = Core {
            device,
            space,
            kind,
            ud: None,
            taken: None,
            is_waited: false,
            groups: Vec::new(),
            state,
            socket: None,
            local: None,
            remote: None,
            qp: None,
            external: External::default(),
            options: Options::default(),
            channel: None,
            watched: false,
            deadline: None,
            request: None,
            pending_request: None,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: RNR_TIMER_DEFAULT,
            depths: Depths::default(),
            short_of_files: false,
            peer_notifier: None,
            peer: None,
            peer_instance: None,
            link: None,
        };
        End {
            key,
            core: Mutex::new(core),
            data: OnceLock::new(),
            depths: OnceLock::new(),
            peer_qp: OnceLock::new(),
            context: AtomicU64::new(0),
        }
    }

    pub(super) fn context(&self) -> u64 {
        // Relaxed, here and below: it orders no other memory.
        self.context.load(Ordering::Relaxed)
    }

    pub(super) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads one message of the peer. Returns the event, if there is one.
    pub(super) fn read(&self) -> Option<Raised> {
        let mut core = self.lock();
        let socket = core.socket.as_ref()?;
        let mut bytes = [0; MESSAGE_MAX];
        let received = socket.receive(&mut bytes);
        core.short_of_files |= matches!(received, Ok(Received::Short(..)));
        let (message, files) = match received {
            Ok(Received::Nothing) => return None,
            Ok(Received::Message(length, files) | Received::Short(length, files)) => {
                (bytes.get(..length).and_then(Message::decode), files)
            }
            Ok(Received::Closed) | Err(_) => (None, Vec::new()),
        };
        let raised = match message {
            Some(message) => {
                if let Some(qp) = message.qp() {
                    // The first one counts: a second is refused.
                    let _ = self.peer_qp.set(qp);
                }
                core.receive(message, files)
            }
            // Its process has ended, or it broke the protocol: there is nothing more to read.
            None => core.lose(),
        };
        let raised = raised?;
        if !raised.data.is_empty() {
            // As above.
            let _ = self.data.set(raised.data.clone());
        }
        if let Some(depths) = raised.depths {
            // As above.
            let _ = self.depths.set(depths);
        }
        core.ud = raised.ud.or(core.ud);
        Some(raised)
    }

    /// Acts on the deadline, if it has passed.
    pub(super) fn expire(&self, now: Instant) -> Option<Raised> {
        let mut core = self.lock();
        if core.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        core.deadline = None;
        match core.state {
            State::Connecting { .. } if core.may_try_for(ANSWER_LIMIT, now) => core.try_connect(),
            State::Incoming => {
                core.close(State::Closed);
                None
            }
            // Its channel watches it again.
            State::Listening => None,
            State::Closed => Some(Raised::plain(EventKind::TimewaitExit)),
            _ if core.space.is_datagram() => Some(core.unreachable(-Code::TimedOut.errno())),
            state => {
                let goodbye =
                    if state == State::Replied { Message::Bye } else { Message::reject(&[]) };
                if let Some(socket) = &core.socket {
                    // The peer may be gone already; then nobody needs to be told.
                    let _ = socket.send(&goodbye.encode(), &[]);
                }
                core.fail_lost();
                core.close(State::Closed);
                let status = -Code::TimedOut.errno();
                Some(Raised::failed(EventKind::Unreachable, status))
            }
        }
    }
}

impl HangsUp for End {
    fn hung_up(&self) -> Option<QpControl> {
        let mut core = self.lock();
        let (mut bytes, socket) = ([0; MESSAGE_MAX], core.socket.as_ref()?);
        let mut look = |before| {
            let length = socket.peek(before, &mut bytes)?;
            Some((Message::decode(bytes.get(..length)?)?, length))
        };
        let mut next = look(0);
        if let (State::Replied, Some((Message::Ready, length))) = (core.state, &next) {
            // The program has not read yet that the peer was up.
            next = look(*length);
        }
        let is_external = core.external.qp.is_some();
        let qp = core.external.qp.clone().or_else(|| core.living_qp().cloned())?;
        match (core.state, next.map(|(message, _)| message)) {
            // It has ended the connection, and this side may still receive what came before.
            (State::Replied | State::Established, Some(Message::Bye)) => qp.peer_hung_up(),
            (State::Replied | State::Established, _) if !is_external => core.fail_lost(),
            (State::Replied | State::Established, _) => qp.peer_left(),
            _ => return None,
        }
        Some(qp)
    }
}

impl Drop for End {
    /// Tells the peer that the id is destroyed (ID-9).
    fn drop(&mut self) {
        let key = self.key;
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(rendezvous) = core.device.rendezvous.get() {
            rendezvous.forget_end(key);
        }
        core.drop_external();
        if let (State::Listening, Some(socket)) = (core.state, &core.socket) {
            socket.stop_listening();
        }
        let goodbye = match core.state {
            State::Asked | State::Requested => Some(Message::reject(&[])),
            State::Replied | State::Answered | State::Established => Some(Message::Bye),
            _ => None,
        };
        if let (Some(goodbye), Some(socket)) = (goodbye, &core.socket) {
            if matches!(core.state, State::Replied | State::Established) {
                // Its queue pair may still be in use: the device would tear it down (ID-9).
                if let Some(qp) = &core.qp {
                    qp.fail();
                }
            }
            // The peer may be gone already; then nobody needs to be told.
            let _ = socket.send(&goodbye.encode(), &[]);
        }
        core.drop_socket();
    }
}

impl Core {
    /// The socket, made at its first use.
    pub(super) fn make_socket(&mut self, asked: &str) -> Result<&Socket, CmError> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::new().map_err(|error| CmError::from_io(asked, &error))?,
        };
        Ok(self.socket.insert(socket))
    }

    /// The descriptor, if the peer may write to it. (A socket that is not connected reads as
    /// closed.)
    pub(super) fn watchable(&self) -> Option<RawFd> {
        use State::{Answered, Asked, Established, Incoming, Listening, Replied, Requested};
        let watchable = matches!(
            self.state,
            Requested | Answered | Listening | Incoming | Asked | Replied | Established
        );
        self.socket.as_ref().filter(|_| watchable).map(Socket::fd)
    }

    /// The id's queue pair, unless it is gone.
    pub(super) fn living_qp(&self) -> Option<&QpControl> {
        self.qp.as_ref().filter(|qp| !qp.is_gone())
    }

    /// Its channel no longer watches the socket.
    pub(super) fn unwatch(&mut self) {
        if let (true, Some(epoll), Some(socket)) = (self.watched, &self.channel, &self.socket) {
            epoll.remove(socket.fd());
        }
        self.watched = false;
    }

    /// Closes the socket. A child process may share its file, so nobody may watch it any more.
    fn drop_socket(&mut self) {
        self.unwatch();
        if let (Some(socket), Some(rendezvous)) = (self.socket.take(), self.device.rendezvous.get())
        {
            rendezvous.watch.remove(socket.fd());
        }
    }

    /// Closes the connection.
    pub(super) fn close(&mut self, state: State) {
        self.drop_external();
        self.state = state;
        self.drop_socket();
        self.deadline = None;
        self.request = None;
        self.pending_request = None;
        self.link = None;
    }
}
