//! Calls and answers (`doorbell::rpc`): many calls in flight, answered in any order, each with a
//! deadline. The server answers even numbers at once, odd ones a little later, and 0 never.
//!
//! ```text
//! rpc server & sleep 1
//! rpc client
//! ```
#![expect(clippy::expect_used, reason = "a panic of a handler ends the program")]

use std::collections::VecDeque;
use std::process::ExitCode;

use doorbell::prelude::*;
use doorbell::rpc::{self, Calls, Incoming};
use doorbell::worker::Token;
use doorbell_examples::cli::{Failure, Side, Sides};

/// Calls of the client, with the numbers from 0 on.
const CALLS: u64 = 6;

/// The first key of the calls' timers, beyond those that this program uses itself.
const CALL_TIMERS: u64 = 1 << 32;

/// Nanoseconds: the worker's clock counts those.
const MILLISECOND: u64 = 1_000_000;

/// The two sides of the example.
struct Rpc(Sides);

impl Program for Rpc {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let addr = self.0.place.addr();
        if self.0.side == Side::Server {
            let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
            let calls = Calls::new(1, 8, CALL_TIMERS);
            runtime.add(Server { calls, late: VecDeque::new(), count: 0 })?;
            println!("listening on {}", runtime.listen(addr)?);
            runtime.stop_on_signals()?;
            runtime.run()?;
            println!("{} calls", runtime.workers()[0].handler().count);
            return Ok(());
        }
        let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
        let calls = Calls::new(CALLS as u32, 8, CALL_TIMERS); // 8 bytes each
        runtime.add(Client { calls, answers: 0, stop: runtime.stopper() })?;
        runtime.dial(addr)?;
        runtime.run()?;
        // The server answers all calls but one.
        match (CALLS - 1).saturating_sub(runtime.workers()[0].handler().answers) {
            0 => Ok(()),
            missing => Err(format!("{missing} answers are missing").into()),
        }
    }
}

struct Server {
    /// It tells calls from other messages; this side makes none.
    calls: Calls,
    /// Calls to be answered later, in the order of their timers.
    late: VecDeque<Token>,
    count: u64,
}

/// Writes the answer to a call into the room of its payload: the square of the number there.
fn square(room: &mut [u8]) -> usize {
    if let Some(bytes) = room.first_chunk_mut::<8>() {
        let number = u64::from_le_bytes(*bytes);
        *bytes = number.wrapping_mul(number).to_le_bytes();
    }
    8
}

impl<P: Provider> Handler<P> for Server {
    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let Incoming::Call(payload) = self.calls.incoming(out, &message) else {
            return Verdict::Done;
        };
        let number = payload.first().copied().unwrap_or(0);
        self.count += 1;
        if number == 0 {
            return Verdict::Done; // no answer
        }
        // If there is no room to keep the message, or no timer, the answer goes at once.
        if number % 2 == 1
            && out.keep_room() > 0
            && out.set_timer(out.now() + 5 * MILLISECOND, 0).is_some()
            && let Some(token) = out.keep(&message)
        {
            self.late.push_back(token);
            return Verdict::Keep(token);
        }
        let written = rpc::answer(&mut message, square);
        written.map_or(Verdict::Done, |len| Verdict::Reply { len })
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        let Some(token) = self.late.pop_front() else { return };
        let written = out.kept(token).and_then(|mut message| rpc::answer(&mut message, square));
        // It fails only if the caller is gone.
        let _ = written.map(|len| out.reply(token, len));
    }
}

struct Client {
    calls: Calls,
    answers: u64,
    stop: Stop,
}

impl Client {
    /// Closes the connection after the last call.
    fn check_end<P: Provider>(&self, peer: PeerId, out: &mut Outbox<'_, P>) {
        if self.calls.pending() == 0 {
            out.finish(peer);
        }
    }
}

impl<P: Provider> Handler<P> for Client {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        for number in 0..CALLS {
            let patience = if number == 0 { 20 } else { 60_000 } * MILLISECOND;
            let deadline = Some(out.now() + patience);
            self.calls
                .call(out, peer, &number.to_le_bytes(), number, deadline)
                .expect("a new peer has room for a few calls");
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        if let Incoming::Answer { key, bytes } = self.calls.incoming(out, &message) {
            let square = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            println!("call {key}: {}", square.unwrap_or_default());
            self.answers += 1;
        }
        self.check_end(message.peer(), out);
        Verdict::Done
    }

    fn on_timer(&mut self, timer: u64, _out: &mut Outbox<'_, P>) {
        if let Some(key) = self.calls.expired(timer) {
            println!("call {key}: no answer in time");
        }
        if self.calls.pending() == 0 {
            self.stop.stop();
        }
    }

    fn on_peer_down(&mut self, peer: PeerId, _why: DownReason, out: &mut Outbox<'_, P>) {
        while let Some(key) = self.calls.lost(out, peer) {
            println!("call {key}: the server is gone");
        }
        self.stop.stop();
    }
}

fn main() -> ExitCode {
    Sides::start(Rpc)
}
