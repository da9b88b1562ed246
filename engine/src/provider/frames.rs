//! What queue pairs of RAW_PACKET deal in: Ethernet frames, and who gets which.

use core::fmt;

/// An Ethernet address, in the order of the wire.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True if it is of a group, all stations among them.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which frames of its port a queue pair of RAW_PACKET gets (`struct ibv_flow_attr`). Without a
/// rule it gets none; with several, what any of them says, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlowRule {
    /// All of them (`IBV_FLOW_ATTR_SNIFFER`).
    All,
    /// Those to an address (`IBV_FLOW_ATTR_NORMAL` with `struct ibv_flow_spec_eth`).
    To(Mac),
}
