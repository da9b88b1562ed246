//! `rdma_xserver` and `rdma_xclient` of rdmacm-utils with `-c r`: one message of 16 bytes from the
//! client, and no answer. The server's private data is the number of its shared receive queue. With
//! RC it has none, and the number is 0.

use doorbell::wr::{SendFlags, SendOp};
use doorbell::{Buffer, CmError, ConnParam, Fabric, Program, QpInit};

use super::common::{Plan, arrived, differs, expect_message};

/// Bytes of the message.
const LENGTH: usize = 16;

/// The counterpart of `rdma_xclient -c r`.
#[derive(Clone, Copy, Debug)]
pub struct RdmaXserver {
    /// Where to listen.
    pub plan: Plan,
}

impl Program for RdmaXserver {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut listener = self.plan.listen(&fabric, Some(&QpInit::rc()))?;
        let mut id = listener.get_request(Some(self.plan.time_left()))?;
        id.queues().post_recv(Buffer::new(&fabric, LENGTH)?)?;
        let param = ConnParam {
            qp_num: 0,
            private_data: &0_u32.to_be_bytes(),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry: 0,
        };
        id.accept(&param)?;
        expect_message(id.queues().next_recv(self.plan.time_left())?, LENGTH)?;
        id.disconnect()
    }
}

/// The counterpart of `rdma_xserver -c r`.
#[derive(Clone, Copy, Debug)]
pub struct RdmaXclient {
    /// Where to connect to.
    pub plan: Plan,
}

impl Program for RdmaXclient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.plan.active(&fabric, &QpInit::rc().inline(LENGTH as u32))?;
        id.connect(&ConnParam::default())?;
        // Most transports pad private data with zeros to 196 bytes.
        if !id.private_data().starts_with(&[0; 4]) {
            let said = format!("{:?}", id.private_data());
            return Err(differs("the server's private data", "a number of 0", said));
        }
        id.queues().post_inline(&[0; LENGTH], SendOp::Send, SendFlags::SIGNALED)?;
        arrived(&mut id, &self.plan)?;
        id.disconnect()
    }
}
