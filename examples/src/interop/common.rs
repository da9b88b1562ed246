//! What the programs share: address and deadline, and small steps of a connection.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::error::Code;
use doorbell::wc::Status;
use doorbell::wr::{SendFlags, SendOp};
use doorbell::{AddrInfo, Buffer, CmError, Completion, Endpoint, Fabric, Hints, Id, QpInit};

/// How long a whole exchange may take by default.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The address and the deadline of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where to listen, or to connect to.
    pub addr: SocketAddr,
    /// When the exchange must be over.
    pub deadline: Instant,
}

impl Plan {
    /// An exchange that starts now and may take [`LIMIT`].
    pub fn at(addr: SocketAddr) -> Plan {
        Plan { addr, deadline: Instant::now() + LIMIT }
    }

    /// Makes an endpoint that listens, and prints its address.
    pub(super) fn listen<F: Fabric>(
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

    /// Makes an endpoint that is ready to connect.
    pub(super) fn active<F: Fabric>(
        &self,
        fabric: &F,
        init: &QpInit<F>,
    ) -> Result<Endpoint<F>, CmError> {
        Endpoint::create(fabric, &AddrInfo::of(self.addr, &Hints::active()), Some(init))
    }

    /// Waits until the peer has disconnected.
    pub(super) fn until_left<F: Fabric>(&self, id: &mut Id<F>) -> Result<(), CmError> {
        while !id.peer_left() {
            if self.time_left().is_zero() {
                let asked = "wait for the peer to disconnect";
                return Err(CmError::new(Code::TimedOut, asked, "it did not"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The time until the deadline.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Checks that a message was received without error and has this length.
pub(super) fn expect_message<F: Fabric>(
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

/// Waits until a message has arrived. A peer that exits after its last message may be gone before
/// it acknowledges it. Then its disconnect counts as success; its own exit code says whether it got
/// the message.
pub(super) fn arrived<F: Fabric>(id: &mut Id<F>, plan: &Plan) -> Result<(), CmError> {
    let done = match id.queues().next_send(plan.time_left()) {
        Err(error) if error.code() == Code::Reset => return Ok(()),
        done => done?,
    };
    match is_unanswered(done.status) {
        true => plan.until_left(id),
        false => done.ok().map(drop),
    }
}

/// Keeps the queue pairs of a program that has ended for a while, if there is a network. It may
/// have lost the acknowledgement of the peer's last message. The peer then repeats the message and
/// fails if no queue pair answers: `ibv_rc_pingpong` within half a second, and our own ping-pong,
/// whose first repetition comes after 1.07 s, later.
pub(super) fn linger<F: Fabric>() {
    if F::OVER_NETWORK {
        thread::sleep(Duration::from_secs(3));
    }
}

/// Whether a message ended without an acknowledgement: its retries were used up, or it was flushed
/// when the connection ended.
pub(super) fn is_unanswered(status: Status) -> bool {
    matches!(status, Status::RetryExceeded | Status::Flushed)
}

/// Posts one signalled request and waits for it; returns its buffer.
pub(super) fn carry_out<F: Fabric>(
    id: &mut Id<F>,
    plan: &Plan,
    buffer: Buffer<F>,
    op: SendOp,
) -> Result<Buffer<F>, CmError> {
    let len = buffer.len();
    id.queues().post_send(buffer, len, op, SendFlags::SIGNALED)?;
    let done = id.queues().next_send(plan.time_left())?.ok()?;
    done.buffer.ok_or_else(|| differs("a request", "its buffer back", "none"))
}

/// Prints where this side listens. Scripts wait for this line.
pub(super) fn announce<F: Fabric>(addr: Option<SocketAddr>, fabric: &F) {
    if let Some(addr) = addr {
        println!("listening on {addr}, device {}", fabric.caps().device);
    }
}

/// The error for a peer that differs from what its program is known to do.
pub(super) fn differs(
    what: &str,
    want: impl std::fmt::Display,
    got: impl std::fmt::Display,
) -> CmError {
    CmError::new(Code::Invalid, format!("{what}: {want}"), format!("it was {got}"))
}
