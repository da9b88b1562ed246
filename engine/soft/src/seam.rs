//! The soft device behind the seam.
#![expect(unsafe_code, reason = "implements an unsafe method")]

use doorbell_alloc::Mapping;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::cq_ex::SoftPollerEx;
use super::datagram;
use super::device::{Soft, check_depth, table_full};
use super::domain::Domain;
use super::path::SoftAh;
use super::pd::{Pd, SoftTd};
use super::poller::{SoftCq, SoftPoller};
use super::queue_pair::SoftQp;
use super::recvq::RecvQueue;
use super::region::{SoftRegion, SoftWindow};
use super::srq::SoftSrq;
use super::xrc::SoftXrcd;
use crate::error::{Code, SetupError};
use crate::event::AsyncEvent;
use crate::provider::wake::Bell;
use crate::provider::{
    Access, AddressVector, Caps, CqInit, GRH_BYTES, Gid, PortAttr, Provider, Rereg, Reregistered,
    Sharing, WindowKind,
};
use crate::wc::{Wc, WcFlags};

impl Provider for Soft {
    type Region = SoftRegion;
    type Cq = SoftCq;
    type Poller = SoftPoller;
    type PollerEx = SoftPollerEx;
    type Srq = SoftSrq;
    type Window = SoftWindow;
    type Qp = SoftQp;
    type Xrcd = SoftXrcd;
    type Td = SoftTd;
    type Ah = SoftAh;

    fn caps(&self) -> &Caps {
        &self.nic.caps
    }

    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError> {
        self.nic.port(port)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError> {
        self.nic.port_entry(port, index).map(|()| self.nic.gid)
    }

    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError> {
        // That of the default partition, with full membership.
        self.nic.port_entry(port, index).map(|()| 0xffff)
    }

    fn alloc_pd(&self) -> Result<Soft, SetupError> {
        Ok(Soft { pd: Pd::new(&self.nic)?, ..self.clone() })
    }

    unsafe fn alloc_td(&self) -> Result<SoftTd, SetupError> {
        Ok(SoftTd::new(&self.nic))
    }

    fn td_users(td: &SoftTd) -> usize {
        td.users()
    }

    fn alloc_parent_domain(&self, td: Option<&SoftTd>) -> Result<Soft, SetupError> {
        if td.is_some_and(|td| !Arc::ptr_eq(&td.nic, &self.nic)) {
            let answer = "the thread domain is of another device";
            return Err(SetupError::new(Code::Invalid, "a parent domain", answer));
        }
        Ok(Soft { pd: self.pd.within_parent(td), ..self.clone() })
    }

    fn is_same_device(&self, other: &Soft) -> bool {
        Arc::ptr_eq(&self.nic, &other.nic)
    }

    fn pd_users(&self) -> usize {
        self.pd.users()
    }

    /// Memory that processes of this machine can map, if they find each other: then a WRITE there
    /// is carried out by who posts it, and no record goes through the ring.
    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        match &self.nic.host.neighbours {
            Some(neighbours) => (neighbours.memory)(len),
            None => crate::provider::heap::zeroed(len),
        }
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<SoftRegion, SetupError> {
        self.new_region(memory, access)
    }

    fn reregister(&self, region: SoftRegion, change: Rereg) -> Reregistered<SoftRegion> {
        self.change_region(region, change)
    }

    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(SoftCq, SoftPoller), SetupError> {
        check_depth("completion queue", depth, self.nic.caps.cqe_max)?;
        self.check_vector(comp_vector)?;
        let domain = match sharing {
            Sharing::Shared => self.shared.clone(),
            Sharing::Exclusive => Arc::new(Domain::new(&self.nic, sharing)),
        };
        // A worker's completions go straight to its poller: its queue needs no ring, and what wakes
        // it is the domain's own bell.
        let room = match sharing {
            Sharing::Shared => (depth, (self.nic.host.bell)()),
            Sharing::Exclusive => (0, None),
        };
        let cq = self.cq_in(&domain, room, None);
        Ok((cq.clone(), SoftPoller { cq }))
    }

    fn create_cq_ex(&self, init: &CqInit) -> Result<(SoftCq, SoftPollerEx), SetupError> {
        self.extended_cq(init)
    }

    /// A queue that is [`Sharing::Exclusive`] keeps no entries, so that any size will do.
    fn resize_cq(&self, cq: &SoftCq, depth: u32) -> Result<u32, SetupError> {
        check_depth("completion queue", depth, self.nic.caps.cqe_max)?;
        let asked = || format!("a completion queue of {depth}");
        if !Arc::ptr_eq(&self.nic, &cq.place.nic) {
            let answer = "the queue is of another device";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        match cq.domain.resize_cq(cq.index, depth) {
            Ok(()) => Ok(depth),
            Err(count) => {
                let answer = format!("{count} completions are in it (CP-8)");
                Err(SetupError::new(Code::Invalid, asked(), answer).cure("poll them first"))
            }
        }
    }

    fn create_srq(&self, depth: u32) -> Result<SoftSrq, SetupError> {
        check_depth("shared receive queue", depth, self.nic.caps.srq_wr_max)?;
        let queue = Arc::new(RecvQueue::new(self.nic.next_queue(), depth, self.pd.mark()));
        Ok(SoftSrq { xrc: None, nic: self.nic.clone(), queue, _pd: self.pd.clone() })
    }

    fn open_xrcd(&self) -> Result<SoftXrcd, SetupError> {
        Ok(self.new_xrcd())
    }

    fn default_xrcd(&self) -> Result<SoftXrcd, SetupError> {
        Ok(self.common_xrcd())
    }

    fn create_xrc_srq(
        &self,
        xrcd: &SoftXrcd,
        cq: &SoftCq,
        depth: u32,
    ) -> Result<SoftSrq, SetupError> {
        self.new_xrc_srq(xrcd, cq, depth)
    }

    fn create_window(&self, kind: WindowKind) -> Result<SoftWindow, SetupError> {
        match self.nic.memory.insert_window(self.pd.mark()) {
            Some(key) => Ok(SoftWindow { nic: self.nic.clone(), kind, key, _pd: self.pd.clone() }),
            None => Err(table_full(String::from("a memory window"))),
        }
    }

    fn cq_id(&self, cq: &SoftCq) -> u64 {
        cq.domain.cq_id(cq.index)
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.nic.next_event()
    }

    fn async_fd(&self) -> Option<i32> {
        self.nic.events_bell.as_ref().map(Bell::fd)
    }

    fn create_ah(&self, to: &AddressVector) -> Result<SoftAh, SetupError> {
        let gid = to.route.map(|route| route.gid).unwrap_or_default();
        SoftAh::new(&self.nic.caps.device, gid, &self.nic.host, &self.pd).ok_or_else(|| {
            let asked = format!("an address handle to {gid}");
            SetupError::new(Code::NoDevice, asked, "there is no such device, or not any more")
                .cure("take the address from an event or a datagram of that device")
        })
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        if wc.status.is_ok() && wc.flags.contains(WcFlags::GRH) {
            return Ok(AddressVector::to(datagram::sender_in(header)));
        }
        let answer = "the completion is not of a datagram with its header";
        Err(SetupError::new(Code::Invalid, "the way back to a sender", answer))
    }
}
