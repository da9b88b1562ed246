//! Doorbell as a contestant: the connecting side. Each link has a worker of its own, with a domain
//! of its own, as a process would.

use std::net::SocketAddr;

use doorbell::Fabric;
use doorbell::worker::PeerId;

use crate::ask::request::Request;
use crate::error::Failure;
use crate::machine::clock;
use crate::meet::tally::Tally;
use crate::meet::wire;
use crate::side::caller::Order;
use crate::side::session::Session;
use crate::traffic::drive::Carrier;
use crate::traffic::ledger::Ledger;

/// Enters the messages that come back on one link.
pub(crate) struct Arrivals {
    link: usize,
    /// The ledger of all links, while it is this link's turn to be polled.
    ledger: Option<Box<Ledger>>,
}

impl Order for Arrivals {
    #[inline(always)]
    fn is_next(&mut self, _peer: PeerId, bytes: &[u8], _size: usize, _echoes: u64) -> bool {
        match &mut self.ledger {
            Some(ledger) => ledger.came(self.link, bytes, clock::ticks),
            None => false,
        }
    }
}

/// The connecting side.
pub(crate) struct Links<F: Fabric> {
    sessions: Vec<Session<F, Arrivals>>,
    /// The link that has the ledger.
    at: usize,
}

impl<F: Fabric> Links<F> {
    /// Connects as many peers as the request has connections, each from a worker of its own.
    pub(crate) fn connect(
        fabric: &F,
        request: &Request,
        addr: SocketAddr,
        ledger: Ledger,
    ) -> Result<Links<F>, Failure> {
        let links = request.qps as usize;
        let request = Request { qps: 1, ..*request };
        let mut ledger = Some(Box::new(ledger));
        let session = |link| {
            let arrivals = Arrivals { link, ledger: ledger.take() };
            Session::join(fabric, &request, 1, addr, arrivals)
        };
        let sessions = (0..links).map(session).collect::<Result<_, _>>()?;
        Ok(Links { sessions, at: 0 })
    }

    /// What this side knows of its memory.
    pub(crate) fn memory(&self) -> Tally {
        Tally::sum(self.sessions.iter().map(|session| &session.tally))
    }

    /// Tells the serving side that this run is over.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        for session in &mut self.sessions {
            session.settle(wire::END)?;
        }
        Ok(())
    }

    /// Gives the ledger to a link.
    #[inline(always)]
    fn hand_over(&mut self, link: usize) {
        if link != self.at {
            let ledger = self.sessions[self.at].worker.handler_mut().order.ledger.take();
            self.sessions[link].worker.handler_mut().order.ledger = ledger;
            self.at = link;
        }
    }
}

impl<F: Fabric> Carrier for Links<F> {
    #[inline(always)]
    fn send(&mut self, link: usize, bytes: &[u8], now: bool) -> Result<bool, Failure> {
        self.sessions[link].try_send(bytes, now)
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        for link in self.ledger().to_poll() {
            self.hand_over(link);
            self.sessions[link].turn()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn poll_resting(&mut self, link: usize) -> Result<(), Failure> {
        self.sessions[link].turn().map(drop)
    }

    #[inline(always)]
    fn ledger(&mut self) -> &mut Ledger {
        match &mut self.sessions[self.at].worker.handler_mut().order.ledger {
            Some(ledger) => ledger,
            None => unreachable!("the ledger is where it was handed to"),
        }
    }
}
