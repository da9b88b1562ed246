//! One end of a connection, or a listener: its state, and what messages and calls do to it. What
//! a call or a message changes is decided here; events go to the channel, waiting is elsewhere.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use doorbell_fabric::CmError;
use doorbell_fabric::{ConnParam, Depths, Join, PortSpace, UdParam};
use doorbell_fabric::{EventKind, Rejection};
use doorbell_fabric::{QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::QpType;
use doorbell_seam::provider::wake::Bell;

use super::DeviceInner;
use super::external::External;
use super::links::Ends;
use super::sidr;
use super::sys::{Credentials, Received, Socket};
use super::wire::{Instance, MESSAGE_MAX, Message, Place, Reply, Request, padded};
use super::{RNR_TIMER_DEFAULT, rnr_timer_ns};
use crate::{Breaker, LinkShared, Wiring};

/// How long a side waits for the other's word before it gives up; about what a kernel's
/// connection manager takes over all its retries (section 2.11).
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// How long a peer that has connected may take to say what it wants.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Pause before a full backlog is tried again (CM-4).
const BACKLOG_PAUSE: Duration = Duration::from_millis(2);

/// What the connection manager takes on RoCE: 2.1 s (QP-20).
const ACK_TIMEOUT_DEFAULT: u8 = 19;

/// Where an end stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    /// The listener's backlog is full; tried again at times, until then.
    Knocking {
        until: Instant,
    },
    Requested,
    /// The peer has accepted, and this side's queue pair, somebody else's, is not up yet.
    Answered,
    Listening,
    /// A peer has connected and not yet said what it wants.
    Unborn,
    Asked,
    Replied,
    Established,
    /// The peer has ended the connection; this side may still call disconnect (CM-10).
    HungUp,
    Closed,
}

/// What [`crate::IdOption`] has set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) reuse_addr: bool,
    pub(super) af_only: bool,
    /// What a queue pair of this id says its timeout is; nothing is ever lost here.
    pub(super) ack_timeout: u8,
}

impl Default for Options {
    fn default() -> Options {
        Options { reuse_addr: false, af_only: false, ack_timeout: ACK_TIMEOUT_DEFAULT }
    }
}

/// What happened, on its way to the channel.
#[derive(Clone)]
pub(super) struct Raised {
    pub(super) kind: EventKind,
    pub(super) status: i32,
    pub(super) data: Vec<u8>,
    /// What the peer asks for or grants, as this side sees it.
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

/// One end, shared between its id and its channel.
pub(super) struct End {
    pub(super) key: u64,
    core: Mutex<Core>,
    /// Private data the peer sent; each end gets some at most once.
    pub(super) data: OnceLock<Vec<u8>>,
    /// The depths that came with the peer's request or answer.
    pub(super) depths: OnceLock<Depths>,
    /// User data.
    context: AtomicU64,
}

/// The inside of an end.
pub(super) struct Core {
    pub(super) device: Arc<DeviceInner>,
    pub(super) space: PortSpace,
    /// The type of its queue pair.
    pub(super) kind: QpType,
    /// What its last event said of where to send datagrams.
    pub(super) ud: Option<UdParam>,
    /// The multicast groups it has joined.
    pub(super) groups: Vec<(IpAddr, Join)>,
    pub(super) state: State,
    pub(super) socket: Option<Socket>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) qp: Option<Breaker>,
    /// What this end does on behalf of a queue pair that is not its own.
    pub(super) external: External,
    pub(super) options: Options,
    /// Its channel watches the socket.
    pub(super) watched: bool,
    /// When this end gives up waiting for the other, or tries again.
    pub(super) deadline: Option<Instant>,
    /// What the peer asked for, until it is accepted.
    pub(super) request: Option<Box<Request>>,
    /// What this side asks for, until the listener has room.
    pub(super) knock: Option<Message>,
    pub(super) rnr_retry: u8,
    /// The code that the queue pair's timer was set to.
    pub(super) rnr_timer: u8,
    pub(super) depths: Depths,
    /// What wakes the domain of the peer that asks.
    pub(super) peer_bell: Option<OwnedFd>,
    pub(super) peer: Option<Credentials>,
    /// The peer's device, once it has answered.
    pub(super) peer_instance: Option<Instance>,
    pub(super) link: Option<Arc<LinkShared>>,
}

impl End {
    pub(super) fn new(device: Arc<DeviceInner>, space: PortSpace, kind: QpType) -> End {
        End::with(device, (space, kind), State::Idle, None)
    }

    /// The end of a peer that has connected to a listener and is one of this user's processes.
    pub(super) fn unborn(listener: &Core, socket: Socket) -> Option<End> {
        let peer = socket.peer().ok()?;
        if peer.uid != super::sys::user() {
            return None;
        }
        let kind = (listener.space, listener.kind);
        let end = End::with(listener.device.clone(), kind, State::Unborn, Some(socket));
        {
            let mut core = end.lock();
            core.local = listener.local;
            core.peer = Some(peer);
            core.deadline = Some(Instant::now() + REQUEST_LIMIT);
        }
        Some(end)
    }

    fn with(
        device: Arc<DeviceInner>,
        (space, kind): (PortSpace, QpType),
        state: State,
        socket: Option<Socket>,
    ) -> End {
        let key = device.next_key();
        let core = Core {
            device,
            space,
            kind,
            ud: None,
            groups: Vec::new(),
            state,
            socket,
            local: None,
            remote: None,
            qp: None,
            external: External::default(),
            options: Options::default(),
            watched: false,
            deadline: None,
            request: None,
            knock: None,
            rnr_retry: 7,
            rnr_timer: RNR_TIMER_DEFAULT,
            depths: Depths::default(),
            peer_bell: None,
            peer: None,
            peer_instance: None,
            link: None,
        };
        End {
            key,
            core: Mutex::new(core),
            data: OnceLock::new(),
            depths: OnceLock::new(),
            context: AtomicU64::new(0),
        }
    }

    pub(super) fn context(&self) -> u64 {
        // Relaxed, here and below: it says nothing about other memory.
        self.context.load(Ordering::Relaxed)
    }

    pub(super) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what the peer sent, one message; what happened, if anything did.
    pub(super) fn read(&self) -> Option<Raised> {
        let mut core = self.lock();
        let socket = core.socket.as_ref()?;
        let mut bytes = [0; MESSAGE_MAX];
        let (message, files) = match socket.receive(&mut bytes) {
            Ok(Received::Nothing) => return None,
            Ok(Received::Message(length, files)) => {
                (bytes.get(..length).and_then(Message::decode), files)
            }
            Ok(Received::Closed) | Err(_) => (None, Vec::new()),
        };
        let raised = match message {
            Some(message) => core.hear(message, files),
            // Its process is gone, or talks nonsense: either way nothing more is to be had of it.
            None => core.lose(),
        };
        let raised = raised?;
        if !raised.data.is_empty() {
            // Set at most once: a second set is refused, which is what is wanted.
            let _ = self.data.set(raised.data.clone());
        }
        if let Some(depths) = raised.depths {
            // As above.
            let _ = self.depths.set(depths);
        }
        core.ud = raised.ud.or(core.ud);
        Some(raised)
    }

    /// Does what the deadline is for, if it has passed.
    pub(super) fn expire(&self, now: Instant) -> Option<Raised> {
        let mut core = self.lock();
        if core.deadline.is_none_or(|deadline| deadline > now) {
            return None;
        }
        core.deadline = None;
        match core.state {
            State::Knocking { until } if now < until => core.knock(),
            State::Unborn => {
                core.close(State::Closed);
                None
            }
            _ if core.space.is_datagram() => Some(core.unreachable(-Code::TimedOut.errno())),
            state => {
                let goodbye = if state == State::Replied { Message::Bye } else { reject(&[]) };
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

impl Drop for End {
    /// Tells the peer what a destroyed id means for it (ID-9).
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        core.drop_external();
        let goodbye = match core.state {
            State::Asked | State::Requested => Some(reject(&[])),
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
    }
}

fn reject(data: &[u8]) -> Message {
    Message::Reject { status: Rejection::Consumer as i32, data: Box::new(padded(data)) }
}

impl Core {
    /// The socket, made when first needed.
    pub(super) fn make_socket(&mut self, asked: &str) -> Result<&Socket, CmError> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => Socket::new().map_err(|error| CmError::from_io(asked, &error))?,
        };
        Ok(self.socket.insert(socket))
    }

    /// The descriptor, if there is something to be heard on it. (One that is not connected reads
    /// as closed.)
    pub(super) fn audible(&self) -> Option<RawFd> {
        use State::{Answered, Asked, Established, Listening, Replied, Requested, Unborn};
        let audible = matches!(
            self.state,
            Requested | Answered | Listening | Unborn | Asked | Replied | Established
        );
        self.socket.as_ref().filter(|_| audible).map(Socket::fd)
    }

    /// Leaves the connection behind.
    pub(super) fn close(&mut self, state: State) {
        self.drop_external();
        self.state = state;
        self.socket = None;
        self.deadline = None;
        self.request = None;
        self.knock = None;
        self.link = None;
    }

    /// Starts to connect (`rdma_connect`).
    pub(super) fn start(&mut self, param: &ConnParam<'_>, qp: &Breaker) -> Option<Raised> {
        let (Some(local), Some(_)) = (self.local, self.remote) else { return None };
        self.rnr_retry = param.rnr_retry;
        let asked =
            Depths { responder: param.responder_resources, initiator: param.initiator_depth };
        self.depths = asked.within(self.depths_max());
        self.knock = Some(Message::Request(Box::new(Request {
            place: self.place(qp),
            qp: qp.num(),
            from: local,
            depths: self.depths,
            directory: self.device.directory,
            data: padded(param.private_data),
        })));
        self.state = State::Knocking { until: Instant::now() + ANSWER_LIMIT };
        self.knock()
    }

    /// Tries every name the listener may have.
    pub(super) fn knock(&mut self) -> Option<Raised> {
        let (Some(to), Some(socket)) = (self.remote, &self.socket) else { return None };
        for name in super::place::names_for(&self.place_name(), to) {
            match socket.connect(&name) {
                Ok(()) => return self.knocked(),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // The backlog is full: as on a lossy wire, the request is sent again (CM-4).
                    self.deadline = Some(Instant::now() + BACKLOG_PAUSE);
                    return None;
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(5);
                    return Some(self.give_up(EventKind::ConnectError, -errno));
                }
            }
        }
        Some(match self.space.is_datagram() {
            true => self.unreachable(sidr::UNSUPPORTED),
            false => self.give_up(EventKind::Rejected, Rejection::NoListener as i32),
        })
    }

    /// The listener has room: checks whose it is and sends the request.
    fn knocked(&mut self) -> Option<Raised> {
        let (Some(socket), Some(message)) = (&self.socket, self.knock.take()) else { return None };
        match socket.peer() {
            Ok(peer) if peer.uid == super::sys::user() => self.peer = Some(peer),
            _ => {
                let status = -Code::Denied.errno();
                return Some(self.give_up(EventKind::ConnectError, status));
            }
        }
        // If this fails the peer has hung up already, and the next read says so.
        let bell = self.qp.as_ref().and_then(Breaker::bell);
        let files: Vec<RawFd> = bell.iter().map(Bell::fd).collect();
        let _ = socket.send(&message.encode(), &files);
        self.state = State::Requested;
        self.deadline = Some(Instant::now() + ANSWER_LIMIT);
        None
    }

    /// Connecting has failed: the queue pair goes to ERR (QP-22).
    fn give_up(&mut self, kind: EventKind, status: i32) -> Raised {
        if let Some(qp) = self.qp.as_ref().filter(|_| !self.space.is_datagram()) {
            qp.fail();
        }
        self.close(State::Closed);
        Raised::failed(kind, status)
    }

    /// Accepts the request (`rdma_accept`): the queue pair is connected before the answer goes
    /// out, since the peer may send as soon as it has it. One that is not the id's was by its
    /// owner.
    pub(super) fn accept(&mut self, param: &ConnParam<'_>, qp: &Breaker) -> Result<(), CmError> {
        let asked = "accept a connection request";
        let (Some(request), Some(peer)) = (self.request.take(), self.peer) else {
            return Err(CmError::new(Code::Invalid, asked, "there is none"));
        };
        let here = self.place(qp);
        let ends = Ends { peer_pid: peer.pid, peer: request.place, here };
        let (offer, joined) = match self.external.offered.take() {
            Some((offer, _)) => (offer, true),
            None => {
                let (links, bell) = (&self.device.links, self.peer_bell.take());
                (links.offer(ends, request.directory, bell, qp)?, false)
            }
        };
        let wanted = request.depths.swapped();
        let most = self.depths_max();
        self.depths =
            Depths { responder: param.responder_resources, initiator: param.initiator_depth }
                .within(Depths {
                    responder: wanted.responder.min(most.responder),
                    initiator: wanted.initiator.min(most.initiator),
                });
        self.rnr_retry = param.rnr_retry;
        if !joined {
            qp.connect(&offer.link, self.wiring(request.qp));
        }
        let reply = Message::Reply(Box::new(Reply {
            place: here,
            qp: qp.num(),
            link: offer.id,
            maker: offer.maker,
            depths: self.depths,
            directory: self.device.directory,
            data: padded(param.private_data),
        }));
        if let Some(socket) = &self.socket {
            // If this fails the peer has hung up already, and the next read says how.
            let bell = qp.bell();
            let files = [offer.link.memory().fd(), bell.as_ref().map(Bell::fd)];
            let files: Vec<RawFd> = files.into_iter().flatten().collect();
            let _ = socket.send(&reply.encode(), &files);
        }
        self.link = Some(offer.link);
        self.state = State::Replied;
        self.deadline = Some(Instant::now() + ANSWER_LIMIT);
        Ok(())
    }

    /// Rejects the request (`rdma_reject`).
    pub(super) fn reject(&mut self, data: &[u8]) {
        if let Some(socket) = &self.socket {
            // The peer may be gone already; then nobody needs to be told.
            let _ = socket.send(&reject(data).encode(), &[]);
        }
        self.close(State::Closed);
    }

    /// Ends the connection (`rdma_disconnect`). The goodbye cannot be lost, so nobody waits for
    /// an answer to it.
    pub(super) fn hang_up(&mut self) -> Raised {
        if let Some(socket) = &self.socket {
            // The peer may be gone already; then nobody needs to be told.
            let _ = socket.send(&Message::Bye.encode(), &[]);
        }
        self.close(State::Closed);
        Raised::plain(EventKind::Disconnected)
    }

    pub(super) fn place(&self, qp: &Breaker) -> Place {
        let (domain, queue) = qp.place();
        Place { instance: self.device.instance, domain, queue }
    }

    /// The most this device serves and has in flight.
    pub(super) fn depths_max(&self) -> Depths {
        let most = self.device.rd_atomic_max();
        Depths { responder: most, initiator: most }
    }

    /// What a query of the id's own queue pair says.
    pub(super) fn fields(&self) -> QpFields {
        let state = match self.state {
            _ if self.space.is_datagram() => QpState::Rts,
            State::Established | State::Replied | State::HungUp => QpState::Rts,
            State::Closed => QpState::Err,
            _ => QpState::Init,
        };
        let up = state == QpState::Rts;
        QpFields {
            state: Some(state),
            min_rnr_timer: up.then_some(self.rnr_timer),
            timeout: up.then_some(self.options.ack_timeout),
            max_rd_atomic: up.then_some(self.depths.initiator),
            max_dest_rd_atomic: up.then_some(self.depths.responder),
            ..QpFields::default()
        }
    }

    fn wiring(&self, peer: u32) -> Wiring {
        Wiring {
            peer,
            peer_rnr_retry: self.rnr_retry,
            rnr_timer_ns: rnr_timer_ns(RNR_TIMER_DEFAULT).unwrap_or_default(),
            initiator_depth: self.depths.initiator,
            responder_depth: self.depths.responder,
        }
    }

    /// A message has come.
    fn hear(&mut self, message: Message, files: Vec<OwnedFd>) -> Option<Raised> {
        if self.space.is_datagram() {
            return self.hear_of_datagrams(message);
        }
        match (self.state, message) {
            (State::Unborn, Message::Request(request)) => {
                self.state = State::Asked;
                self.deadline = None;
                self.remote = Some(request.from);
                let data = request.data.to_vec();
                let depths = Some(request.depths.swapped());
                self.request = Some(request);
                self.peer_bell = files.into_iter().next();
                Some(Raised { data, depths, ..Raised::plain(EventKind::ConnectRequest) })
            }
            (State::Requested, Message::Reply(reply)) => Some(self.establish(&reply, files)),
            (State::Replied, Message::Ready) => {
                self.state = State::Established;
                self.deadline = None;
                Some(Raised::plain(EventKind::Established))
            }
            (state @ (State::Requested | State::Asked | State::Replied), message) => {
                let (status, data) = match message {
                    Message::Reject { status, data } => (status, data.to_vec()),
                    // A peer that says goodbye before it began has no reason to give.
                    Message::Bye => (Rejection::Consumer as i32, Vec::new()),
                    _ => return self.lose(),
                };
                if let (State::Replied, Some(link)) = (state, &self.link) {
                    // The peer never took its end.
                    link.release_end();
                }
                let raised = self.give_up(EventKind::Rejected, status);
                Some(Raised { data, ..raised })
            }
            (State::Established | State::Answered, Message::Bye) => {
                self.close(State::HungUp);
                Some(Raised::plain(EventKind::Disconnected))
            }
            _ => self.lose(),
        }
    }

    /// The passive side has accepted.
    fn establish(&mut self, reply: &Reply, files: Vec<OwnedFd>) -> Raised {
        let external = self.external.asks_for.clone();
        let (Some(qp), Some(peer)) = (external.clone().or(self.qp.clone()), self.peer) else {
            return self.give_up(EventKind::ConnectError, -Code::Invalid.errno());
        };
        let ends = Ends { peer_pid: peer.pid, peer: reply.place, here: self.place(&qp) };
        let link = match self.device.links.take(ends, reply, files, &qp) {
            Ok(link) => link,
            Err(error) => {
                if let Some(socket) = &self.socket {
                    // As in `hang_up`.
                    let _ = socket.send(&reject(&[]).encode(), &[]);
                }
                return self.give_up(EventKind::ConnectError, -error.code().errno());
            }
        };
        let granted = reply.depths.swapped();
        self.depths = granted.within(self.depths_max());
        let (data, depths) = (reply.data.to_vec(), Some(granted));
        self.deadline = None;
        if external.is_some() {
            self.link = Some(link);
            self.external.unwired = true;
            self.external.answer = Some(reply.qp);
            self.peer_instance = Some(reply.place.instance);
            self.state = State::Answered;
            return Raised { data, depths, ..Raised::plain(EventKind::ConnectResponse) };
        }
        qp.connect(&link, self.wiring(reply.qp));
        self.link = Some(link);
        self.ready();
        Raised { data, depths, ..Raised::plain(EventKind::Established) }
    }

    /// Tells the peer that this side is up.
    pub(super) fn ready(&mut self) {
        if let Some(socket) = &self.socket {
            // If this fails the peer is gone, and the next read says so.
            let _ = socket.send(&Message::Ready.encode(), &[]);
        }
        self.state = State::Established;
    }

    /// The peer's process is gone, or broke the rules.
    pub(super) fn lose(&mut self) -> Option<Raised> {
        if self.space.is_datagram() {
            return self.lose_lookup();
        }
        let state = self.state;
        self.fail_lost();
        self.close(State::Closed);
        match state {
            State::Requested | State::Asked => {
                // What is seen of a listener that was destroyed with the request in its backlog.
                Some(Raised::failed(EventKind::Rejected, Rejection::Consumer as i32))
            }
            State::Replied => Some(Raised::failed(EventKind::ConnectError, -Code::Reset.errno())),
            State::Established | State::Answered => {
                self.state = State::HungUp;
                Some(Raised::failed(EventKind::Disconnected, -Code::Reset.errno()))
            }
            _ => None,
        }
    }

    fn fail_lost(&mut self) {
        if let Some(link) = self.link.take() {
            link.peer_gone();
        }
        if let Some(qp) = &self.qp {
            qp.fail_lost();
        }
    }
}
