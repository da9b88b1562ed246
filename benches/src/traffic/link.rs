//! Doorbell as a contestant: the connecting side, one worker with all of its peers.

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

impl Order for Ledger {
    #[inline(always)]
    fn is_next(&mut self, peer: PeerId, bytes: &[u8], _size: usize, _echoes: u64) -> bool {
        self.came(peer.index(), bytes, clock::ticks)
    }
}

/// The connecting side.
pub(crate) struct Links<F: Fabric> {
    session: Session<F, Ledger>,
    /// The peer of each link.
    peers: Vec<PeerId>,
}

impl<F: Fabric> Links<F> {
    /// Connects as many peers as the request has connections.
    pub(crate) fn connect(
        fabric: &F,
        request: &Request,
        addr: SocketAddr,
        ledger: Ledger,
    ) -> Result<Links<F>, Failure> {
        let session = Session::join(fabric, request, request.qps, addr, ledger)?;
        let mut peers = session.worker.handler().peers.clone();
        peers.sort_unstable_by_key(|peer| peer.index());
        if peers.iter().enumerate().any(|(link, peer)| peer.index() != link) {
            return Err(Failure::new("the peers of a new worker are not numbered from 0: a bug"));
        }
        Ok(Links { session, peers })
    }

    /// What this side knows of its memory.
    pub(crate) fn memory(&self) -> &Tally {
        &self.session.tally
    }

    /// Tells the serving side that this run is over.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.session.settle(wire::END).map(|_| ())
    }
}

impl<F: Fabric> Carrier for Links<F> {
    #[inline(always)]
    fn send(&mut self, link: usize, bytes: &[u8], now: bool) -> Result<bool, Failure> {
        self.session.try_send_to(self.peers[link], bytes, now)
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        self.session.turn()?;
        Ok(())
    }

    #[inline(always)]
    fn ledger(&mut self) -> &mut Ledger {
        &mut self.session.worker.handler_mut().order
    }
}
