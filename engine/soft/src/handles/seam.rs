//! The soft device behind the seam.
#![expect(unsafe_code, reason = "implements unsafe traits and methods")]

use doorbell_alloc::Mapping;
use std_alloc::format;
use std_alloc::sync::Arc;

use crate::device::path::SoftAh;
use crate::error::{Code, SetupError};
use crate::handles::datagram;
use crate::handles::device::{Soft, check_depth};
use crate::handles::poller::{SoftCq, SoftPoller};
use crate::handles::queue_pair::SoftQp;
use crate::handles::region::SoftRegion;
use crate::handles::srq::SoftSrq;
use crate::model::recvq::RecvQueue;
use crate::provider::{
    Access, AddressVector, Caps, Datagrams, ExtendedCq, GRH_BYTES, Provider, Region, Sharing, Srq,
    ThreadDomains,
};
use crate::wc::{Wc, WcFlags};
use crate::wr::{PostError, RecvWr};

impl Datagrams for Soft {
    type Ah = SoftAh;

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
        Err(SetupError::new(Code::Invalid, "the address of a datagram's sender", answer))
    }
}

impl Provider for Soft {
    type Region = SoftRegion;
    type Cq = SoftCq;
    type Poller = SoftPoller;
    type Srq = SoftSrq;
    type Qp = SoftQp;

    fn caps(&self) -> &Caps {
        &self.nic.caps
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<SoftRegion, SetupError> {
        self.new_region(memory, access)
    }

    fn create_cq(&self, depth: u32, sharing: Sharing) -> Result<(SoftCq, SoftPoller), SetupError> {
        self.create_cq_on(depth, sharing, 0)
    }

    fn create_srq(&self, depth: u32) -> Result<SoftSrq, SetupError> {
        check_depth("shared receive queue", depth, self.nic.caps.srq_wr_max)?;
        let queue = Arc::new(RecvQueue::new(self.nic.next_queue(), depth, self.pd.mark()));
        Ok(SoftSrq { xrc: None, nic: self.nic.clone(), queue, _pd: self.pd.clone() })
    }

    /// Memory that processes of this machine can map, if they find each other. The poster of a
    /// WRITE to it then carries it out itself, and no record goes through the ring.
    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        match &self.nic.host.neighbours {
            Some(neighbours) => (neighbours.memory)(len),
            None => crate::provider::heap::zeroed(len),
        }
    }

    unsafe fn for_one_thread(&self) -> Result<Option<Soft>, SetupError> {
        let caps = self.caps();
        if !(caps.thread_domains && caps.parent_domains) {
            return Ok(None);
        }
        // SAFETY: the caller's promise, passed on.
        let td = unsafe { self.alloc_td() }?;
        self.alloc_parent_domain(Some(&td)).map(Some)
    }
}

// SAFETY: the mapping is owned and stays at its address until the region is dropped.
unsafe impl Region for SoftRegion {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
    fn len(&self) -> usize {
        self.memory.len()
    }
    fn lkey(&self) -> u32 {
        self.key
    }
    fn rkey(&self) -> u32 {
        self.key
    }
    fn access(&self) -> Access {
        self.access
    }
    fn handle(&self) -> u64 {
        self.key.into()
    }
}

impl Srq for SoftSrq {
    fn depth(&self) -> u32 {
        self.queue.depth()
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        self.queue.post(list)
    }
}
