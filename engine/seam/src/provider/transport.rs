//! Transports: what a queue pair promises, and to whom it talks.

use core::fmt;

/// The transport of a queue pair (`enum ibv_qp_type`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection: everything arrives once and in order, or the sender hears why not.
    #[default]
    Rc = 2,
    /// Unreliable connection: SEND and WRITE to one peer, which may be lost without a word; a send
    /// is complete when it is on its way (UC-1).
    Uc = 3,
    /// Unreliable datagrams: SEND to any queue pair of this type that an address handle leads to.
    Ud = 4,
    /// Ethernet frames, headers and all, to and from the device's port. It has no peer.
    RawPacket = 8,
    /// The sending end of an extended reliable connection: as RC, but a message names the shared
    /// receive queue that it goes to ([`crate::wr::SendOp::Xrc`]), and nothing comes in.
    XrcSend = 9,
    /// The receiving end of one: it has no queues, and puts what comes into the shared receive
    /// queues of its domain (XRC-1).
    XrcRecv = 10,
}

impl QpType {
    /// True if nobody tells a sender what became of its message.
    #[inline]
    pub fn is_unreliable(self) -> bool {
        matches!(self, QpType::Uc | QpType::Ud | QpType::RawPacket)
    }

    /// True for both ends of an extended reliable connection.
    #[inline]
    pub fn is_xrc(self) -> bool {
        matches!(self, QpType::XrcSend | QpType::XrcRecv)
    }
}

/// Bytes before the payload in each receive of a datagram: room for a global routing header, used
/// or not (UD-1).
pub const GRH_BYTES: usize = 40;

/// A global identifier (`union ibv_gid`): of a port, or, with a first byte of 0xff, of a multicast
/// group.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// True if it is that of a group.
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&core::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The way to a port or a group (`struct ibv_ah_attr`), as plain data: to tell another process, or
/// to make an address handle from. On InfiniBand without a route the local identifier leads there;
/// RoCE always has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID, with what a global route needs.
    pub route: Option<GlobalRoute>,
    /// The peer's local identifier.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// The low bits of the source's local identifier.
    pub source_path: u8,
    /// Rate limit of the path; 0 for none.
    pub static_rate: u8,
    /// The own port.
    pub port: u8,
}

impl AddressVector {
    /// The way to a GID from the first port and GID of this device.
    pub fn to(gid: Gid) -> AddressVector {
        let route = GlobalRoute { gid, hop_limit: 64, ..GlobalRoute::default() };
        AddressVector { route: Some(route), port: 1, ..AddressVector::default() }
    }
}

/// A route by GID (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID, in the order of the wire.
    pub gid: Gid,
    /// Flow label.
    pub flow_label: u32,
    /// Which of the own GIDs is the source.
    pub source_index: u8,
    /// Hops at most.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}
