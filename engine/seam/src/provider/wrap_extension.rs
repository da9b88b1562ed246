//! The wrapper's part for rare capabilities: the traits of [`super::extension`], passed on. The two
//! with unsafe methods are in `wrap.rs`.
#![deny(clippy::missing_trait_methods)]

use super::call::Command;
use super::rereg::{Rereg, Reregistered};
use super::wrap::{Hook, Reader, Wrapped, WrappedCq, WrappedPoller, WrappedQp, WrappedSrq};
use super::{
    AsyncEvents, CqInit, ExtendedCq, Gid, Multicast, PollerEx, PortAttr, Ports, ProtectionDomains,
    Provider, Reregister, ResizeCq, Sharing, SrqLimits, WcEx, WcFields, Xrc, XrcSrq,
};
use crate::error::SetupError;
use crate::event::AsyncEvent;

impl<P: Ports, H: Hook> Ports for Wrapped<P, H> {
    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError> {
        self.inner.query_port(port)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError> {
        self.inner.query_gid(port, index)
    }

    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError> {
        self.inner.query_pkey(port, index)
    }
}

impl<P: ProtectionDomains, H: Hook> ProtectionDomains for Wrapped<P, H> {
    fn alloc_pd(&self) -> Result<Self, SetupError> {
        Ok(Wrapped::around(self.inner.alloc_pd()?, self.hook.clone()))
    }

    fn pd_users(&self) -> usize {
        self.inner.pd_users()
    }

    fn is_same_device(&self, other: &Self) -> bool {
        self.inner.is_same_device(&other.inner)
    }
}

impl<P: AsyncEvents, H: Hook> AsyncEvents for Wrapped<P, H> {
    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.inner.next_async_event()
    }

    fn async_fd(&self) -> Option<i32> {
        self.inner.async_fd()
    }

    fn cq_id(&self, cq: &Self::Cq) -> u64 {
        self.inner.cq_id(&cq.inner)
    }
}

impl<P: Reregister, H: Hook> Reregister for Wrapped<P, H> {
    fn reregister(&self, region: P::Region, change: Rereg) -> Reregistered<P::Region> {
        match self.hook.command(Command::Reregister) {
            Ok(true) => self.inner.reregister(region, change),
            Ok(false) => Ok((region, None)),
            Err(cause) => Err(change.refused(cause, region)),
        }
    }
}

impl<P: ExtendedCq, H: Hook> ExtendedCq for Wrapped<P, H> {
    type PollerEx = Reader<P::PollerEx, H>;

    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(WrappedCq<P, H>, WrappedPoller<P, H>), SetupError> {
        let (inner, poller) = self.inner.create_cq_on(depth, sharing, comp_vector)?;
        Ok(self.reader(inner, poller, WcFields::empty()))
    }

    fn create_cq_ex(&self, init: &CqInit) -> Result<(WrappedCq<P, H>, Self::PollerEx), SetupError> {
        let (inner, poller) = self.inner.create_cq_ex(init)?;
        Ok(self.reader(inner, poller, init.fields))
    }
}

impl<Q: PollerEx, H: Hook> PollerEx for Reader<Q, H> {
    fn next(&mut self) -> Option<WcEx> {
        self.hook.next(&self.queue, &mut self.inner, self.fields)
    }
}

impl<P: ResizeCq, H: Hook> ResizeCq for Wrapped<P, H> {
    fn resize_cq(&self, cq: &Self::Cq, depth: u32) -> Result<u32, SetupError> {
        match self.hook.command(Command::ResizeCq)? {
            true => self.inner.resize_cq(&cq.inner, depth),
            false => Ok(depth),
        }
    }
}

impl<P: Provider, H: Hook> SrqLimits for WrappedSrq<P, H>
where
    P::Srq: SrqLimits,
{
    fn resize(&self, depth: u32) -> Result<(), SetupError> {
        match self.hook.command(Command::ResizeSrq)? {
            true => self.inner.resize(depth),
            false => Ok(()),
        }
    }

    fn set_limit(&self, limit: u32) -> Result<(), SetupError> {
        match self.hook.command(Command::SetSrqLimit)? {
            true => self.inner.set_limit(limit),
            false => Ok(()),
        }
    }

    fn limit(&self) -> Result<u32, SetupError> {
        self.inner.limit()
    }

    fn id(&self) -> u64 {
        self.inner.id()
    }
}

impl<P: Provider, H: Hook> Multicast for WrappedQp<P, H>
where
    P::Qp: Multicast,
{
    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        match self.hook.command(Command::AttachMcast)? {
            true => self.inner.attach_mcast(group),
            false => Ok(()),
        }
    }

    fn detach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        match self.hook.command(Command::DetachMcast)? {
            true => self.inner.detach_mcast(group),
            false => Ok(()),
        }
    }
}

impl<P: Xrc, H: Hook> Xrc for Wrapped<P, H> {
    type Xrcd = P::Xrcd;

    fn open_xrcd(&self) -> Result<P::Xrcd, SetupError> {
        self.inner.open_xrcd()
    }

    fn default_xrcd(&self) -> Result<P::Xrcd, SetupError> {
        self.inner.default_xrcd()
    }

    fn create_xrc_srq(
        &self,
        xrcd: &P::Xrcd,
        cq: &Self::Cq,
        depth: u32,
    ) -> Result<Self::Srq, SetupError> {
        Ok(self.srq(self.inner.create_xrc_srq(xrcd, &cq.inner, depth)?))
    }
}

impl<P: Provider, H: Hook> XrcSrq for WrappedSrq<P, H>
where
    P::Srq: XrcSrq,
{
    fn number(&self) -> Option<u32> {
        self.inner.number()
    }
}
