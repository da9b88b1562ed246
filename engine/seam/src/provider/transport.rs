//! Transports: what a queue pair promises, and who its peers are.

use core::fmt;

/// The transport of a queue pair (`enum ibv_qp_type`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection: everything arrives once and in order, or the sender learns why not.
    #[default]
    Rc = 2,
    /// Unreliable connection: SEND and WRITE to one peer, which may be lost silently; a send
    /// completes when it is on its way (UC-1).
    Uc = 3,
    /// Unreliable datagrams: SEND to any queue pair of this type that an address handle reaches.
    Ud = 4,
    /// Ethernet frames, headers and all, to and from the device's port. It has no peer.
    RawPacket = 8,
    /// The sending end of an extended reliable connection: as RC, but each message names the shared
    /// receive queue that it goes to ([`crate::wr::SendOp::Xrc`]), and this end receives nothing.
    XrcSend = 9,
    /// The receiving end of an extended reliable connection: it has no queues, and puts incoming
    /// messages into the shared receive queues of its domain (XRC-1).
    XrcRecv = 10,
}

impl QpType {
    /// True if a sender does not learn what became of its message.
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

/// Bytes before the payload in each receive of a datagram, reserved for a global routing header,
/// used or not (UD-1).
pub const GRH_BYTES: usize = 40;

/// A global identifier (`union ibv_gid`): of a port, or, with a first byte of 0xff, of a multicast
/// group.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// True if it names a multicast group.
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

/// The address of a port or a group (`struct ibv_ah_attr`), as plain data: a program can send it to
/// another process or make an address handle from it. On InfiniBand the local identifier is enough
/// without a route; RoCE always needs a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID and the other fields of a global route.
    pub route: Option<GlobalRoute>,
    /// The peer's local identifier.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// The low bits of the source's local identifier.
    pub source_path: u8,
    /// Rate limit of the path; 0 for none.
    pub static_rate: u8,
    /// The local port.
    pub port: u8,
}

impl AddressVector {
    /// The address of a GID, from the first port and the first GID of this device.
    pub fn to(gid: Gid) -> AddressVector {
        let route = GlobalRoute { gid, hop_limit: 64, ..GlobalRoute::default() };
        AddressVector { route: Some(route), port: 1, ..AddressVector::default() }
    }
}

/// A route by GID (`struct ibv_global_route`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID, in wire order.
    pub gid: Gid,
    /// Flow label.
    pub flow_label: u32,
    /// Index of the local GID that is the source.
    pub source_index: u8,
    /// Maximum number of hops.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}
