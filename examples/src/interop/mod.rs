//! The other sides of well-known RDMA programs, one module each, named after the peer. What a
//! peer sends is checked, length and status; a program that differs is an error, not a surprise.

mod rdma;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell_cm::{CmError, Completion, Fabric};
use doorbell_engine::error::Code;

pub use rdma::{RdmaClient, RdmaServer};

/// How long a whole exchange may take.
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
    /// A plan that begins now.
    pub fn at(addr: SocketAddr) -> Plan {
        Plan { addr, end: Instant::now() + LIMIT }
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
