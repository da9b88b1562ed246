//! Transports: what a queue pair promises, and to whom it talks.

use core::fmt;

use crate::wr::AhName;

/// The transport of a queue pair (`enum ibv_qp_type`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection: everything arrives once and in order, or the sender hears why not.
    #[default]
    Rc = 2,
    /// Unreliable connection: SEND and WRITE to one peer, which may be lost without a word; a send
    /// is complete when it is on its way (section 2.6).
    Uc = 3,
    /// Unreliable datagrams: SEND to any queue pair of this type that an address handle leads to.
    Ud = 4,
}

impl QpType {
    /// True if nobody tells a sender what became of its message.
    #[inline]
    pub fn is_unreliable(self) -> bool {
        !matches!(self, QpType::Rc)
    }
}

/// Bytes before the payload in each receive of a datagram: room for a global routing header, used
/// or not (section 2.6).
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

/// The way to a port (`struct ibv_ah_attr`), as plain data: to send to another process, or to make
/// an address handle from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhAttr {
    /// The port, or the group.
    pub gid: Gid,
    /// `grh.flow_label`.
    pub flow_label: u32,
    /// `grh.sgid_index`: which of the own GIDs is the source.
    pub sgid_index: u8,
    /// `grh.hop_limit`.
    pub hop_limit: u8,
    /// `grh.traffic_class`.
    pub traffic_class: u8,
    /// Local identifier of the destination, on InfiniBand.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// `src_path_bits`.
    pub src_path_bits: u8,
    /// `static_rate`.
    pub static_rate: u8,
    /// The GID counts; false only within an InfiniBand subnet.
    pub is_global: bool,
    /// The port of this device to leave by.
    pub port: u8,
}

impl AhAttr {
    /// The way to a GID from the first port and GID of this device.
    pub fn to(gid: Gid) -> AhAttr {
        AhAttr {
            gid,
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 64,
            traffic_class: 0,
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: true,
            port: 1,
        }
    }
}

/// An address handle (`struct ibv_ah`): the way of datagrams to a port or a group. It has to live
/// until what was sent by it has completed.
pub trait AddressHandle {
    /// What requests call it; good as long as one clone of the handle lives.
    fn name(&self) -> AhName;
}
