//! The soft device with its connection manager: threads and processes of one machine, no NIC, no
//! kernel module, no root.
//!
//! Two sides meet over a Unix socket in the abstract name space, so nothing is left behind when a
//! process ends. The kernel confirms that both are processes of the same user. They agree on a
//! link, a piece of shared memory that carries the messages. The socket stays open as long as the
//! connection. When it closes, the peer's process has ended.
//!
//! Messages of a peer are not trusted: `wire` accepts only whole ones, and a peer that sends
//! anything else loses its own connection.
//!
//! There is no background thread. The connection manager works when it is called: in a blocking
//! call of a synchronous id, and in [`Channel::next`](doorbell_fabric::Channel::next).

mod by_number;
mod carrier;
mod channel;
mod clock;
mod conn;
mod deadlines;
mod device;
mod end;
#[cfg(test)]
mod end_tests;
mod events;
mod external;
mod files;
mod forks;
mod host;
#[cfg(test)]
#[cfg(not(any(loom, miri)))]
mod hostile;
mod id;
mod links;
#[cfg(test)]
mod loop_tests;
mod neighbours;
mod offers;
#[cfg(test)]
mod offers_tests;
mod place;
mod rendezvous;
#[cfg(test)]
mod rendezvous_tests;
#[cfg(test)]
mod rights_tests;
#[cfg(test)]
mod shared_poll_tests;
mod sidr;
mod spare;
mod sys;
#[cfg(test)]
mod tests;
mod waiting;
mod wire;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use doorbell_alloc::Mapping;
use doorbell_seam::error::{Code, SetupError};
use doorbell_seam::event::AsyncEvent;
use doorbell_seam::provider::{
    Access, AddressVector, AsyncEvents, Caps, CqInit, Datagrams, ExtendedCq, FlowRule, GRH_BYTES,
    Gid, PortAttr, Ports, ProtectionDomains, Provider, Rereg, Reregister, Reregistered, ResizeCq,
    Sharing, ThreadDomains, WindowKind, Windows, WqFlags, Xrc,
};
use doorbell_seam::wc::Wc;

use crate::{
    Soft, SoftAh, SoftCq, SoftFlow, SoftIndTable, SoftPoller, SoftPollerEx, SoftQp, SoftRegion,
    SoftSrq, SoftTd, SoftWindow, SoftWq, SoftXrcd,
};

pub use self::carrier::{Carrier, CarrierEnd};
pub use self::channel::SoftChannel;
pub use self::device::{SOFT_DEVICE, SoftDevice};
#[cfg(test)]
pub(crate) use self::host::threads;
pub use self::id::{Requests, SoftId, Waiter};
pub use self::rendezvous::{Attempt, Parting};
pub use self::sys::Uncancelled;
pub use self::wire::PeerQp;

use self::channel::Inner;
use doorbell_fabric::AddrInfo;
use doorbell_fabric::CmError;
use doorbell_fabric::{CmId, Fabric};
use doorbell_fabric::{PortSpace, QpAttr, Source};
use doorbell_fabric::{QpFields, QpState};

impl Datagrams for SoftDevice {
    type Ah = SoftAh;

    fn create_ah(&self, to: &AddressVector) -> Result<SoftAh, SetupError> {
        self.1.create_ah(to)
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        self.1.sender_of(wc, header)
    }
}

impl Provider for SoftDevice {
    type Region = SoftRegion;
    type Cq = SoftCq;
    type Poller = SoftPoller;
    type Srq = SoftSrq;
    type Qp = SoftQp;

    fn caps(&self) -> &Caps {
        self.1.caps()
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<SoftRegion, SetupError> {
        self.1.register(memory, access)
    }

    fn create_cq(&self, depth: u32, sharing: Sharing) -> Result<(SoftCq, SoftPoller), SetupError> {
        self.create_cq_on(depth, sharing, 0)
    }

    fn create_srq(&self, depth: u32) -> Result<SoftSrq, SetupError> {
        self.1.create_srq(depth)
    }

    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        self.1.peer_memory(len)
    }

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn for_one_thread(&self) -> Result<Option<SoftDevice>, SetupError> {
        // SAFETY: the caller's promise, passed on.
        let soft = unsafe { self.1.for_one_thread() }?;
        Ok(soft.map(|soft| SoftDevice(self.0.clone(), soft)))
    }
}

impl Ports for SoftDevice {
    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError> {
        self.1.query_port(port)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError> {
        self.1.query_gid(port, index)
    }

    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError> {
        self.1.query_pkey(port, index)
    }
}

impl ProtectionDomains for SoftDevice {
    fn alloc_pd(&self) -> Result<SoftDevice, SetupError> {
        Ok(SoftDevice(self.0.clone(), self.1.alloc_pd()?))
    }

    fn pd_users(&self) -> usize {
        self.1.pd_users()
    }

    fn is_same_device(&self, other: &SoftDevice) -> bool {
        self.1.is_same_device(&other.1)
    }
}

impl ThreadDomains for SoftDevice {
    type Td = SoftTd;

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn alloc_td(&self) -> Result<SoftTd, SetupError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.1.alloc_td() }
    }

    fn td_users(td: &SoftTd) -> usize {
        Soft::td_users(td)
    }

    fn alloc_parent_domain(&self, td: Option<&SoftTd>) -> Result<SoftDevice, SetupError> {
        Ok(SoftDevice(self.0.clone(), self.1.alloc_parent_domain(td)?))
    }
}

impl AsyncEvents for SoftDevice {
    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.1.next_async_event()
    }

    fn async_fd(&self) -> Option<i32> {
        self.1.async_fd()
    }

    fn cq_id(&self, cq: &SoftCq) -> u64 {
        self.1.cq_id(cq)
    }
}

impl Reregister for SoftDevice {
    fn reregister(&self, region: SoftRegion, change: Rereg) -> Reregistered<SoftRegion> {
        self.1.reregister(region, change)
    }
}

impl ExtendedCq for SoftDevice {
    type PollerEx = SoftPollerEx;

    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(SoftCq, SoftPoller), SetupError> {
        self.1.create_cq_on(depth, sharing, comp_vector)
    }

    fn create_cq_ex(&self, init: &CqInit) -> Result<(SoftCq, SoftPollerEx), SetupError> {
        self.1.create_cq_ex(init)
    }
}

impl ResizeCq for SoftDevice {
    fn resize_cq(&self, cq: &SoftCq, depth: u32) -> Result<u32, SetupError> {
        self.1.resize_cq(cq, depth)
    }
}

impl Windows for SoftDevice {
    type Window = SoftWindow;

    fn create_window(&self, kind: WindowKind) -> Result<SoftWindow, SetupError> {
        self.1.create_window(kind)
    }
}

impl Xrc for SoftDevice {
    type Xrcd = SoftXrcd;

    fn open_xrcd(&self) -> Result<SoftXrcd, SetupError> {
        self.1.open_xrcd()
    }

    fn default_xrcd(&self) -> Result<SoftXrcd, SetupError> {
        self.1.default_xrcd()
    }

    fn create_xrc_srq(
        &self,
        xrcd: &SoftXrcd,
        cq: &SoftCq,
        depth: u32,
    ) -> Result<SoftSrq, SetupError> {
        self.1.create_xrc_srq(xrcd, cq, depth)
    }
}

impl Fabric for SoftDevice {
    type Id = SoftId;
    type Channel = SoftChannel;
    type Flow = SoftFlow;
    type Wq = SoftWq;
    type RwqIndTable = SoftIndTable;

    fn open_channel(&self) -> Result<SoftChannel, CmError> {
        Inner::new(true).map(|inner| SoftChannel(Arc::new(inner)))
    }

    fn create_id(
        &self,
        channel: Option<&SoftChannel>,
        space: PortSpace,
    ) -> Result<SoftId, CmError> {
        SoftId::new(&self.0, channel.map(|channel| &channel.0), space, space.qp_type())
    }

    fn create_endpoint(&self, info: &AddrInfo) -> Result<SoftId, CmError> {
        /// librdmacm's limit for each of the two steps (EP-2); here neither takes time.
        const LIMIT: Duration = Duration::from_secs(2);
        info.check_type()?;
        let mut id = SoftId::new(&self.0, None, info.space(), info.qp_type())?;
        match (info.is_passive(), info.local(), info.remote()) {
            (true, Some(local), _) => id.bind(local)?,
            (false, local, Some(remote)) => {
                id.resolve_addr(local, remote, LIMIT)?;
                id.resolve_route(LIMIT)?;
            }
            _ => {
                let answer = "it has no address for that side";
                return Err(CmError::new(
                    Code::Invalid,
                    format!("an endpoint of {info:?}"),
                    answer,
                ));
            }
        }
        Ok(id)
    }

    fn source(&self, addr: IpAddr) -> Result<Source, CmError> {
        place::check_local(&format!("send from {addr}"), self.name(), addr)?;
        // All addresses are one GID.
        Ok(Source { gid: self.0.soft.gid(), index: 0, port: 1 })
    }

    fn create_qp(&self, attr: &QpAttr<'_, SoftDevice>) -> Result<SoftQp, CmError> {
        external::create(self, attr)
    }

    fn create_xrc_recv(&self, xrcd: &SoftXrcd) -> Result<SoftQp, CmError> {
        Ok(self.1.create_xrc_recv(xrcd)?)
    }

    fn create_flow(&self, qp: &SoftQp, rule: FlowRule) -> Result<SoftFlow, CmError> {
        Ok(qp.create_flow(rule)?)
    }

    fn create_wq(&self, cq: &SoftCq, depth: u32, flags: WqFlags) -> Result<SoftWq, CmError> {
        Ok(self.1.create_wq(cq, depth, flags)?)
    }

    fn create_rwq_ind_table(&self, queues: &[&SoftWq]) -> Result<SoftIndTable, CmError> {
        Ok(self.1.create_rwq_ind_table(queues)?)
    }

    fn modify_qp(&self, qp: &mut SoftQp, from: QpState, fields: &QpFields) -> Result<(), CmError> {
        let mut attempt = Attempt::default();
        while !self.try_modify_qp(qp, from, fields, &mut attempt)? {
            attempt.pause();
        }
        Ok(())
    }

    /// The device keeps no fields: it applies them at once, or refuses them.
    fn query_qp(&self, _qp: &SoftQp) -> Result<QpFields, CmError> {
        Ok(QpFields::default())
    }
}
