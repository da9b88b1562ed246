//! `udaddy` of rdmacm-utils: datagrams one way, then the other.
//!
//! Each side posts as many receives as there will be datagrams before it looks up or accepts. Each
//! datagram says in its immediate data from which queue pair it comes; the server learns from the
//! first where to answer, and answers when it has got all.

use doorbell::provider::GRH_BYTES;
use doorbell::wr::SendFlags;
use doorbell::{
    AddrInfo, Buffer, CmError, Completion, ConnParam, Endpoint, Fabric, Hints, Id, PortSpace,
    Program, QpInit, Target, UdParam,
};

use super::{Plan, announce, differs, expect_message};

/// What both sides' queue pairs are made with: as the C program does.
fn queue_pair<F: Fabric>(count: u32) -> QpInit<F> {
    QpInit::ud().send_wr(count).recv_wr(count)
}

fn hints(passive: bool) -> Hints {
    Hints { passive, space: PortSpace::Udp, ..Hints::default() }
}

fn own_number<F: Fabric>(id: &Id<F>) -> u32 {
    id.qp().map_or(0, |(num, _)| num)
}

/// One side's datagrams.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) plan: Plan,
    pub(super) count: u32,
    pub(super) size: usize,
}

impl Load {
    pub(super) fn post_recvs<F: Fabric>(&self, fabric: &F, id: &mut Id<F>) -> Result<(), CmError> {
        let mut buffers = Buffer::many(fabric, self.count as usize, GRH_BYTES + self.size)?;
        Ok(id.post_recvs(&mut buffers)?)
    }

    /// Sends all, with a completion for the last.
    pub(super) fn send<F: Fabric>(
        &self,
        fabric: &F,
        id: &mut Id<F>,
        to: &UdParam,
    ) -> Result<(), CmError> {
        let target = Target::new(fabric, to)?;
        let imm = Some(own_number(id));
        for (number, buffer) in (1..).zip(Buffer::many(fabric, self.count as usize, self.size)?) {
            let last = number == self.count;
            let flags = if last { SendFlags::SIGNALED } else { SendFlags::empty() };
            id.post_send_to(&target, buffer, self.size, imm, flags)?;
        }
        id.next_send(self.plan.rest())?.ok()?;
        Ok(())
    }

    /// Receives all; the last of them. Each is of the length agreed on, and names its sender.
    pub(super) fn receive<F: Fabric>(&self, id: &mut Id<F>) -> Result<Completion<F>, CmError> {
        let mut left = self.count;
        loop {
            let came = id.next_recv(self.plan.rest())?;
            let came = expect_message(came, GRH_BYTES + self.size)?;
            if came.imm != Some(came.src_qp) {
                let want = format!("the sender's number, {}", came.src_qp);
                return Err(differs("immediate data", want, format!("{:?}", came.imm)));
            }
            left -= 1;
            if left == 0 {
                return Ok(came);
            }
        }
    }
}

/// The other side of `udaddy -s`.
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
        let mut id = listener.get_request(Some(plan.rest()))?;
        load.post_recvs(&fabric, &mut id)?;
        id.accept(&ConnParam::default())?;
        let last = load.receive(&mut id)?;
        let back = id.sender_of(&last)?;
        load.send(&fabric, &mut id, &back)
    }
}

/// The other side of `udaddy` without `-s`.
#[derive(Clone, Copy, Debug)]
pub struct UdaddyClient {
    /// Whom to look up.
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
