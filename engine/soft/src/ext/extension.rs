//! What the device can do besides what a worker needs: one trait of the seam for each capability.

use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use crate::device::pd::Pd;
use crate::error::{Code, SetupError};
use crate::event::AsyncEvent;
use crate::ext::cq_ex::SoftPollerEx;
use crate::ext::xrc::SoftXrcd;
use crate::handles::device::{Soft, check_depth, table_full};
use crate::handles::poller::{SoftCq, SoftPoller};
use crate::handles::queue_pair::SoftQp;
use crate::handles::region::{SoftRegion, SoftWindow};
use crate::handles::srq::SoftSrq;
use crate::provider::wake::Notifier;
use crate::provider::{
    AsyncEvents, CqInit, ExtendedCq, Gid, Multicast, PortAttr, Ports, ProtectionDomains, Rereg,
    Reregister, Reregistered, ResizeCq, Sharing, WindowKind, Windows, Xrc,
};
use crate::steps::domain::{Domain, Reader};

impl Ports for Soft {
    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError> {
        self.nic.port(port)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError> {
        self.nic.port_entry(port, index).map(|()| self.nic.gid)
    }

    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError> {
        // The key of the default partition, with full membership.
        self.nic.port_entry(port, index).map(|()| 0xffff)
    }
}

impl ProtectionDomains for Soft {
    fn alloc_pd(&self) -> Result<Soft, SetupError> {
        Ok(Soft { pd: Pd::new(&self.nic)?, ..self.clone() })
    }

    fn pd_users(&self) -> usize {
        self.pd.users()
    }

    fn is_same_device(&self, other: &Soft) -> bool {
        Arc::ptr_eq(&self.nic, &other.nic)
    }
}

impl AsyncEvents for Soft {
    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.nic.next_event()
    }

    fn async_fd(&self) -> Option<i32> {
        self.nic.events_notifier.as_ref().map(Notifier::fd)
    }

    fn cq_id(&self, cq: &SoftCq) -> u64 {
        cq.domain.cq_id(cq.index)
    }
}

impl Reregister for Soft {
    fn reregister(&self, region: SoftRegion, change: Rereg) -> Reregistered<SoftRegion> {
        self.change_region(region, change)
    }
}

impl ExtendedCq for Soft {
    type PollerEx = SoftPollerEx;

    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(SoftCq, SoftPoller), SetupError> {
        check_depth("completion queue", depth, self.nic.caps.cqe_max)?;
        self.check_vector(comp_vector)?;
        let reader = match sharing {
            Sharing::Shared => Reader::of_shared(&self.shared),
            Sharing::Exclusive => Reader::of_new(Domain::new(&self.nic, sharing)),
        };
        // A worker's completions go straight to its poller: its queue needs no ring, and the
        // domain's own notifier wakes it.
        let room = match sharing {
            Sharing::Shared => (depth, (self.nic.host.notifier)()),
            Sharing::Exclusive => (0, None),
        };
        let cq = self.cq_in(reader.domain(), room, None);
        Ok((cq.clone(), SoftPoller { cq, reader }))
    }

    fn create_cq_ex(&self, init: &CqInit) -> Result<(SoftCq, SoftPollerEx), SetupError> {
        self.extended_cq(init)
    }
}

impl ResizeCq for Soft {
    /// A queue that is [`Sharing::Exclusive`] keeps no entries, so any size will do.
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
}

impl Windows for Soft {
    type Window = SoftWindow;

    fn create_window(&self, kind: WindowKind) -> Result<SoftWindow, SetupError> {
        match self.nic.memory.insert_window(self.pd.mark()) {
            Some(key) => Ok(SoftWindow { nic: self.nic.clone(), kind, key, _pd: self.pd.clone() }),
            None => Err(table_full(String::from("a memory window"))),
        }
    }
}

impl Xrc for Soft {
    type Xrcd = SoftXrcd;

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
}

impl Multicast for SoftQp {
    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        self.control().attach_mcast(group)
    }

    fn detach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        self.control().detach_mcast(group)
    }
}
