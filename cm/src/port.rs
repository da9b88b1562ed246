//! A port for a worker's datagrams: the control plane's side of [`Intake::open_datagrams`].

use std::net::{IpAddr, SocketAddr};

use doorbell_engine::worker::Intake;
use doorbell_fabric::{CmError, CmId, Fabric, Join, PortSpace, UDP_QKEY, UdParam};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Qp, QpType};

use crate::connections::not_taken;
use crate::worker_qp;

/// A port by which a worker sends and receives datagrams, and the groups it is in. The worker owns
/// the queue pair; groups are joined and left here, on any thread. When this value is dropped, it
/// leaves its groups, and the worker gives up its queue pair on its next turn.
pub struct Port<F: Fabric> {
    id: F::Id,
    fabric: F,
    intake: Intake<F>,
    qp_num: u32,
}

impl<F: Fabric> Port<F> {
    /// Binds to an address of the device (port 0 takes a free one), and gives the worker a queue
    /// pair for datagrams. It sends and receives from the worker's next turn on.
    ///
    /// # Errors
    /// An address that is not the device's. `Invalid`: the worker was made without
    /// [`Config::datagrams`](doorbell_engine::worker::Config::datagrams). `Busy`: it does not turn,
    /// and its mailbox is full. `Reset`: it has ended.
    pub fn open(fabric: &F, addr: SocketAddr, intake: &Intake<F>) -> Result<Port<F>, CmError> {
        let asked = "open a port for a worker's datagrams";
        if intake.datagram_caps().recv_wr == 0 {
            let answer = "the worker has no receives for them";
            return Err(CmError::new(Code::Invalid, asked, answer)
                .cure("make the worker with Config::datagrams of 1 or more"));
        }
        let mut id = fabric.create_id(None, PortSpace::Udp)?;
        id.bind(addr)?;
        let qp = worker_qp::create(&mut id, intake, QpType::Ud)?;
        let qp_num = qp.num();
        intake.open_datagrams(qp).map_err(|_| not_taken(intake, asked))?;
        Ok(Port { id, fabric: fabric.clone(), intake: intake.clone(), qp_num })
    }

    /// The address, with the port that was taken.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// Where a worker on the same device sends to reach this one, for
    /// [`Outbox::resolve`](doorbell_engine::worker::Outbox::resolve). A worker on another device
    /// uses only the GID; the rest comes from its own device ([`crate::Source::path_to`]).
    ///
    /// # Errors
    /// The port has no address that the device knows.
    pub fn here(&self) -> Result<UdParam, CmError> {
        let none = || CmError::new(Code::Invalid, "the address of a port", "it has no address");
        let source = self.fabric.source(self.local_addr().ok_or_else(none)?.ip())?;
        Ok(UdParam { to: source.path_to(source.gid), qp_num: self.qp_num, qkey: UDP_QKEY })
    }

    /// Joins a multicast group: the worker also receives datagrams sent to it. Returns where to
    /// send to reach the group.
    ///
    /// # Errors
    /// The address is not that of a group. Otherwise the connection manager's error.
    pub fn join(&mut self, group: IpAddr) -> Result<UdParam, CmError> {
        self.id.join_multicast(group, Join::FullMember)?;
        let none = || {
            CmError::new(
                Code::Invalid,
                format!("join {group}"),
                "the connection manager gave no address for it",
            )
        };
        self.id.ud().ok_or_else(none)
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `AddrNotAvailable`: it is not in that group.
    pub fn leave(&mut self, group: IpAddr) -> Result<(), CmError> {
        self.id.leave_multicast(group)
    }
}

impl<F: Fabric> Drop for Port<F> {
    fn drop(&mut self) {
        // A worker whose mailbox is full does not turn, and gives everything up when it goes.
        let _ = self.intake.close_datagrams(self.qp_num);
    }
}
