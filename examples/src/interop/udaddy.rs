//! `udaddy` of rdmacm-utils: datagrams one way, then the other.
//!
//! Each side posts receives for all datagrams before it resolves or accepts. The immediate data of
//! each datagram is the number of the queue pair that sent it. The server receives all datagrams
//! and then answers to the sender of the last.

use doorbell::provider::GRH_BYTES;
use doorbell::wr::SendFlags;
use doorbell::{
    AddrInfo, Buffer, CmError, Completion, ConnParam, Endpoint, Fabric, Hints, Id, PortSpace,
    Program, QpInit, Target, UdParam,
};

use super::common::{Plan, announce, differs, expect_message};

/// The queue pair of either side, as in the C program.
fn queue_pair<F: Fabric>(count: u32) -> QpInit<F> {
    QpInit::ud().send_wr(count).recv_wr(count)
}

fn hints(passive: bool) -> Hints {
    Hints { passive, space: PortSpace::Udp, ..Hints::default() }
}

fn own_qp_num<F: Fabric>(id: &Id<F>) -> u32 {
    id.qp().map_or(0, |(num, _)| num)
}

/// The datagrams of one side.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) plan: Plan,
    pub(super) count: u32,
    pub(super) size: usize,
}

impl Load {
    pub(super) fn post_recvs<F: Fabric>(&self, fabric: &F, id: &mut Id<F>) -> Result<(), CmError> {
        let mut buffers = Buffer::many(fabric, self.count as usize, GRH_BYTES + self.size)?;
        Ok(id.queues().post_recvs(&mut buffers)?)
    }

    /// Sends all datagrams, and waits for the completion of the last.
    pub(super) fn send<F: Fabric>(
        &self,
        fabric: &F,
        id: &mut Id<F>,
        to: &UdParam,
    ) -> Result<(), CmError> {
        let target = Target::new(fabric, to)?;
        let imm = Some(own_qp_num(id));
        for (number, buffer) in (1..).zip(Buffer::many(fabric, self.count as usize, self.size)?) {
            let last = number == self.count;
            let flags = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
            id.queues().post_send_to(&target, buffer, self.size, imm, flags)?;
        }
        id.queues().next_send(self.plan.time_left())?.ok()?;
        Ok(())
    }

    /// Receives all datagrams and checks the length and the sender of each; returns the last.
    pub(super) fn receive<F: Fabric>(&self, id: &mut Id<F>) -> Result<Completion<F>, CmError> {
        let mut left = self.count;
        loop {
            let received = id.queues().next_recv(self.plan.time_left())?;
            let received = expect_message(received, GRH_BYTES + self.size)?;
            if received.imm != Some(received.src_qp) {
                let want = format!("the sender's number, {}", received.src_qp);
                return Err(differs("immediate data", want, format!("{:?}", received.imm)));
            }
            left -= 1;
            if left == 0 {
                return Ok(received);
            }
        }
    }
}

/// The counterpart of `udaddy -s`.
#[derive(Clone, Copy, Debug)]
pub struct UdaddyServer {
    /// Where to listen.
    pub plan: Plan,
    /// Datagrams each way.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
}

impl Program for UdaddyServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let UdaddyServer { plan, count, size } = self;
        let load = Load { plan, count, size };
        let info = AddrInfo::of(plan.addr, &hints(true));
        let mut listener = Endpoint::create(&fabric, &info, Some(&queue_pair(count)))?;
        listener.listen(0)?;
        announce(listener.local_addr(), &fabric);
        let mut id = listener.get_request(Some(plan.time_left()))?;
        load.post_recvs(&fabric, &mut id)?;
        id.accept(&ConnParam::default())?;
        let last = load.receive(&mut id)?;
        let back = id.sender_of(&last)?;
        load.send(&fabric, &mut id, &back)
    }
}

/// The counterpart of `udaddy` without `-s`.
#[derive(Clone, Copy, Debug)]
pub struct UdaddyClient {
    /// The server's address.
    pub plan: Plan,
    /// Datagrams each way.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
}

impl Program for UdaddyClient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let UdaddyClient { plan, count, size } = self;
        let load = Load { plan, count, size };
        let info = AddrInfo::of(plan.addr, &hints(false));
        let mut id = Endpoint::create(&fabric, &info, Some(&queue_pair(count)))?.into_id();
        load.post_recvs(&fabric, &mut id)?;
        id.connect(&ConnParam::default())?;
        let to = id.ud().ok_or_else(|| differs("the answer", "where to send", "nothing"))?;
        load.send(&fabric, &mut id, &to)?;
        load.receive(&mut id).map(drop)
    }
}
