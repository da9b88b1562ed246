//! Timers: the client sends a heartbeat every 5 ms and falls silent after ten; the server closes
//! the connection of a peer that has been silent for three seconds.
//!
//! The clock of all runtimes of a process counts nanoseconds from its first reading.
//!
//! ```text
//! timers server & sleep 1
//! timers client
//! ```

use std::collections::HashMap;
use std::process::ExitCode;

use doorbell::prelude::*;
use doorbell::worker::TimerId;
use doorbell_examples::cli::{Failure, Side, Sides};

/// Heartbeats of the client.
const BEATS: u64 = 10;

/// Nanoseconds: the worker's clock counts those.
const MILLISECOND: u64 = 1_000_000;

/// The time between two heartbeats.
const BETWEEN: u64 = 5 * MILLISECOND;

/// How long a peer may be silent.
const SILENCE: u64 = 3_000 * MILLISECOND;

/// The two sides of the example.
struct Example(Sides);

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let config = Config { peers: 16, timers: 16, ..Config::DEFAULT };
        let addr = self.0.place.addr();
        if self.0.side == Side::Server {
            let mut runtime = Runtime::new(&nic, &config);
            runtime.add(Server::default())?;
            println!("listening on {}", runtime.listen(addr)?);
            runtime.stop_on_signals()?;
            runtime.run()?;
            return Ok(());
        }
        let mut runtime = Runtime::new(&nic, &config);
        runtime.add(Client { sent: 0, peer: None, stop: runtime.stopper() })?;
        runtime.dial(addr)?;
        runtime.run()?;
        match runtime.workers()[0].handler().sent {
            BEATS => Ok(()),
            sent => Err(format!("{} heartbeats were not sent", BEATS - sent).into()),
        }
    }
}

/// The peers by their index, which is also the key of their timer.
#[derive(Default)]
struct Server(HashMap<u64, Beats>);

struct Beats {
    peer: PeerId,
    count: u64,
    timer: Option<TimerId>,
}

impl<P: Provider> Handler<P> for Server {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let key = peer.index() as u64;
        let timer = out.set_timer(out.now() + SILENCE, key);
        self.0.insert(key, Beats { peer, count: 0, timer });
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let key = message.peer().index() as u64;
        if let Some(beats) = self.0.get_mut(&key) {
            beats.count += 1;
            beats.timer.map(|timer| out.cancel_timer(timer));
            beats.timer = out.set_timer(out.now() + SILENCE, key);
        }
        Verdict::Done
    }

    fn on_timer(&mut self, key: u64, out: &mut Outbox<'_, P>) {
        if let Some(beats) = self.0.get(&key) {
            println!("silent after {} heartbeats", beats.count);
            out.close(beats.peer);
        }
    }

    fn on_peer_down(&mut self, peer: PeerId, _why: DownReason, out: &mut Outbox<'_, P>) {
        let beats = self.0.remove(&(peer.index() as u64));
        beats.and_then(|beats| beats.timer).map(|timer| out.cancel_timer(timer));
    }
}

struct Client {
    sent: u64,
    peer: Option<PeerId>,
    stop: Stop,
}

impl<P: Provider> Handler<P> for Client {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
        out.set_timer(out.now(), 0);
    }

    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        let Some(peer) = self.peer else { return };
        // A server that takes no more closes the connection.
        self.sent += u64::from(out.send(peer, b"alive").is_ok());
        if self.sent < BEATS {
            out.set_timer(out.now() + BETWEEN, 0);
        }
    }

    fn on_message(&mut self, _: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }

    fn on_peer_down(&mut self, _: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        println!("the server hung up after {} heartbeats", self.sent);
        self.peer = None;
        self.stop.stop();
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
