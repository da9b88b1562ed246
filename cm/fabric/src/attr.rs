//! Attributes of ids, queue pairs and connections.

use doorbell_seam::provider::{AddressVector, Gid, QpType};

use crate::state::Mtu;

/// Port spaces (`enum rdma_port_space`, numbers as there: G-5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum PortSpace {
    /// Reliable, connected, messages: queue pairs are RC (ID-5).
    #[default]
    Tcp = 0x0106,
    /// Unreliable datagrams and multicast: queue pairs are UD (ID-6).
    Udp = 0x0111,
    /// As `Udp`, for addresses of IP over InfiniBand (ID-6).
    Ipoib = 0x0002,
    /// As `Tcp`, but each endpoint states the type of its queue pairs, which includes extended
    /// reliable connections ([`crate::Hints::qp_type`]).
    Ib = 0x013f,
}

impl PortSpace {
    /// True if its queue pairs are UD: nothing is connected, and peers only look a listener up.
    pub fn is_datagram(self) -> bool {
        matches!(self, PortSpace::Udp | PortSpace::Ipoib)
    }

    /// The type of queue pairs of its ids (ID-5, ID-6).
    pub fn qp_type(self) -> QpType {
        if self.is_datagram() { QpType::Ud } else { QpType::Rc }
    }

    /// Maximum bytes of private data with connect (CM-8).
    pub fn connect_data_max(self) -> usize {
        if self.is_datagram() { 180 } else { CONNECT_DATA_MAX }
    }

    /// Maximum bytes of private data with accept (CM-8).
    pub fn accept_data_max(self) -> usize {
        if self.is_datagram() { 136 } else { ACCEPT_DATA_MAX }
    }

    /// Maximum bytes of private data with reject (CM-8).
    pub fn reject_data_max(self) -> usize {
        if self.is_datagram() { 136 } else { REJECT_DATA_MAX }
    }
}

/// The key of UD queue pairs that ids make (`RDMA_UDP_QKEY`, QP-4).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// What a sender of datagrams must know about a queue pair or a group (`struct rdma_ud_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdParam {
    /// The path, for an address handle.
    pub to: AddressVector,
    /// The queue pair's number; for a group [`MULTICAST_QPN`](doorbell_seam::wr::MULTICAST_QPN).
    pub qp_num: u32,
    /// Its key.
    pub qkey: u32,
}

/// The address that a device sends from. A peer needs it to reach this side, and an
/// [`AddressVector`] names it as this side's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The GID.
    pub gid: Gid,
    /// Its index in the port's table.
    pub index: u8,
    /// The port, from 1.
    pub port: u8,
}

impl Source {
    /// The path from here to another GID.
    pub fn path_to(&self, gid: Gid) -> AddressVector {
        let mut path = AddressVector { port: self.port, ..AddressVector::to(gid) };
        if let Some(route) = &mut path.route {
            route.source_index = self.index;
        }
        path
    }
}

/// How to join a multicast group (`enum rdma_cm_mc_join_flags`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Join {
    /// To send and to receive: the id's queue pair is attached to the group.
    #[default]
    FullMember = 0,
    /// To send only.
    SendOnly = 1,
}

/// Parameters of connect and accept (`struct rdma_conn_param`). The default has the meaning of a
/// NULL parameter (CM-6).
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Bytes for the peer: at most 56 with connect, 196 with accept in the TCP port space (CM-8).
    /// The peer sees them padded with zeros to that length.
    pub private_data: &'a [u8],
    /// With accept, datagrams only: the queue pair to send to, for an id without one of its own.
    pub qp_num: u32,
    /// READs and atomics of the peer this side serves at a time; 255 is the device's maximum.
    pub responder_resources: u8,
    /// READs and atomics this side has in flight at a time; 255 is the device's maximum.
    pub initiator_depth: u8,
    /// Retries after a lost packet, 0 to 7; the connecting side's value holds for both.
    pub retry_count: u8,
    /// Retries the *peer's* sends make when this side has no receive posted; 7 is for ever.
    pub rnr_retry: u8,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        ConnParam {
            private_data: &[],
            qp_num: 0,
            responder_resources: 255,
            initiator_depth: 255,
            retry_count: 7,
            rnr_retry: 7,
        }
    }
}

/// The READs and atomics that a side serves and has in flight at a time (SQ-7). A peer's values
/// arrive swapped: what it has in flight is what this side serves (CM-9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Served here, for the peer (`responder_resources`).
    pub responder: u8,
    /// In flight from this side (`initiator_depth`).
    pub initiator: u8,
}

impl Depths {
    /// The depths granted to a side that asks for these; 255 means all it can have (CM-5, CM-6).
    pub fn within(self, most: Depths) -> Depths {
        let limit = |asked, most| if asked == u8::MAX { most } else { asked };
        Depths {
            responder: limit(self.responder, most.responder),
            initiator: limit(self.initiator, most.initiator),
        }
    }

    /// The same connection, seen from the other side (CM-9).
    pub fn swapped(self) -> Depths {
        Depths { responder: self.initiator, initiator: self.responder }
    }
}

/// Process and user of a peer on the same machine, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
}

/// Options of an id (`rdma_set_option`, CM-16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// Type of service for the connection's packets (`RDMA_OPTION_ID_TOS`).
    Tos(u8),
    /// Lets several ids bind to one address, of which one may listen (`RDMA_OPTION_ID_REUSEADDR`).
    /// Set it before binding.
    ReuseAddr(bool),
    /// A listener on all IPv6 addresses does not listen on IPv4 addresses
    /// (`RDMA_OPTION_ID_AFONLY`). Set it before binding.
    AfOnly(bool),
    /// Time until an unacknowledged packet is sent again: 4.096 µs times two to the power of this,
    /// 0 to 31 (`RDMA_OPTION_ID_ACK_TIMEOUT`, RC-2). Set it before connecting or accepting.
    AckTimeout(u8),
    /// The path to the peer, as a subnet manager gives it (`RDMA_OPTION_IB_PATH`). Set it once the
    /// address is resolved, in place of resolving the route. On a channel it raises ROUTE_RESOLVED.
    /// For InfiniBand; the soft device accepts any path, because it has only one.
    IbPath(PathRecord),
}

/// A path through an InfiniBand network (`struct ibv_path_record`), there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// The GID at its end.
    pub to: Gid,
    /// The GID at its beginning.
    pub from: Gid,
    /// The local identifier (LID) at its end.
    pub to_lid: u16,
    /// The local identifier (LID) at its beginning.
    pub from_lid: u16,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// Maximum number of routers on the way.
    pub hop_limit: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The partition key.
    pub pkey: u16,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The rate, by the number of `enum ibv_rate`.
    pub rate: u8,
    /// The lifetime of a packet: 4.096 µs times two to the power of this, 0 to 31.
    pub packet_lifetime: u8,
}

/// The largest code of [`IdOption::AckTimeout`].
pub const ACK_TIMEOUT_MAX: u8 = 31;

/// Private data limits of the TCP port space (CM-8), in bytes.
pub const CONNECT_DATA_MAX: usize = 56;
/// As above, for accept.
pub const ACCEPT_DATA_MAX: usize = 196;
/// As above, for reject.
pub const REJECT_DATA_MAX: usize = 148;
