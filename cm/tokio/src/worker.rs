//! The worker as the program's tasks have it: set-up, connections, end.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use doorbell::error::Code;
use doorbell::rpc::HEADER;
use doorbell::worker::{Config, PeerId};
use doorbell::{CmError, Dialer, Fabric, Idle, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::bridge::Bridge;
use crate::connection::Connection;
use crate::crossing::Crossing;
use crate::driver::{Command, Driver, State};
use crate::error::Ended;
use crate::readiness::Readiness;
use crate::service::Service;
use crate::untaken::Untaken;

/// How an [`AsyncWorker`] is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Blocks, peers and queues of the worker. Its `timers`, `work` and `keeps` are set to what
    /// the jobs and [`Connection::recv`] need.
    pub config: Config,
    /// Sends and requests in progress at a time, 1 to 32 768, each with memory for a block. More
    /// wait for one of them to end. Default: 1024.
    pub jobs: u32,
    /// The core of the worker's thread. Default: where the system puts it.
    pub core: Option<usize>,
    /// What the worker does while it finds nothing. Default: [`Idle::Spin`] with a core of its own,
    /// else [`Idle::Yield`].
    pub idle: Option<Idle>,
    /// How long the worker takes at its end, at most, to send what was accepted. Default: one
    /// second.
    pub drain: Duration,
}

impl Options {
    /// The defaults.
    pub const DEFAULT: Options = Options {
        config: Config::DEFAULT,
        jobs: 1024,
        core: None,
        idle: None,
        drain: Duration::from_secs(1),
    };
}

impl Default for Options {
    fn default() -> Options {
        Options::DEFAULT
    }
}

/// A worker on a thread of its own, and its connections, for tasks of tokio. Clones are handles to
/// the same worker.
///
/// The worker ends when the program calls [`AsyncWorker::close`], when the last handle and the last
/// [`Connection`] are dropped, when its [`Service`] panics, or with the tokio runtime in which it
/// was started. Each future then ends with [`Ended`].
#[derive(Clone)]
pub struct AsyncWorker {
    crossing: Arc<Crossing>,
    commands: UnboundedSender<Command>,
    untaken: Arc<Untaken>,
    /// Tells the driver that somebody has a handle.
    _handle: UnboundedSender<PeerId>,
}

impl AsyncWorker {
    /// Starts a worker on a device, with a thread of its own, and the task that serves it in the
    /// tokio runtime of the caller.
    ///
    /// # Errors
    /// `Invalid`: the options, or no tokio runtime. `NoMemory`: memory for the worker. A core that
    /// the program may not use ends the worker, with the reason in [`Ended`].
    ///
    /// # Panics
    /// If I/O or time of the runtime is not enabled (`enable_all`).
    pub fn start<F: Fabric, S: Service>(
        nic: &F,
        service: S,
        options: &Options,
    ) -> Result<AsyncWorker, CmError> {
        const ASKED: &str = "start a worker for tokio";
        let failed = |error: std::io::Error| CmError::from_io(ASKED, &error);
        let tokio = tokio::runtime::Handle::try_current()
            .map_err(|error| CmError::new(Code::Invalid, ASKED, error.to_string()))
            .map_err(|error| error.cure("call it in a tokio runtime, such as #[tokio::main]"))?;
        let jobs = options.jobs;
        if !(1..=1 << 15).contains(&jobs) {
            let answer = format!("Options::jobs is {jobs}");
            return Err(CmError::new(Code::Invalid, ASKED, answer).cure("set it to 1 to 32768"));
        }
        let Config { work, peers, block_bytes, recv_blocks, .. } = options.config;
        // A job may have two timers for a moment.
        let config = Config { timers: jobs + 1, work: work.max(2), ..options.config };
        // Every block may hold a message that no task has taken.
        let config = Config { keeps: recv_blocks, ..config };
        let block = block_bytes as usize;
        let crossing = Arc::new(Crossing::new(jobs, block, peers, recv_blocks).map_err(failed)?);
        let longest = [block, block.saturating_sub(HEADER)];
        let bridge = Bridge::new(service, crossing.clone(), jobs, longest[1], peers);
        let mut runtime = Runtime::new(nic, &config);
        crossing.joins(runtime.add(bridge)?.handle());
        runtime.on_cores(options.core);
        runtime.drain_within(options.drain);
        options.idle.into_iter().for_each(|idle| runtime.when_idle(idle));

        let (commands, of_commands) = unbounded_channel();
        let untaken = Arc::new(Untaken::new(peers));
        let (closing, closed) = unbounded_channel();
        let dialer = Dialer::new(nic)?;
        let ready = Readiness::of(&dialer).map_err(failed)?;
        let failure = Arc::<OnceLock<CmError>>::default();
        let driver = Driver {
            crossing: crossing.clone(),
            intake: runtime.intakes()[0].clone(),
            stop: runtime.stopper(),
            failure: failure.clone(),
            longest,
            commands: of_commands,
            closed,
            closing: closing.downgrade(),
            untaken: Arc::downgrade(&untaken),
            wakes: Readiness::of(crossing.wake()).map_err(failed)?,
            dialer: (dialer, ready),
            listeners: Vec::new(),
            state: State::default(),
        };
        // Made here, so that it is this call that panics.
        let sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
        let shared = crossing.clone();
        let run = move || serve(runtime, &shared, &failure);
        thread::Builder::new().name("doorbell-tokio".to_owned()).spawn(run).map_err(failed)?;
        tokio.spawn(driver.run(sleep));
        Ok(AsyncWorker { crossing, commands, untaken, _handle: closing })
    }

    /// Connects to `addr`, within `limit`. If the future is dropped, the connection is given up.
    ///
    /// # Errors
    /// As of [`Dialer::dial`]. `Reset`: the worker has ended.
    pub async fn connect(&self, addr: SocketAddr, limit: Duration) -> Result<Connection, CmError> {
        let asked = || format!("connect to {addr}");
        self.ask(asked, |reply| Command::Connect(addr, limit, reply)).await
    }

    /// Listens on an address of the device until the worker ends, and returns the address with the
    /// port that was taken: port 0 takes a free one. A worker may listen on several.
    ///
    /// # Errors
    /// As of [`Listener::bind`](doorbell::Listener::bind). `Reset`: the worker has ended.
    pub async fn listen(&self, addr: SocketAddr) -> Result<SocketAddr, CmError> {
        self.ask(|| format!("listen on {addr}"), |reply| Command::Listen(addr, reply)).await
    }

    async fn ask<T>(
        &self,
        asked: impl Fn() -> String,
        command: impl FnOnce(oneshot::Sender<Result<T, CmError>>) -> Command,
    ) -> Result<T, CmError> {
        let (reply, answer) = oneshot::channel();
        // Without a driver, the reply is dropped.
        drop(self.commands.send(command(reply)));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(CmError::new(Code::Reset, asked(), self.ended().await.to_string())),
        }
    }

    /// The next connection that a peer has made to an address of [`AsyncWorker::listen`]. The
    /// worker serves its requests before this and without it; it is closed if nobody has taken it
    /// when the last handle is dropped.
    ///
    /// A connection that has ended before this is returned only if it left messages. At most
    /// [`Config::peers`] of these are kept: a program that accepts nothing loses the others.
    ///
    /// # Errors
    /// The worker has ended.
    pub async fn accept(&self) -> Result<Connection, Ended> {
        match self.untaken.next().await {
            Some(connection) => Ok(connection),
            None => Err(self.ended().await),
        }
    }

    /// Waits for the worker's end.
    pub async fn ended(&self) -> Ended {
        self.crossing.ended.wait().await.clone()
    }

    /// Ends the worker, and waits until it has ended: it sends what was accepted, closes each
    /// connection with a goodbye, and takes no longer than [`Options::drain`] for both. Messages
    /// that came before can still be taken; those that come from now on are dropped.
    ///
    /// # Errors
    /// It had failed before.
    pub async fn close(self) -> Result<(), Ended> {
        drop(self.commands.send(Command::Close));
        let ended = self.ended().await;
        if ended.was_asked() { Ok(()) } else { Err(ended) }
    }
}

impl fmt::Debug for AsyncWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.crossing.ended.get();
        f.debug_struct("AsyncWorker").field("ended", &ended).finish_non_exhaustive()
    }
}

/// The thread that owns the worker's memory: runs it, and ends every future after it.
fn serve<F: Fabric, S: Service>(
    mut runtime: Runtime<F, Bridge<S>>,
    crossing: &Crossing,
    failure: &OnceLock<CmError>,
) {
    let ran = runtime.run();
    let why = match failure.get().cloned().or(ran.err()) {
        Some(error) => Ended::failed(&error.to_string()),
        None => Ended::asked(),
    };
    let held = runtime.workers().iter_mut().flat_map(|worker| worker.handler_mut().leave());
    crossing.end(why, held);
}
