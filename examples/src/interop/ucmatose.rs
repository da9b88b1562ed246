//! `ucmatose` of rdmacm-utils: the server sends all its messages, then the client all of its own.
//!
//! Each side posts as many receives as there will be messages before it connects. The client
//! sends nothing until it has got everything; the server disconnects first.

use doorbell::wr::{SendFlags, SendOp};
use doorbell::{Buffer, CmError, ConnParam, Fabric, Id, Program, QpInit, SendRequest};

use super::{Plan, arrived, expect_message};

/// What both sides' queue pairs are made with: as the C program does.
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
        expect_message(id.next_recv(plan.rest())?, size)?;
    }
    Ok(())
}

/// Posts all messages with one doorbell.
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
    id.post_sends(&mut buffers.into_iter().map(request).collect())?;
    for _ in 0..count {
        arrived(id, plan)?;
    }
    Ok(())
}

/// The other side of `ucmatose -s`.
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
        let mut id = listener.get_request(Some(plan.rest()))?;
        id.post_recvs(&mut Buffer::many(&fabric, count as usize, size)?)?;
        id.accept(&ConnParam::default())?;
        send_all(&fabric, &mut id, &plan, count, size)?;
        receive_all(&mut id, &plan, count, size)?;
        id.disconnect()
    }
}

/// The other side of `ucmatose` without `-s`.
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
        id.post_recvs(&mut Buffer::many(&fabric, count as usize, size)?)?;
        // The server's messages find the receives posted: it need not try again (its own QP's
        // rnr_retry is what is said here).
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
