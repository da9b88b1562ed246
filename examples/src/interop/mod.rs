//! The other sides of well-known RDMA programs, one module each, named after the peer. What a
//! peer sends is checked, length and status; a program that differs is an error, not a surprise.

mod cmtime;
mod mckey;
mod pingpong;
mod rdma;
mod rping;
mod rstream;
mod srq_pingpong;
mod ucmatose;
mod udaddy;
mod xrdma;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::error::Code;
use doorbell::wc::Status;
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{AddrInfo, Buffer, CmError, Completion, Endpoint, Fabric, Hints, Id, QpInit};

pub use cmtime::CmtimeServer;
pub use mckey::{Mckey, MckeyReceiver, MckeySender};
pub use pingpong::Pingpong;
pub use rdma::{RdmaClient, RdmaServer};
pub use rping::{RpingClient, RpingServer};
pub use rstream::{Rstream, RstreamClient, RstreamServer};
pub use srq_pingpong::SrqPingpong;
pub use ucmatose::{UcmatoseClient, UcmatoseServer};
pub use udaddy::{UdaddyClient, UdaddyServer};
pub use xrdma::{RdmaXclient, RdmaXserver};

/// How long a whole exchange may take, unless it is told otherwise.
pub const LIMIT: Duration = Duration::from_secs(20);

/// What every part needs.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where to listen, or to connect to.
    pub addr: SocketAddr,
    /// When it has to be over.
    pub end: Instant,
}

impl Plan {
    /// A plan that begins now and may take [`LIMIT`].
    pub fn at(addr: SocketAddr) -> Plan {
        Plan { addr, end: Instant::now() + LIMIT }
    }

    /// An endpoint that listens, and has said where.
    fn listen<F: Fabric>(
        &self,
        fabric: &F,
        init: Option<&QpInit<F>>,
    ) -> Result<Endpoint<F>, CmError> {
        let info = AddrInfo::of(self.addr, &Hints::passive());
        let mut listener = Endpoint::create(fabric, &info, init)?;
        listener.listen(0)?;
        announce(listener.local_addr(), fabric);
        Ok(listener)
    }

    /// An endpoint that may connect.
    fn active<F: Fabric>(&self, fabric: &F, init: &QpInit<F>) -> Result<Endpoint<F>, CmError> {
        Endpoint::create(fabric, &AddrInfo::of(self.addr, &Hints::active()), Some(init))
    }

    /// Waits until the peer has disconnected.
    fn until_left<F: Fabric>(&self, id: &mut Id<F>) -> Result<(), CmError> {
        while !id.peer_left() {
            if self.rest().is_zero() {
                let asked = "wait for the peer to disconnect";
                return Err(CmError::new(Code::TimedOut, asked, "it did not"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The time that is left.
    pub fn rest(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// A message that succeeded and has that length, or what is wrong with it.
fn expect_message<F: Fabric>(
    completion: Completion<F>,
    length: usize,
) -> Result<Completion<F>, CmError> {
    let completion = completion.ok()?;
    if completion.len == length {
        return Ok(completion);
    }
    let asked = format!("receive a message of {length} bytes");
    Err(CmError::new(Code::Invalid, asked, format!("the peer sent {}", completion.len)))
}

/// Waits until a message has arrived. A peer that ends once it has the message may be gone before
/// the acknowledgement is out; then its end says the same, and its exit code the rest.
fn arrived<F: Fabric>(id: &mut Id<F>, plan: &Plan) -> Result<(), CmError> {
    let done = match id.next_send(plan.rest()) {
        Err(error) if error.code() == Code::Reset => return Ok(()),
        done => done?,
    };
    match is_unanswered(done.status) {
        true => plan.until_left(id),
        false => done.ok().map(drop),
    }
}

/// How a message ends whose acknowledgement never came: with its retries, or with the connection.
fn is_unanswered(status: Status) -> bool {
    matches!(status, Status::RetryExceeded | Status::Flushed)
}

/// Carries out one signalled request; the buffer comes back.
fn carry_out<F: Fabric>(
    id: &mut Id<F>,
    plan: &Plan,
    buffer: Buffer<F>,
    op: SendOp,
) -> Result<Buffer<F>, CmError> {
    let len = buffer.len();
    id.post_send(buffer, len, op, SendFlags::SIGNALED)?;
    let done = id.next_send(plan.rest())?.ok()?;
    done.buffer.ok_or_else(|| differs("a request", "its buffer back", "none"))
}

/// What a script waits for: where this side listens.
fn announce<F: Fabric>(addr: Option<SocketAddr>, fabric: &F) {
    if let Some(addr) = addr {
        println!("listening on {addr}, device {}", fabric.caps().device);
    }
}

/// The error of a peer that does not do what its program is known to do.
fn differs(what: &str, want: impl std::fmt::Display, got: impl std::fmt::Display) -> CmError {
    CmError::new(Code::Invalid, format!("{what}: {want}"), format!("it was {got}"))
}
