//! [`Id`]: a communication identifier with its queue pair, as the man pages describe it, safe.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell_fabric::{
    CmError, CmId, ConnParam, Depths, Fabric, IdKey, IdOption, Join, PortSpace, QpFields, QpState,
    UdParam,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, QpCaps, QpType};
use doorbell_seam::wr::{Remote, SendFlags, SendOp};

use crate::buffer::Buffer;
use crate::completion::{Completion, SendRequest};
use crate::cq::CompletionQueue;
use crate::error::{PostFailed, Refused};
use crate::exposed::Exposed;
use crate::external::ExternalQp;
use crate::init::QpInit;
use crate::qp::{Parts, QueuePair};
use crate::srq::{SharedReceive, SrqInit};
use crate::window::Window;

/// How long to wait for completions after the peer has left: its last messages and acknowledgements
/// take another path than the notice that it has gone.
const GRACE: Duration = Duration::from_secs(1);

/// Empty polls before a wait begins to sleep.
const SPINS: u32 = 2000;
/// How long a wait then sleeps between polls.
const NAP: Duration = Duration::from_micros(50);

/// A communication identifier (`rdma_create_id`) with at most one queue pair and one shared
/// receive queue of its own.
///
/// Without a channel it is synchronous: each call returns when its work is done (ID-4). Dropping it
/// ends the connection and frees everything, the device's objects first.
pub struct Id<F: Fabric> {
    qp: Option<QueuePair<F>>,
    srq: Option<SharedReceive<F>>,
    cm: F::Id,
    fabric: F,
    bound: bool,
    /// This side has disconnected.
    ended: bool,
    /// The multicast groups joined.
    groups: Vec<IpAddr>,
    /// Bytes of the address that go to the peer in front of private data (EP-5).
    said_first: Vec<u8>,
}

impl<F: Fabric> Id<F> {
    /// Makes an id (`rdma_create_id`). With a channel its calls return at once and raise events
    /// there (ID-3).
    ///
    /// ```
    /// use doorbell_cm::{CmError, Id, PortSpace};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(device: &SoftDevice) -> Result<Id<SoftDevice>, CmError> {
    /// Id::create(device, None, PortSpace::Tcp)
    /// # }
    /// ```
    /// A port space that does not exist does not compile (ID-7):
    /// ```compile_fail,E0308
    /// use doorbell_cm::{CmError, Id, PortSpace};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(device: &SoftDevice) -> Result<Id<SoftDevice>, CmError> {
    /// Id::create(device, None, 0x0107)
    /// # }
    /// ```
    ///
    /// # Errors
    /// The system's limits.
    pub fn create(
        fabric: &F,
        channel: Option<&F::Channel>,
        space: PortSpace,
    ) -> Result<Id<F>, CmError> {
        Ok(Id::with(fabric, fabric.create_id(channel, space)?, false))
    }

    /// The id of a connection request that a channel brought.
    pub fn of_request(fabric: &F, request: F::Id) -> Id<F> {
        Id::with(fabric, request, true)
    }

    pub(crate) fn with(fabric: &F, cm: F::Id, bound: bool) -> Id<F> {
        Id {
            qp: None,
            srq: None,
            cm,
            fabric: fabric.clone(),
            bound,
            ended: false,
            groups: Vec::new(),
            said_first: Vec::new(),
        }
    }

    /// Sends these bytes to the peer in front of private data (EP-5).
    pub(crate) fn say_first(&mut self, data: &[u8]) {
        self.said_first = data.to_vec();
    }

    /// Private data, with the bytes that go first.
    fn whole_data<'a>(&self, data: &'a [u8]) -> Cow<'a, [u8]> {
        match self.said_first.is_empty() {
            true => Cow::Borrowed(data),
            false => Cow::Owned([&self.said_first, data].concat()),
        }
    }

    /// The number by which events name this id.
    pub fn key(&self) -> IdKey {
        self.cm.key()
    }

    /// See [`CmId::context`].
    pub fn context(&self) -> u64 {
        self.cm.context()
    }

    /// Sets the context.
    pub fn set_context(&mut self, context: u64) {
        self.cm.set_context(context);
    }

    /// See [`CmId::migrate`].
    ///
    /// # Errors
    /// As there.
    pub fn migrate(&mut self, channel: Option<&F::Channel>) -> Result<(), CmError> {
        self.cm.migrate(channel)
    }

    /// See [`CmId::set_option`].
    ///
    /// # Errors
    /// As there.
    pub fn set_option(&mut self, option: IdOption) -> Result<(), CmError> {
        self.cm.set_option(option)
    }

    /// See [`CmId::bind`].
    ///
    /// # Errors
    /// As there.
    pub fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError> {
        self.cm.bind(addr)?;
        self.bound = true;
        Ok(())
    }

    /// See [`CmId::resolve_addr`].
    ///
    /// # Errors
    /// As there.
    pub fn resolve_addr(
        &mut self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<(), CmError> {
        self.cm.resolve_addr(from, to, limit)?;
        self.bound = true;
        Ok(())
    }

    /// See [`CmId::resolve_route`].
    ///
    /// # Errors
    /// As there, and `Invalid` on an id that is bound to no device, or without any time (CM-3).
    pub fn resolve_route(&mut self, limit: Duration) -> Result<(), CmError> {
        let asked = "resolve the route";
        self.check_bound(asked, "CM-3")?;
        if limit.is_zero() {
            return Err(CmError::new(Code::Invalid, asked, "the time limit is zero (CM-3)"));
        }
        self.cm.resolve_route(limit)
    }

    fn check_bound(&self, asked: &str, clause: &str) -> Result<(), CmError> {
        if self.bound {
            return Ok(());
        }
        let answer = format!("the id is bound to no device ({clause})");
        Err(CmError::new(Code::Invalid, asked, answer).cure("bind it or resolve an address first"))
    }

    /// Makes the queue pair of this id (`rdma_create_qp`). It takes receives at once (QP-3).
    ///
    /// ```
    /// use doorbell_cm::{CmError, Id, QpInit};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(id: &mut Id<SoftDevice>) -> Result<(), CmError> {
    /// id.create_qp(&QpInit::rc())
    /// # }
    /// ```
    /// A call without attributes does not compile (QP-12):
    /// ```compile_fail,E0308
    /// use doorbell_cm::{CmError, Id, QpInit};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(id: &mut Id<SoftDevice>) -> Result<(), CmError> {
    /// id.create_qp(None)
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Invalid`: bound to no device (QP-2), has one already (QP-11), a capacity of 0 without a
    /// queue for its completions (QP-8), or capacities beyond the device's.
    pub fn create_qp(&mut self, init: &QpInit<F>) -> Result<(), CmError> {
        let asked = "make the queue pair of an id";
        self.check_bound(asked, "QP-2")?;
        if self.qp.is_some() {
            return Err(CmError::new(Code::Invalid, asked, "the id has one already (QP-11)"));
        }
        let init = init.clone().or_srq(self.srq.as_ref());
        let (cm, pd) = (&mut self.cm, init.pd_or(&self.fabric));
        self.qp = Some(QueuePair::with(&self.fabric, &init, |parts| match parts {
            Parts::Queues(attr) => cm.create_qp(pd, attr),
            Parts::Domain(xrcd) => cm.create_xrc_recv(xrcd),
        })?);
        Ok(())
    }

    /// Makes the shared receive queue of this id (`rdma_create_srq`), for at least `depth`
    /// receives; queue pairs made on the id afterwards use it (QP-13). On an id of XRC_RECV it is
    /// of the default XRC domain, with a completion queue ([`Id::recv_cq`], SRQ-5).
    ///
    /// # Errors
    /// `Invalid`: bound to no device (SRQ-1), has one already (SRQ-4), or a depth out of range.
    pub fn create_srq(&mut self, depth: u32) -> Result<&SharedReceive<F>, CmError> {
        let init = match self.cm.qp_type() {
            QpType::XrcRecv => SrqInit::xrc(depth),
            _ => SrqInit::new(depth),
        };
        self.create_srq_ex(&init)
    }

    /// As [`Id::create_srq`], as `init` says (`rdma_create_srq_ex`).
    ///
    /// # Errors
    /// As there.
    pub fn create_srq_ex(&mut self, init: &SrqInit<F>) -> Result<&SharedReceive<F>, CmError> {
        let asked = "make the shared receive queue of an id";
        self.check_bound(asked, "SRQ-1")?;
        if self.srq.is_some() {
            return Err(CmError::new(Code::Invalid, asked, "the id has one already (SRQ-4)"));
        }
        if init.pd.as_ref().is_some_and(|pd| !pd.is_same_device(&self.fabric)) {
            let answer = "the protection domain is of another device (SRQ-1)";
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        Ok(self.srq.insert(SharedReceive::with(&self.fabric, init)?))
    }

    /// The shared receive queue of this id.
    pub fn srq(&self) -> Option<&SharedReceive<F>> {
        self.srq.as_ref()
    }

    /// Destroys the shared receive queue of this id (`rdma_destroy_srq`).
    ///
    /// # Errors
    /// `Busy` while queue pairs use it; it stays (SRQ-9). `Invalid` if there is none.
    pub fn destroy_srq(&mut self) -> Result<(), CmError> {
        match &self.srq {
            Some(srq) => srq.check_idle()?,
            None => {
                let asked = "destroy the shared receive queue of an id";
                return Err(CmError::new(Code::Invalid, asked, "the id has none"));
            }
        }
        self.srq = None;
        Ok(())
    }

    /// Number and capacities of the queue pair (QP-10), if there is one.
    pub fn qp(&self) -> Option<(u32, QpCaps)> {
        self.qp.as_ref().map(|qp| (qp.num(), qp.caps()))
    }

    /// The user data of the queue pair ([`QpInit::context`], QX-18), if there is one.
    pub fn qp_context(&self) -> Option<u64> {
        self.qp.as_ref().map(QueuePair::context)
    }

    /// Destroys the queue pair (`rdma_destroy_qp`); what it had outstanding gives no completions
    /// (QX-17).
    ///
    /// # Errors
    /// `Busy` while the id is in a multicast group; it stays (QP-18, QX-14). `Invalid` if there is
    /// none.
    pub fn destroy_qp(&mut self) -> Result<(), CmError> {
        let asked = "destroy the queue pair of an id";
        if self.qp.is_none() {
            return Err(CmError::new(Code::Invalid, asked, "the id has none"));
        }
        if let Some(group) = self.groups.first() {
            let answer = format!("it is in the multicast group {group} (QX-14)");
            return Err(CmError::new(Code::Busy, asked, answer).cure("leave the group first"));
        }
        self.qp = None;
        Ok(())
    }

    /// Where to send datagrams: see [`CmId::ud`].
    pub fn ud(&self) -> Option<UdParam> {
        self.cm.ud()
    }

    /// See [`CmId::join_multicast`].
    ///
    /// # Errors
    /// As there.
    pub fn join_multicast(&mut self, group: IpAddr, how: Join) -> Result<(), CmError> {
        self.cm.join_multicast(group, how)?;
        self.groups.push(group);
        Ok(())
    }

    /// See [`CmId::leave_multicast`].
    ///
    /// # Errors
    /// As there.
    pub fn leave_multicast(&mut self, group: IpAddr) -> Result<(), CmError> {
        self.cm.leave_multicast(group)?;
        if let Some(place) = self.groups.iter().position(|known| *known == group) {
            self.groups.swap_remove(place);
        }
        Ok(())
    }

    pub(crate) fn queue_pair(&mut self) -> Option<&mut QueuePair<F>> {
        self.qp.as_mut()
    }

    pub(crate) fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The type of its queue pair: see [`CmId::qp_type`].
    pub fn qp_type(&self) -> QpType {
        self.cm.qp_type()
    }

    /// The completion queue of the queue pair's sends (QP-6).
    pub fn send_cq(&self) -> Option<&CompletionQueue<F>> {
        self.qp.as_ref().and_then(QueuePair::send_cq)
    }

    /// The queue in which receives of this id complete: the queue pair's (QP-6), or that of its
    /// shared receive queue of an XRC domain (SRQ-5).
    pub fn recv_cq(&self) -> Option<&CompletionQueue<F>> {
        let own = self.qp.as_ref().and_then(QueuePair::recv_cq);
        own.or_else(|| self.srq.as_ref().and_then(SharedReceive::cq))
    }

    /// See [`CmId::listen`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&mut self, backlog: u32) -> Result<(), CmError> {
        self.cm.listen(backlog)?;
        self.bound = true;
        Ok(())
    }

    /// See [`CmId::get_request`].
    ///
    /// # Errors
    /// As there.
    pub fn get_request(&mut self, limit: Option<Duration>) -> Result<Id<F>, CmError> {
        Ok(Id::with(&self.fabric, self.cm.get_request(limit)?, true))
    }

    /// Private data of the peer (CM-8).
    pub fn private_data(&self) -> &[u8] {
        self.cm.private_data()
    }

    /// See [`CmId::depths`].
    pub fn depths(&self) -> Option<Depths> {
        self.cm.depths()
    }

    /// See [`CmId::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        if !self.cm.space().is_datagram() {
            self.check_qp("connect")?;
        }
        let data = self.whole_data(param.private_data);
        self.cm.connect(&ConnParam { private_data: &data, ..*param })
    }

    /// See [`CmId::accept`].
    ///
    /// # Errors
    /// As there.
    pub fn accept(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        if !self.cm.space().is_datagram() {
            self.check_qp("accept")?;
        }
        self.cm.accept(param)
    }

    /// Connects on behalf of a queue pair that is not the id's. The answer is CONNECT_RESPONSE; a
    /// synchronous id waits for it. Then move the queue pair to RTS by hand and call
    /// [`Id::establish`] (CM-12).
    ///
    /// # Errors
    /// As for [`CmId::connect`], and `Invalid` on an id with a queue pair of its own.
    pub fn connect_with(
        &mut self,
        qp: &ExternalQp<F>,
        param: &ConnParam<'_>,
    ) -> Result<(), CmError> {
        self.check_no_qp("connect on behalf of a queue pair")?;
        let data = self.whole_data(param.private_data);
        self.cm.connect_with(qp.raw(), &ConnParam { private_data: &data, ..*param })
    }

    /// Accepts on behalf of a queue pair that is not the id's and is already in RTS.
    ///
    /// # Errors
    /// As for [`CmId::accept`], and `Invalid` on an id with a queue pair of its own, or before
    /// RTS.
    pub fn accept_with(
        &mut self,
        qp: &ExternalQp<F>,
        param: &ConnParam<'_>,
    ) -> Result<(), CmError> {
        let asked = "accept on behalf of a queue pair";
        self.check_no_qp(asked)?;
        if qp.state() != QpState::Rts {
            let answer = format!("it is in {:?}, and the peer may send at once", qp.state());
            return Err(CmError::new(Code::Invalid, asked, answer)
                .cure("take it to RTS first, with what init_qp_attr says"));
        }
        self.cm.accept_with(qp.raw(), param)
    }

    /// The fields to set on a queue pair that is not the id's to move it to INIT, RTR or RTS
    /// (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// `Invalid`: another state, or too early.
    pub fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError> {
        self.cm.init_qp_attr(state)
    }

    /// Tells the peer that the connection is up, once the queue pair of [`Id::connect_with`] is in
    /// RTS (`rdma_establish`).
    ///
    /// # Errors
    /// `Invalid` on an id with a queue pair of its own, or without an answer of the peer (CM-12).
    pub fn establish(&mut self) -> Result<(), CmError> {
        self.check_no_qp("establish a connection")?;
        self.cm.establish()
    }

    /// The id's queue pair as the device reports it (`ibv_query_qp`).
    ///
    /// # Errors
    /// `Invalid` without one. Otherwise the device's error.
    pub fn query_qp(&self) -> Result<QpFields, CmError> {
        match &self.qp {
            Some(_) => self.cm.query_qp(),
            None => Err(CmError::new(Code::Invalid, "query a queue pair", "the id has none")),
        }
    }

    fn check_no_qp(&self, asked: &str) -> Result<(), CmError> {
        match &self.qp {
            None => Ok(()),
            Some(qp) => {
                let answer = format!("the id has queue pair {} of its own (CM-12)", qp.num());
                Err(CmError::new(Code::Invalid, asked, answer))
            }
        }
    }

    fn check_qp(&self, asked: &str) -> Result<(), CmError> {
        if self.qp.is_some() {
            return Ok(());
        }
        Err(CmError::new(Code::Invalid, asked, "the id has no queue pair (CM-5)")
            .cure("make one first"))
    }

    /// See [`CmId::reject`].
    ///
    /// # Errors
    /// As there.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError> {
        self.cm.reject(private_data)
    }

    /// See [`CmId::disconnect`].
    ///
    /// # Errors
    /// As there; also `Invalid` the second time.
    pub fn disconnect(&mut self) -> Result<(), CmError> {
        if self.ended {
            let answer = "the id has been disconnected already (CM-10)";
            return Err(CmError::new(Code::Invalid, "disconnect", answer));
        }
        self.cm.disconnect()?;
        self.ended = true;
        Ok(())
    }

    /// See [`CmId::peer_left`].
    pub fn peer_left(&mut self) -> bool {
        self.cm.peer_left()
    }

    /// See [`CmId::set_rnr_timer`].
    ///
    /// # Errors
    /// As there.
    pub fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError> {
        self.cm.set_rnr_timer(code)
    }

    /// The local address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.cm.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.cm.peer_addr()
    }

    /// Posts one receive (`rdma_post_recv`), to the shared queue where there is one (SRQ-8).
    ///
    /// # Errors
    /// The queue is full, or there is no queue pair; the buffer comes back.
    pub fn post_recv(&mut self, buffer: Buffer<F>) -> Result<(), Refused<Buffer<F>>> {
        let mut list = vec![buffer];
        let result = self.post_recvs(&mut list);
        result.map_err(|failed| Refused { cause: failed.cause, back: list.pop() })
    }

    /// Posts receives in order with one doorbell. Requests that were taken leave `list`; on an
    /// error the rest stays in it (PL-1).
    ///
    /// # Errors
    /// The queue is full, or there is no queue pair.
    pub fn post_recvs(&mut self, list: &mut Vec<Buffer<F>>) -> Result<(), PostFailed> {
        match (&mut self.qp, &self.srq) {
            (Some(qp), srq) if qp.recv_cq().is_some() || srq.is_none() => qp.post_recvs(list),
            (_, Some(srq)) => srq.post(list),
            (_, None) => Err(PostFailed::state()),
        }
    }

    /// Posts one send of the first `len` bytes of a buffer (`rdma_post_send`).
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]; the buffer comes back.
    pub fn post_send(
        &mut self,
        buffer: Buffer<F>,
        len: usize,
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), Refused<Buffer<F>>> {
        let mut list = vec![SendRequest { buffer, len, op, flags }];
        let result = self.post_sends(&mut list);
        result.map_err(|failed| Refused {
            cause: failed.cause,
            back: list.pop().map(|request| request.buffer),
        })
    }

    /// Posts sends in order with one doorbell. Requests that were taken leave `list`; on an error
    /// the rest stays in it (PL-1).
    ///
    /// One call is a batch: it is never left open, so nobody else can post in between:
    /// ```
    /// use doorbell_cm::{Id, SendRequest};
    /// use doorbell_soft::SoftDevice;
    ///
    /// type List = Vec<SendRequest<SoftDevice>>;
    /// fn both(id: &mut Id<SoftDevice>, one: &mut List, two: &mut List) {
    ///     std::thread::scope(|scope| scope.spawn(|| id.post_sends(one)).join()).ok();
    ///     std::thread::scope(|scope| scope.spawn(|| id.post_sends(two)).join()).ok();
    /// }
    /// ```
    /// Two at once do not compile (PL-4):
    /// ```compile_fail,E0499
    /// use doorbell_cm::{Id, SendRequest};
    /// use doorbell_soft::SoftDevice;
    ///
    /// type List = Vec<SendRequest<SoftDevice>>;
    /// fn both(id: &mut Id<SoftDevice>, one: &mut List, two: &mut List) {
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(|| id.post_sends(one));
    ///         scope.spawn(|| id.post_sends(two));
    ///     });
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]. A list that cannot be built posts nothing:
    /// `Device(14)` (EFAULT) for a length beyond a buffer, `Malformed` for an operation that only
    /// another call can post.
    pub fn post_sends(&mut self, list: &mut Vec<SendRequest<F>>) -> Result<(), PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.post_sends(list),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts one inline send: `bytes` is copied during the call (SQ-4).
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`].
    pub fn post_inline(
        &mut self,
        bytes: &[u8],
        op: SendOp,
        flags: SendFlags,
    ) -> Result<(), PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.post_inline(bytes, op, flags),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts a request that opens a window onto `len` bytes of `memory` from `offset` on, with
    /// those rights (`ibv_bind_mw`, or a BIND_MW request, by the window's kind; MW-1). The memory
    /// must be exposed with MW_BIND. Returns what to tell the peer; it is valid once the request
    /// has completed. A length of 0 closes a window of type 1.
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`]; `Device(14)` (EFAULT) for bytes beyond the memory,
    /// `Device(22)` (EINVAL) for a window of type 2 whose queue pair is gone.
    pub fn bind_window(
        &mut self,
        window: &mut Window<F>,
        memory: &Exposed<F>,
        (offset, len): (usize, usize),
        rights: Access,
        flags: SendFlags,
    ) -> Result<Remote, PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.bind_window(window, memory, (offset, len), rights, flags),
            None => Err(PostFailed::state()),
        }
    }

    /// Posts a request that invalidates our own window of type 2 with that key (LOCAL_INV). With a
    /// [`SendFlags::FENCE`] it waits for READs through the window.
    ///
    /// # Errors
    /// See [`doorbell_seam::wr::PostCause`].
    pub fn invalidate(&mut self, rkey: u32, flags: SendFlags) -> Result<(), PostFailed> {
        match &mut self.qp {
            Some(qp) => qp.post_bare(SendOp::LocalInv(rkey), flags),
            None => Err(PostFailed::state()),
        }
    }

    /// The next completed send (`rdma_get_send_comp`), within `limit`.
    ///
    /// # Errors
    /// `TimedOut`; `Reset` if the peer has left and nothing more has completed; `Invalid` without a
    /// queue pair. The completion says how the send itself ended.
    pub fn next_send(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        self.next("a send", limit, |id| id.qp.as_mut().map(QueuePair::poll_send))
    }

    /// The next completed receive (`rdma_get_recv_comp`), within `limit`. On an id of XRC_RECV it
    /// is one of its shared receive queue, which any queue pair of the domain may have filled.
    ///
    /// # Errors
    /// As for [`Id::next_send`].
    pub fn next_recv(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        self.next("a receive", limit, |id| match (&mut id.qp, &id.srq) {
            (Some(qp), _) if qp.recv_cq().is_some() => Some(qp.poll_recv()),
            (_, Some(srq)) if srq.cq().is_some() => Some(srq.poll()),
            _ => None,
        })
    }

    /// Takes the buffers of unsignalled sends whose slots are free again (SQ-2).
    pub fn take_retired(&mut self) -> Vec<Buffer<F>> {
        self.qp.as_mut().map(QueuePair::take_retired).unwrap_or_default()
    }

    fn next(
        &mut self,
        what: &str,
        limit: Duration,
        poll: fn(&mut Id<F>) -> Option<Option<Completion<F>>>,
    ) -> Result<Completion<F>, CmError> {
        let asked = || format!("wait for the completion of {what}");
        let end = Instant::now().checked_add(limit);
        let mut spins = 0;
        let mut left = None;
        loop {
            let Some(polled) = poll(self) else {
                let answer = "the id has no queue in which any would complete";
                return Err(CmError::new(Code::Invalid, asked(), answer));
            };
            if let Some(completion) = polled {
                return Ok(completion);
            }
            if spins < SPINS && !limit.is_zero() {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            if left.is_none() && self.cm.peer_left() {
                left = Some(Instant::now());
            }
            if left.is_some_and(|left| left.elapsed() >= GRACE) {
                let answer = "the peer has ended the connection";
                return Err(CmError::new(Code::Reset, asked(), answer));
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                let answer = format!("none came within {limit:?}");
                return Err(CmError::new(Code::TimedOut, asked(), answer));
            }
            std::thread::sleep(NAP);
        }
    }
}
