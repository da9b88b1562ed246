//! One-sided access: the server exposes memory and tells each client where it is and what it allows
//! there. The client writes a word there, adds to a counter and reads both. The server's handler
//! does not take part.
//!
//! ```text
//! onesided server & sleep 1
//! onesided client
//! ```
#![expect(clippy::expect_used, reason = "a panic of a handler ends the program")]

use std::process::ExitCode;

use doorbell::alloc::{Ask, MapRequest};
use doorbell::prelude::*;
use doorbell::remote::{RemoteError, RequestOp};
use doorbell::wc::Status;
use doorbell::worker::{OwnRegion, Piece, Request};
use doorbell_examples::cli::{Failure, Side, Sides};

/// Where the counter lies in the server's memory, and where the word.
const COUNTER: usize = 0;
const WORD: usize = 64;

/// Bytes that the server exposes.
const EXPOSED: u32 = 4096;

/// The two sides of the example.
struct Example(Sides);

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let addr = self.0.place.addr();
        if self.0.side == Side::Server {
            let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
            let worker = runtime.add(Server(None))?;
            let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let memory = MapRequest::new(EXPOSED as usize).pages(Ask::Plain).shared(true).map()?;
            let region = worker.adopt(nic.register(memory, rights | Access::LOCAL_WRITE)?);
            let all = Piece { region, offset: 0, length: EXPOSED };
            worker.handler_mut().0 = Some(worker.outbox().remote_memory(all)?);
            println!("listening on {}", runtime.listen(addr)?);
            runtime.stop_on_signals()?;
            runtime.run()?;
            let mut counter = [0; 8];
            runtime.workers()[0].outbox().copy_out(region, COUNTER, &mut counter)?;
            println!("the counter is {}", u64::from_ne_bytes(counter));
            return Ok(());
        }
        let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
        let stop = runtime.stopper();
        let worker = runtime.add(Client { read: None, memory: None, has_read: false, stop })?;
        worker.handler_mut().memory =
            Some(worker.adopt_own(&nic, Mapping::plain(EXPOSED as usize)?)?);
        runtime.dial(addr)?;
        runtime.run()?;
        match runtime.workers()[0].handler().has_read {
            true => Ok(()),
            false => Err("the server is gone before the READ has ended".into()),
        }
    }
}

/// Tells each client about the memory.
struct Server(Option<RemoteMemory>);

impl<P: Provider> Handler<P> for Server {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let told = self.0.expect("it has memory").to_bytes();
        out.send(peer, &told).expect("a new peer has room");
    }

    fn on_message(&mut self, _: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
}

struct Client {
    /// The READ that comes last, once the server has told of its memory.
    read: Option<RequestOp>,
    /// The client's own.
    memory: Option<OwnRegion>,
    /// True once the READ has brought the server's memory.
    has_read: bool,
    stop: Stop,
}

impl Client {
    /// Writes the word, adds to the counter and prepares the READ.
    fn begin<P: Provider>(
        &mut self,
        there: RemoteMemory,
        peer: PeerId,
        out: &mut Outbox<'_, P>,
    ) -> Result<(), RemoteError> {
        let write = there.write(WORD as u64, 5)?;
        let add = there.fetch_add(COUNTER as u64, 1)?;
        self.read = Some(there.read(0, 128)?);
        let word = self.memory.expect("it has memory").piece(WORD, 5);
        out.bytes_mut(word).expect("no request uses it").copy_from_slice(b"hello");
        self.post(out, peer, (write, WORD, 5), 1);
        self.post(out, peer, (add, COUNTER, 8), 2);
        Ok(())
    }

    /// Posts one request. Its bytes lie at the same offset on both sides.
    fn post<P: Provider>(
        &self,
        out: &mut Outbox<'_, P>,
        peer: PeerId,
        (op, offset, length): (RequestOp, usize, u32),
        token: u64,
    ) {
        let piece = self.memory.expect("it has memory").piece(offset, length).into();
        let request = Request { op, pieces: &[piece], fence: false, token };
        out.request(peer, &request).expect("an idle peer has room");
    }
}

impl<P: Provider> Handler<P> for Client {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let told = message.bytes().try_into().map(RemoteMemory::from_bytes);
        // What a peer sends may be wrong: that costs its connection, and not the program.
        let begun = match told {
            Ok(there) if self.read.is_none() => self.begin(there, message.peer(), out).is_ok(),
            _ => false,
        };
        if !begun {
            eprintln!("the peer has not told of memory that it lets this side use");
            out.close(message.peer());
        }
        Verdict::Done
    }

    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        match (token, result) {
            (2, Ok(())) => {
                let read = self.read.expect("the server has told");
                self.post(out, peer, (read, 0, 128), 3);
            }
            (3, Ok(())) => {
                let memory = self.memory.expect("it has memory");
                let bytes = out.bytes(memory.piece(0, 128)).expect("the READ has ended");
                let counter = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                let word = String::from_utf8_lossy(&bytes[WORD..WORD + 5]);
                println!("read back: counter {counter}, word {word}");
                self.has_read = true;
                out.finish(peer); // and on_peer_down stops
            }
            (_, Ok(())) => {}
            (_, Err(status)) => println!("request {token} failed: {status:?}"),
        }
    }

    fn on_peer_down(&mut self, _: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
