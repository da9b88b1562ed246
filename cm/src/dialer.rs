//! The connecting side: dials peers for workers.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use doorbell_engine::error::Code;
use doorbell_engine::worker::Intake;

use crate::attr::PortSpace;
use crate::connections::{Connections, Outcome, run};
use crate::error::CmError;
use crate::fabric::{CmId, EventKind, Fabric, IdKey, Rejection};

/// Connects workers to listeners, and looks after the connections.
pub struct Dialer<F: Fabric> {
    connections: Connections<F>,
    intakes: Vec<Intake<F>>,
    fabric: F,
}

impl<F: Fabric> Dialer<F> {
    /// A dialer on a device.
    ///
    /// # Errors
    /// The system's limit on open files.
    pub fn new(fabric: &F) -> Result<Self, CmError> {
        let connections = Connections::new(fabric)?;
        Ok(Dialer { connections, intakes: Vec::new(), fabric: fabric.clone() })
    }

    /// The device.
    pub fn nic(&self) -> &F {
        &self.fabric
    }

    /// Connections there are now.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Connects a worker to `addr`, within `limit`. When this returns, the worker's handler will
    /// be told of the peer on its next turn. The worker may turn meanwhile, but need not.
    ///
    /// # Errors
    /// `Refused`: nobody listens, or the peer said no; `TimedOut`; an address that cannot be
    /// reached from this device.
    pub fn dial(
        &mut self,
        addr: SocketAddr,
        intake: &Intake<F>,
        limit: Duration,
    ) -> Result<(), CmError> {
        let until = Instant::now() + limit;
        let mut id = self.fabric.create_id(Some(&self.connections.channel), PortSpace::Tcp)?;
        let key = id.key();
        id.resolve_addr(None, addr, limit)?;
        self.wait_for(key, addr, EventKind::AddrResolved, until)?;
        id.resolve_route(limit)?;
        self.wait_for(key, addr, EventKind::RouteResolved, until)?;
        self.connections.hand_over(id, intake, F::Id::connect).map_err(|(_, error)| error)?;
        if !self.intakes.iter().any(|known| known.is_same(intake)) {
            self.intakes.push(intake.clone());
        }
        self.wait_for(key, addr, EventKind::Established, until)
    }

    /// Handles events until the one that is waited for; others are handled as they come.
    fn wait_for(
        &mut self,
        key: IdKey,
        addr: SocketAddr,
        kind: EventKind,
        until: Instant,
    ) -> Result<(), CmError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.connections.give_up(key);
                let asked = format!("connect to {addr}");
                return Err(CmError::new(Code::TimedOut, asked, "the peer did not answer in time")
                    .cure("is the program there still running?"));
            }
            let Some(event) = self.connections.next(left)? else { continue };
            let outcome = self.connections.handle(&event);
            if event.key != key {
                continue;
            }
            if let Some(Outcome::Failed(kind, status)) = outcome {
                return Err(refusal(addr, kind, status));
            }
            if event.kind == kind {
                return Ok(());
            }
        }
    }

    /// One step: waits up to `limit` for an event and handles it. True if there was one.
    ///
    /// # Errors
    /// What the connection manager answers.
    pub fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        self.connections.tend(&self.intakes);
        let Some(event) = self.connections.next(limit)? else { return Ok(false) };
        self.connections.handle(&event);
        Ok(true)
    }

    /// Steps until `stop` is true.
    ///
    /// # Errors
    /// As for [`Dialer::step`].
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), CmError> {
        run(stop, |limit| self.step(limit))
    }
}

/// What a failed connect means to the caller (section 2.11).
fn refusal(addr: SocketAddr, kind: EventKind, status: i32) -> CmError {
    let asked = format!("connect to {addr}");
    match kind {
        EventKind::Rejected
            if status == Rejection::NoListener as i32 || status == -libc::ECONNREFUSED =>
        {
            CmError::new(Code::Refused, asked, "nobody listens there")
                .cure("start the server first, and check address and port")
        }
        EventKind::Rejected => {
            CmError::new(Code::Refused, asked, format!("the peer rejected it (status {status})"))
        }
        EventKind::Unreachable => {
            CmError::new(Code::TimedOut, asked, format!("no answer (status {status})"))
        }
        _ => CmError::new(Code::from_errno(status), asked, format!("{kind:?}, status {status}")),
    }
}
