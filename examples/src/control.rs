//! The control plane of the programs that have a loop of their own, `epoll` and `async_fd`.

use std::time::{Duration, Instant};

use doorbell::prelude::*;

use crate::cli::{Failure, Side, Sides};

/// How long a client tries to connect.
const DIAL_LIMIT: Duration = Duration::from_secs(20);

/// A listener on the server, which dials nobody; the client needs none.
pub struct Control<F: Fabric> {
    /// The server's.
    pub listener: Option<Listener<F>>,
    /// The client's; it waits for nothing on the server.
    pub dialer: Dialer<F>,
    dialed: Option<PeerHandle>,
}

impl<F: Fabric> Control<F> {
    /// Listens for the worker, or dials for it.
    ///
    /// # Errors
    /// Those of [`Listener::bind`], [`Dialer::new`] and [`Dialer::start`].
    pub fn start(nic: &F, sides: &Sides, intake: Intake<F>) -> Result<Control<F>, Failure> {
        let mut control = Control { listener: None, dialer: Dialer::new(nic)?, dialed: None };
        let addr = sides.place.addr();
        if sides.side == Side::Server {
            let mut listener = Listener::bind(nic, addr)?;
            listener.feed(intake);
            println!("listening on {}", listener.local_addr().unwrap_or(addr));
            control.listener = Some(listener);
        } else {
            control.dialed = Some(control.dialer.start(addr, &[], &intake, DIAL_LIMIT)?);
        }
        Ok(control)
    }

    /// Handles an event, if there is one.
    ///
    /// # Errors
    /// Those of [`Listener::step`] and [`Dialer::step`].
    pub fn step(&mut self) -> Result<bool, CmError> {
        let listened = self.listener.as_mut().map(|listener| listener.step(Duration::ZERO));
        Ok(listened.transpose()?.unwrap_or(false) || self.dialer.step(Duration::ZERO)?)
    }

    /// Why the dial has failed, if it has. That is no error of a step, and the handler hears
    /// nothing, since the peer was never up.
    pub fn failure(&self) -> Option<CmError> {
        let dialed = self.dialed.as_ref()?;
        (dialed.state() == PeerState::Ended).then(|| dialed.last_error())?
    }

    /// When it is to be stepped at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        let listener = self.listener.as_ref().and_then(Listener::next_deadline);
        listener.into_iter().chain(self.dialer.next_deadline()).min()
    }
}
