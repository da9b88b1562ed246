//! A loop of one's own: one thread waits with epoll for a worker, a listener and a dialer, and
//! sleeps while there is nothing to do. Each side counts the messages that it found only because
//! its time was over; a loop that loses wake-ups finds all of them so.
//!
//! ```text
//! epoll server & sleep 1
//! epoll client
//! ```
//!
//! The server ends when its client has gone. The listener and the dialer are in
//! `examples/src/control.rs`: if you copy this page, copy that file too.
#![expect(clippy::expect_used, reason = "a panic of a handler ends the program")]

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::prelude::*;
use doorbell::{WakeFd, clock_ns};
use doorbell_examples::cli::{Failure, Side, Sides};
use doorbell_examples::control::Control;
use rustix::event::{Timespec, epoll};

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
        let is_server = self.0.side == Side::Server;
        let config = Config::DEFAULT;
        let shared = SharedRecv::new(&nic, message_memory(&nic, config.recv_bytes())?, &config)?;
        let memory = message_memory(&nic, config.send_bytes())?;
        let player = Player { is_server, messages: 0, met: false, over: false };
        let (mut worker, intake) = Worker::new(&nic, &shared, memory, player, &config)?;
        let mut control = Control::start(&nic, &self.0, intake)?;
        let late = serve(&mut worker, &mut control)?;
        let messages = worker.handler().messages;
        println!("{messages} messages, {late} of them found late");
        match is_server || messages == ROUNDS {
            true => Ok(()),
            false => Err(format!("{} answers are missing", ROUNDS - messages).into()),
        }
    }
}

/// Runs until the peer is gone. Returns the number of messages for which nobody woke this thread.
fn serve<F: Fabric>(
    worker: &mut Worker<F, Player>,
    control: &mut Control<F>,
) -> Result<u32, Failure> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let wake = WakeFd::of(worker)?; // one descriptor for all that wakes the worker
    let listens = control.listener.as_ref().map(AsFd::as_fd);
    for fd in [wake.as_fd(), control.dialer.as_fd()].into_iter().chain(listens) {
        epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
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
        // Whatever comes from here on makes a descriptor readable. After `Busy`, go round again.
        let Ok(armed) = worker.arm() else { continue };
        let timer =
            armed.next_timer().map(|at| Duration::from_nanos(at.saturating_sub(clock_ns())));
        let due = control.next_deadline();
        let due = due.map(|at| at.saturating_duration_since(Instant::now()));
        let wait =
            due.into_iter().chain(timer).chain(armed.look_again()).fold(LIMIT, Duration::min);
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 3];
        timed_out = epoll::wait(&set, &mut events, Some(&wait))?.0.is_empty();
        // `armed` is dropped here: the worker may turn again.
    }
    Ok(late)
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
