//! A worker, a listener and a dialer in a task of tokio: `Readiness`, an `AsyncFd`, waits for their
//! descriptors beside whatever else the thread does, so a message waits for its other tasks. The
//! example `futures` gives the worker a core of its own instead.
//!
//! ```text
//! async_fd server & sleep 1
//! async_fd client
//! ```
//!
//! The server ends when its client has gone. The listener and the dialer are in
//! `examples/src/control.rs`: if you copy this page, copy that file too.
#![expect(clippy::expect_used, reason = "a panic of a handler ends the program")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::prelude::*;
use doorbell::{WakeFd, clock_ns};
use doorbell_examples::cli::{Failure, Side, Sides};
use doorbell_examples::control::Control;
use doorbell_tokio::Readiness;

/// Messages that the client gets back.
const ROUNDS: u32 = 1000;

/// Turns at most before the loop looks at the control plane again, which a busy worker would keep
/// waiting.
const TURNS: u32 = 64;

/// With a control plane that is stepped, nothing needs a shorter sleep.
const LIMIT: Duration = Duration::from_secs(1);

/// The two sides of the example.
struct Example(Sides);

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let is_server = self.0.side == Side::Server;
            let config = Config::DEFAULT;
            let shared =
                SharedRecv::new(&nic, message_memory(&nic, config.recv_bytes())?, &config)?;
            let memory = message_memory(&nic, config.send_bytes())?;
            let player = Player { is_server, messages: 0, met: false, over: false };
            let (mut worker, intake) = Worker::new(&nic, &shared, memory, player, &config)?;
            let mut control = Control::start(&nic, &self.0, intake)?;
            let late = serve(&mut worker, &mut control).await?;
            let messages = worker.handler().messages;
            println!("{messages} messages, {late} of them found late");
            match is_server || messages == ROUNDS {
                true => Ok(()),
                false => Err(format!("{} answers are missing", ROUNDS - messages).into()),
            }
        })
    }
}

/// Runs until the peer is gone. Returns the number of messages for which nobody woke this task.
async fn serve<F: Fabric>(
    worker: &mut Worker<F, Player>,
    control: &mut Control<F>,
) -> Result<u32, Failure> {
    let mut wake = Readiness::of(&WakeFd::of(worker)?)?; // for all that wakes the worker
    let mut dials = Readiness::of(&control.dialer)?;
    let mut listens = control.listener.as_ref().map(Readiness::of).transpose()?;
    let (mut late, mut timed_out) = (0, false);
    while !worker.handler().over {
        // Everything that there is. The control plane first: it may have mail for the worker.
        while control.step()? {}
        worker.advance(clock_ns());
        let before = worker.handler().messages;
        for _ in 0..TURNS {
            if worker.turn() == 0 {
                break;
            }
        }
        late += if timed_out { worker.handler().messages - before } else { 0 };
        timed_out = false;
        if let Some(error) = control.failure().filter(|_| !worker.handler().met) {
            return Err(error.into());
        }
        // Whatever comes from here on makes a descriptor readable. After `Busy`, go round again,
        // when other tasks of this thread had their turn.
        let Ok(armed) = worker.arm() else {
            tokio::task::yield_now().await;
            continue;
        };
        let timer =
            armed.next_timer().map(|at| Duration::from_nanos(at.saturating_sub(clock_ns())));
        let due = control.next_deadline();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let wait =
            due.into_iter().chain(timer).chain(armed.look_again()).fold(LIMIT, Duration::min);
        tokio::select! {
            biased; // the time counts only if nothing else has come
            ready = wake.wait() => ready?,
            ready = wait_for(&mut listens) => ready?,
            ready = dials.wait() => ready?,
            () = tokio::time::sleep(wait) => timed_out = true,
        }
        // `armed` is dropped here: the worker may turn again.
    }
    Ok(late)
}

/// Waits for a listener, if there is one.
async fn wait_for(listens: &mut Option<Readiness>) -> std::io::Result<()> {
    match listens {
        Some(listens) => listens.wait().await,
        None => std::future::pending().await,
    }
}

/// Sends back what it gets; the client begins, and ends it.
struct Player {
    is_server: bool,
    messages: u32,
    /// The peer was up.
    met: bool,
    over: bool,
}

impl<P: Provider> Handler<P> for Player {
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        self.met = true;
        if !self.is_server {
            out.send(peer, b"wake up").expect("a new peer has room");
        }
    }

    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.messages += 1;
        if !self.is_server && self.messages == ROUNDS {
            out.finish(message.peer()); // and on_peer_down ends the loop
            return Verdict::Done;
        }
        Verdict::Reply { len: message.len() }
    }

    fn on_peer_down(&mut self, _: PeerId, _why: DownReason, _out: &mut Outbox<'_, P>) {
        self.over = true;
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
