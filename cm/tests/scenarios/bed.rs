//! The device under test, and workers on it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Device, Dialer, Fabric, Listener, Program, QpFields, message_memory};
use doorbell_engine::worker::{Config, Handler, Intake, SharedRecv, Worker};

/// Longer than any awaited event takes, even on an emulated or busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// Turns in which a worker looks twice at least at a control plane that nobody steps.
pub(crate) const TWO_LOOKS: u32 = 5 << 19;

/// Little of everything, so that everything runs out.
pub(crate) const CONFIG: Config = Config {
    peers: 4,
    send_queue: 16,
    block_bytes: 512,
    recv_blocks: 64,
    send_blocks: 16,
    inline_bytes: 64,
    signal_every: 8,
    refill: 8,
    window: 8,
    window_min: 8,
    ..Config::DEFAULT
};

/// The address of the device under test.
pub(crate) fn address() -> IpAddr {
    let device = std::env::var("DOORBELL_DEVICE").unwrap_or_default();
    let soft = device.is_empty() || device == "soft0";
    let usual = if soft { "127.0.0.1" } else { "192.168.77.1" };
    let given = std::env::var("DOORBELL_ADDR").ok();
    given.as_deref().unwrap_or(usual).parse().expect("DOORBELL_ADDR is an IP address")
}

/// Runs a program on the device under test.
pub(crate) fn run(program: impl Program<Output = ()>) {
    Device::choose(None, None).expect("the device under test").run(program);
}

/// Makes a test of each named function, which is generic over the device.
macro_rules! cases {
    ($($name:ident)*) => {
        mod cases {
            $(
                #[test]
                fn $name() {
                    struct Case;
                    impl doorbell_cm::Program for Case {
                        type Output = ();
                        fn run<F: doorbell_cm::Fabric>(self, fabric: F) {
                            super::$name(&fabric);
                        }
                    }
                    crate::bed::run(Case);
                }
            )*
        }
    };
}
pub(crate) use cases;

/// A worker, and its intake.
pub(crate) struct Side<F: Fabric, H: Handler<F>> {
    pub(crate) worker: Worker<F, H>,
    pub(crate) intake: Intake<F>,
}

impl<F: Fabric, H: Handler<F>> Side<F, H> {
    pub(crate) fn new(nic: &F, config: &Config, handler: H) -> Self {
        let memory = |bytes| message_memory(nic, bytes).expect("memory");
        let shared = SharedRecv::new(nic, memory(config.recv_bytes()), config).expect("receives");
        let (worker, intake) =
            Worker::new(nic, &shared, memory(config.send_bytes()), handler, config)
                .expect("worker");
        Side { worker, intake }
    }
}

/// Two workers, and the control planes that connect them.
pub(crate) struct Pair<F: Fabric, A: Handler<F>, B: Handler<F>> {
    // Dropped first, as when a program ends.
    pub(crate) dialer: Dialer<F>,
    pub(crate) listener: Listener<F>,
    /// The side that dials.
    pub(crate) one: Side<F, A>,
    pub(crate) two: Side<F, B>,
}

impl<F: Fabric, A: Handler<F>, B: Handler<F>> Pair<F, A, B> {
    /// Two workers with this many connections between them, up on both sides.
    pub(crate) fn new(nic: &F, config: &Config, handlers: (A, B), connections: usize) -> Self {
        Pair::of(nic, [config, config], handlers, connections)
    }

    /// The same, with a configuration for each worker.
    pub(crate) fn of(nic: &F, configs: [&Config; 2], handlers: (A, B), connections: usize) -> Self {
        let one = Side::new(nic, configs[0], handlers.0);
        let two = Side::new(nic, configs[1], handlers.1);
        let mut listener = Listener::bind(nic, SocketAddr::new(address(), 0)).expect("a listener");
        listener.feed(two.intake.clone());
        let mut dialer = Dialer::new(nic).expect("a dialer");
        let addr = listener.local_addr().expect("bound");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| listener.run(&stop).expect("the listener runs"));
            for _ in 0..connections {
                dialer.dial(addr, &one.intake, LIMIT).expect("connected");
            }
            stop.store(true, Ordering::Relaxed);
        });
        let mut pair = Pair { dialer, listener, one, two };
        pair.until("both sides know their peers", |pair| {
            pair.listener.step(Duration::ZERO).expect("a step");
            pair.one.worker.peers() == connections && pair.two.worker.peers() == connections
        });
        pair
    }

    /// Two workers with one connection. The side that was dialed has accepted it, but has not been
    /// told that it is up, because its control plane has not run since.
    pub(crate) fn half(nic: &F, config: &Config, handlers: (A, B)) -> Self {
        let one = Side::new(nic, config, handlers.0);
        let two = Side::new(nic, config, handlers.1);
        let mut listener = Listener::bind(nic, SocketAddr::new(address(), 0)).expect("a listener");
        listener.feed(two.intake.clone());
        let mut dialer = Dialer::new(nic).expect("a dialer");
        let addr = listener.local_addr().expect("bound");
        thread::scope(|scope| {
            let dialing = scope.spawn(|| dialer.dial(addr, &one.intake, LIMIT));
            assert!(listener.step(LIMIT).expect("a step"), "no request comes");
            dialing.join().expect("it ends").expect("connected");
        });
        Pair { dialer, listener, one, two }
    }

    /// The attributes of the queue pairs of both control planes, from the device.
    pub(crate) fn query_qps(&self) -> [Vec<QpFields>; 2] {
        [self.dialer.query_qps(), self.listener.query_qps()]
    }

    /// Drops the ids of the connections, and leaves the workers with their queue pairs.
    pub(crate) fn part(self) -> (Side<F, A>, Side<F, B>) {
        (self.one, self.two)
    }

    /// One turn of each worker.
    pub(crate) fn turn(&mut self) {
        self.one.worker.turn();
        self.two.worker.turn();
    }

    /// Runs both control planes once, so that they notice the end of connections.
    pub(crate) fn tend(&mut self) {
        self.dialer.step(Duration::ZERO).expect("a step");
        self.listener.step(Duration::ZERO).expect("a step");
    }

    /// Changes when a peer or a message comes or goes.
    fn moves(&self) -> [u64; 4] {
        let (one, two) = (&self.one.worker, &self.two.worker);
        let completions = [one.stats().completions, two.stats().completions];
        [completions[0], completions[1], one.peers() as u64, two.peers() as u64]
    }

    /// Turns until the condition holds; fails when nothing has moved for [`LIMIT`].
    pub(crate) fn until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let (mut since, mut seen) = (Instant::now(), self.moves());
        while !so(self) {
            self.turn();
            let now = self.moves();
            if now != seen {
                (since, seen) = (Instant::now(), now);
            }
            assert!(
                since.elapsed() < LIMIT,
                "nothing has moved for a long time, waiting for: {what}"
            );
        }
    }
}

/// Turns one worker, and steps nothing, until it is so. The worker looks at the control plane by
/// the number of its turns, and on an emulated machine two looks may take a minute. So time alone
/// does not tell that it is too late.
pub(crate) fn until<F: Fabric, H: Handler<F>>(
    what: &str,
    side: &mut Side<F, H>,
    mut so: impl FnMut(&mut Side<F, H>) -> bool,
) {
    let (mut since, mut seen, mut turns) = (Instant::now(), 0, 0);
    while !so(side) {
        side.worker.turn();
        turns += 1;
        if side.worker.stats().completions != seen {
            (since, seen, turns) = (Instant::now(), side.worker.stats().completions, 0);
        }
        let late = since.elapsed() > LIMIT && turns > 4 * u64::from(TWO_LOOKS);
        assert!(!late, "nothing comes, waiting for: {what}");
    }
}
