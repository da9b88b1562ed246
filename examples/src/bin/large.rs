//! Messages larger than a block (`doorbell::large`): the client offers 16 MiB of its memory; the
//! server reads them by RDMA into memory of its own and checks every byte.
//!
//! ```text
//! large server & sleep 1
//! large client
//! ```
#![expect(clippy::expect_used, reason = "a panic of a handler ends the program")]

use std::process::ExitCode;

use doorbell::alloc::{Ask, MapRequest};
use doorbell::large::{Arrived, Large, Lost, Received};
use doorbell::prelude::*;
use doorbell::wc::Status;
use doorbell::worker::{OwnPiece, Piece};
use doorbell_examples::cli::{Failure, Side, Sides};

/// Bytes of the message.
const LENGTH: u32 = 16 << 20;

/// The two sides of the example.
struct Example(Sides);

/// Byte `n` of the message.
fn byte(n: usize) -> u8 {
    (n % 251) as u8
}

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
        let (stop, large) = (runtime.stopper(), Large::new(4, 0)); // 4 in transit, tokens from 0 on
        let worker = runtime.add(Transfer {
            large,
            offer: None,
            to: None,
            is_read: false,
            wrong: 0,
            stop,
        })?;
        if self.0.side == Side::Server {
            // Only this worker touches its memory, so its bytes can be borrowed.
            let memory = worker.adopt_own(&nic, Mapping::huge(LENGTH as usize)?)?;
            worker.handler_mut().to = Some(memory.piece(0, LENGTH));
            println!("listening on {}", runtime.listen(self.0.place.addr())?);
            runtime.stop_on_signals()?;
        } else {
            // Peers read this memory.
            let memory = MapRequest::new(LENGTH as usize).pages(Ask::Huge2M).shared(true).map()?;
            let region = worker.adopt(nic.register(memory, Access::REMOTE_READ)?);
            let bytes: Vec<u8> = (0..LENGTH as usize).map(byte).collect();
            worker.outbox().copy_in(region, 0, &bytes)?;
            worker.handler_mut().offer = Some(Piece { region, offset: 0, length: LENGTH });
            runtime.dial(self.0.place.addr())?;
        }
        runtime.run()?;
        match (self.0.side, runtime.workers()[0].handler()) {
            (Side::Server, Transfer { wrong: 0, .. }) => Ok(()),
            (Side::Server, Transfer { wrong, .. }) => {
                Err(format!("{wrong} messages were lost or wrong").into())
            }
            (Side::Client, Transfer { is_read: true, .. }) => Ok(()),
            (Side::Client, _) => Err("the server has not read it".into()),
        }
    }
}

/// The handler of both sides: one has something to offer, the other has room for it.
struct Transfer {
    large: Large,
    offer: Option<Piece>,
    to: Option<OwnPiece>,
    /// True once the peer has read what was offered.
    is_read: bool,
    /// Messages that did not arrive as they were offered.
    wrong: u64,
    stop: Stop,
}

impl Transfer {
    fn arrived<P: Provider>(&mut self, arrived: Arrived, out: &Outbox<'_, P>) {
        let Some(bytes) = self.to.and_then(|to| out.bytes(to).ok()) else { return };
        let right = bytes.iter().enumerate().all(|(n, got)| *got == byte(n));
        self.wrong += u64::from(!right || arrived.result.is_err());
        println!("{} bytes: {:?}, right: {right}", arrived.offer.length(), arrived.result);
    }
}

impl<P: Provider> Handler<P> for Transfer {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        if let Some(piece) = self.offer {
            self.large.offer(out, peer, piece, 1, 0).expect("a new peer has room for an offer");
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match self.large.received(&message) {
            Received::Offered(offer) => {
                let room = self.to.map(Piece::from);
                let taken = room.map(|to| self.large.take(out, offer, to, 0));
                if !matches!(taken, Some(Ok(()))) {
                    let _ = self.large.decline(out, offer); // no room, or too little
                }
            }
            Received::Done { taken, .. } => {
                println!("the server has read it: {taken}");
                self.is_read = taken;
                out.finish(message.peer()); // and on_peer_down stops
            }
            Received::Foreign => {}
        }
        Verdict::Done
    }

    fn on_send_done(
        &mut self,
        _peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        if let Some(arrived) = self.large.read(out, token, result) {
            self.arrived(arrived, out);
        }
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        while let Some(arrived) = self.large.progress(out) {
            self.arrived(arrived, out);
        }
    }

    fn on_peer_down(&mut self, peer: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        while let Some(lost) = self.large.lost(peer) {
            match lost {
                Lost::Offer { .. } => println!("the server is gone"),
                Lost::Read(_) => println!("the client is gone"),
            }
        }
        if self.offer.is_some() {
            self.stop.stop();
        }
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
