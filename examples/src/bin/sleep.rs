//! Workers that sleep while idle (`Idle::Sleep`): the server's worker leaves its core alone until a
//! message comes, and its counters show how few turns that took.
//!
//! ```text
//! sleep server & sleep 1
//! sleep client
//! ```

use std::process::ExitCode;

use doorbell::Idle;
use doorbell::prelude::*;
use doorbell_examples::cli::{Failure, Side, Sides};

/// The number of messages, and the nanoseconds between two of them.
const COUNT: u64 = 20;
const BETWEEN: u64 = 10_000_000;

/// The two sides of the example.
struct Example(Sides);

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let addr = self.0.place.addr();
        if self.0.side == Side::Server {
            let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
            runtime.add(Echo)?;
            // Spins for some ten microseconds after each message, then sleeps.
            runtime.when_idle(Idle::Sleep { spin: 1000 });
            println!("listening on {}", runtime.listen(addr)?);
            runtime.stop_on_signals()?;
            runtime.run()?;
            let stats = runtime.workers()[0].stats();
            println!("{} messages in {} turns", stats.received, stats.turns);
            return Ok(());
        }
        let mut runtime = Runtime::new(&nic, &Config::DEFAULT);
        runtime.add(Client { peer: None, answers: 0, stop: runtime.stopper() })?;
        runtime.dial(addr)?;
        runtime.run()?;
        let answers = runtime.workers()[0].handler().answers;
        println!("{answers} answers");
        match answers {
            COUNT => Ok(()),
            _ => Err(format!("{} answers are missing", COUNT - answers).into()),
        }
    }
}

struct Echo;

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Reply { len: message.len() }
    }
}

struct Client {
    peer: Option<PeerId>,
    answers: u64,
    stop: Stop,
}

impl<P: Provider> Handler<P> for Client {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
        out.set_timer(out.now(), 0);
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        let Some(peer) = self.peer else { return };
        let sent = out.send(peer, b"wake up");
        if sent.is_err_and(|error| error.is_back_pressure()) {
            // A send may be refused with one message in flight too.
            out.set_timer(out.now() + BETWEEN, 0);
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.answers += 1;
        if self.answers < COUNT {
            out.set_timer(out.now() + BETWEEN, 0);
        } else {
            out.finish(message.peer()); // and on_peer_down stops
        }
        Verdict::Done
    }

    fn on_peer_down(&mut self, _: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.stop.stop();
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
