//! The one task that carries results back, and steps the control plane.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use doorbell::worker::{Intake, PeerId};
use doorbell::{CmError, Dialer, Fabric, Listener, PeerHandle, PeerState, Stop};
use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::connection::{Connection, Link};
use crate::crossing::Crossing;
use crate::inbox::Letter;
use crate::job::{Control, Report};
use crate::readiness::Readiness;
use crate::untaken::Untaken;

/// Reports in a row before other tasks of the thread get their turn.
const REPORTS: usize = 256;

/// How soon to try again what the worker had no room for.
const AGAIN: Duration = Duration::from_millis(1);

/// A wait with nothing to wait for but events.
const LONG: Duration = Duration::from_secs(3600);

/// What tasks ask of the control plane.
pub(crate) enum Command {
    Connect(SocketAddr, Duration, oneshot::Sender<Result<Connection, CmError>>),
    Listen(SocketAddr, oneshot::Sender<Result<SocketAddr, CmError>>),
    Close,
}

/// A connection that is being made.
struct Dial {
    handle: PeerHandle,
    reply: oneshot::Sender<Result<Connection, CmError>>,
}

/// The task's state.
pub(crate) struct Driver<F: Fabric> {
    pub(crate) crossing: Arc<Crossing>,
    pub(crate) intake: Intake<F>,
    pub(crate) stop: Stop,
    /// The control plane's error, if it has failed.
    pub(crate) failure: Arc<OnceLock<CmError>>,
    /// The longest message, and the longest request.
    pub(crate) longest: [usize; 2],
    pub(crate) commands: UnboundedReceiver<Command>,
    /// The peers whose connections were dropped. All senders are gone with the last handle.
    pub(crate) closed: UnboundedReceiver<PeerId>,
    pub(crate) closing: WeakUnboundedSender<PeerId>,
    /// What peers have connected. It is gone with the last handle, and so are its connections.
    pub(crate) untaken: Weak<Untaken>,
    pub(crate) wakes: Readiness,
    pub(crate) dialer: (Dialer<F>, Readiness),
    pub(crate) listeners: Vec<(Listener<F>, Readiness)>,
    pub(crate) state: State,
}

/// What the driver knows of connections.
#[derive(Default)]
pub(crate) struct State {
    dials: Vec<Dial>,
    links: HashMap<PeerId, Arc<Link>>,
    /// What the worker had no room for.
    controls: VecDeque<Control>,
    /// Nobody has a handle any more.
    alone: bool,
    /// The control plane is to be stepped: now, or at this time.
    steps: bool,
    due: Option<Instant>,
}

impl<F: Fabric> Driver<F> {
    /// Runs until the worker has ended. `sleep` is what it sets for its waits.
    pub(crate) async fn run(mut self, mut sleep: Pin<Box<Sleep>>) {
        loop {
            let more = self.take_reports();
            if std::mem::take(&mut self.state.steps)
                && let Err(error) = self.step()
            {
                drop(self.failure.set(error));
                self.stop();
            }
            while let Some(control) = self.state.controls.pop_front() {
                if let Err(control) = self.crossing.control(control) {
                    self.state.controls.push_front(control);
                    break;
                }
            }
            if self.crossing.ended.get().is_some() {
                // The last ones came before the end.
                while self.take_reports() {}
                return;
            }
            if more {
                tokio::task::yield_now().await;
            } else if self.crossing.begin_rest() {
                self.rest(sleep.as_mut()).await;
                self.crossing.end_rest();
            }
        }
    }

    /// Handles what the worker reports. True if there may be more.
    fn take_reports(&mut self) -> bool {
        for _ in 0..REPORTS {
            match self.crossing.next_report() {
                Some(Report::Done(job)) => self.crossing.slots.resolve(job),
                Some(Report::Up(peer, dialed)) => self.peer_up(peer, dialed),
                Some(Report::Message(letter)) => self.deliver(letter),
                Some(Report::FinishedSending(peer)) => {
                    if let Some(link) = self.state.links.get(&peer) {
                        link.inbox.close(true);
                    }
                }
                Some(Report::Down(peer, why)) => {
                    if let Some(link) = self.state.links.remove(&peer) {
                        // The worker took the peer's blocks.
                        drop(link.inbox.take_tokens());
                        link.is_down(why);
                        self.untaken.upgrade().into_iter().for_each(|list| list.is_down(peer));
                    }
                }
                None => return false,
            }
        }
        true
    }

    /// Puts a message into the inbox of its connection.
    fn deliver(&self, mut letter: Box<Letter>) {
        if self.crossing.takes_no_messages() {
            letter.token.take().into_iter().for_each(|token| self.crossing.give_back(token));
        }
        let left = match letter.peer.and_then(|peer| self.state.links.get(&peer)) {
            Some(link) => link.inbox.push(letter),
            None => Err(letter),
        };
        left.err().into_iter().for_each(|letter| self.crossing.done_with(letter));
    }

    /// Ends the worker. It waits for blocks that are kept, so all go back; tasks can still take
    /// the messages.
    fn stop(&self) {
        self.stop.stop();
        self.crossing.begin_end();
        for link in self.state.links.values() {
            link.inbox.take_tokens().into_iter().for_each(|token| self.crossing.give_back(token));
        }
    }

    /// A peer is up: one that this side `dialed`, or one that has connected.
    fn peer_up(&mut self, peer: PeerId, dialed: bool) {
        let link = Link::new(peer);
        self.state.links.insert(peer, link.clone());
        let dials = &mut self.state.dials;
        let dial = dials.iter().position(|dial| dial.handle.peer() == Some(peer));
        let dial = dial.map(|at| dials.swap_remove(at));
        // Without a sender nobody has a handle any more, and the worker is about to end.
        let Some(closing) = self.closing.upgrade() else { return };
        let connection = Connection::new(&self.crossing, &link, self.longest, closing);
        // If nobody waits for it, it is dropped here, and closed.
        match dial {
            Some(dial) => drop(dial.reply.send(Ok(connection))),
            None if dialed => {}
            None => drop(self.untaken.upgrade().map(|list| list.push(connection))),
        }
    }

    /// Steps the control plane until it has nothing to do.
    fn step(&mut self) -> Result<(), CmError> {
        let (dialer, _) = &mut self.dialer;
        for dial in &self.state.dials {
            if dial.reply.is_closed() {
                dial.handle.end();
            }
        }
        while dialer.step(Duration::ZERO)? {}
        let mut due = dialer.next_deadline();
        for (listener, _) in &mut self.listeners {
            while listener.step(Duration::ZERO)? {}
            due = due.into_iter().chain(listener.next_deadline()).min();
        }
        self.state.due = due;
        while let Some(at) = self.state.dials.iter().position(is_over) {
            let Dial { handle, reply } = self.state.dials.swap_remove(at);
            let error = handle.last_error().unwrap_or_else(|| ended(handle.addr()));
            drop(reply.send(Err(error)));
        }
        Ok(())
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Connect(addr, limit, reply) => {
                match self.dialer.0.start(addr, &[], &self.intake, limit) {
                    Ok(handle) => self.state.dials.push(Dial { handle, reply }),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Command::Listen(addr, reply) => drop(reply.send(self.listen(addr))),
            Command::Close => self.stop(),
        }
        self.state.steps = true;
    }

    fn listen(&mut self, addr: SocketAddr) -> Result<SocketAddr, CmError> {
        let mut listener = Listener::bind(self.dialer.0.nic(), addr)?;
        let asked = || format!("listen on {addr}");
        let ready = Readiness::of(&listener).map_err(|error| CmError::from_io(asked(), &error))?;
        listener.feed(self.intake.clone());
        let bound = listener.local_addr().unwrap_or(addr);
        self.listeners.push((listener, ready));
        Ok(bound)
    }

    /// Waits until there is something to do.
    async fn rest(&mut self, mut sleep: Pin<&mut Sleep>) {
        let mut at = self.state.due.unwrap_or_else(|| Instant::now() + LONG);
        if !self.state.controls.is_empty() {
            at = at.min(Instant::now() + AGAIN);
        }
        sleep.as_mut().reset(at.into());
        poll_fn(|context| {
            let mut ready = self.wakes.poll_wait(context).is_ready();
            let mut steps = self.dialer.1.poll_wait(context).is_ready();
            for (_, readiness) in &mut self.listeners {
                steps |= readiness.poll_wait(context).is_ready();
            }
            steps |= sleep.as_mut().poll(context).is_ready();
            self.state.steps |= steps;
            while let Poll::Ready(Some(command)) = self.commands.poll_recv(context) {
                self.command(command);
                ready = true;
            }
            while !self.state.alone
                && let Poll::Ready(peer) = self.closed.poll_recv(context)
            {
                ready = true;
                match peer {
                    Some(peer) => self.state.controls.push_back(Control::Finish(peer)),
                    None => {
                        self.state.alone = true;
                        self.stop();
                    }
                }
            }
            if ready || steps { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl<F: Fabric> Drop for Driver<F> {
    fn drop(&mut self) {
        // The worker has ended, or the task is dropped with its runtime: then the worker ends, and
        // all futures with it.
        self.stop();
        self.crossing.driver_ends();
        self.state.links.values().for_each(|link| link.inbox.close(false));
        self.untaken.upgrade().into_iter().for_each(|list| list.close());
    }
}

fn is_over(dial: &Dial) -> bool {
    dial.handle.state() == PeerState::Ended
}

fn ended(addr: SocketAddr) -> CmError {
    let asked = format!("connect to {addr}");
    CmError::new(doorbell::error::Code::Again, asked, "this side ended it")
}
