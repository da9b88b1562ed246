//! The verbs device: any RDMA NIC, and soft-RoCE, through rdma-core.
//!
//! In the order things are made: `Verbs` opens a device, registers memory and makes queues;
//! the connection manager (`doorbell-cm`) makes each `VerbsQp`; requests are posted there and
//! come back through a `VerbsPoller`. One slice is one call of the driver: one doorbell.
//!
//! The device uses the context of librdmacm, which treats objects of any other context as those of
//! another device.

#![cfg(feature = "verbs")]

extern crate alloc as std_alloc;

mod access;
mod ah;
mod caps;
mod control;
mod cq;
mod cq_ex;
mod device;
mod front;
mod handles;
mod objects;
mod parent;
mod poll;
mod port;
mod post;
mod posted;
mod qp;
mod qp_calls;
mod rdma_core;
mod region;
mod rss;
mod send;
mod shim;
mod srq;
mod sys;
mod trial;
mod window;
mod xrc;

pub use self::ah::VerbsAh;
pub use self::control::{VerbsChannel, VerbsFlow, VerbsId};
pub use self::cq::VerbsCq;
pub use self::cq_ex::VerbsPollerEx;
pub use self::device::Verbs;
pub use self::parent::VerbsTd;
pub use self::poll::VerbsPoller;
pub use self::port::ForkState;
pub use self::qp::VerbsQp;
pub use self::region::VerbsRegion;
pub use self::rss::{VerbsIndTable, VerbsWq};
pub use self::srq::VerbsSrq;
pub use self::window::VerbsWindow;
pub use self::xrc::VerbsXrcd;

use doorbell_alloc::Mapping;
use doorbell_seam::{error, event, provider, wc, wr};

use crate::error::SetupError;
use crate::event::AsyncEvent;
use crate::provider::{
    Access, AddressVector, AsyncEvents, Caps, CqInit, Datagrams, ExtendedCq, GRH_BYTES, Gid,
    PortAttr, Ports, ProtectionDomains, Provider, Rereg, Reregister, Reregistered, ResizeCq,
    Sharing, ThreadDomains, WindowKind, Windows, Xrc,
};
use crate::wc::Wc;

impl Datagrams for Verbs {
    type Ah = VerbsAh;

    fn create_ah(&self, to: &AddressVector) -> Result<VerbsAh, SetupError> {
        VerbsAh::new(self.device(), to)
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        ah::sender_of(self, wc, header)
    }
}

impl Provider for Verbs {
    type Region = VerbsRegion;
    type Cq = VerbsCq;
    type Poller = VerbsPoller;
    type Srq = VerbsSrq;
    type Qp = VerbsQp;

    const OVER_NETWORK: bool = true;

    fn caps(&self) -> &Caps {
        self.device().caps()
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<VerbsRegion, SetupError> {
        VerbsRegion::new(self.device(), memory, access)
    }

    fn create_cq(
        &self,
        depth: u32,
        sharing: Sharing,
    ) -> Result<(VerbsCq, VerbsPoller), SetupError> {
        self.create_cq_on(depth, sharing, 0)
    }

    fn create_srq(&self, depth: u32) -> Result<VerbsSrq, SetupError> {
        VerbsSrq::new(self.device(), depth)
    }

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn for_one_thread(&self) -> Result<Option<Verbs>, SetupError> {
        let caps = self.caps();
        if !(caps.thread_domains && caps.parent_domains) {
            return Ok(None);
        }
        // SAFETY: the caller's promise, passed on.
        let td = unsafe { self.alloc_td() }?;
        self.alloc_parent_domain(Some(&td)).map(Some)
    }
}

impl Ports for Verbs {
    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError> {
        port::query(self.device(), port)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError> {
        port::gid(self.device(), port, index)
    }

    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError> {
        port::pkey(self.device(), port, index)
    }
}

impl ProtectionDomains for Verbs {
    fn alloc_pd(&self) -> Result<Verbs, SetupError> {
        self.new_pd()
    }

    fn pd_users(&self) -> usize {
        self.users()
    }

    fn is_same_device(&self, other: &Verbs) -> bool {
        self.context() == other.context()
    }
}

impl ThreadDomains for Verbs {
    type Td = VerbsTd;

    #[expect(unsafe_code, reason = "passes the promise on")]
    unsafe fn alloc_td(&self) -> Result<VerbsTd, SetupError> {
        // SAFETY: the caller's promise, passed on.
        let td = unsafe { objects::alloc_td(self.device().context()) };
        VerbsTd::new(td, self.name())
    }

    fn td_users(td: &VerbsTd) -> usize {
        td.users()
    }

    fn alloc_parent_domain(&self, td: Option<&VerbsTd>) -> Result<Verbs, SetupError> {
        self.new_parent(td)
    }
}

impl AsyncEvents for Verbs {
    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.device().events_ready().then(|| self.device().context().next_event()).flatten()
    }

    fn async_fd(&self) -> Option<i32> {
        self.device().events_ready().then(|| self.device().context().async_fd())
    }

    fn cq_id(&self, cq: &VerbsCq) -> u64 {
        cq.as_ptr() as u64
    }
}

impl Reregister for Verbs {
    fn reregister(&self, region: VerbsRegion, change: Rereg) -> Reregistered<VerbsRegion> {
        region.change(self.device(), change)
    }
}

impl ExtendedCq for Verbs {
    type PollerEx = VerbsPollerEx;

    /// Both kinds of sharing give the same queue: the driver locks it.
    fn create_cq_on(
        &self,
        depth: u32,
        _sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(VerbsCq, VerbsPoller), SetupError> {
        let init = CqInit { depth, comp_vector, ..CqInit::default() };
        let cq = VerbsCq::new(self.device().root(), &init)?;
        Ok((cq.clone(), VerbsPoller::new(cq)))
    }

    fn create_cq_ex(&self, init: &CqInit) -> Result<(VerbsCq, VerbsPollerEx), SetupError> {
        let (cq, ex) = VerbsCq::extended(self.device().cq_home(), init)?;
        Ok((cq.clone(), VerbsPollerEx::new(cq, ex, init.fields)))
    }
}

impl ResizeCq for Verbs {
    fn resize_cq(&self, cq: &VerbsCq, depth: u32) -> Result<u32, SetupError> {
        cq.resize(self.device(), depth)
    }
}

impl Windows for Verbs {
    type Window = VerbsWindow;

    fn create_window(&self, kind: WindowKind) -> Result<VerbsWindow, SetupError> {
        VerbsWindow::new(self.device(), kind)
    }
}

impl Xrc for Verbs {
    type Xrcd = VerbsXrcd;

    fn open_xrcd(&self) -> Result<VerbsXrcd, SetupError> {
        self.device().open_xrcd()
    }

    fn default_xrcd(&self) -> Result<VerbsXrcd, SetupError> {
        self.device().default_xrcd()
    }

    fn create_xrc_srq(
        &self,
        xrcd: &VerbsXrcd,
        cq: &VerbsCq,
        depth: u32,
    ) -> Result<VerbsSrq, SetupError> {
        VerbsSrq::of_xrc(self.device(), xrcd, cq, depth)
    }
}
