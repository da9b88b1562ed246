//! `ibv_srq_pingpong` of ibverbs-utils: as `ibv_rc_pingpong`, between several queue pairs of each
//! side that take their receives from one shared queue.
//!
//! Each side tells the other of 256 queue pairs, however many there are; the rest is zero. A queue
//! pair that has sent and heard sends again, until enough was sent and heard over all of them. So
//! the last of the messages may find a side that has left.

use std::time::Duration;

use doorbell::error::Code;
use doorbell::provider::{Gid, QpType};
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{
    Buffer, CmError, Completion, CompletionQueue, ExternalQp, Fabric, Program, QpInit,
    SharedReceive,
};

use super::pingpong::{PSN, Pingpong, Side, exchange};
use super::{Plan, differs};

/// Queue pairs that each side tells of.
const TOLD: usize = 256;
/// Receives that are posted at any time.
const DEPTH: usize = 500;

/// Either side.
#[derive(Clone, Copy, Debug)]
pub struct SrqPingpong {
    /// Where to listen, or to connect to, over TCP; and by which address of the device.
    pub plan: Plan,
    /// This side listens.
    pub serves: bool,
    /// Messages each way, over all queue pairs.
    pub count: u32,
    /// Bytes of each.
    pub size: usize,
    /// Queue pairs (`-q`), less than 256.
    pub qps: usize,
}

/// A queue pair, its buffer for sends while that is not under way, and whether the peer's message
/// has come since it sent last.
struct Line<F: Fabric> {
    qp: ExternalQp<F>,
    idle: Option<Buffer<F>>,
    heard: bool,
}

/// What was done over all of them.
#[derive(Default)]
struct Tally {
    sent: u32,
    heard: u32,
}

impl Program for SrqPingpong {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        if self.qps == 0 || self.qps >= TOLD {
            return Err(differs("queue pairs", "1 to 255", self.qps));
        }
        let way = Pingpong {
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
            qp.modify(&way.init(&source))?;
            // The client begins on each of them.
            lines.push(Line { qp, idle: Some(buffer), heard: !self.serves });
        }
        srq.post(&mut Buffer::many(&fabric, DEPTH, self.size)?)?;
        let mut here = [Side { qp: 0, psn: 0, gid: Gid([0; 16]) }; TOLD];
        for (side, line) in here.iter_mut().zip(&lines) {
            *side = Side { qp: line.qp.num(), psn: PSN, gid: source.gid };
        }
        let ready = |there: &[Side; TOLD]| {
            let mut pairs = lines.iter_mut().zip(there);
            pairs.try_for_each(|(line, side)| way.connect(&mut line.qp, &source, side))
        };
        exchange(&self.plan, self.serves, &fabric, &here, ready)?;
        let mut tally = Tally::default();
        while tally.sent < self.count || tally.heard < self.count {
            for line in &mut lines {
                self.step(line, &srq, &mut tally)?;
            }
            if self.plan.rest().is_zero() {
                let said = format!("{} sent and {} heard", tally.sent, tally.heard);
                return Err(differs("messages each way in time", self.count, said));
            }
        }
        Ok(())
    }
}

/// What has completed by now, if anything has.
fn now<F: Fabric>(next: Result<Completion<F>, CmError>) -> Result<Option<Completion<F>>, CmError> {
    match next {
        Err(error) if error.code() == Code::TimedOut => Ok(None),
        next => next.map(Some),
    }
}

impl SrqPingpong {
    /// Sees to one queue pair.
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
            line.heard = true;
            tally.heard += 1;
        }
        if let Some(done) = now(line.qp.next_send(Duration::ZERO))? {
            match done.ok() {
                Ok(done) => line.idle = done.buffer,
                // The peer had enough, and has left.
                Err(_) if tally.sent >= self.count => {}
                Err(error) => return Err(error),
            }
            tally.sent += 1;
        }
        if tally.sent < self.count
            && line.heard
            && let Some(buffer) = line.idle.take()
        {
            line.heard = false;
            line.qp.post_send(buffer, self.size, SendOp::Send, SendFlags::SIGNALED)?;
        }
        Ok(())
    }
}
