//! Capabilities of a device and attributes of its ports: `ibv_query_device`, `ibv_query_port`.

use core::fmt;

use std_alloc::string::String;

use super::cq_ex::{CqFlags, WcFields};
use super::extended::SendOps;
use super::rereg::ReregFlags;

/// Limits and capabilities of a device (`ibv_query_device`, `ibv_query_device_ex`): what the
/// constructors accept. It prints as a table. `u32::MAX` means no limit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// The device's name: `soft0`, `rxe0`, `mlx5_0` …
    pub device: String,
    /// Ports, counted from 1.
    pub ports: u8,
    /// Maximum number of queue pairs.
    pub qp_max: u32,
    /// Maximum number of requests in one work queue.
    pub qp_wr_max: u32,
    /// Maximum number of scatter-gather entries in one send request.
    pub send_sge_max: u32,
    /// Maximum number of completion queues.
    pub cq_max: u32,
    /// Maximum number of entries in one completion queue.
    pub cqe_max: u32,
    /// Maximum number of shared receive queues.
    pub srq_max: u32,
    /// Maximum number of requests in one shared receive queue.
    pub srq_wr_max: u32,
    /// Maximum number of regions.
    pub mr_max: u32,
    /// Maximum number of memory windows; 0 if the device has none.
    pub mw_max: u32,
    /// Maximum number of protection domains.
    pub pd_max: u32,
    /// Maximum number of multicast groups; 0 if the device has none.
    pub mcast_groups_max: u32,
    /// Maximum number of bytes in one message.
    pub message_max: u32,
    /// Maximum number of inline bytes that a queue pair may ask for, where the device says so.
    pub inline_max: u32,
    /// Maximum number of READs and atomics in flight, as their target and as their source.
    pub rd_atomic_max: u8,
    /// What the device's atomics are atomic with respect to.
    pub atomics: Atomics,
    /// The device supports extended reliable connections (XRC-1).
    pub xrc: bool,
    /// A peer copies the bytes of a long message straight from the sender's memory, if that is
    /// [`MapRequest::readable`](doorbell_alloc::MapRequest::readable). A device that reaches
    /// memory by itself does not need it.
    pub lends: bool,
    /// The device has parent domains ([`super::ThreadDomains::alloc_parent_domain`]).
    pub parent_domains: bool,
    /// The device has thread domains ([`super::ThreadDomains::alloc_td`]).
    pub thread_domains: bool,
    /// Operations that queue pairs of RC can be made for by name (`send_ops_flags`); a driver that
    /// takes some has the extended post of rdma-core (`ibv_wr_start`) for them. Requests are posted
    /// the plain way all the same, which was found to be no slower and to tell more.
    pub send_ops: SendOps,
    /// Number of completion vectors; on a NIC each has an interrupt of its own.
    pub comp_vectors: u32,
    /// Fields that completions can carry ([`super::ExtendedCq::create_cq_ex`]).
    pub wc_fields: WcFields,
    /// Flags that an extended completion queue can be made with.
    pub cq_flags: CqFlags,
    /// Shared receive queues can grow ([`super::SrqLimits::resize`]).
    pub srq_resize: bool,
    /// What can be changed about a region ([`super::Reregister::reregister`]).
    pub rereg: ReregFlags,
}

/// With whom atomics are atomic (`enum ibv_atomic_cap`, numbers as there; RC-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Atomics {
    /// The device has no atomics.
    #[default]
    None = 0,
    /// Atomic with respect to other atomics of the same device.
    Hca = 1,
    /// Atomic with respect to the processor's atomics, too.
    Global = 2,
}

impl Caps {
    /// Limits of a device of that name, all zero; the device fills them in.
    pub fn named(device: &str) -> Caps {
        Caps {
            device: String::from(device),
            ports: 0,
            qp_max: 0,
            qp_wr_max: 0,
            send_sge_max: 0,
            cq_max: 0,
            cqe_max: 0,
            srq_max: 0,
            srq_wr_max: 0,
            mr_max: 0,
            mw_max: 0,
            pd_max: 0,
            mcast_groups_max: 0,
            message_max: 0,
            inline_max: 0,
            rd_atomic_max: 0,
            atomics: Atomics::None,
            xrc: false,
            lends: false,
            parent_domains: false,
            thread_domains: false,
            send_ops: SendOps::empty(),
            comp_vectors: 0,
            wc_fields: WcFields::empty(),
            cq_flags: CqFlags::empty(),
            srq_resize: false,
            rereg: ReregFlags::empty(),
        }
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} ports", self.device, self.ports)?;
        let limits = [
            ("queue pairs", self.qp_max),
            ("  requests in a queue", self.qp_wr_max),
            ("  pieces of a send", self.send_sge_max),
            ("  bytes of a message", self.message_max),
            ("  bytes inline", self.inline_max),
            ("  READs and atomics in flight", self.rd_atomic_max.into()),
            ("completion queues", self.cq_max),
            ("  entries", self.cqe_max),
            ("  completion vectors", self.comp_vectors),
            ("shared receive queues", self.srq_max),
            ("  receives", self.srq_wr_max),
            ("regions", self.mr_max),
            ("memory windows", self.mw_max),
            ("protection domains", self.pd_max),
            ("multicast groups", self.mcast_groups_max),
        ];
        for (what, limit) in limits {
            match limit {
                u32::MAX => writeln!(f, "{what:32}any")?,
                _ => writeln!(f, "{what:32}{limit}")?,
            }
        }
        writeln!(f, "{:32}{:?}", "atomics", self.atomics)?;
        let there = [
            ("extended reliable connections", self.xrc),
            ("long messages copied once", self.lends),
            ("parent domains", self.parent_domains),
            ("thread domains", self.thread_domains),
            ("receive queues that grow", self.srq_resize),
        ];
        for (what, there) in there {
            writeln!(f, "{what:32}{}", if there { "yes" } else { "no" })?;
        }
        writeln!(f, "{:32}{:?}", "regions that change", self.rereg)?;
        writeln!(f, "{:32}{:?}", "sends by name, extended posts", self.send_ops)?;
        writeln!(f, "{:32}{:?}", "fields of completions", self.wc_fields)?;
        write!(f, "{:32}{:?}", "flags of completion queues", self.cq_flags)
    }
}

/// A port (`struct ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// The state of its link.
    pub state: PortState,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// Largest payload of a packet that the port supports, in bytes.
    pub max_mtu: u32,
    /// Largest payload in use now, in bytes; datagrams cannot be longer.
    pub active_mtu: u32,
    /// Maximum number of bytes in one message.
    pub message_max: u32,
    /// Number of entries in its GID table ([`super::Ports::query_gid`]).
    pub gids: u32,
    /// Number of entries in its partition key table ([`super::Ports::query_pkey`]).
    pub pkeys: u32,
    /// Its local identifier; 0 where ports have none (RoCE, soft).
    pub lid: u16,
    /// The subnet manager's local identifier.
    pub sm_lid: u16,
}

impl PortAttr {
    /// An active port with that link layer and MTU and nothing else; the device fills in the rest.
    pub fn active(link_layer: LinkLayer, mtu: u32) -> PortAttr {
        PortAttr {
            state: PortState::Active,
            link_layer,
            max_mtu: mtu,
            active_mtu: mtu,
            message_max: 0,
            gids: 0,
            pkeys: 0,
            lid: 0,
            sm_lid: 0,
        }
    }
}

/// Whether a port can be used (`enum ibv_port_state`, numbers as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum PortState {
    /// Any other state, and numbers newer than this list.
    Other = 0,
    /// The port has no link.
    Down = 1,
    /// It has a link that nobody has set up.
    Init = 2,
    /// It is being set up.
    Armed = 3,
    /// It carries messages.
    Active = 4,
}

impl PortState {
    /// The state for a number from a device.
    pub fn from_raw(raw: u32) -> PortState {
        use PortState::*;
        let all = [Down, Init, Armed, Active];
        all.into_iter().find(|state| *state as u32 == raw).unwrap_or(Other)
    }
}

/// The link layer of a port (`IBV_LINK_LAYER_*`, numbers as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkLayer {
    /// The device does not say: InfiniBand, as a rule.
    Unspecified = 0,
    /// InfiniBand.
    InfiniBand = 1,
    /// Ethernet: RoCE, iWARP; the soft device also reports this.
    Ethernet = 2,
}

impl LinkLayer {
    /// The link layer for a number from a device.
    pub fn from_raw(raw: u8) -> LinkLayer {
        match raw {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn limits_print_as_a_table() {
        let mut caps = Caps::named("mlx5_0");
        (caps.ports, caps.qp_max, caps.mr_max, caps.xrc) = (2, 77, u32::MAX, true);
        caps.rereg = ReregFlags::CHANGE_PD;
        caps.send_ops = SendOps::SEND;
        let text = caps.to_string();
        let row = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name));
            line.map(|line| line[32..].to_string()).unwrap_or_default()
        };
        assert!(text.starts_with("mlx5_0: 2 ports\n"), "{text}");
        assert_eq!((row("queue pairs"), row("regions")), ("77".into(), "any".into()));
        assert_eq!((row("extended reliable"), row("thread domains")), ("yes".into(), "no".into()));
        assert!(row("regions that change").contains("CHANGE_PD"), "{text}");
        assert_eq!(row("sends by name"), "SendOps(SEND)");
    }

    #[test]
    fn numbers_of_ports_are_those_of_the_headers() {
        for raw in 1..5 {
            assert_eq!(PortState::from_raw(raw) as u32, raw);
        }
        assert_eq!([0, 5, 99].map(PortState::from_raw), [PortState::Other; 3]);
        assert_eq!([0, 1, 2, 3].map(|raw| LinkLayer::from_raw(raw) as u8), [0, 1, 2, 0]);
    }
}
