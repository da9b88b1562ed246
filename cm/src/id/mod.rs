//! [`Id`]: a communication identifier with its queue pair, as the man pages describe it, safe.
//!
//! This file has its addresses and its connection. `resources` makes its queue pair and its shared
//! receive queue, `queues` posts to them and waits for completions. `by_hand` connects other queue
//! pairs, `multicast` joins groups.

mod by_hand;
mod multicast;
mod queues;
mod resources;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use doorbell_fabric::{
    CmError, CmId, ConnParam, Depths, Fabric, IdKey, IdOption, PortSpace, UdParam,
};
use doorbell_seam::error::Code;

pub use self::by_hand::ByHand;
pub use self::multicast::Groups;
pub use self::queues::Queues;

use self::by_hand::whole_data;
use crate::qp::QueuePair;
use crate::srq::SharedReceive;

/// A communication identifier (`rdma_create_id`) with at most one queue pair and one shared
/// receive queue of its own.
///
/// Without a channel it is synchronous: each call returns when its work is done (ID-4). Dropping it
/// ends the connection and frees everything, the device's objects first.
///
/// | for | use |
/// |---|---|
/// | addresses, options, the connection | the methods here |
/// | making queue pair and shared receive queue | [`Id::create_qp`], [`Id::create_srq`] |
/// | posts and completions (`rdma_post_send`, `rdma_get_recv_comp`, ...) | [`Id::queues`] |
/// | multicast groups (`rdma_join_multicast`) | [`Id::multicast`] |
/// | a queue pair that is not the id's (`rdma_init_qp_attr`, `rdma_establish`) | [`Id::by_hand`] |
///
/// [`crate::c_names`] lists every function of the man pages.
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

    /// From now on, sends these bytes to the peer in front of private data (EP-5).
    pub(crate) fn say_first(&mut self, data: &[u8]) {
        self.said_first = data.to_vec();
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

    /// Moves it to another channel (`rdma_migrate_id`): see [`CmId::migrate`].
    ///
    /// # Errors
    /// As there.
    pub fn migrate(&mut self, channel: Option<&F::Channel>) -> Result<(), CmError> {
        self.cm.migrate(channel)
    }

    /// Sets an option (`rdma_set_option`): see [`CmId::set_option`].
    ///
    /// # Errors
    /// As there.
    pub fn set_option(&mut self, option: IdOption) -> Result<(), CmError> {
        self.cm.set_option(option)
    }

    /// Binds it to a local address (`rdma_bind_addr`): see [`CmId::bind`].
    ///
    /// # Errors
    /// As there.
    pub fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError> {
        self.cm.bind(addr)?;
        self.bound = true;
        Ok(())
    }

    /// Finds the device for an address (`rdma_resolve_addr`): see [`CmId::resolve_addr`].
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

    /// Finds the route to the address (`rdma_resolve_route`): see [`CmId::resolve_route`].
    ///
    /// # Errors
    /// As there, and `Invalid` on an id that is bound to no device, or without any time (CM-3).
    pub fn resolve_route(&mut self, limit: Duration) -> Result<(), CmError> {
        let asked = "resolve the route";
        self.check_bound(asked, "CM-3")?;
        if limit.is_zero() {
            return Err(CmError::new(Code::Invalid, asked, "the time limit is zero (CM-3)")
                .cure("give it some time, such as 2 s"));
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

    pub(crate) fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Listens for connection requests (`rdma_listen`): see [`CmId::listen`].
    ///
    /// # Errors
    /// As there.
    pub fn listen(&mut self, backlog: u32) -> Result<(), CmError> {
        self.cm.listen(backlog)?;
        self.bound = true;
        Ok(())
    }

    /// The next connection request (`rdma_get_request`): see [`CmId::get_request`].
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

    /// Connects its queue pair (`rdma_connect`): see [`CmId::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        if !self.cm.space().is_datagram() {
            self.check_qp("connect")?;
        }
        let data = whole_data(&self.said_first, param.private_data);
        self.cm.connect(&ConnParam { private_data: &data, ..*param })
    }

    /// Accepts a connection request (`rdma_accept`): see [`CmId::accept`].
    ///
    /// # Errors
    /// As there.
    pub fn accept(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        if !self.cm.space().is_datagram() {
            self.check_qp("accept")?;
        }
        self.cm.accept(param)
    }

    fn check_qp(&self, asked: &str) -> Result<(), CmError> {
        if self.qp.is_some() {
            return Ok(());
        }
        Err(CmError::new(Code::Invalid, asked, "the id has no queue pair (CM-5)")
            .cure("make one first"))
    }

    /// Rejects a connection request (`rdma_reject`): see [`CmId::reject`].
    ///
    /// # Errors
    /// As there.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError> {
        self.cm.reject(private_data)
    }

    /// Ends the connection (`rdma_disconnect`): see [`CmId::disconnect`].
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

    /// True if the peer has ended the connection: see [`CmId::peer_left`].
    pub fn peer_left(&mut self) -> bool {
        self.cm.peer_left()
    }

    /// The local address (`rdma_get_local_addr`).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.cm.local_addr()
    }

    /// The peer's address (`rdma_get_peer_addr`).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.cm.peer_addr()
    }

    /// Where to send datagrams: see [`CmId::ud`].
    pub fn ud(&self) -> Option<UdParam> {
        self.cm.ud()
    }

    /// Its requests and completions.
    pub fn queues(&mut self) -> Queues<'_, F> {
        Queues { qp: self.qp.as_mut(), srq: self.srq.as_ref(), cm: &mut self.cm }
    }

    /// Its multicast groups.
    pub fn multicast(&mut self) -> Groups<'_, F> {
        Groups { cm: &mut self.cm, joined: &mut self.groups }
    }

    /// Connects a queue pair that is not the id's, whose states the program changes itself (CM-12).
    pub fn by_hand(&mut self) -> ByHand<'_, F> {
        let own_qp = self.qp.as_ref().map(QueuePair::num);
        ByHand { cm: &mut self.cm, own_qp, first: &self.said_first }
    }
}
