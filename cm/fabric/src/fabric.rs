//! The seam of the control plane: what a device's connection manager does. Two crates implement
//! it, `doorbell-soft` and `doorbell-verbs`; users meet it through `doorbell_cm::Id`.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use doorbell_seam::error::Code;
use doorbell_seam::provider::{
    AsyncEvents, AttrMask, CreateFlags, ExtendedCq, FlowRule, Multicast, Ports, ProtectionDomains,
    Provider, QpCaps, QpType, Reregister, ResizeCq, RxHash, SendOps, SrqLimits, ThreadDomains,
    Windows, Wq, WqFlags, Xrc, XrcSrq,
};

use crate::addr::AddrInfo;
use crate::attr::{ConnParam, Depths, IdOption, Join, PortSpace, Source, UdParam};
use crate::error::{CmError, InUse};
use crate::state::{QpFields, QpState};

/// A device together with its connection manager. It has every extension of the seam; what a
/// device cannot do it answers with `NotSupported`.
pub trait Fabric:
    Provider<Qp: Multicast, Srq: SrqLimits + XrcSrq>
    + AsyncEvents
    + ExtendedCq
    + Ports
    + ProtectionDomains
    + Reregister
    + ResizeCq
    + ThreadDomains
    + Windows
    + Xrc
{
    /// A communication identifier (`struct rdma_cm_id`).
    type Id: CmId<Self>;
    /// An event channel.
    type Channel: Channel<Self>;
    /// A rule of a queue pair of RAW_PACKET. It ends when it is dropped, before its queue pair.
    type Flow: Send + 'static;
    /// A receive work queue.
    type Wq: Wq + Send + Sync + 'static;
    /// A table of work queues. It keeps them, and is kept by the queue pairs that use it.
    type RwqIndTable: Send + Sync + 'static;

    /// Opens an event channel (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// The system's limit on open files.
    fn open_channel(&self) -> Result<Self::Channel, CmError>;

    /// Makes an id (`rdma_create_id`). With a channel its calls return at once and raise events
    /// there (ID-3); without, they block until the event has come (ID-4).
    ///
    /// # Errors
    /// What the system answers, with its errno.
    fn create_id(
        &self,
        channel: Option<&Self::Channel>,
        space: PortSpace,
    ) -> Result<Self::Id, CmError>;

    /// Makes a synchronous id ready to connect or to listen (`rdma_create_ep`, EP-1, EP-2,
    /// EP-7): address and route are resolved, or the local address is bound.
    ///
    /// # Errors
    /// As for the calls it stands for; nothing is left behind (EP-13).
    fn create_endpoint(&self, info: &AddrInfo) -> Result<Self::Id, CmError>;

    /// Where the device sends from under one of its addresses, for queue pairs that are taken from
    /// state to state by hand (`ibv_query_gid`).
    ///
    /// # Errors
    /// `AddrNotAvailable`: it is none of the device's.
    fn source(&self, addr: IpAddr) -> Result<Source, CmError>;

    /// Gives up a protection domain, or one more handle on it (`ibv_dealloc_pd`). Dropping it does
    /// so, too; the domain goes with the last that belongs to it.
    ///
    /// # Errors
    /// `Busy`: other handles are there, or something belongs to it; it comes back (QX-15).
    fn dealloc_pd(self) -> Result<(), InUse<Self>> {
        let others = self.pd_users().saturating_sub(1);
        if others == 0 {
            return Ok(());
        }
        let answer = format!("{others} others have it or belong to it (QX-15)");
        let cause = CmError::new(Code::Busy, "give up a protection domain", answer)
            .cure("destroy memory, queue pairs, receive queues and handles first");
        Err(InUse { cause, back: self })
    }

    /// Gives up a thread domain, or one more handle on it (`ibv_dealloc_td`); dropping it does so,
    /// too.
    ///
    /// # Errors
    /// `Busy`: other handles are there, or a parent domain names it; it comes back.
    fn dealloc_td(td: Self::Td) -> Result<(), InUse<Self::Td>> {
        let others = Self::td_users(&td).saturating_sub(1);
        if others == 0 {
            return Ok(());
        }
        let answer = format!("{others} others have it or name it (QX-15)");
        let cause = CmError::new(Code::Busy, "give up a thread domain", answer)
            .cure("give up its parent domains first");
        Err(InUse { cause, back: td })
    }

    /// Makes a queue pair that belongs to no id, in RESET (`ibv_create_qp`).
    ///
    /// # Errors
    /// `Invalid`: capacities out of range.
    fn create_qp(&self, attr: &QpAttr<'_, Self>) -> Result<Self::Qp, CmError>;

    /// Makes a queue pair of XRC_RECV that belongs to no id, in RESET (`ibv_create_qp_ex`, QX-9).
    ///
    /// # Errors
    /// `NotSupported`: the device has none; `Invalid`: the domain is of another device.
    fn create_xrc_recv(&self, xrcd: &Self::Xrcd) -> Result<Self::Qp, CmError>;

    /// Gives a queue pair of RAW_PACKET the frames that a rule speaks of (`ibv_create_flow`).
    ///
    /// # Errors
    /// `Invalid`: it is of another type; `NotSupported`, or what the device answers.
    fn create_flow(&self, qp: &Self::Qp, rule: FlowRule) -> Result<Self::Flow, CmError>;

    /// Makes a receive work queue for at least `depth` receives of one piece, in RESET
    /// (`ibv_create_wq`).
    ///
    /// # Errors
    /// `Invalid`: `depth` 0 or over the device's limit, flags that do not exist; `NotSupported`.
    fn create_wq(&self, cq: &Self::Cq, depth: u32, flags: WqFlags) -> Result<Self::Wq, CmError>;

    /// Makes a table of work queues (`ibv_create_rwq_ind_table`).
    ///
    /// # Errors
    /// `Invalid`: their number is not a power of two, or over the device's limit; `NotSupported`.
    fn create_rwq_ind_table(&self, queues: &[&Self::Wq]) -> Result<Self::RwqIndTable, CmError>;

    /// Sets fields of such a queue pair (`ibv_modify_qp`). The caller knows its state, `from`, and
    /// has checked that the step is allowed (SM-6).
    ///
    /// # Errors
    /// `NotSupported`, or what the device answers.
    fn modify_qp(&self, qp: &mut Self::Qp, from: QpState, fields: &QpFields)
    -> Result<(), CmError>;

    /// A queue pair as the device reports it (`ibv_query_qp`); a field it does not keep is `None`.
    ///
    /// # Errors
    /// What the device answers.
    fn query_qp(&self, qp: &Self::Qp) -> Result<QpFields, CmError>;
}

/// What a queue pair is made with (`struct ibv_qp_init_attr`).
pub struct QpAttr<'a, P: Fabric> {
    /// The transport.
    pub kind: QpType,
    /// The completion queue of its sends.
    pub send_cq: &'a P::Cq,
    /// Where receives complete; of XRC_SEND nothing does, and where they go to work queues (QX-8)
    /// this is not looked at.
    pub recv_cq: &'a P::Cq,
    /// The shared receive queue, if it has none of its own.
    pub srq: Option<&'a P::Srq>,
    /// Capacities wanted; the real ones are the queue pair's (QP-10).
    pub caps: QpCaps,
    /// Every send completes (QP-15).
    pub signal_all: bool,
    /// What the extended call takes besides (`struct ibv_qp_init_attr_ex`).
    pub ex: QpAttrEx<'a, P>,
}

/// The fields of `struct ibv_qp_init_attr_ex` that `struct ibv_qp_init_attr` lacks. What is `None`
/// does not count; the protection domain is always that of the device's handle.
pub struct QpAttrEx<'a, F: Fabric> {
    /// Flags of creation (QX-6).
    pub create_flags: Option<CreateFlags>,
    /// The longest header of a segmented send, in bytes (QX-7).
    pub max_tso_header: Option<u16>,
    /// The work queues that receives go to, instead of any other (QX-8).
    pub rwq_ind_tbl: Option<&'a F::RwqIndTable>,
    /// By what they are spread.
    pub rx_hash_conf: Option<RxHash>,
    /// The operations it is going to post (QX-10); all its type can do if this is `None`.
    pub send_ops_flags: Option<SendOps>,
}

impl<F: Fabric> Default for QpAttrEx<'_, F> {
    fn default() -> Self {
        QpAttrEx {
            create_flags: None,
            max_tso_header: None,
            rwq_ind_tbl: None,
            rx_hash_conf: None,
            send_ops_flags: None,
        }
    }
}

impl<F: Fabric> QpAttrEx<'_, F> {
    /// Which fields are valid (`comp_mask`, QX-1).
    pub fn comp_mask(&self) -> AttrMask {
        let mut mask = AttrMask::PD;
        mask.set(AttrMask::CREATE_FLAGS, self.create_flags.is_some());
        mask.set(AttrMask::MAX_TSO_HEADER, self.max_tso_header.is_some());
        mask.set(AttrMask::IND_TABLE, self.rwq_ind_tbl.is_some());
        mask.set(AttrMask::RX_HASH, self.rx_hash_conf.is_some());
        mask.set(AttrMask::SEND_OPS_FLAGS, self.send_ops_flags.is_some());
        mask
    }
}

/// An id. Dropping it destroys it (ID-8); it never blocks on an event, because events are
/// acknowledged as they are taken.
pub trait CmId<F: Fabric>: Send + Sized + 'static {
    /// The number by which events name this id. Ids made for incoming connections get one of
    /// their own.
    fn key(&self) -> IdKey;

    /// The port space it was made in; ids made for requests are in their listener's.
    fn space(&self) -> PortSpace;

    /// The type of its queue pair: by its port space, or as its endpoint was asked for; ids made
    /// for requests have their listener's.
    fn qp_type(&self) -> QpType;

    /// User data, shown with each event of this id; ids made for incoming connections start with
    /// their listener's (ID-2).
    fn context(&self) -> u64;

    /// Sets it.
    fn set_context(&mut self, context: u64);

    /// Moves the id to another channel, or to none: it is synchronous from then on
    /// (`rdma_migrate_id`, MG-1, MG-2). Events that nobody has taken go with it (MG-3). It never
    /// waits: events are acknowledged as they are taken (MG-4).
    ///
    /// # Errors
    /// `Invalid`: from no channel to none (MG-2); `Busy`: the id listens, on a device that would
    /// lose requests; the system's limit on open files.
    fn migrate(&mut self, channel: Option<&F::Channel>) -> Result<(), CmError>;

    /// Sets an option (`rdma_set_option`, CM-16).
    ///
    /// # Errors
    /// `Invalid`: a value out of range, or too late for it.
    fn set_option(&mut self, option: IdOption) -> Result<(), CmError>;

    /// Binds to a local address (`rdma_bind_addr`, CM-1). Port 0 takes a free one.
    ///
    /// # Errors
    /// `NoDevice` or `AddrNotAvailable`: not an address of this device; `AddrInUse`.
    fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError>;

    /// Finds the device and the way to `to` (`rdma_resolve_addr`, then `rdma_resolve_route`,
    /// CM-2, CM-3). On a channel: ADDR_RESOLVED and ROUTE_RESOLVED, one call each.
    ///
    /// # Errors
    /// `AddrNotAvailable`, `NoDevice`, `TimedOut`.
    fn resolve_addr(
        &mut self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> Result<(), CmError>;

    /// See [`CmId::resolve_addr`].
    ///
    /// # Errors
    /// `Invalid` before the address is resolved.
    fn resolve_route(&mut self, limit: Duration) -> Result<(), CmError>;

    /// Makes the queue pair of this id in INIT (`rdma_create_qp`); connect and accept move it
    /// on (QP-1). It may be taken to another thread; the id only remembers which it is, and
    /// outlives its destruction. It belongs to the protection domain of `pd`.
    ///
    /// # Errors
    /// `Invalid`: not bound to a device, or to another than the domain (QP-2), or already has one
    /// (QP-11), or capacities out of range.
    fn create_qp(&mut self, pd: &F, attr: &QpAttr<'_, F>) -> Result<F::Qp, CmError>;

    /// As [`CmId::create_qp`], of XRC_RECV: it has a domain instead of queues (QX-5).
    ///
    /// # Errors
    /// As there.
    fn create_xrc_recv(&mut self, xrcd: &F::Xrcd) -> Result<F::Qp, CmError>;

    /// Waits for connection requests (`rdma_listen`, CM-4); `backlog` 0 is the maximum.
    ///
    /// # Errors
    /// `AddrInUse`.
    fn listen(&mut self, backlog: u32) -> Result<(), CmError>;

    /// The next connection request of a synchronous listener (`rdma_get_request`), within
    /// `limit` (none: for ever). The id given back is synchronous too.
    ///
    /// # Errors
    /// `Invalid` on an id with a channel (EP-11), `TimedOut`.
    fn get_request(&mut self, limit: Option<Duration>) -> Result<Self, CmError>;

    /// Private data the peer sent with its request, or with its answer; padded with zeros to
    /// the fixed length (CM-8), empty if none has come.
    fn private_data(&self) -> &[u8];

    /// The depths of the peer's request or answer, as this side sees them (CM-9); none if
    /// neither has come.
    fn depths(&self) -> Option<Depths>;

    /// Connects (`rdma_connect`). On a synchronous id it blocks until established.
    ///
    /// # Errors
    /// `Refused`: nobody listens (status 8) or the peer rejected (status 28), `TimedOut`,
    /// `Invalid`: parameters out of range (CM-5, CM-8), no queue pair, or wrong state.
    fn connect(&mut self, param: &ConnParam<'_>) -> Result<(), CmError>;

    /// Accepts a request (`rdma_accept`). On a synchronous id it blocks until established.
    ///
    /// # Errors
    /// As for connect.
    fn accept(&mut self, param: &ConnParam<'_>) -> Result<(), CmError>;

    /// As [`CmId::connect`] on behalf of a queue pair that is not the id's; a synchronous id waits
    /// for the peer's answer (CM-12).
    ///
    /// # Errors
    /// As for connect.
    fn connect_with(&mut self, qp: &F::Qp, param: &ConnParam<'_>) -> Result<(), CmError>;

    /// As [`CmId::accept`] on behalf of a queue pair that is not the id's, and is in RTS.
    ///
    /// # Errors
    /// As for connect.
    fn accept_with(&mut self, qp: &F::Qp, param: &ConnParam<'_>) -> Result<(), CmError>;

    /// What to set on a queue pair that is not the id's (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// `Invalid`: a state that is none of INIT, RTR, RTS, or too early for it.
    fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError>;

    /// Tells the peer that the connection is up (`rdma_establish`, CM-12).
    ///
    /// # Errors
    /// `Invalid` unless the peer has answered [`CmId::connect_with`].
    fn establish(&mut self) -> Result<(), CmError>;

    /// What the device says of the id's own queue pair (`ibv_query_qp`), which may be on another
    /// thread; a field it does not keep is `None`.
    ///
    /// # Errors
    /// `Invalid` without one; what the device answers.
    fn query_qp(&self) -> Result<QpFields, CmError>;

    /// Where to send datagrams, by the last event that said so: see [`Event::ud`].
    fn ud(&self) -> Option<UdParam>;

    /// Joins a multicast group (`rdma_join_multicast`, `rdma_join_multicast_ex`, CM-13), on an id
    /// of datagrams that is bound or has its address resolved. On a channel: MULTICAST_JOIN. The
    /// id's queue pair, if it has one by then, is attached to the group.
    ///
    /// # Errors
    /// `Invalid`: another state or port space, or not the address of a group.
    fn join_multicast(&mut self, group: IpAddr, how: Join) -> Result<(), CmError>;

    /// Leaves a multicast group (`rdma_leave_multicast`).
    ///
    /// # Errors
    /// `AddrNotAvailable`: it has not joined that one (CM-13).
    fn leave_multicast(&mut self, group: IpAddr) -> Result<(), CmError>;

    /// Rejects a request (`rdma_reject`), with up to 148 bytes for the peer.
    ///
    /// # Errors
    /// `Invalid` in another state.
    fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError>;

    /// Ends the connection (`rdma_disconnect`): the queue pair goes to ERR first (QP-22), then
    /// the peer is told. Both sides call it (CM-10).
    ///
    /// # Errors
    /// `Invalid` if not connected.
    fn disconnect(&mut self) -> Result<(), CmError>;

    /// True once the peer has ended the connection, as far as is known without blocking. A
    /// synchronous id also does what the peer's messages ask for; those on a channel learn it from
    /// their events. Devices that work by themselves and do not know return false.
    fn peer_left(&mut self) -> bool {
        false
    }

    /// Sets the wait between a peer's tries while this side has no receive posted
    /// (`min_rnr_timer` code 0 to 31, table in RC-1), of this id's queue pair, which is
    /// connected and may be on another thread (QP-21).
    ///
    /// # Errors
    /// `Invalid`: not connected, or no such code.
    fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError>;

    /// The local address, with the port that was taken.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// The peer's address.
    fn peer_addr(&self) -> Option<SocketAddr>;
}

/// The number of an id, unique within the process and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(pub u64);

/// An event channel, read one event at a time. Its descriptor is readable while there may be an
/// event (ID-11): what waits on many things polls it, then takes with a limit of no time until
/// there is none.
pub trait Channel<F: Fabric>: AsFd + Send + Sync + Sized + 'static {
    /// The next event, within `limit`; `None` if there was none. Each is acknowledged as it is
    /// taken, so nothing that is destroyed later waits for it.
    ///
    /// # Errors
    /// What the system answers.
    fn next(&self, limit: Duration) -> Result<Option<Event<F>>, CmError>;
}

/// A connection manager event (`struct rdma_cm_event`).
pub struct Event<F: Fabric> {
    /// What happened.
    pub kind: EventKind,
    /// The id it happened to; for a connection request the listener.
    pub key: IdKey,
    /// The user data of that id (ID-2).
    pub context: u64,
    /// The raw status: a negative errno, or a reject code (CE-1).
    pub status: i32,
    /// Private data of the peer, padded with zeros to the fixed length (CM-8).
    pub private_data: Vec<u8>,
    /// The depths a peer asks for with its request or grants with its answer, as this side sees
    /// them (CM-9); none with other events.
    pub depths: Option<Depths>,
    /// Where to send datagrams: with ESTABLISHED of an id that has looked a listener up (CM-14),
    /// and with MULTICAST_JOIN (CM-13).
    pub ud: Option<UdParam>,
    /// The new id of a connection request, on the same channel.
    pub request: Option<F::Id>,
}

/// Kinds of events (`enum rdma_cm_event_type`, numbers as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    /// The address was resolved.
    AddrResolved = 0,
    /// It was not.
    AddrError = 1,
    /// The route was resolved.
    RouteResolved = 2,
    /// It was not.
    RouteError = 3,
    /// A peer wants to connect.
    ConnectRequest = 4,
    /// The peer answered, on an id without a queue pair.
    ConnectResponse = 5,
    /// Connecting failed.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer rejected the request, or nobody listens.
    Rejected = 8,
    /// The connection is up.
    Established = 9,
    /// It has ended.
    Disconnected = 10,
    /// The device goes away.
    DeviceRemoval = 11,
    /// A multicast group was joined.
    MulticastJoin = 12,
    /// It was not.
    MulticastError = 13,
    /// The device's address changed.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
}

impl EventKind {
    /// The kind for a number from a device; `None` for a number newer than this list.
    pub fn from_raw(raw: u32) -> Option<EventKind> {
        use EventKind::*;
        const ALL: [EventKind; 16] = [
            AddrResolved,
            AddrError,
            RouteResolved,
            RouteError,
            ConnectRequest,
            ConnectResponse,
            ConnectError,
            Unreachable,
            Rejected,
            Established,
            Disconnected,
            DeviceRemoval,
            MulticastJoin,
            MulticastError,
            AddrChange,
            TimewaitExit,
        ];
        ALL.get(raw as usize).copied()
    }
}

impl<F: Fabric> Event<F> {
    /// Why the peer said no, if that is what happened and the code is one of InfiniBand's.
    pub fn rejection(&self) -> Option<Rejection> {
        let rejected = self.kind == EventKind::Rejected;
        rejected.then(|| Rejection::from_raw(self.status)).flatten()
    }
}

/// Reject codes worth telling apart (CE-1), with InfiniBand's numbers. iWARP has an errno
/// instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(i32)]
pub enum Rejection {
    /// The peer has no queue pair left.
    NoQp = 1,
    /// The peer lacks resources.
    NoResources = 3,
    /// The peer waited for too long.
    TimedOut = 4,
    /// The peer does not do that.
    Unsupported = 5,
    /// The peer does not know the connection.
    UnknownConnection = 6,
    /// Nobody listens at that port.
    NoListener = 8,
    /// The connection is one that was there before.
    Stale = 10,
    /// The peer has no such address.
    UnknownAddress = 12,
    /// The peer cannot take packets of that size.
    Mtu = 26,
    /// The application rejected.
    Consumer = 28,
    /// The peer does not take that number of retries.
    RnrRetry = 29,
}

impl Rejection {
    /// The code of a status; `None` for one that is not in this list.
    pub fn from_raw(status: i32) -> Option<Rejection> {
        use Rejection::*;
        let all = [
            NoQp,
            NoResources,
            TimedOut,
            Unsupported,
            UnknownConnection,
            NoListener,
            Stale,
            UnknownAddress,
            Mtu,
            Consumer,
            RnrRetry,
        ];
        all.into_iter().find(|code| *code as i32 == status)
    }
}
