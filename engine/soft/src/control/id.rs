//! Communication identifiers of the soft device: the calls, and for synchronous ids the waiting.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

use doorbell_fabric::CmError;
use doorbell_fabric::{
    ACK_TIMEOUT_MAX, ConnParam, Credentials, Depths, IdOption, Join, PortSpace, QpAttr, UDP_QKEY,
    UdParam,
};
use doorbell_fabric::{CmId, Event, EventKind, IdKey};
use doorbell_fabric::{QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{ProtectionDomains, QpType};

use super::channel::{Inner, SoftChannel};
use super::clock::rnr_timer_ns;
use super::device::{DeviceInner, SoftDevice};
use super::end::{Core, End, Raised, State};
use super::sys::Socket;
use super::wire::PeerQp;
use super::{external, place};
use crate::{QpControl, SoftQp, SoftXrcd};

/// The most requests that wait at a listener (CM-4).
const BACKLOG_MAX: u32 = 1024;

/// A communication identifier of the soft device. Dropping it ends its connection.
pub struct SoftId {
    pub(super) end: Arc<End>,
    channel: Arc<Inner>,
    synchronous: bool,
}

impl SoftId {
    pub(super) fn new(
        device: &Arc<DeviceInner>,
        channel: Option<&Arc<Inner>>,
        space: PortSpace,
        kind: QpType,
    ) -> Result<SoftId, CmError> {
        let (channel, synchronous) = match channel {
            Some(channel) => (channel.clone(), false),
            None => (Arc::new(Inner::new(false)?), true),
        };
        let end = Arc::new(End::new(device.clone(), space, kind));
        channel.join(&end)?;
        Ok(SoftId { end, channel, synchronous })
    }

    /// An id for an end that its channel knows.
    pub(super) fn over(end: Arc<End>, channel: Arc<Inner>, synchronous: bool) -> SoftId {
        SoftId { end, channel, synchronous }
    }

    /// Raises the event of a call. That of a synchronous id returns the result itself.
    fn answer(&self, raised: Raised) {
        if self.synchronous {
            self.end.lock().taken = Some(raised);
        } else {
            self.channel.raise(self.end.key, raised);
        }
    }

    /// There is only one route.
    fn take_route(&self, asked: &str) -> Result<(), CmError> {
        let mut core = self.end.lock();
        if core.state != State::AddrResolved {
            return Err(wrong_state(asked, core.state, "AddrResolved"));
        }
        core.state = State::RouteResolved;
        drop(core);
        self.answer(Raised::plain(EventKind::RouteResolved));
        Ok(())
    }

    /// Does the part of a connect that waits for nothing: with `qp` that of [`CmId::connect_with`],
    /// otherwise that of [`CmId::connect`]. A synchronous id has a waiter for the rest.
    ///
    /// # Errors
    /// As for these calls.
    pub fn begin_connect(
        &mut self,
        param: &ConnParam<'_>,
        qp: Option<QpControl>,
    ) -> Result<Option<Waiter>, CmError> {
        let mut core = self.end.lock();
        let to = core.remote.map_or_else(|| "nowhere".to_owned(), |to| to.to_string());
        let asked = format!("connect to {to}");
        if core.state != State::RouteResolved {
            return Err(wrong_state(&asked, core.state, "RouteResolved (CM-7)"));
        }
        check(&asked, param, core.space.connect_data_max(), &core)?;
        if core.space.is_datagram() {
            core.make_socket(&asked)?;
            let raised = core.look_up(param);
            return self.finish_request(core, raised, &asked, EventKind::Established);
        }
        core.external.qp = qp.clone();
        let wanted = if qp.is_some() { EventKind::ConnectResponse } else { EventKind::Established };
        let qp = qp.map_or_else(|| queue_pair(&asked, &core), Ok)?;
        core.make_socket(&asked)?;
        let raised = core.start(param, &qp);
        self.finish_request(core, raised, &asked, wanted)
    }

    /// The request is sent, or has failed at once.
    fn finish_request(
        &self,
        core: MutexGuard<'_, Core>,
        raised: Option<Raised>,
        asked: &str,
        wanted: EventKind,
    ) -> Result<Option<Waiter>, CmError> {
        drop(core);
        if let Some(raised) = raised {
            self.channel.raise(self.end.key, raised);
        }
        self.channel.watch(&self.end)?;
        Ok(self.waiter(asked, wanted))
    }

    /// Does the part of an accept that waits for nothing: with `qp` that of
    /// [`CmId::accept_with`], otherwise that of [`CmId::accept`]. A synchronous id has a waiter for
    /// the rest.
    ///
    /// # Errors
    /// As for these calls.
    pub fn begin_accept(
        &mut self,
        param: &ConnParam<'_>,
        qp: Option<QpControl>,
    ) -> Result<Option<Waiter>, CmError> {
        let asked = "accept a connection request";
        let mut core = self.end.lock();
        if core.state != State::Asked {
            return Err(wrong_state(asked, core.state, "Asked"));
        }
        check(asked, param, core.space.accept_data_max(), &core)?;
        if core.space.is_datagram() {
            // No event follows (CM-14).
            let qp_num = qp.map_or(param.qp_num, |qp| qp.num());
            return core.answer_lookup(&ConnParam { qp_num, ..*param }).map(|()| None);
        }
        let joined = core.external.offered.as_ref().map(|(_, num)| *num);
        if joined != qp.as_ref().map(QpControl::num) {
            let answer = "the queue pair is not the one that was taken to RTS for it (CM-12)";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        let qp = qp.map_or_else(|| queue_pair(asked, &core), Ok)?;
        core.accept(param, &qp)?;
        drop(core);
        self.channel.watch(&self.end)?;
        Ok(self.waiter(asked, EventKind::Established))
    }

    /// The peer's queue pair, once its request or answer has come.
    pub fn peer_qp(&self) -> Option<PeerQp> {
        self.end.peer_qp.get().copied()
    }

    /// A synchronous call waits by it for that event. `None`: the id has an event channel.
    fn waiter(&self, asked: &str, wanted: EventKind) -> Option<Waiter> {
        self.synchronous.then(|| Waiter {
            end: Waited::new(&self.end),
            channel: self.channel.clone(),
            asked: asked.to_owned(),
            wanted,
        })
    }

    /// The requests of this synchronous listener, for [`CmId::get_request`] while other threads use
    /// the id.
    ///
    /// # Errors
    /// As for that call.
    pub fn requests(&self) -> Result<Requests, CmError> {
        let asked = "get a connection request";
        if !self.synchronous {
            let answer = "the id has an event channel (EP-11)";
            return Err(CmError::new(Code::Invalid, asked, answer)
                .cure("take ConnectRequest from the channel"));
        }
        let state = self.end.lock().state;
        if state != State::Listening {
            return Err(wrong_state(asked, state, "Listening"));
        }
        Ok(Requests { end: Waited::new(&self.end), channel: self.channel.clone() })
    }

    /// The event of the last call of this synchronous id, also if it has made the call fail; the
    /// first one of an id from [`CmId::get_request`] is `ConnectRequest`. It is returned once.
    pub fn taken_event(&mut self) -> Option<Event<SoftDevice>> {
        let raised = self.end.lock().taken.take()?;
        Some(raised.event(self.end.key, self.end.context(), None))
    }
}

/// The end that a thread waits for. It is busy meanwhile for calls that would strand the thread. It
/// may go meanwhile, with its id.
struct Waited(Weak<End>);

impl Waited {
    fn new(end: &Arc<End>) -> Waited {
        end.lock().is_waited = true;
        Waited(Arc::downgrade(end))
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        if let Some(end) = self.0.upgrade() {
            end.lock().is_waited = false;
        }
    }
}

/// What a call on a synchronous id waits for. Other threads may use the id meanwhile. They cannot
/// end or move its connection.
#[must_use = "the call has an outcome"]
pub struct Waiter {
    end: Waited,
    channel: Arc<Inner>,
    asked: String,
    wanted: EventKind,
}

impl Waiter {
    /// Waits for the event that the call wants, or for one that excludes it.
    ///
    /// # Errors
    /// Those of the call: see [`SoftId::begin_connect`] and [`SoftId::begin_accept`].
    pub fn wait(self) -> Result<(), CmError> {
        let Waiter { end, channel, asked, wanted } = self;
        loop {
            let Some((_, raised)) = channel.next(None)? else { continue };
            if let Some(end) = end.0.upgrade() {
                end.lock().taken = Some(raised.clone());
            }
            match raised.kind {
                kind if kind == wanted => return Ok(()),
                // Of an earlier connection, before the id became synchronous.
                EventKind::TimewaitExit => {}
                EventKind::Disconnected => {
                    let answer = "the peer ended the connection";
                    return Err(CmError::new(Code::Reset, asked, answer));
                }
                kind => return Err(CmError::of_event(asked, kind, raised.status)),
            }
        }
    }
}

/// Waits for the rest of a call, if it has one.
fn finish(begun: Option<Waiter>) -> Result<(), CmError> {
    begun.map_or(Ok(()), Waiter::wait)
}

/// The requests of a synchronous listener. One thread at a time waits for one.
pub struct Requests {
    end: Waited,
    channel: Arc<Inner>,
}

impl Requests {
    /// See [`CmId::get_request`].
    ///
    /// # Errors
    /// As for that call.
    pub fn next(&mut self, limit: Option<Duration>) -> Result<SoftId, CmError> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
            let Some((_, mut raised)) = self.channel.next(rest)? else {
                let text = format!("none came within {:?}", limit.unwrap_or_default());
                return Err(CmError::new(Code::TimedOut, "get a connection request", text));
            };
            let Some(end) = raised.request.take() else { continue };
            end.lock().taken = Some(raised);
            end.set_context(self.end.0.upgrade().map_or(0, |listener| listener.context()));
            // From here on it has a channel of its own (MG-5).
            let channel = Arc::new(Inner::new(false)?);
            self.channel.hand_over(&end, &channel)?;
            return Ok(SoftId::over(end, channel, true));
        }
    }
}

impl Drop for SoftId {
    fn drop(&mut self) {
        self.channel.leave(&self.end);
    }
}

/// Refuses a call that would strand a thread: its event would not come any more.
fn check_waited(asked: &str, core: &Core) -> Result<(), CmError> {
    match core.is_waited {
        true => Err(CmError::new(Code::Busy, asked, "another thread waits in a call on this id")
            .cure("wait until that call has returned")),
        false => Ok(()),
    }
}

fn new_socket(asked: &str) -> Result<Socket, CmError> {
    Socket::new().map_err(|error| CmError::from_io(asked, &error))
}

fn wrong_state(asked: &str, state: State, want: &str) -> CmError {
    CmError::new(Code::Invalid, asked, format!("the id is {state:?}, not {want}"))
}

/// Checks the parameters of connect and accept (CM-5, CM-8).
fn check(asked: &str, param: &ConnParam<'_>, data_max: usize, core: &Core) -> Result<(), CmError> {
    let depth = core.device.rd_atomic_max();
    let invalid = |answer: String| Err(CmError::new(Code::Invalid, asked, answer));
    check_data(asked, param.private_data, data_max)?;
    for (name, wanted) in [
        ("responder_resources", param.responder_resources),
        ("initiator_depth", param.initiator_depth),
    ] {
        if wanted != u8::MAX && wanted > depth {
            return invalid(format!("{name} {wanted} is over the device's {depth} (255: all)"));
        }
    }
    for (name, wanted) in [("retry_count", param.retry_count), ("rnr_retry", param.rnr_retry)] {
        if wanted > 7 {
            return invalid(format!("{name} is {wanted}; it has three bits, 7 is the most"));
        }
    }
    Ok(())
}

fn check_data(asked: &str, data: &[u8], max: usize) -> Result<(), CmError> {
    if data.len() > max {
        let answer = format!("{} bytes of private data; at most {max} fit", data.len());
        return Err(CmError::new(Code::Invalid, asked, answer));
    }
    Ok(())
}

/// The queue pair of an id that is about to be connected.
fn queue_pair(asked: &str, core: &Core) -> Result<QpControl, CmError> {
    core.living_qp().cloned().ok_or_else(|| {
        CmError::new(Code::Invalid, asked, "the id has no queue pair").cure("make one first")
    })
}

impl Core {
    /// Fails if the id cannot have a queue pair of that type now.
    fn check_new_qp(&self, kind: QpType) -> Result<(), CmError> {
        let asked = "make the queue pair of an id";
        if self.state == State::Idle {
            return Err(CmError::new(Code::Invalid, asked, "the id is bound to no device (QP-2)")
                .cure("bind it or resolve an address first"));
        }
        if self.living_qp().is_some() {
            return Err(CmError::new(Code::Invalid, asked, "the id has one already (QP-11)"));
        }
        // An id of RC may have a UC queue pair, which is then connected like an RC one.
        let ours = if kind == QpType::Uc { QpType::Rc } else { kind };
        if ours != self.kind {
            let answer = format!("{kind:?} is not for an id of {:?} (QP-14)", self.kind);
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        Ok(())
    }
}

/// Gives an end a local address.
fn claim(core: &mut Core, asked: &str, addr: SocketAddr) -> Result<(), CmError> {
    let name = core.place_name();
    place::check_local(asked, &core.device.name, addr.ip())?;
    let options = core.options;
    let addr = if options.reuse_addr && addr.port() != 0 {
        // Others may have it too; only a listener claims it alone.
        place::claim(&new_socket(asked)?, &name, addr, options.af_only)?
    } else {
        let socket = core.make_socket(asked)?;
        place::claim(socket, &name, addr, options.af_only)?
    };
    core.local = Some(addr);
    Ok(())
}

impl AsFd for SoftId {
    /// The descriptor of the id's channel. That of a synchronous id is its own. It is readable
    /// while a call has something to take: a listener's, when a peer has connected.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl CmId<SoftDevice> for SoftId {
    fn key(&self) -> IdKey {
        IdKey(self.end.key)
    }

    fn space(&self) -> PortSpace {
        self.end.lock().space
    }

    fn qp_type(&self) -> QpType {
        self.end.lock().kind
    }

    fn context(&self) -> u64 {
        self.end.context()
    }

    fn set_context(&mut self, context: u64) {
        self.end.set_context(context);
    }

    fn migrate(&mut self, channel: Option<&SoftChannel>) -> Result<(), CmError> {
        let to = match channel {
            Some(channel) => channel.0.clone(),
            None if self.synchronous => {
                let answer = "the id is synchronous already (MG-2)";
                return Err(CmError::new(Code::Invalid, "make an id synchronous", answer));
            }
            None => Arc::new(Inner::new(false)?),
        };
        {
            let mut core = self.end.lock();
            check_waited("move an id to another channel", &core)?;
            core.taken = None;
        }
        if !Arc::ptr_eq(&self.channel, &to) {
            self.channel.hand_over(&self.end, &to)?;
            self.channel = to;
        }
        self.synchronous = channel.is_none();
        Ok(())
    }

    fn set_option(&mut self, option: IdOption) -> Result<(), CmError> {
        let asked = || format!("set {option:?}");
        let mut core = self.end.lock();
        let state = core.state;
        match option {
            // There are no packets, so the type of service has no effect.
            IdOption::Tos(_) => {}
            IdOption::ReuseAddr(on) if state == State::Idle => core.options.reuse_addr = on,
            IdOption::AfOnly(on) if state == State::Idle => core.options.af_only = on,
            IdOption::ReuseAddr(_) | IdOption::AfOnly(_) => {
                return Err(wrong_state(&asked(), state, "new (CM-16)"));
            }
            IdOption::AckTimeout(code) if code > ACK_TIMEOUT_MAX => {
                let answer = format!("codes go up to {ACK_TIMEOUT_MAX} (RC-2)");
                return Err(CmError::new(Code::Invalid, asked(), answer));
            }
            IdOption::AckTimeout(code) => core.options.ack_timeout = code,
            IdOption::IbPath(_) => {
                drop(core);
                return self.take_route(&asked());
            }
        }
        Ok(())
    }

    fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError> {
        let asked = format!("bind to {addr}");
        let mut core = self.end.lock();
        if core.state != State::Idle {
            return Err(wrong_state(&asked, core.state, "new"));
        }
        claim(&mut core, &asked, addr)?;
        core.state = State::Bound;
        Ok(())
    }

    fn resolve_addr(
        &mut self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        _limit: Duration,
    ) -> Result<(), CmError> {
        let asked = format!("resolve {to}");
        let mut core = self.end.lock();
        let bound = core.state == State::Bound;
        if core.state != State::Idle && !bound {
            return Err(wrong_state(&asked, core.state, "new or bound"));
        }
        let to = match to.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to.port())
            }
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
                SocketAddr::new(Ipv6Addr::LOCALHOST.into(), to.port())
            }
            _ => to,
        };
        let group = core.space.is_datagram() && to.ip().is_multicast();
        if !group {
            place::check_local(&asked, &core.device.name, to.ip())?;
        }
        if !bound {
            claim(&mut core, &asked, from.unwrap_or(place::source_for(to)))?;
        }
        core.remote = Some(to);
        core.state = State::AddrResolved;
        drop(core);
        self.answer(Raised::plain(EventKind::AddrResolved));
        Ok(())
    }

    fn resolve_route(&mut self, limit: Duration) -> Result<(), CmError> {
        let asked = "resolve the route";
        if limit.is_zero() {
            return Err(CmError::new(Code::Invalid, asked, "the time limit is zero (CM-3)"));
        }
        self.take_route(asked)
    }

    fn create_qp(
        &mut self,
        pd: &SoftDevice,
        attr: &QpAttr<'_, SoftDevice>,
    ) -> Result<SoftQp, CmError> {
        let mut core = self.end.lock();
        core.check_new_qp(attr.kind)?;
        if !pd.1.is_same_device(&core.device.soft) {
            let answer = "the protection domain is of another device (QP-2)";
            return Err(CmError::new(Code::Invalid, "make the queue pair of an id", answer));
        }
        let qp = external::create(pd, attr)?;
        if attr.kind == QpType::Ud {
            // It takes sends at once (QP-4).
            qp.control().set_qkey(UDP_QKEY);
            qp.control().open();
        }
        core.qp = Some(qp.control());
        Ok(qp)
    }

    fn create_xrc_recv(&mut self, xrcd: &SoftXrcd) -> Result<SoftQp, CmError> {
        let mut core = self.end.lock();
        core.check_new_qp(QpType::XrcRecv)?;
        let qp = core.device.soft.create_xrc_recv(xrcd)?;
        core.qp = Some(qp.control());
        Ok(qp)
    }

    fn listen(&mut self, backlog: u32) -> Result<(), CmError> {
        let asked = "listen";
        let mut core = self.end.lock();
        if core.state == State::Idle {
            claim(&mut core, asked, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
            core.state = State::Bound;
        }
        if core.state != State::Bound {
            return Err(wrong_state(asked, core.state, "bound"));
        }
        if let (None, Some(local)) = (&core.socket, core.local) {
            // Bound to an address that others may be bound to as well (CM-16).
            let (name, only) = (core.place_name(), core.options.af_only);
            place::claim(core.make_socket(asked)?, &name, local, only)
                .inspect_err(|_| core.socket = None)?;
        }
        let backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
        let socket = core.make_socket(asked)?;
        socket.listen(backlog).map_err(|error| CmError::from_io(asked, &error))?;
        core.state = State::Listening;
        drop(core);
        self.channel.watch(&self.end)
    }

    fn get_request(&mut self, limit: Option<Duration>) -> Result<SoftId, CmError> {
        self.requests()?.next(limit)
    }

    fn private_data(&self) -> &[u8] {
        self.end.data.get().map_or(&[], Vec::as_slice)
    }

    fn depths(&self) -> Option<Depths> {
        self.end.depths.get().copied()
    }

    fn ud(&self) -> Option<UdParam> {
        self.end.lock().ud
    }

    fn join_multicast(&mut self, group: IpAddr, how: Join) -> Result<(), CmError> {
        let ud = self.end.lock().join(group, how)?;
        self.answer(Raised { ud: Some(ud), ..Raised::plain(EventKind::MulticastJoin) });
        Ok(())
    }

    fn leave_multicast(&mut self, group: IpAddr) -> Result<(), CmError> {
        self.end.lock().leave(group)
    }

    fn connect(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        finish(self.begin_connect(param, None)?)
    }

    fn accept(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        finish(self.begin_accept(param, None)?)
    }

    fn connect_with(&mut self, qp: &SoftQp, param: &ConnParam<'_>) -> Result<(), CmError> {
        finish(self.begin_connect(param, Some(qp.control()))?)
    }

    fn accept_with(&mut self, qp: &SoftQp, param: &ConnParam<'_>) -> Result<(), CmError> {
        finish(self.begin_accept(param, Some(qp.control()))?)
    }

    fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError> {
        external::fields_for(&self.end, state)
    }

    fn establish(&mut self) -> Result<(), CmError> {
        let asked = "establish a connection";
        let mut core = self.end.lock();
        if core.state != State::Answered {
            return Err(wrong_state(asked, core.state, "Answered (CM-12)"));
        }
        if core.external.unwired {
            let answer = "its queue pair is not in RTS (CM-12)";
            return Err(CmError::new(Code::Invalid, asked, answer)
                .cure("take it there with what init_qp_attr says"));
        }
        core.ready();
        drop(core);
        self.channel.watch(&self.end)
    }

    fn query_qp(&self) -> Result<QpFields, CmError> {
        Ok(self.end.lock().fields())
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError> {
        let asked = "reject a connection request";
        let mut core = self.end.lock();
        if core.state != State::Asked {
            return Err(wrong_state(asked, core.state, "Asked"));
        }
        check_data(asked, private_data, core.space.reject_data_max())?;
        core.reject(private_data);
        Ok(())
    }

    fn disconnect(&mut self) -> Result<(), CmError> {
        let mut core = self.end.lock();
        let state = core.state;
        if !matches!(state, State::Established | State::Answered | State::Replied | State::HungUp) {
            return Err(wrong_state("disconnect", state, "connected (CM-10)"));
        }
        check_waited("disconnect", &core)?;
        if let Some(qp) = &core.qp {
            qp.fail();
        }
        let raised = core.hang_up();
        if !self.synchronous {
            core.deadline = Instant::now().checked_add(core.timewait());
        }
        drop(core);
        // If the peer was first, its event has been raised already.
        if state != State::HungUp || self.synchronous {
            self.answer(raised);
        }
        // The channel now watches only the deadline.
        self.channel.watch(&self.end)
    }

    fn peer_left(&mut self) -> bool {
        if self.synchronous {
            // The state shows everything else; a listener keeps its requests.
            if self.end.lock().state != State::Established {
                return self.end.lock().state == State::HungUp;
            }
            while let Ok(Some(_)) = self.channel.next(Some(Duration::ZERO)) {}
        }
        self.end.lock().state == State::HungUp
    }

    fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError> {
        let asked = || format!("set min_rnr_timer to code {code}");
        let time = rnr_timer_ns(code)
            .ok_or_else(|| CmError::new(Code::Invalid, asked(), "codes are 0 to 31 (RC-1)"))?;
        let mut core = self.end.lock();
        match (core.state, &core.qp) {
            (State::Established | State::Replied, Some(qp)) => qp.set_rnr_timer(time),
            (state, _) => return Err(wrong_state(&asked(), state, "connected")),
        }
        core.rnr_timer = code;
        Ok(())
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        self.end.lock().local
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        self.end.lock().remote
    }

    fn credentials(&self) -> Option<Credentials> {
        self.end.lock().peer
    }
}
