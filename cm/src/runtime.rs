//! A program's workers, their threads, its control plane and its end, in one object.

use std::any::Any;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_engine::metrics::Metrics;
use doorbell_engine::worker::{Config, Handle, Handler, Intake, SharedRecv, Worker};
use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;

use crate::connections::STEP;
use crate::dialer::Dialer;
use crate::export::Export;
use crate::listener::Listener;
use crate::memory::message_memory;
use crate::pin::pin;
use crate::redial::Backoff;
use crate::sleep::{CLOCK_TURNS, clock_ns, run_sleeping};
use crate::stop::{Signals, Stop, Why};
use crate::trace;
use crate::wait::any_readable;

/// How long a dial may take. The kernel's connection manager repeats a lost request after four
/// seconds.
const DIAL: Duration = Duration::from_secs(20);

/// How long a worker of [`Idle::Sleep`] sleeps at most.
const SLEEP: Duration = Duration::from_millis(100);

/// Turns in a row that find nothing before a worker of [`Idle::Yield`] yields: some microseconds.
const SPIN: u64 = 1024;

/// How long workers take at the end, unless the program says otherwise.
const DRAIN: Duration = Duration::from_secs(1);

/// What a worker does while it finds nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It keeps turning. For a worker that has a core to itself.
    Spin,
    /// After some microseconds without work it lets other threads of its core run between turns.
    Yield,
    /// After this many turns in a row, of some ten nanoseconds each, it sleeps until there is work:
    /// see [`run_sleeping`]. Waking takes some microseconds.
    Sleep {
        /// Turns that find nothing before it sleeps.
        spin: u64,
    },
}

/// Owns a program's workers and runs them, each on a thread of its own, with the control plane on
/// the thread that calls [`Runtime::run`]. Nothing runs before that call, so a failure of set-up
/// leaves nothing behind. While it runs, the first failure of the control plane or a dial, or the
/// first panic of a handler, stops everything and is returned.
///
/// ```
/// use doorbell_cm::Runtime;
/// use doorbell_engine::worker::{Config, Handler, Message, Outbox, PeerId, Verdict};
/// use doorbell_seam::provider::Provider;
/// use doorbell_soft::SoftDevice;
///
/// /// Sends a greeting to each peer, and stops at the first message.
/// struct Greeter(doorbell_cm::Stop);
///
/// impl<P: Provider> Handler<P> for Greeter {
///     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
///         out.send(peer, b"hello").expect("a new peer has room");
///     }
///     fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
///         self.0.stop();
///         Verdict::Done
///     }
/// }
///
/// let nic = SoftDevice::open()?;
/// let mut runtime = Runtime::new(&nic, &Config { peers: 4, ..Config::DEFAULT });
/// runtime.add(Greeter(runtime.stopper()))?;
/// let addr = runtime.listen("127.0.0.1:0")?;
/// runtime.dial(addr)?; // it greets itself
/// runtime.run()?;
/// # Ok::<(), doorbell_cm::CmError>(())
/// ```
pub struct Runtime<F: Fabric, H: Handler<F>> {
    // Connections before workers: peers learn of the end while the workers' memory is still there.
    listeners: Vec<Listener<F>>,
    dialer: Option<Dialer<F>>,
    dials: Vec<Dial>,
    workers: Vec<Worker<F, H>>,
    intakes: Vec<Intake<F>>,
    shared: Option<SharedRecv<F>>,
    cores: Vec<usize>,
    idle: Option<Idle>,
    drain: Duration,
    config: Config,
    nic: F,
    stop: Stop,
    has_run: bool,
    signals: Option<Signals>,
    export: Option<Export>,
}

/// A connection to be made.
struct Dial {
    addr: SocketAddr,
    /// The number of its worker.
    worker: usize,
    /// How it is kept, if it is.
    keep: Option<Backoff>,
}

impl<F: Fabric, H: Handler<F>> Runtime<F, H> {
    /// A runtime without workers. `config` is for the workers that [`Runtime::add`] makes.
    pub fn new(nic: &F, config: &Config) -> Runtime<F, H> {
        Runtime {
            listeners: Vec::new(),
            dialer: None,
            dials: Vec::new(),
            workers: Vec::new(),
            intakes: Vec::new(),
            shared: None,
            cores: Vec::new(),
            idle: None,
            drain: DRAIN,
            config: *config,
            nic: nic.clone(),
            stop: Stop::default(),
            has_run: false,
            signals: None,
            export: None,
        }
    }

    /// Adds a worker with this handler, and returns it for further set-up. All handlers of a
    /// runtime have one type. For workers with different tasks, make that type an enum, or use
    /// several runtimes. All workers that this call adds share one receive queue of
    /// [`Config::recv_blocks`] blocks. Their memory is in huge pages if the machine has them free.
    ///
    /// # Errors
    /// `NoMemory`: the system has too little memory, or the shared queue too few receives for one
    /// more worker. `Invalid`: the configuration.
    pub fn add(&mut self, handler: H) -> Result<&mut Worker<F, H>, CmError> {
        self.config.check()?;
        let shared = match &self.shared {
            Some(shared) => shared.clone(),
            None => {
                let memory = map(&self.nic, "receive", self.config.recv_bytes())?;
                self.shared.insert(SharedRecv::new(&self.nic, memory, &self.config)?).clone()
            }
        };
        let memory = map(&self.nic, "send", self.config.send_bytes())?;
        let (worker, intake) = Worker::new(&self.nic, &shared, memory, handler, &self.config)?;
        Ok(self.add_worker(worker, intake))
    }

    /// Has the workers of [`Runtime::add`] receive into memory of your own, at least
    /// [`Config::recv_bytes`] long: see [`SharedRecv::new`]. Call it before the first `add`, which
    /// maps memory otherwise. Workers that were added before keep theirs.
    ///
    /// # Errors
    /// `Invalid`: the configuration; memory that is too short, or that another process may write.
    /// Otherwise the device's refusal.
    pub fn receive_into(&mut self, memory: Mapping) -> Result<(), CmError> {
        self.shared = Some(SharedRecv::new(&self.nic, memory, &self.config)?);
        Ok(())
    }

    /// Adds a worker that the caller made, with memory and a shared receive queue of its choice.
    pub fn add_worker(&mut self, worker: Worker<F, H>, intake: Intake<F>) -> &mut Worker<F, H> {
        self.intakes.push(intake);
        self.workers.push(worker);
        let last = self.workers.len() - 1;
        &mut self.workers[last]
    }

    /// The workers, in the order in which they were added: their handlers and counters, before and
    /// after [`Runtime::run`].
    pub fn workers(&mut self) -> &mut [Worker<F, H>] {
        &mut self.workers
    }

    /// The intakes of the workers, in the same order, for [`crate::Port::open`].
    pub fn intakes(&self) -> &[Intake<F>] {
        &self.intakes
    }

    /// Pins the workers to cores: the first worker to the first core, and so on. If there are more
    /// workers than cores, the system places the others; if there are more cores, the others stay
    /// unused. [`Runtime::run`] fails for a core that the program may not use, or that two workers
    /// would spin on.
    pub fn on_cores(&mut self, cores: impl IntoIterator<Item = usize>) {
        self.cores = cores.into_iter().collect();
    }

    /// What workers do while idle. Default: [`Idle::Spin`] for those with a core, [`Idle::Yield`]
    /// for the others.
    pub fn when_idle(&mut self, idle: Idle) {
        self.idle = Some(idle);
    }

    /// The longest time that the workers take at the end to send what was accepted and to end each
    /// connection in order ([`Worker::drain`]). Connections that are left then are closed at once,
    /// and a peer that takes longer than [`Config::drain_turns`] turns is closed before. Default:
    /// one second.
    pub fn drain_within(&mut self, limit: Duration) {
        self.drain = limit;
    }

    /// Listens on an address of the device, and returns it with the port that was taken: port 0
    /// takes a free one. The workers get the connections in turn.
    ///
    /// # Errors
    /// `AddrNotAvailable`: the address is not the device's; `AddrInUse`: the port is.
    pub fn listen(&mut self, addr: impl ToSocketAddrs + fmt::Debug) -> Result<SocketAddr, CmError> {
        let addr = resolve(addr)?;
        let listener = Listener::bind(&self.nic, addr)?;
        let bound = listener.local_addr().unwrap_or(addr);
        self.add_listener(listener);
        Ok(bound)
    }

    /// Adds a listener that the caller made, such as one with [`Listener::on_request`]. All workers
    /// of the runtime take its connections.
    pub fn add_listener(&mut self, listener: Listener<F>) {
        self.listeners.push(listener);
    }

    /// Connects a worker to `addr` when the runtime runs. The first call is for the first worker,
    /// and so on in turn. If the connection is not up after 20 s, or fails, the runtime ends with
    /// the error. A connection that ends later does not end the runtime: the handler learns of it
    /// ([`Handler::on_peer_down`]) and may end it. [`Runtime::keep`] dials again.
    ///
    /// # Errors
    /// A name that has no address.
    pub fn dial(&mut self, addr: impl ToSocketAddrs + fmt::Debug) -> Result<(), CmError> {
        self.add_dial(addr, None)
    }

    /// As [`Runtime::dial`], and connects again after a failure or an end, as [`Dialer::keep`]
    /// does. The runtime ends with the error if the connection is given up.
    ///
    /// # Errors
    /// A name that has no address.
    pub fn keep(
        &mut self,
        addr: impl ToSocketAddrs + fmt::Debug,
        backoff: Backoff,
    ) -> Result<(), CmError> {
        self.add_dial(addr, Some(backoff))
    }

    /// The dialer, for connections that send bytes of the program with the request
    /// ([`Dialer::keep_with`]). Use it with an intake of [`Runtime::intakes`]. The runtime steps
    /// the dialer, and ends with the error if a kept connection is given up.
    ///
    /// # Errors
    /// The system's limit on open files.
    pub fn dialer(&mut self) -> Result<&mut Dialer<F>, CmError> {
        match &mut self.dialer {
            Some(dialer) => Ok(dialer),
            none => Ok(none.insert(Dialer::new(&self.nic)?)),
        }
    }

    fn add_dial(
        &mut self,
        addr: impl ToSocketAddrs + fmt::Debug,
        keep: Option<Backoff>,
    ) -> Result<(), CmError> {
        let addr = resolve(addr)?;
        self.dials.push(Dial { addr, worker: self.dials.len(), keep });
        Ok(())
    }

    /// A handle by which handlers and other threads end the runtime.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Lets SIGINT and SIGTERM end the runtime: [`Runtime::run`] then returns [`Why::Signal`]. A
    /// second signal ends the process at once. This holds until `run` has returned, or the runtime
    /// is dropped. When no runtime is left that asked for this, both signals have their default
    /// effect again. Without this call the runtime installs no signal handler.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn stop_on_signals(&mut self) -> Result<(), CmError> {
        if self.signals.is_none() {
            self.signals = Some(Signals::catch(&self.stop)?);
        }
        Ok(())
    }

    /// Shows the metrics of this process to `doorbell-top` and to other processes of this user: see
    /// [`Export`]. The control plane serves them. Workers are named by their number, listeners by
    /// their address. A dialer is shown only in a program that does not listen.
    ///
    /// # Errors
    /// `AddrInUse`: the process exports its metrics already.
    pub fn export(&mut self) -> Result<(), CmError> {
        self.export = Some(Export::open()?);
        Ok(())
    }

    /// Runs until the end: starts a thread for each worker, makes the connections, and runs the
    /// control plane on this thread. If the program listens and dials, the listeners have a thread
    /// of their own, because a dial waits for its answer. At the end each worker drains
    /// ([`Runtime::drain_within`]), the threads are joined, and all connections are closed.
    ///
    /// A runtime that neither listens nor dials has no peers, and runs until it is stopped.
    ///
    /// Timers of the workers count nanoseconds on [`clock_ns`].
    ///
    /// A runtime runs once.
    ///
    /// # Errors
    /// `Invalid`: there is no worker; two workers would spin on one core; it has run already.
    /// Otherwise the first failure: of a dial, of the control plane, of pinning; or a handler's
    /// panic, with its text. With `panic = "abort"` in the program's profile, a panic ends the
    /// process instead (SIGABRT, 134 in a shell).
    pub fn run(&mut self) -> Result<Why, CmError>
    where
        H: Send,
    {
        self.check()?;
        if !self.dials.is_empty() {
            self.dialer()?;
        }
        for listener in &mut self.listeners {
            self.intakes.iter().for_each(|intake| listener.feed(intake.clone()));
        }
        self.has_run = true;
        let end = End {
            stop: &self.stop,
            handles: self.workers.iter().map(Worker::handle).collect(),
            first: Mutex::new(None),
        };
        let started = thread::scope(|scope| {
            // Whatever ends this block, the threads end too, and the scope joins them.
            let (end, _guard) = (&end, Guard(&end));
            for (n, worker) in self.workers.iter_mut().enumerate() {
                let core = self.cores.get(n).copied();
                let unasked = if core.is_some() { Idle::Spin } else { Idle::Yield };
                let (idle, drain) = (self.idle.unwrap_or(unasked), self.drain);
                let work = move || work(worker, core, end.stop, idle, drain);
                let work = move || end.guarded(&format!("worker {n}"), work);
                spawn(scope, format!("worker-{n}"), work)?;
            }
            let (listeners, intakes) = (&mut self.listeners, &self.intakes);
            let dials = std::mem::take(&mut self.dials);
            let mut shown = Shown { export: self.export.take(), workers: &end.handles };
            let Some(dialer) = &mut self.dialer else {
                end.guarded("the control plane", || accept(listeners, shown, end.stop));
                return Ok(());
            };
            if !listeners.is_empty() {
                let listened = Shown { export: shown.export.take(), ..shown };
                let listen = move || accept(listeners, listened, end.stop);
                let listen = move || end.guarded("the listener", listen);
                spawn(scope, "listener".to_owned(), listen)?;
            }
            end.guarded("the control plane", || connect(dialer, intakes, dials, shown, end.stop));
            Ok::<(), CmError>(())
        });
        let first = end.first.into_inner().unwrap_or_else(PoisonError::into_inner);
        (self.listeners, self.dialer, self.signals) = (Vec::new(), None, None);
        started?;
        first.map_or(Ok(self.stop.why()), Err)
    }

    /// What [`Runtime::run`] refuses before it starts anything.
    fn check(&self) -> Result<(), CmError> {
        let refused = |answer| CmError::new(Code::Invalid, "run a program", answer);
        if self.workers.is_empty() {
            return Err(refused("it has no worker".to_owned()).cure("add() one before run()"));
        }
        if self.has_run {
            return Err(refused("it has run already".to_owned()).cure("make another Runtime"));
        }
        let cores = &self.cores[..self.workers.len().min(self.cores.len())];
        let twice = (1..cores.len()).find(|&n| cores[..n].contains(&cores[n]));
        match twice.filter(|_| self.idle.unwrap_or(Idle::Spin) == Idle::Spin) {
            Some(n) => Err(refused(format!("two workers would spin on core {}", cores[n]))
                .cure("give on_cores() a core for each, or call when_idle(Idle::Yield)")),
            None => Ok(()),
        }
    }
}

/// What ends a run, and why.
struct End<'a> {
    stop: &'a Stop,
    handles: Vec<Handle>,
    first: Mutex<Option<CmError>>,
}

impl End<'_> {
    /// Runs a part of the program. However it ends, everything ends; its failure is kept if it is
    /// the first.
    fn guarded(&self, part: &str, run: impl FnOnce() -> Result<(), CmError>) {
        // What the part has borrowed is looked at after a panic: a worker stays sound, and of the
        // control plane nothing is used again.
        let failure = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => {
                let answer = format!("it panicked: {}", text(&*panic));
                let error = CmError::new(Code::Errno(libc::EIO), format!("run {part}"), answer);
                Some(error.cure("standard error says where"))
            }
        };
        if let Some(error) = failure {
            trace::lost(part, &error);
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        self.stop();
    }

    fn stop(&self) {
        self.stop.stop();
        self.handles.iter().for_each(Handle::wake);
    }
}

/// Stops a run when it is dropped.
struct Guard<'a>(&'a End<'a>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What a panic said.
fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it left no text")
}

fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: String,
    run: impl FnOnce() + Send + 'scope,
) -> Result<(), CmError> {
    let asked = format!("start the thread {name}");
    let started = thread::Builder::new().name(name).spawn_scoped(scope, run);
    started.map(drop).map_err(|error| CmError::from_io(asked, &error))
}

fn map<F: Fabric>(nic: &F, what: &str, bytes: usize) -> Result<Mapping, CmError> {
    message_memory(nic, bytes).map_err(|error| {
        let asked = format!("{bytes} bytes of {what} memory for workers");
        CmError::new(Code::from_errno(error.errno()), asked, error.to_string())
    })
}

/// The first of the addresses that a name has.
fn resolve(addr: impl ToSocketAddrs + fmt::Debug) -> Result<SocketAddr, CmError> {
    let asked = format!("find the address {addr:?}");
    let cure = "check the name; a text must have the form HOST:PORT";
    let found = addr.to_socket_addrs();
    let mut found = found.map_err(|error| CmError::from_io(asked.clone(), &error).cure(cure))?;
    found.next().ok_or_else(|| CmError::new(Code::Invalid, asked, "the name has none").cure(cure))
}

/// What a worker's thread does, until the worker has drained.
fn work<F: Fabric, H: Handler<F>>(
    worker: &mut Worker<F, H>,
    core: Option<usize>,
    stop: &Stop,
    idle: Idle,
    drain: Duration,
) -> Result<(), CmError> {
    core.map_or(Ok(()), pin)?;
    turn(worker, stop, idle);
    let until = Instant::now().checked_add(drain);
    worker.drain(|| {
        thread::yield_now();
        until.is_none_or(|until| Instant::now() < until)
    });
    Ok(())
}

/// The loop of a worker's thread.
fn turn<F: Fabric, H: Handler<F>>(worker: &mut Worker<F, H>, stop: &Stop, idle: Idle) {
    match idle {
        Idle::Sleep { spin } => run_sleeping(worker, stop.flag(), spin, SLEEP),
        Idle::Spin | Idle::Yield => {
            let (mut turns, mut nothing) = (0, 0);
            while !stop.is_stopped() {
                nothing = if worker.turn() == 0 { nothing + 1 } else { 0 };
                turns += 1;
                let yields = idle == Idle::Yield && nothing >= SPIN;
                if yields || turns >= CLOCK_TURNS {
                    turns = 0;
                    worker.advance(clock_ns());
                }
                if yields {
                    thread::yield_now();
                }
            }
        }
    }
}

/// What a run shows to others, if it does.
struct Shown<'a> {
    export: Option<Export>,
    workers: &'a [Handle],
}

impl Shown<'_> {
    /// Serves readers; `rest` adds what the caller has besides the workers.
    fn step(&mut self, rest: impl FnOnce(&mut Metrics)) {
        let Some(export) = &mut self.export else { return };
        export.step(|| {
            let mut metrics = Metrics::new();
            for (n, worker) in self.workers.iter().enumerate() {
                metrics.worker(&n.to_string(), &worker.stats());
            }
            rest(&mut metrics);
            metrics
        });
    }
}

/// The control plane of a program that only listens, or does neither.
fn accept<F: Fabric>(
    listeners: &mut [Listener<F>],
    mut shown: Shown<'_>,
    stop: &Stop,
) -> Result<(), CmError> {
    let fds: Vec<_> = listeners.iter().map(|listener| listener.as_fd().as_raw_fd()).collect();
    while !stop.is_stopped() {
        shown.step(|metrics| {
            for listener in &*listeners {
                let name = listener.local_addr().map(|addr| addr.to_string());
                listener.report(&name.unwrap_or_default(), metrics);
            }
        });
        // An idle listener must not hold the others up, so no step waits.
        let mut events = false;
        for listener in &mut *listeners {
            events |= listener.step(Duration::ZERO)?;
        }
        if !events {
            let waited = any_readable(&fds, STEP);
            waited.map_err(|error| CmError::from_io("wait for connections", &error))?;
        }
    }
    Ok(())
}

/// The control plane of a program that dials.
fn connect<F: Fabric>(
    dialer: &mut Dialer<F>,
    intakes: &[Intake<F>],
    dials: Vec<Dial>,
    mut shown: Shown<'_>,
    stop: &Stop,
) -> Result<(), CmError> {
    dialer.stop_with(stop);
    for Dial { addr, worker, keep } in dials {
        let intake = &intakes[worker % intakes.len()];
        match keep {
            Some(backoff) => drop(dialer.keep(addr, intake, backoff)),
            None => match dialer.dial(addr, intake, DIAL) {
                Err(error) if !stop.is_stopped() => return Err(error),
                _ => {}
            },
        }
    }
    while !stop.is_stopped() {
        shown.step(|metrics| dialer.report("0", metrics));
        dialer.step(STEP)?;
        if let Some((_, error)) = dialer.given_up().next() {
            return Err(error.clone());
        }
    }
    Ok(())
}
