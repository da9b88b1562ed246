//! The connection manager of the verbs device: librdmacm.
//!
//! [`Verbs`] is a [`Fabric`] whose ids are [`VerbsId`] and whose channels are [`VerbsChannel`].
//! Blocking ids are librdmacm's synchronous ids with their file descriptor set non-blocking:
//! its calls then start the work and return at once. The waiting is done here, with a limit and
//! without a lock. Four rules prevent hangs and crashes:
//!
//! - each event is copied and acknowledged as it is taken, so destroying an id never waits;
//! - a call that looks at an id's queue pair holds the lock of the id's channel, and so does the
//!   call that destroys the queue pair, on any thread;
//! - an id is destroyed when both its handle and its queue pair are dropped. If the handle is
//!   dropped first, the id disconnects and raises no more events;
//! - a listener on all addresses may get a request for another device. It is rejected and
//!   destroyed, because its queue pair could not use this device's memory.

mod addr;
mod calls;
mod channel;
mod core;
mod create;
mod events;
mod fields;
mod flow;
mod groups;
mod id;
mod line;
mod options;
mod param;
mod record;
mod source;

pub use self::channel::VerbsChannel;
pub use self::flow::VerbsFlow;
pub use self::id::VerbsId;

use std::net::IpAddr;

use crate::{Verbs, VerbsCq, VerbsIndTable, VerbsQp, VerbsWq, VerbsXrcd};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{FlowRule, WqFlags};

use doorbell_fabric::AddrInfo;
use doorbell_fabric::CmError;
use doorbell_fabric::Fabric;
use doorbell_fabric::{PortSpace, QpAttr, Source};
use doorbell_fabric::{QpFields, QpState};

impl Fabric for Verbs {
    type Id = VerbsId;
    type Channel = VerbsChannel;
    type Flow = VerbsFlow;
    type Wq = VerbsWq;
    type RwqIndTable = VerbsIndTable;

    fn open_channel(&self) -> Result<VerbsChannel, CmError> {
        VerbsChannel::new(self)
    }

    fn create_id(
        &self,
        channel: Option<&VerbsChannel>,
        space: PortSpace,
    ) -> Result<VerbsId, CmError> {
        create::id(self, channel, space)
    }

    fn create_endpoint(&self, info: &AddrInfo) -> Result<VerbsId, CmError> {
        create::endpoint(self, info)
    }

    fn source(&self, addr: IpAddr) -> Result<Source, CmError> {
        source::find(self.name(), addr).ok_or_else(|| {
            let asked = format!("send from {addr} on {}", self.name());
            let answer = "no GID of the device is that of the address";
            CmError::new(Code::AddrNotAvailable, asked, answer).cure(addr::cure(self))
        })
    }

    fn create_qp(&self, attr: &QpAttr<'_, Verbs>) -> Result<VerbsQp, CmError> {
        fields::create(self, attr)
    }

    fn create_xrc_recv(&self, xrcd: &VerbsXrcd) -> Result<VerbsQp, CmError> {
        fields::create_xrc_recv(self, xrcd)
    }

    fn create_flow(&self, qp: &VerbsQp, rule: FlowRule) -> Result<VerbsFlow, CmError> {
        VerbsFlow::new(self, qp, rule)
    }

    fn create_wq(&self, cq: &VerbsCq, depth: u32, flags: WqFlags) -> Result<VerbsWq, CmError> {
        Ok(VerbsWq::new(self, cq, depth, flags)?)
    }

    fn create_rwq_ind_table(&self, queues: &[&VerbsWq]) -> Result<VerbsIndTable, CmError> {
        Ok(VerbsIndTable::new(self, queues)?)
    }

    fn modify_qp(
        &self,
        qp: &mut VerbsQp,
        _from: QpState,
        fields: &QpFields,
    ) -> Result<(), CmError> {
        fields::modify(qp, fields)
    }

    fn query_qp(&self, qp: &VerbsQp) -> Result<QpFields, CmError> {
        fields::query_own(qp)
    }
}
