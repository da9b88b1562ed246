//! `mckey` of rdmacm-utils: datagrams to a multicast group.
//!
//! Both sides join; the receiver posts its receives before that. The sender waits until switches
//! can have learned of the group, then sends and leaves.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use doorbell::{CmError, Fabric, Id, Join, PortSpace, Program, QpInit, UdParam};

use super::common::{Plan, differs};
use super::udaddy::Load;

/// How long the sender waits, as in the C program.
const PAUSE: Duration = Duration::from_secs(3);

/// What both sides need.
#[derive(Clone, Copy, Debug)]
pub struct Mckey {
    /// The local address to join from.
    pub plan: Plan,
    /// The group.
    pub group: IpAddr,
    /// Number of datagrams.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
}

impl Mckey {
    fn load(&self) -> Load {
        Load { plan: self.plan, count: self.count, size: self.size }
    }

    /// An id that is resolved to the group, with its queue pair.
    fn ready<F: Fabric>(&self, fabric: &F) -> Result<Id<F>, CmError> {
        let mut id = Id::create(fabric, None, PortSpace::Udp)?;
        let (from, to) = (self.plan.addr, SocketAddr::new(self.group, 0));
        id.resolve_addr(Some(from), to, self.plan.time_left())?;
        id.create_qp(&QpInit::ud().send_wr(self.count).recv_wr(self.count))?;
        Ok(id)
    }

    fn join<F: Fabric>(&self, id: &mut Id<F>, how: Join) -> Result<UdParam, CmError> {
        id.multicast().join(self.group, how)?;
        id.ud().ok_or_else(|| differs("the group", "where to send", "nothing"))
    }
}

/// The counterpart of `mckey -s`.
#[derive(Clone, Copy, Debug)]
pub struct MckeyReceiver(pub Mckey);

impl Program for MckeyReceiver {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.0.ready(&fabric)?;
        self.0.load().post_recvs(&fabric, &mut id)?;
        self.0.join(&mut id, Join::FullMember)?;
        println!("joined {}, device {}", self.0.group, fabric.caps().device);
        self.0.load().receive(&mut id)?;
        id.multicast().leave(self.0.group)
    }
}

/// The counterpart of `mckey` without `-s`.
#[derive(Clone, Copy, Debug)]
pub struct MckeySender(pub Mckey);

impl Program for MckeySender {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.0.ready(&fabric)?;
        let group = self.0.join(&mut id, Join::FullMember)?;
        thread::sleep(PAUSE.min(self.0.plan.time_left()));
        self.0.load().send(&fabric, &mut id, &group)?;
        id.multicast().leave(self.0.group)
    }
}
