//! `rdma_server` and `rdma_client` of rdmacm-utils: one message of 16 bytes each way.
//!
//! Each side posts its receive before it connects. The client sends first. Each side waits for its
//! send and its receive, and then disconnects.

use doorbell::wr::{SendFlags, SendOp};
use doorbell::{Buffer, CmError, ConnParam, Fabric, Id, Program, QpInit};

use super::common::{Plan, arrived, expect_message};

/// Bytes of a message.
const LENGTH: usize = 16;

/// The queue pair of either side, as in the C programs.
fn queue_pair<F: Fabric>() -> QpInit<F> {
    QpInit::rc()
        .send_wr(1)
        .recv_wr(1)
        .send_sge(1)
        .recv_sge(1)
        .inline(LENGTH as u32)
        .signal_all(true)
}

/// The counterpart of `rdma_client`.
#[derive(Clone, Copy, Debug)]
pub struct RdmaServer {
    /// Where to listen.
    pub plan: Plan,
}

impl Program for RdmaServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut listener = self.plan.listen(&fabric, Some(&queue_pair()))?;
        let mut id = listener.get_request(Some(self.plan.time_left()))?;
        id.queues().post_recv(Buffer::new(&fabric, LENGTH)?)?;
        id.accept(&ConnParam::default())?;
        expect_message(id.queues().next_recv(self.plan.time_left())?, LENGTH)?;
        send(&fabric, &mut id)?;
        arrived(&mut id, &self.plan)?;
        id.disconnect()
    }
}

/// The counterpart of `rdma_server`.
#[derive(Clone, Copy, Debug)]
pub struct RdmaClient {
    /// Where to connect to.
    pub plan: Plan,
}

impl Program for RdmaClient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.plan.active(&fabric, &queue_pair())?;
        id.queues().post_recv(Buffer::new(&fabric, LENGTH)?)?;
        id.connect(&ConnParam::default())?;
        send(&fabric, &mut id)?;
        arrived(&mut id, &self.plan)?;
        expect_message(id.queues().next_recv(self.plan.time_left())?, LENGTH)?;
        id.disconnect()
    }
}

/// Sends the message, inline if the device can.
fn send<F: Fabric>(fabric: &F, id: &mut Id<F>) -> Result<(), CmError> {
    let inline = id.qp().map_or(0, |(_, caps)| caps.inline as usize);
    if inline >= LENGTH {
        id.queues().post_inline(&[0; LENGTH], SendOp::Send, SendFlags::empty())?;
    } else {
        let buffer = Buffer::new(fabric, LENGTH)?;
        id.queues().post_send(buffer, LENGTH, SendOp::Send, SendFlags::empty())?;
    }
    Ok(())
}
