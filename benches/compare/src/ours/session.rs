//! One side: a worker, its one connection, and the control plane that made it.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::prelude::*;
use doorbell::worker::SendError;

use crate::error::Failure;
use crate::ours::{Side, SideArgs};

/// How long the sides wait for each other, at the start and later.
const PATIENCE: Duration = Duration::from_secs(10);

/// Look at the control plane after this many empty turns: some milliseconds.
const COLD_TURNS: u32 = 1 << 18;

/// What a handler knows of its connection.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) peer: Option<PeerId>,
    pub(crate) down: Option<DownReason>,
    /// Requests that have ended, and the first that ended with an error.
    pub(crate) ended: u64,
    pub(crate) failed: Option<String>,
}

impl Link {
    /// Notes the end of a request.
    pub(crate) fn end(&mut self, result: Result<(), doorbell::wc::Status>) {
        self.ended += 1;
        if let Err(status) = result {
            self.failed.get_or_insert_with(|| format!("a request ended with {status:?}"));
        }
    }
}

/// A handler with one connection.
pub(crate) trait Linked: Handler<SoftDevice> {
    fn link(&self) -> &Link;
}

enum Control {
    Listener(Box<Listener<SoftDevice>>),
    Dialer(Dialer<SoftDevice>),
}

/// One side.
pub(crate) struct Session<H: Linked> {
    pub(crate) worker: Worker<SoftDevice, H>,
    pub(crate) nic: SoftDevice,
    intake: Intake<SoftDevice>,
    control: Option<Control>,
    empty: u32,
    /// Completions at the last look, and when they were fewer.
    seen: (u64, Instant),
}

impl<H: Linked> Session<H> {
    /// A worker without a connection.
    pub(crate) fn new(config: &Config, handler: H) -> Result<Session<H>, Failure> {
        let nic = SoftDevice::open().map_err(Failure::at("open soft0"))?;
        let memory = message_memory(&nic, config.recv_bytes()).map_err(Failure::at("memory"))?;
        let shared =
            SharedRecv::new(&nic, memory, config).map_err(Failure::at("a receive queue"))?;
        let memory = message_memory(&nic, config.send_bytes()).map_err(Failure::at("memory"))?;
        let (worker, intake) =
            Worker::new(&nic, &shared, memory, handler, config).map_err(Failure::at("a worker"))?;
        let seen = (0, Instant::now());
        Ok(Session { worker, nic, intake, control: None, empty: 0, seen })
    }

    /// Connects with the other side.
    pub(crate) fn connect(&mut self, args: &SideArgs) -> Result<(), Failure> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
        let until = Instant::now() + PATIENCE;
        self.control = Some(match args.side {
            Side::Server => {
                let listener = Listener::bind(&self.nic, addr);
                let mut listener = listener.map_err(Failure::at(format!("listen on {addr}")))?;
                listener.feed(self.intake.clone());
                Control::Listener(Box::new(listener))
            }
            Side::Client => {
                let mut dialer = Dialer::new(&self.nic).map_err(Failure::at("a dialer"))?;
                // The server may not listen yet.
                while let Err(error) = dialer.dial(addr, &self.intake, PATIENCE) {
                    if Instant::now() > until {
                        return Err(Failure::new(error.to_string()));
                    }
                    // It gives the place of the peer that did not come back.
                    self.worker.turn();
                    thread::sleep(Duration::from_millis(2));
                }
                Control::Dialer(dialer)
            }
        });
        while self.link().peer.is_none() {
            self.step(Duration::from_millis(1))?;
            self.worker.turn();
            if Instant::now() > until {
                return Err(Failure::new("the other side of doorbell did not come"));
            }
        }
        Ok(())
    }

    fn link(&self) -> &Link {
        self.worker.handler().link()
    }

    /// The other side.
    pub(crate) fn peer(&self) -> Result<PeerId, Failure> {
        self.link().peer.ok_or_else(|| Failure::new("there is no connection"))
    }

    /// The control plane's work, of which there is none during a measurement.
    fn step(&mut self, limit: Duration) -> Result<bool, Failure> {
        let done = match &mut self.control {
            None => Ok(false),
            Some(Control::Listener(listener)) => listener.step(limit),
            Some(Control::Dialer(dialer)) => dialer.step(limit),
        };
        done.map_err(Failure::at("the control plane"))
    }

    /// One turn. Returns the completions taken.
    #[inline(always)]
    pub(crate) fn turn(&mut self) -> Result<(), Failure> {
        if self.worker.turn() != 0 {
            self.empty = 0;
            return Ok(());
        }
        self.empty += 1;
        if self.empty >= COLD_TURNS { self.look() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        self.empty = 0;
        while self.step(Duration::ZERO)? {}
        self.check()?;
        let completions = self.worker.stats().completions;
        if completions != self.seen.0 {
            self.seen = (completions, Instant::now());
        } else if self.seen.1.elapsed() > PATIENCE {
            return Err(Failure::new("nothing has come from the other side of doorbell"));
        }
        Ok(())
    }

    /// # Errors
    /// The connection is down, or a request has failed.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let link = self.link();
        if let Some(why) = &link.failed {
            return Err(Failure::new(why.clone()));
        }
        match link.down {
            Some(why) => Err(Failure::new(format!("the connection broke off: {why:?}"))),
            None => Ok(()),
        }
    }

    /// True once the other side has left.
    pub(crate) fn is_left(&self) -> bool {
        self.link().down.is_some()
    }

    /// Turns until the other side leaves. The server's whole work if its handler does the rest.
    pub(crate) fn serve(&mut self) -> Result<(), Failure> {
        loop {
            match self.turn() {
                _ if self.is_left() => return Ok(()),
                Ok(()) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Says goodbye, and waits until the other side has heard it.
    pub(crate) fn leave(&mut self) -> Result<(), Failure> {
        let peer = self.peer()?;
        self.worker.outbox().finish(peer);
        self.serve()
    }

    /// Does something that needs room in the send queue, and turns until there is some.
    #[inline(always)]
    pub(crate) fn when_room(
        &mut self,
        mut send: impl FnMut(&mut H, &mut Outbox<'_, SoftDevice>) -> Result<(), SendError>,
    ) -> Result<(), Failure> {
        loop {
            match self.worker.with(&mut send) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_back_pressure() => self.turn()?,
                Err(error) => {
                    self.check()?;
                    return Err(Failure::new(error.to_string()));
                }
            }
        }
    }
}
