//! Connections: how calls and messages change an end. The channel takes the events; the ids wait.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use doorbell_fabric::CmError;
use doorbell_fabric::{ACK_TIMEOUT_MAX, ConnParam, Depths};
use doorbell_fabric::{EventKind, Rejection};
use doorbell_fabric::{QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::wake::Notifier;

use super::clock::{RNR_TIMER_DEFAULT, rnr_timer_ns};
use super::end::{ACK_TIMEOUT_DEFAULT, ANSWER_LIMIT, Core, Raised, State};
use super::links::Ends;
use super::place;
use super::sidr;
use super::sys;
use super::wire::{Message, Place, Reply, Request, padded};
use crate::{QpControl, Wiring};

/// Pause before a full backlog is tried again (CM-4), or a peer for which there is no descriptor.
pub(super) const BACKLOG_PAUSE: Duration = Duration::from_millis(2);

/// The error of a process that could not take a descriptor.
fn out_of_files(asked: &str) -> CmError {
    let error = std::io::Error::from_raw_os_error(libc::EMFILE);
    CmError::from_io(asked, &error)
}

impl Core {
    /// Starts to connect (`rdma_connect`).
    pub(super) fn start(&mut self, param: &ConnParam<'_>, qp: &QpControl) -> Option<Raised> {
        let (Some(local), Some(_)) = (self.local, self.remote) else { return None };
        (self.retry_count, self.rnr_retry) = (param.retry_count, param.rnr_retry);
        let asked =
            Depths { responder: param.responder_resources, initiator: param.initiator_depth };
        self.depths = asked.within(self.depths_max());
        self.pending_request = Some(Message::Request(Box::new(Request {
            place: self.place(qp),
            qp: qp.num(),
            from: local,
            depths: self.depths,
            retry_count: param.retry_count,
            rnr_retry: param.rnr_retry,
            directory: self.device.directory,
            data: padded(param.private_data),
        })));
        self.state = State::Connecting { since: Instant::now() };
        self.try_connect()
    }

    /// Tries every name that the listener may have.
    pub(super) fn try_connect(&mut self) -> Option<Raised> {
        let (Some(to), Some(socket)) = (self.remote, &self.socket) else { return None };
        for name in place::names_for(&self.place_name(), to) {
            match socket.connect(&name) {
                Ok(()) => return self.socket_connected(),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    // The backlog is full: send the request again, as on a lossy wire (CM-4).
                    self.deadline = Some(Instant::now() + BACKLOG_PAUSE);
                    return None;
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(5);
                    return Some(self.give_up(EventKind::ConnectError, -errno));
                }
            }
        }
        if self.may_try_for(Duration::ZERO, Instant::now()) {
            self.deadline = Some(Instant::now() + BACKLOG_PAUSE);
            return None;
        }
        Some(match self.space.is_datagram() {
            true => self.unreachable(sidr::UNSUPPORTED),
            false => self.give_up(EventKind::Rejected, Rejection::NoListener as i32),
        })
    }

    /// True if the wait for a listener ([`super::SoftDevice::wait_for_listeners`]) and this much
    /// more are not over.
    pub(super) fn may_try_for(&self, more: Duration, now: Instant) -> bool {
        let State::Connecting { since } = self.state else { return false };
        let patience = self.device.patience.get().copied().unwrap_or_default();
        since.checked_add(patience.saturating_add(more)).is_none_or(|end| now < end)
    }

    /// The listener has room: checks that it is of this user, and sends the request.
    fn socket_connected(&mut self) -> Option<Raised> {
        let (Some(socket), Some(message)) = (&self.socket, self.pending_request.take()) else {
            return None;
        };
        match socket.peer() {
            Ok(peer) if peer.uid == sys::user() => self.peer = Some(peer),
            _ => {
                let status = -Code::Denied.errno();
                return Some(self.give_up(EventKind::ConnectError, status));
            }
        }
        // If this fails the peer has hung up already, and the next read says so.
        let qp = self.external.qp.as_ref().or(self.living_qp());
        let notifier = qp.and_then(QpControl::notifier);
        let files: Vec<RawFd> = notifier.iter().map(Notifier::fd).collect();
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

    /// Accepts the request (`rdma_accept`). The queue pair is connected before the answer is sent,
    /// because the peer may send as soon as it has the answer. The owner of a queue pair without an
    /// id has connected it already, on its way to RTR.
    pub(super) fn accept(&mut self, param: &ConnParam<'_>, qp: &QpControl) -> Result<(), CmError> {
        let asked = "accept a connection request";
        if self.short_of_files {
            // This cannot be repaired. The program rejects the request and may say why, or drops
            // the id, which rejects it too; then the peer may ask again.
            return Err(out_of_files(asked));
        }
        // It stays until this side has answered: after an error, the program may accept again.
        let (Some(request), Some(peer)) = (&self.request, self.peer) else {
            return Err(CmError::new(Code::Invalid, asked, "there is none")
                .cure("take the id from a CONNECT_REQUEST event, and accept it once"));
        };
        let here = self.place(qp);
        let ends = Ends { peer_pid: peer.pid, peer: request.place, here };
        let (offer, joined) = match self.external.offered.take() {
            Some((offer, _)) => (offer, true),
            None => {
                let notifier = self.peer_notifier.as_ref().map(AsFd::as_fd);
                (self.device.links.offer(ends, request.directory, notifier, qp)?, false)
            }
        };
        let (peer_qp, wanted) = (request.qp, request.depths.swapped());
        let most = self.depths_max();
        self.depths =
            Depths { responder: param.responder_resources, initiator: param.initiator_depth }
                .within(Depths {
                    responder: wanted.responder.min(most.responder),
                    initiator: wanted.initiator.min(most.initiator),
                });
        self.rnr_retry = param.rnr_retry;
        if joined {
            // Its owner took it to RTR before this was known.
            qp.set_rnr_retry(self.rnr_retry);
            self.external.qp = Some(qp.clone());
        } else {
            qp.connect(&offer.link, self.wiring(peer_qp));
        }
        let reply = Message::Reply(Box::new(Reply {
            place: here,
            qp: qp.num(),
            link: offer.id,
            maker: offer.maker,
            depths: self.depths,
            rnr_retry: param.rnr_retry,
            directory: self.device.directory,
            data: padded(param.private_data),
        }));
        if let Some(socket) = &self.socket {
            // If this fails the peer has hung up already, and the next read says how.
            let notifier = qp.notifier();
            let files = [offer.file(), notifier.as_ref().map(Notifier::fd)];
            let files: Vec<RawFd> = files.into_iter().flatten().collect();
            let _ = socket.send(&reply.encode(), &files);
        }
        (self.request, self.peer_notifier) = (None, None);
        self.link = Some(offer.link);
        self.state = State::Replied;
        self.deadline = Some(Instant::now() + ANSWER_LIMIT);
        Ok(())
    }

    /// Rejects the request (`rdma_reject`).
    pub(super) fn reject(&mut self, data: &[u8]) {
        if let Some(socket) = &self.socket {
            // The peer may be gone already; then nobody needs to be told.
            let _ = socket.send(&Message::reject(data).encode(), &[]);
        }
        self.close(State::Closed);
    }

    /// Ends the connection (`rdma_disconnect`). The message cannot be lost, so this side does not
    /// wait for an answer.
    pub(super) fn hang_up(&mut self) -> Raised {
        if let Some(socket) = &self.socket {
            // The peer may be gone already; then nobody needs to be told.
            let _ = socket.send(&Message::Bye.encode(), &[]);
        }
        self.close(State::Closed);
        Raised::plain(EventKind::Disconnected)
    }

    /// How long after its end a connection of a NIC may still have packets on the wire: the ACK
    /// timeout, as in the kernel. Here there are none, but programs wait for the event that comes
    /// then, and expect it behind the events of the end.
    pub(super) fn timewait(&self) -> Duration {
        let code = match self.options.ack_timeout {
            0 => ACK_TIMEOUT_DEFAULT,
            code => code,
        };
        Duration::from_nanos(4096 << code.min(ACK_TIMEOUT_MAX))
    }

    pub(super) fn place(&self, qp: &QpControl) -> Place {
        let (domain, queue) = qp.place();
        Place { instance: self.device.instance, domain, queue }
    }

    /// The largest depths of this device.
    pub(super) fn depths_max(&self) -> Depths {
        let most = self.device.rd_atomic_max();
        Depths { responder: most, initiator: most }
    }

    /// The fields that a query of the id's own queue pair returns.
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

    /// Handles a message.
    pub(super) fn receive(&mut self, message: Message, files: Vec<OwnedFd>) -> Option<Raised> {
        if self.space.is_datagram() {
            return self.receive_lookup(message);
        }
        match (self.state, message) {
            (State::Incoming, Message::Request(request)) => {
                self.state = State::Asked;
                self.deadline = None;
                self.remote = Some(request.from);
                let data = request.data.to_vec();
                let depths = Some(request.depths.swapped());
                self.request = Some(request);
                self.peer_notifier = files.into_iter().next();
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
                    // A peer that leaves before it was connected gives no reason.
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
        let external = self.external.qp.clone();
        let (Some(qp), Some(peer)) = (external.clone().or(self.qp.clone()), self.peer) else {
            return self.give_up(EventKind::ConnectError, -Code::Invalid.errno());
        };
        let ends = Ends { peer_pid: peer.pid, peer: reply.place, here: self.place(&qp) };
        let link = match self.short_of_files {
            true => Err(out_of_files("take the link of the peer that accepted")),
            false => self.device.links.take(ends, reply, files, &qp),
        };
        let link = match link {
            Ok(link) => link,
            Err(error) => {
                if let Some(socket) = &self.socket {
                    // As in `hang_up`.
                    let _ = socket.send(&Message::reject(&[]).encode(), &[]);
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

    /// The peer's process has ended, or broke the protocol.
    pub(super) fn lose(&mut self) -> Option<Raised> {
        if self.space.is_datagram() {
            return self.lose_lookup();
        }
        let state = self.state;
        self.fail_lost();
        self.close(State::Closed);
        match state {
            State::Requested | State::Asked => {
                // The listener was destroyed with the request in its backlog.
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

    pub(super) fn fail_lost(&mut self) {
        if let Some(link) = self.link.take() {
            link.peer_gone();
        }
        if let Some(qp) = &self.qp {
            qp.fail_lost();
        }
    }
}
