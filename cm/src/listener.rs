//! A listener that gives its connections to workers.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use doorbell_engine::worker::Intake;
use doorbell_fabric::{CmError, CmId, EventKind, Fabric, PortSpace, QpFields};
use doorbell_seam::error::Code;

use crate::connections::{Connections, run};

/// Accepts connections and deals them out to workers in turn.
pub struct Listener<F: Fabric> {
    // Before the connections: a listener that is gone raises no more events on their channel.
    listening: F::Id,
    connections: Connections<F>,
    intakes: Vec<Intake<F>>,
    next: usize,
    refused: u64,
    fabric: F,
}

impl<F: Fabric> Listener<F> {
    /// Binds and listens. Port 0 takes a free one.
    ///
    /// # Errors
    /// An address that is not the device's, or a port in use.
    pub fn bind(fabric: &F, addr: SocketAddr) -> Result<Self, CmError> {
        let connections = Connections::new(fabric)?;
        let mut listening = fabric.create_id(Some(&connections.channel), PortSpace::Tcp)?;
        listening.bind(addr)?;
        listening.listen(0)?;
        Ok(Listener {
            listening,
            connections,
            intakes: Vec::new(),
            next: 0,
            refused: 0,
            fabric: fabric.clone(),
        })
    }

    /// The device.
    pub fn nic(&self) -> &F {
        &self.fabric
    }

    /// The address listened on, with the port that was taken.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listening.local_addr()
    }

    /// Adds a worker to those that get connections.
    pub fn feed(&mut self, intake: Intake<F>) {
        self.intakes.push(intake);
    }

    /// The attributes of its connections' queue pairs, as the device reports them (`ibv_query_qp`),
    /// timers and retries included. In no order, and without those that have failed.
    pub fn query_qps(&self) -> Vec<QpFields> {
        self.connections.query_qps()
    }

    /// Number of connections now.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Number of connections that have ended.
    pub fn ended(&self) -> u64 {
        self.connections.ended()
    }

    /// Number of requests rejected because no queue pair could be made for them.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// One step: waits up to `limit` for an event and handles it. True if there was one.
    ///
    /// # Errors
    /// The connection manager's error. The failure of one connection is not an error.
    pub fn step(&mut self, limit: Duration) -> Result<bool, CmError> {
        self.connections.tend(&self.intakes);
        let Some(mut event) = self.connections.next(limit)? else { return Ok(false) };
        match (event.kind, event.request.take()) {
            (EventKind::ConnectRequest, Some(request)) => self.take_in(request)?,
            _ => {
                self.connections.handle(&event);
            }
        }
        Ok(true)
    }

    /// Steps until `stop` is true.
    ///
    /// # Errors
    /// As for [`Listener::step`].
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), CmError> {
        run(stop, |limit| self.step(limit))
    }

    fn take_in(&mut self, request: F::Id) -> Result<(), CmError> {
        if self.intakes.is_empty() {
            let mut request = request;
            let _ = request.reject(&[]);
            return Err(CmError::new(Code::Invalid, "accept a connection", "there is no worker")
                .cure("feed() the listener before it runs"));
        }
        let intake = self.intakes[self.next % self.intakes.len()].clone();
        self.next = self.next.wrapping_add(1);
        let handed = self.connections.hand_over(request, &intake, F::Id::accept);
        if let Err((mut request, _)) = handed {
            self.refused += 1;
            // The peer gets a rejection instead of silence; a peer that has already given up is
            // fine.
            let _ = request.reject(&[]);
        }
        Ok(())
    }
}
