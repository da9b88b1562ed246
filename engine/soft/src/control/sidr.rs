//! Datagrams: looking up a listener (InfiniBand's SIDR), and multicast groups.
//!
//! Nothing is connected. One side sends a look-up over the listener's socket, the answer says where
//! to send, and the socket is closed.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use doorbell_fabric::CmError;
use doorbell_fabric::EventKind;
use doorbell_fabric::{ConnParam, Join, PortSpace, UDP_QKEY, UdParam};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{AddressVector, Gid};
use doorbell_seam::wr::MULTICAST_QPN;

use super::end::{Core, Raised, State};
use super::wire::{Found, Lookup, Message, padded};

/// Status of UNREACHABLE: nobody listens there.
pub(super) const UNSUPPORTED: i32 = 1;
/// Status of UNREACHABLE: the listener rejected.
pub(super) const REJECTED: i32 = 2;

/// The GID of a multicast group: IPv6 groups are one, IPv4 ones lie in a prefix of global scope.
fn gid_of(group: IpAddr) -> Gid {
    match group {
        IpAddr::V6(group) => Gid(group.octets()),
        IpAddr::V4(group) => {
            let [a, b, c, d] = group.octets();
            let low = |one, two| u16::from_be_bytes([one, two]);
            Gid(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0xffff, low(a, b), low(c, d)).octets())
        }
    }
}

impl Core {
    /// The name space of this end's addresses: each has its own ports.
    pub(super) fn place_name(&self) -> String {
        // No device name contains a dot.
        let sign = match self.space {
            PortSpace::Tcp => "",
            PortSpace::Udp => ".udp",
            PortSpace::Ipoib => ".ipoib",
            PortSpace::Ib if self.kind.is_xrc() => ".xrc",
            PortSpace::Ib => ".ib",
        };
        format!("{}{sign}", self.device.name)
    }

    /// Starts to look the listener up (`rdma_connect`).
    pub(super) fn look_up(&mut self, param: &ConnParam<'_>) -> Option<Raised> {
        let (Some(from), Some(_)) = (self.local, self.remote) else { return None };
        let data = padded(param.private_data);
        self.pending_request = Some(Message::Lookup(Box::new(Lookup { from, data })));
        self.state = State::Connecting { since: Instant::now() };
        self.try_connect()
    }

    /// Answers a look-up (`rdma_accept`) with the id's queue pair, or with the named one.
    pub(super) fn answer_lookup(&mut self, param: &ConnParam<'_>) -> Result<(), CmError> {
        let qp = self.living_qp().map_or(param.qp_num, |qp| qp.num());
        if qp == 0 {
            let asked = "accept a look-up";
            let answer = "the id has no queue pair, and none is named";
            return Err(CmError::new(Code::Invalid, asked, answer).cure("make one, or set qp_num"));
        }
        let gid = self.device.soft.gid().0;
        let data = padded(param.private_data);
        let found = Message::Found(Box::new(Found { gid, qp, qkey: UDP_QKEY, data }));
        if let Some(socket) = &self.socket {
            // The side that asked may be gone already; then nobody needs to be told.
            let _ = socket.send(&found.encode(), &[]);
        }
        self.close(State::Closed);
        Ok(())
    }

    /// The look-up has failed. The queue pair keeps its state, which a look-up does not concern.
    pub(super) fn unreachable(&mut self, status: i32) -> Raised {
        self.close(State::Closed);
        Raised::failed(EventKind::Unreachable, status)
    }

    /// Handles a message for an end of datagrams.
    pub(super) fn receive_lookup(&mut self, message: Message) -> Option<Raised> {
        match (self.state, message) {
            (State::Incoming, Message::Lookup(lookup)) => {
                self.state = State::Asked;
                self.deadline = None;
                self.remote = Some(lookup.from);
                let data = lookup.data.to_vec();
                Some(Raised { data, ..Raised::plain(EventKind::ConnectRequest) })
            }
            (State::Requested, Message::Found(found)) => {
                self.close(State::Closed);
                let to = AddressVector::to(Gid(found.gid));
                let ud = Some(UdParam { to, qp_num: found.qp, qkey: found.qkey });
                let data = found.data.to_vec();
                Some(Raised { data, ud, ..Raised::plain(EventKind::Established) })
            }
            (State::Requested, Message::Reject { .. }) => Some(self.unreachable(REJECTED)),
            _ => self.lose_lookup(),
        }
    }

    /// The other side's process has ended, or broke the protocol.
    pub(super) fn lose_lookup(&mut self) -> Option<Raised> {
        let asking = self.state == State::Requested;
        self.close(State::Closed);
        // As if the listener had ended with the look-up in its backlog.
        asking.then(|| Raised::failed(EventKind::Unreachable, REJECTED))
    }

    /// Joins a group (`rdma_join_multicast`). Returns where to send to it.
    pub(super) fn join(&mut self, group: IpAddr, how: Join) -> Result<UdParam, CmError> {
        let asked = || format!("join the multicast group {group}");
        let invalid = |answer: &str| Err(CmError::new(Code::Invalid, asked(), answer));
        if !self.space.is_datagram() {
            return invalid("the id's port space is for connections (CM-13)");
        }
        if !matches!(self.state, State::Bound | State::AddrResolved) {
            return invalid("the id is not bound, or past that (CM-13)");
        }
        if !group.is_multicast() {
            return invalid("that is not the address of a group");
        }
        let gid = gid_of(group);
        if let (Join::FullMember, Some(qp)) = (how, self.living_qp()) {
            qp.attach_mcast(gid)?;
        }
        self.groups.push((group, how));
        let to = AddressVector::to(gid);
        let ud = UdParam { to, qp_num: MULTICAST_QPN, qkey: UDP_QKEY };
        self.ud = Some(ud);
        Ok(ud)
    }

    /// Leaves a group (`rdma_leave_multicast`).
    pub(super) fn leave(&mut self, group: IpAddr) -> Result<(), CmError> {
        let Some(place) = self.groups.iter().position(|(known, _)| *known == group) else {
            let asked = format!("leave the multicast group {group}");
            let answer = "the id has not joined it (CM-13)";
            return Err(CmError::new(Code::AddrNotAvailable, asked, answer));
        };
        let left = self.groups.swap_remove(place);
        // What the program has attached by itself stays.
        let is_over = left.1 == Join::FullMember && !self.groups.contains(&left);
        if let Some(qp) = self.qp.as_ref().filter(|_| is_over) {
            // It is not attached if it was made later, or if its owner has detached it.
            let _ = qp.detach_mcast(gid_of(group));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use doorbell_fabric::{CmId, Fabric};
    use doorbell_seam::provider::{Provider, QpType, Sharing};

    use super::super::SoftDevice;
    use super::super::tests::{attr, loopback};
    use super::*;

    #[test]
    fn groups_have_gids_of_their_own() {
        let text = |group: &str| gid_of(group.parse().unwrap()).to_string();
        assert_eq!(text("239.1.2.3"), "ff0e::ffff:ef01:203");
        assert_eq!(text("ff12::1"), "ff12::1");
    }

    #[test]
    fn leaving_detaches_what_joining_has_attached() {
        let device = SoftDevice::open().unwrap();
        let (cq, _poller) = device.create_cq(16, Sharing::Shared).unwrap();
        let mut id = device.create_id(None, PortSpace::Udp).unwrap();
        id.bind(loopback(0)).unwrap();
        let qp = id.create_qp(&device, &attr(QpType::Ud, [&cq; 2], None)).unwrap();
        let (group, qp) = ("239.1.2.3".parse().unwrap(), qp.control());
        let is_attached = || qp.detach_mcast(gid_of(group)).is_ok();
        id.join_multicast(group, Join::SendOnly).unwrap();
        qp.attach_mcast(gid_of(group)).unwrap();
        id.leave_multicast(group).unwrap();
        assert!(is_attached(), "the program has done that");
        for _ in 0..2 {
            id.join_multicast(group, Join::FullMember).unwrap();
        }
        id.leave_multicast(group).unwrap();
        assert!(is_attached(), "the second time counts");
        qp.attach_mcast(gid_of(group)).unwrap();
        id.leave_multicast(group).unwrap();
        assert!(!is_attached());
    }
}
