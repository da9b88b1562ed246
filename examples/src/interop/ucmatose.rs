//! `ucmatose` of rdmacm-utils: the server sends all its messages, then the client sends its own.
//!
//! Each side posts receives for all messages before it connects. The client sends only after it has
//! received everything. The server disconnects first.

use doorbell::wr::{SendFlags, SendOp};
use doorbell::{Buffer, CmError, ConnParam, Fabric, Id, Program, QpInit, SendRequest};

use super::common::{Plan, arrived, expect_message};

/// The queue pair of either side, as in the C program.
fn queue_pair<F: Fabric>(count: u32) -> QpInit<F> {
    QpInit::rc().send_wr(count).recv_wr(count).signal_all(true)
}

fn receive_all<F: Fabric>(
    id: &mut Id<F>,
    plan: &Plan,
    count: u32,
    size: usize,
) -> Result<(), CmError> {
    for _ in 0..count {
        expect_message(id.queues().next_recv(plan.time_left())?, size)?;
    }
    Ok(())
}

/// Posts all messages with one doorbell, and waits until they have arrived.
fn send_all<F: Fabric>(
    fabric: &F,
    id: &mut Id<F>,
    plan: &Plan,
    count: u32,
    size: usize,
) -> Result<(), CmError> {
    let request =
        |buffer| SendRequest { buffer, len: size, op: SendOp::Send, flags: SendFlags::empty() };
    let buffers = Buffer::many(fabric, count as usize, size)?;
    id.queues().post_sends(&mut buffers.into_iter().map(request).collect())?;
    for _ in 0..count {
        arrived(id, plan)?;
    }
    Ok(())
}

/// The counterpart of `ucmatose -s`.
#[derive(Clone, Copy, Debug)]
pub struct UcmatoseServer {
    /// Where to listen.
    pub plan: Plan,
    /// Messages each way.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
}

impl Program for UcmatoseServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let UcmatoseServer { plan, count, size } = self;
        let mut listener = plan.listen(&fabric, Some(&queue_pair(count)))?;
        let mut id = listener.get_request(Some(plan.time_left()))?;
        id.queues().post_recvs(&mut Buffer::many(&fabric, count as usize, size)?)?;
        id.accept(&ConnParam::default())?;
        send_all(&fabric, &mut id, &plan, count, size)?;
        receive_all(&mut id, &plan, count, size)?;
        id.disconnect()
    }
}

/// The counterpart of `ucmatose` without `-s`.
#[derive(Clone, Copy, Debug)]
pub struct UcmatoseClient {
    /// Where to connect to.
    pub plan: Plan,
    /// Messages each way.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
}

impl Program for UcmatoseClient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let UcmatoseClient { plan, count, size } = self;
        let mut id = plan.active(&fabric, &queue_pair(count))?;
        id.queues().post_recvs(&mut Buffer::many(&fabric, count as usize, size)?)?;
        // rnr_retry is for the server's queue pair. It needs no retries, because the receives for
        // its messages are posted already.
        let param = ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 5,
            rnr_retry: 0,
            ..ConnParam::default()
        };
        id.connect(&param)?;
        receive_all(&mut id, &plan, count, size)?;
        send_all(&fabric, &mut id, &plan, count, size)?;
        plan.until_left(&mut id)?;
        id.disconnect()
    }
}
