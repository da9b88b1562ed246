//! The seam of the control plane: a device's connection manager. `doorbell-soft` and
//! `doorbell-verbs` implement it; users meet it through `doorbell_cm::Id`.

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
use crate::attr::{ConnParam, Credentials, Depths, IdOption, Join, PortSpace, Source, UdParam};
use crate::error::{CmError, InUse};
use crate::state::{QpFields, QpState};

/// A device together with its connection manager. It has every extension of the seam; for what a
/// device cannot do it returns `NotSupported`.
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
    /// A flow rule of a RAW_PACKET queue pair. It ends when it is dropped, before its queue pair.
    type Flow: Send + 'static;
    /// A receive work queue.
    type Wq: Wq + Send + Sync + 'static;
    /// A table of work queues. It keeps them, and the queue pairs that use it keep it.
    type RwqIndTable: Send + Sync + 'static;

    /// Opens an event channel (`rdma_create_event_channel`).
    ///
    /// # Errors
    /// The system's limit on open files.
    fn open_channel(&self) -> Result<Self::Channel, CmError>;

    /// Makes an id (`rdma_create_id`). With a channel its calls return at once and raise events
    /// there (ID-3); without one they block until the event has come (ID-4).
    ///
    /// # Errors
    /// The system's error, with its errno.
    fn create_id(
        &self,
        channel: Option<&Self::Channel>,
        space: PortSpace,
    ) -> Result<Self::Id, CmError>;

    /// Makes a synchronous id ready to connect or to listen (`rdma_create_ep`, EP-1, EP-2,
    /// EP-7): address and route are resolved, or the local address is bound.
    ///
    /// # Errors
    /// As for the calls that it combines; nothing is left behind (EP-13).
    fn create_endpoint(&self, info: &AddrInfo) -> Result<Self::Id, CmError>;

    /// The address that the device sends from under one of its IP addresses, for queue pairs that
    /// are moved from state to state by hand (`ibv_query_gid`).
    ///
    /// # Errors
    /// `AddrNotAvailable`: the device does not have it.
    fn source(&self, addr: IpAddr) -> Result<Source, CmError>;

    /// Gives up a protection domain, or one more handle to it (`ibv_dealloc_pd`). Dropping it does
    /// so, too. The domain goes with its last user.
    ///
    /// # Errors
    /// `Busy`: there are other handles, or something belongs to it; it comes back (QX-15).
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

    /// Gives up a thread domain, or one more handle to it (`ibv_dealloc_td`). Dropping it does so,
    /// too.
    ///
    /// # Errors
    /// `Busy`: there are other handles, or a parent domain names it; it comes back.
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

    /// Makes a queue pair of type XRC_RECV that belongs to no id, in RESET (`ibv_create_qp_ex`,
    /// QX-9).
    ///
    /// # Errors
    /// `NotSupported`: the device has no XRC; `Invalid`: the domain is of another device.
    fn create_xrc_recv(&self, xrcd: &Self::Xrcd) -> Result<Self::Qp, CmError>;

    /// Gives a RAW_PACKET queue pair the frames that match a rule (`ibv_create_flow`).
    ///
    /// # Errors
    /// `Invalid`: it has another type; `NotSupported`, or the device's error.
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
    /// has checked that the transition is allowed (SM-6).
    ///
    /// # Errors
    /// `NotSupported`, or the device's error.
    fn modify_qp(&self, qp: &mut Self::Qp, from: QpState, fields: &QpFields)
    -> Result<(), CmError>;

    /// A queue pair as the device reports it (`ibv_query_qp`); a field that it does not keep is
    /// `None`.
    ///
    /// # Errors
    /// The device's error.
    fn query_qp(&self, qp: &Self::Qp) -> Result<QpFields, CmError>;
}

/// Attributes of a new queue pair (`struct ibv_qp_init_attr`).
pub struct QpAttr<'a, P: Fabric> {
    /// The transport.
    pub kind: QpType,
    /// The completion queue of its sends.
    pub send_cq: &'a P::Cq,
    /// The completion queue of its receives. Ignored for XRC_SEND, which has none, and if receives
    /// go to work queues (QX-8).
    pub recv_cq: &'a P::Cq,
    /// The shared receive queue, if it has none of its own.
    pub srq: Option<&'a P::Srq>,
    /// The requested capacities; the queue pair has the granted ones (QP-10).
    pub caps: QpCaps,
    /// Every send completes (QP-15).
    pub signal_all: bool,
    /// The additions of the extended call (`struct ibv_qp_init_attr_ex`).
    pub ex: QpAttrEx<'a, P>,
}

/// The fields of `struct ibv_qp_init_attr_ex` that `struct ibv_qp_init_attr` lacks. A field that is
/// `None` does not count. The protection domain is always that of the device's handle.
pub struct QpAttrEx<'a, F: Fabric> {
    /// Flags of creation (QX-6).
    pub create_flags: Option<CreateFlags>,
    /// The longest header of a segmented send, in bytes (QX-7).
    pub max_tso_header: Option<u16>,
    /// The work queues that receives go to, instead of any other (QX-8).
    pub rwq_ind_tbl: Option<&'a F::RwqIndTable>,
    /// The hash that spreads receives over them.
    pub rx_hash_conf: Option<RxHash>,
    /// The operations that will be posted (QX-10); `None`: all that its type can do.
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

/// An id. Dropping it destroys it (ID-8). That never blocks on an event, because events are
/// acknowledged as they are taken.
pub trait CmId<F: Fabric>: Send + Sized + 'static {
    /// The number by which events name this id. The ids of connection requests get their own.
    fn key(&self) -> IdKey;

    /// The port space it was made in; for the id of a request, its listener's.
    fn space(&self) -> PortSpace;

    /// The type of its queue pair, from its port space or its endpoint; for the id of a request,
    /// its listener's.
    fn qp_type(&self) -> QpType;

    /// User data, shown with each event of this id. The ids of requests start with their listener's
    /// (ID-2).
    fn context(&self) -> u64;

    /// Sets the user data.
    fn set_context(&mut self, context: u64);

    /// Moves the id to another channel, or to none, which makes it synchronous (`rdma_migrate_id`,
    /// MG-1, MG-2). Events that nobody has taken go with it (MG-3). It never waits, because events
    /// are acknowledged as they are taken (MG-4).
    ///
    /// # Errors
    /// `Invalid`: from no channel to none (MG-2); `Busy`: the id listens, on a device that would
    /// lose requests; the system's limit on open files.
    fn migrate(&mut self, channel: Option<&F::Channel>) -> Result<(), CmError>;

    /// Sets an option (`rdma_set_option`, CM-16).
    ///
    /// # Errors
    /// `Invalid`: a value out of range, or too late for this option.
    fn set_option(&mut self, option: IdOption) -> Result<(), CmError>;

    /// Binds to a local address (`rdma_bind_addr`, CM-1). Port 0 takes a free one.
    ///
    /// # Errors
    /// `NoDevice` or `AddrNotAvailable`: not an address of this device; `AddrInUse`.
    fn bind(&mut self, addr: SocketAddr) -> Result<(), CmError>;

    /// Finds the device and the path to `to` (`rdma_resolve_addr`, then `rdma_resolve_route`, CM-2,
    /// CM-3). On a channel each call raises an event: ADDR_RESOLVED and ROUTE_RESOLVED.
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

    /// Makes the queue pair of this id in INIT (`rdma_create_qp`); connect and accept move it on
    /// (QP-1). It may go to another thread: the id only remembers which one it is, and outlives it.
    /// It belongs to the protection domain of `pd`.
    ///
    /// # Errors
    /// `Invalid`: the id is bound to no device or to another one than the domain (QP-2), it already
    /// has a queue pair (QP-11), or capacities are out of range.
    fn create_qp(&mut self, pd: &F, attr: &QpAttr<'_, F>) -> Result<F::Qp, CmError>;

    /// As [`CmId::create_qp`], for XRC_RECV, which has a domain instead of queues (QX-5).
    ///
    /// # Errors
    /// As there.
    fn create_xrc_recv(&mut self, xrcd: &F::Xrcd) -> Result<F::Qp, CmError>;

    /// Waits for connection requests (`rdma_listen`, CM-4); `backlog` 0 is the maximum.
    ///
    /// # Errors
    /// `AddrInUse`.
    fn listen(&mut self, backlog: u32) -> Result<(), CmError>;

    /// The next connection request of a synchronous listener (`rdma_get_request`), within `limit`
    /// (`None`: for ever). The new id is synchronous too.
    ///
    /// # Errors
    /// `Invalid` on an id with a channel (EP-11), `TimedOut`.
    fn get_request(&mut self, limit: Option<Duration>) -> Result<Self, CmError>;

    /// Private data that the peer sent with its request or answer, padded with zeros to the fixed
    /// length (CM-8); empty if none has come.
    fn private_data(&self) -> &[u8];

    /// The depths of the peer's request or answer, as this side sees them (CM-9); `None` if neither
    /// has come.
    fn depths(&self) -> Option<Depths>;

    /// Connects (`rdma_connect`). On a synchronous id it blocks until established.
    ///
    /// # Errors
    /// `Refused`: nobody listens (status 8) or the peer rejected (status 28); `TimedOut`;
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

    /// The fields to set on a queue pair that is not the id's (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// `Invalid`: another state than INIT, RTR or RTS, or too early for it.
    fn init_qp_attr(&mut self, state: QpState) -> Result<QpFields, CmError>;

    /// Tells the peer that the connection is up (`rdma_establish`, CM-12).
    ///
    /// # Errors
    /// `Invalid` unless the peer has answered [`CmId::connect_with`].
    fn establish(&mut self) -> Result<(), CmError>;

    /// The id's own queue pair as the device reports it (`ibv_query_qp`); it may be on another
    /// thread. A field that the device does not keep is `None`.
    ///
    /// # Errors
    /// `Invalid` without a queue pair; the device's error.
    fn query_qp(&self) -> Result<QpFields, CmError>;

    /// Where to send datagrams, from the last event that said so: see [`Event::ud`].
    fn ud(&self) -> Option<UdParam>;

    /// Joins a multicast group (`rdma_join_multicast`, `rdma_join_multicast_ex`, CM-13), on a
    /// datagram id that is bound or has its address resolved. On a channel it raises
    /// MULTICAST_JOIN. If the id has a queue pair by then, that is attached to the group.
    ///
    /// # Errors
    /// `Invalid`: another state or port space, or not the address of a group.
    fn join_multicast(&mut self, group: IpAddr, how: Join) -> Result<(), CmError>;

    /// Leaves a multicast group (`rdma_leave_multicast`).
    ///
    /// # Errors
    /// `AddrNotAvailable`: the id has not joined that group (CM-13).
    fn leave_multicast(&mut self, group: IpAddr) -> Result<(), CmError>;

    /// Rejects a request (`rdma_reject`), with up to 148 bytes for the peer.
    ///
    /// # Errors
    /// `Invalid` in another state.
    fn reject(&mut self, private_data: &[u8]) -> Result<(), CmError>;

    /// Ends the connection (`rdma_disconnect`): first the queue pair goes to ERR (QP-22), then the
    /// peer is told. Both sides call it (CM-10). On a synchronous id of verbs it waits for the
    /// peer, at most 13 s; on soft it does not wait. An id that is dropped also tells the peer, and
    /// waits for nobody; if the network loses that, nobody repeats it. On an id with a channel the
    /// kernel repeats it while the id lives: keep the id until DISCONNECTED comes.
    ///
    /// # Errors
    /// `Invalid` if not connected.
    fn disconnect(&mut self) -> Result<(), CmError>;

    /// True once the peer has ended the connection, as far as is known without blocking. A
    /// synchronous id also handles the peer's messages here; an id on a channel learns of them from
    /// its events. Devices that work by themselves and do not know return false.
    fn peer_left(&mut self) -> bool {
        false
    }

    /// Sets the peer's wait between retries while this side has no receive posted (`min_rnr_timer`
    /// code 0 to 31, table in RC-1). The id's queue pair must be connected, and may be on another
    /// thread (QP-21).
    ///
    /// # Errors
    /// `Invalid`: not connected, or no such code.
    fn set_rnr_timer(&mut self, code: u8) -> Result<(), CmError>;

    /// The local address, with the port that was taken.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// The peer's address.
    fn peer_addr(&self) -> Option<SocketAddr>;

    /// Process and user of the peer, where the kernel knows them: the peer of a request or of a
    /// connection on the same machine, on `soft`.
    fn credentials(&self) -> Option<Credentials> {
        None
    }
}

/// The number of an id, unique within the process and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(pub u64);

/// An event channel, read one event at a time. Its descriptor is readable while there may be an
/// event (ID-11). A program that waits on many things polls it, then calls this with a limit of
/// zero until there is none.
pub trait Channel<F: Fabric>: AsFd + Send + Sync + Sized + 'static {
    /// The next event, within `limit`; `None` if there was none. An event is acknowledged as it is
    /// taken, so nothing that is destroyed later waits for it.
    ///
    /// # Errors
    /// The system's error.
    fn next(&self, limit: Duration) -> Result<Option<Event<F>>, CmError>;
}

/// A connection manager event (`struct rdma_cm_event`).
pub struct Event<F: Fabric> {
    /// What happened.
    pub kind: EventKind,
    /// The id it happened to; for a connection request, the listener.
    pub key: IdKey,
    /// The user data of that id (ID-2).
    pub context: u64,
    /// The raw status: a negative errno, or a reject code (CE-1).
    pub status: i32,
    /// Private data of the peer, padded with zeros to the fixed length (CM-8).
    pub private_data: Vec<u8>,
    /// The depths that a peer asks for with its request or grants with its answer, as this side
    /// sees them (CM-9); `None` with other events.
    pub depths: Option<Depths>,
    /// Where to send datagrams: with ESTABLISHED for an id that has looked a listener up (CM-14),
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
    /// The address could not be resolved.
    AddrError = 1,
    /// The route was resolved.
    RouteResolved = 2,
    /// The route could not be resolved.
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
    /// The connection has ended.
    Disconnected = 10,
    /// The device is being removed.
    DeviceRemoval = 11,
    /// A multicast group was joined.
    MulticastJoin = 12,
    /// The group could not be joined.
    MulticastError = 13,
    /// The device's address changed.
    AddrChange = 14,
    /// The queue pair may be used again.
    TimewaitExit = 15,
}

impl EventKind {
    /// The kind for a device's number; `None` for a number newer than this list.
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
    /// Why the peer refused, if it did and the code is one of InfiniBand's.
    pub fn rejection(&self) -> Option<Rejection> {
        let rejected = self.kind == EventKind::Rejected;
        rejected.then(|| Rejection::from_raw(self.status)).flatten()
    }
}

/// Reject codes worth telling apart (CE-1), with InfiniBand's numbers. iWARP has an errno instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(i32)]
pub enum Rejection {
    /// The peer has no queue pair left.
    NoQp = 1,
    /// The peer lacks resources.
    NoResources = 3,
    /// The peer waited too long.
    TimedOut = 4,
    /// The peer does not support the request.
    Unsupported = 5,
    /// The peer does not know the connection.
    UnknownConnection = 6,
    /// Nobody listens at that port.
    NoListener = 8,
    /// The connection existed before.
    Stale = 10,
    /// The peer has no such address.
    UnknownAddress = 12,
    /// The peer cannot take packets of that size.
    Mtu = 26,
    /// The application rejected.
    Consumer = 28,
    /// The peer does not support that number of retries.
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
