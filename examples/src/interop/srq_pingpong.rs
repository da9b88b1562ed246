//! `ibv_srq_pingpong` of ibverbs-utils: like `ibv_rc_pingpong`, but with several queue pairs on
//! each side that share one receive queue.
//!
//! Each side sends the addresses of 256 queue pairs; unused ones are zero. A queue pair sends again
//! when its message is complete and the peer's has arrived, until enough messages went each way
//! over all queue pairs together. So the peer may have left before the last messages arrive.

use std::time::Duration;

use doorbell::error::Code;
use doorbell::provider::{Gid, QpType};
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{
    Buffer, CmError, Completion, CompletionQueue, ExternalQp, Fabric, Program, QpInit,
    SharedReceive,
};

use super::common::{Plan, differs, linger};
use super::pingpong::{PSN, Pingpong, Side, exchange};

/// Number of addresses that each side sends.
const ADDRESSES: usize = 256;
/// Number of receives that are kept posted.
const DEPTH: usize = 500;

/// Either side of the pingpong.
#[derive(Clone, Copy, Debug)]
pub struct SrqPingpong {
    /// The TCP address to listen on or to connect to, which also chooses the address of the device.
    pub plan: Plan,
    /// True if this side listens.
    pub serves: bool,
    /// Number of messages each way, over all queue pairs together.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
    /// Number of queue pairs (`-q`), less than 256.
    pub qps: usize,
}

/// A queue pair and its state.
struct Line<F: Fabric> {
    qp: ExternalQp<F>,
    /// The buffer for sends, while no send is in flight.
    idle: Option<Buffer<F>>,
    /// Whether the peer's message has arrived since the last send.
    received: bool,
}

/// Counts over all queue pairs.
#[derive(Default)]
struct Tally {
    sent: u32,
    received: u32,
}

impl Program for SrqPingpong {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        if self.qps == 0 || self.qps >= ADDRESSES {
            return Err(differs("queue pairs", "1 to 255", self.qps));
        }
        let setup = Pingpong {
            plan: self.plan,
            kind: QpType::Rc,
            serves: self.serves,
            count: self.count,
            size: self.size,
        };
        let source = fabric.source(self.plan.addr.ip())?;
        let srq = SharedReceive::new(&fabric, DEPTH as u32)?;
        let cq = CompletionQueue::new(&fabric, (DEPTH + self.qps) as u32)?;
        let init = QpInit::rc().recv_wr(0).send_cq(&cq).recv_cq(&cq).srq(&srq);
        let mut lines = Vec::new();
        for buffer in Buffer::many(&fabric, self.qps, self.size)? {
            let mut qp = ExternalQp::new(&fabric, &init)?;
            qp.modify(&setup.init(&source))?;
            // The client starts on each of them.
            lines.push(Line { qp, idle: Some(buffer), received: !self.serves });
        }
        srq.post(&mut Buffer::many(&fabric, DEPTH, self.size)?)?;
        let mut here = [Side { qp: 0, psn: 0, gid: Gid([0; 16]) }; ADDRESSES];
        for (side, line) in here.iter_mut().zip(&lines) {
            *side = Side { qp: line.qp.num(), psn: PSN, gid: source.gid };
        }
        let ready = |there: &[Side; ADDRESSES]| {
            let mut pairs = lines.iter_mut().zip(there);
            pairs.try_for_each(|(line, side)| setup.connect(&mut line.qp, &source, side))
        };
        exchange(&self.plan, self.serves, &fabric, &here, ready)?;
        let mut tally = Tally::default();
        while tally.sent < self.count || tally.received < self.count {
            for line in &mut lines {
                self.step(line, &srq, &mut tally)?;
            }
            if self.plan.time_left().is_zero() {
                let said = format!("{} sent and {} received", tally.sent, tally.received);
                return Err(differs("messages each way in time", self.count, said));
            }
        }
        linger::<F>();
        Ok(())
    }
}

/// A completion, if there is one already.
fn now<F: Fabric>(next: Result<Completion<F>, CmError>) -> Result<Option<Completion<F>>, CmError> {
    match next {
        Err(error) if error.code() == Code::TimedOut => Ok(None),
        next => next.map(Some),
    }
}

impl SrqPingpong {
    /// Handles what has completed on one queue pair, and sends its next message.
    fn step<F: Fabric>(
        &self,
        line: &mut Line<F>,
        srq: &SharedReceive<F>,
        tally: &mut Tally,
    ) -> Result<(), CmError> {
        if let Some(message) = now(line.qp.next_recv(Duration::ZERO))? {
            let message = message.ok()?;
            if message.len != self.size {
                return Err(differs("a message", format!("{} bytes", self.size), message.len));
            }
            srq.post(&mut message.buffer.into_iter().collect())?;
            line.received = true;
            tally.received += 1;
        }
        if let Some(done) = now(line.qp.next_send(Duration::ZERO))? {
            match done.ok() {
                Ok(done) => line.idle = done.buffer,
                // The peer had received enough, and has left.
                Err(_) if tally.sent >= self.count => {}
                Err(error) => return Err(error),
            }
            tally.sent += 1;
        }
        if tally.sent < self.count
            && line.received
            && let Some(buffer) = line.idle.take()
        {
            line.received = false;
            line.qp.post_send(buffer, self.size, SendOp::Send, SendFlags::SIGNALED)?;
        }
        Ok(())
    }
}
