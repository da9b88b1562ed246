//! Messages larger than a block (`doorbell::large`): the client offers two messages of 16 MiB; the
//! server reads both by RDMA into memory of its own, each into a piece for itself, and checks every
//! byte.
//!
//! ```text
//! large server & sleep 1
//! large client
//! ```

use std::process::ExitCode;

use doorbell::alloc::{Ask, MapRequest};
use doorbell::large::{Arrived, Large, Lost, Offer, Received};
use doorbell::prelude::*;
use doorbell::wc::Status;
use doorbell::worker::{OwnPiece, OwnRegion, Piece};
use doorbell_examples::cli::{Failure, Side, Sides};

/// Bytes of a message.
const LENGTH: u32 = 16 << 20;

/// Messages that the client offers.
const OFFERS: u32 = 2;

/// Pieces of the server's memory, for as many messages in transit. It declines more.
const PIECES: u32 = 4;

/// The two sides of the example.
struct Example(Sides);

/// Byte `n` of the message with that tag.
fn byte(tag: u64, n: usize) -> u8 {
    (n % 251) as u8 ^ tag as u8
}

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
        let stop = runtime.stopper();
        let worker = runtime.add(Transfer::new(stop))?;
        if self.0.side == Side::Server {
            // Only this worker touches its memory, so its bytes can be borrowed.
            let memory = worker.adopt_own(&nic, Mapping::huge((PIECES * LENGTH) as usize)?)?;
            let handler = worker.handler_mut();
            (handler.to, handler.free) = (Some(memory), (0..PIECES.into()).collect());
            println!("listening on {}", runtime.listen(self.0.place.addr())?);
            runtime.stop_on_signals()?;
        } else {
            // Peers read this memory.
            let memory = MapRequest::new((OFFERS * LENGTH) as usize).pages(Ask::Huge2M);
            let memory = memory.shared(true).map()?;
            let region = worker.adopt(nic.register(memory, Access::REMOTE_READ)?);
            for tag in 0..OFFERS as usize {
                let bytes: Vec<u8> = (0..LENGTH as usize).map(|n| byte(tag as u64, n)).collect();
                let offset = tag * LENGTH as usize;
                worker.outbox().copy_in(region, offset, &bytes)?;
                worker.handler_mut().offers.push(Piece { region, offset, length: LENGTH });
            }
            runtime.dial(self.0.place.addr())?;
        }
        runtime.run()?;
        match (self.0.side, runtime.workers()[0].handler()) {
            (Side::Server, Transfer { wrong: 0, .. }) => Ok(()),
            (Side::Server, Transfer { wrong, .. }) => {
                Err(format!("{wrong} messages were lost or wrong").into())
            }
            (Side::Client, Transfer { were_read: OFFERS, .. }) => Ok(()),
            (Side::Client, Transfer { were_read, .. }) => {
                let left = OFFERS - *were_read;
                Err(format!("the server has not read {left} of {OFFERS} messages").into())
            }
        }
    }
}

/// The handler of both sides: one has something to offer, the other has room for it.
struct Transfer {
    large: Large,
    /// What the client offers.
    offers: Vec<Piece>,
    peer: Option<PeerId>,
    /// Offers that the client has made.
    offered: usize,
    /// Offers that the server has read or declined.
    answered: u32,
    /// Offers that the server has read.
    were_read: u32,
    /// The server's memory.
    to: Option<OwnRegion>,
    /// Its free pieces. A transfer has the number of its piece as key.
    free: Vec<u64>,
    /// Offers whose senders do not know yet that they are declined.
    declined: Vec<Offer>,
    /// Messages that did not arrive as they were offered.
    wrong: u64,
    stop: Stop,
}

impl Transfer {
    fn new(stop: Stop) -> Transfer {
        Transfer {
            large: Large::new(PIECES, 0), // tokens from 0 on
            offers: Vec::new(),
            peer: None,
            offered: 0,
            answered: 0,
            were_read: 0,
            to: None,
            free: Vec::new(),
            declined: Vec::new(),
            wrong: 0,
            stop,
        }
    }

    /// Offers what there is, as far as there is room; the rest follows in `on_idle`.
    fn offer<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let Some(peer) = self.peer else { return };
        while let Some(piece) = self.offers.get(self.offered) {
            let tag = self.offered as u64;
            match self.large.offer(out, peer, *piece, tag, tag) {
                Ok(()) => self.offered += 1,
                Err(error) if error.is_back_pressure() => return,
                Err(error) => {
                    eprintln!("an offer was not sent: {error}");
                    return self.stop.stop();
                }
            }
        }
    }

    /// The bytes of a piece of the server's memory.
    fn piece(&self, number: u64, length: u32) -> Option<OwnPiece> {
        self.to.map(|memory| memory.piece(number as usize * LENGTH as usize, length))
    }

    /// Reads a message into a free piece. False: there is none, or the message is too long.
    fn take<P: Provider>(&mut self, offer: Offer, out: &mut Outbox<'_, P>) -> bool {
        let Some(number) = self.free.pop() else { return false };
        let to = self.piece(number, LENGTH).map(Piece::from);
        let taken = to.is_some_and(|to| self.large.take(out, offer, to, number).is_ok());
        if !taken {
            self.free.push(number);
        }
        taken
    }

    /// Tells senders that their offers are declined. Those that back-pressure leaves come again.
    fn decline<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        let waits = |offer: &Offer| {
            let told = self.large.decline(out, *offer);
            told.is_err_and(|error| error.is_back_pressure())
        };
        self.declined.retain(waits);
    }

    fn arrived<P: Provider>(&mut self, arrived: Arrived, out: &Outbox<'_, P>) {
        let Arrived { offer, key, result } = arrived;
        let piece = self.piece(key, offer.length());
        let right = piece.and_then(|piece| out.bytes(piece).ok()).is_some_and(|bytes| {
            bytes.iter().enumerate().all(|(n, got)| *got == byte(offer.tag(), n))
        });
        self.wrong += u64::from(!right || result.is_err());
        self.free.push(key);
        println!("{} bytes: {result:?}, right: {right}", offer.length());
    }
}

impl<P: Provider> Handler<P> for Transfer {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
        self.offer(out);
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match self.large.received(&message) {
            Received::Offered(offer) => {
                if !self.take(offer, out) {
                    self.declined.push(offer);
                    self.decline(out);
                }
            }
            Received::Done { key, taken } => {
                println!("the server has read message {key}: {taken}");
                self.answered += 1;
                self.were_read += u32::from(taken);
                if self.answered == OFFERS {
                    out.finish(message.peer()); // and on_peer_down stops
                }
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
        self.offer(out);
        self.decline(out);
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, _out: &mut Outbox<'_, P>) {
        while let Some(lost) = self.large.lost(peer) {
            match lost {
                Lost::Offer { key } => println!("message {key}: the connection has ended: {why}"),
                Lost::Read(Arrived { key, .. }) => {
                    println!("a client has left before the end of its message: {why}");
                    self.wrong += 1;
                    self.free.push(key);
                }
            }
        }
        self.peer = None;
        if !self.offers.is_empty() {
            self.stop.stop();
        }
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
