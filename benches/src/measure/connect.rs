//! `connect`: connections a second between two processes. Each is made from nothing and ended: id,
//! address, route, queue pair, connect, accept, disconnect, and all of it destroyed. The queue
//! pairs of a side share a completion queue and a receive queue, as those of a worker do.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use doorbell::{
    Channel, CompletionQueue, ConnParam, Device, Event, EventKind, Fabric, Id, IdKey, PortSpace,
    Program, QpInit, SharedReceive,
};
use doorbell_tune as tune;
use serde::Serialize;

use crate::ask::choose;
use crate::ask::cli::{ConnectArgs, ConnectServeArgs};
use crate::error::{Failure, say};
use crate::machine;
use crate::measure::record::{SCHEMA, round};

/// How long resolving and connecting may take.
const LIMIT: Duration = Duration::from_secs(10);

/// How often the serving side checks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// The figures.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    schema: u32,
    test: &'static str,
    device: String,
    cores: Vec<usize>,
    /// Connections under way at the same time.
    at_once: u32,
    connections: u64,
    connections_per_second: f64,
    /// Mean time of a connection, if they are made one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    connection_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
}

impl Figures {
    /// The figures in one line.
    pub(crate) fn line(&self) -> String {
        let Figures { device, at_once, connections, connections_per_second, .. } = self;
        format!(
            "connect on {device}: {connections_per_second:.0} connections a second, {at_once} at \
             once, {connections} in all\n"
        )
    }
}

/// Starts the serving process and measures.
pub(crate) fn measure(args: &ConnectArgs) -> Result<Figures, Failure> {
    let device = Device::choose(args.device.as_deref(), args.addr)?;
    let ip = choose::address(&device, args.addr)?;
    let cores = match &args.cores[..] {
        [] => tune::choose(2)?,
        cores => cores.to_vec(),
    };
    let [here, there] = cores[..] else {
        return Err(Failure::new("--cores: two are needed, one each for client and server"));
    };
    let name = device.name().to_owned();
    let server = Server::start(&name, ip, there)?;
    tune::pin(here)?;
    let client = Client { addr: server.addr, at_once: args.at_once, time: args.time() };
    let (connections, passed) = device.run(client)?;
    let per_second = connections as f64 / passed.as_secs_f64();
    Ok(Figures {
        schema: SCHEMA,
        test: "connect",
        device: name,
        cores,
        at_once: args.at_once,
        connections,
        connections_per_second: round(per_second, 0),
        connection_us: (args.at_once == 1).then(|| round(1e6 / per_second, 1)),
        commit: machine::commit(),
    })
}

/// The serving process. It ends when its input does, and so with the process that started it.
struct Server {
    child: Child,
    addr: SocketAddr,
}

impl Server {
    fn start(device: &str, ip: IpAddr, core: usize) -> Result<Server, Failure> {
        let failed = |error: std::io::Error| {
            Failure::system("start the serving process", &error, "is this program still there?")
        };
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["connect-serve", "--device", device, "--addr", &ip.to_string()])
            .args(["--core", &core.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        let Ok(addr) = line.trim().parse() else {
            // It printed the reason on standard error.
            let _ = child.wait();
            return Err(Failure::new("the serving process did not start; see what it printed"));
        };
        Ok(Server { child, addr })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // How it ended does not matter any more.
        let _ = self.child.wait();
    }
}

/// The serving process itself.
pub(crate) fn serve(args: &ConnectServeArgs) -> Result<(), Failure> {
    tune::pin(args.core)?;
    Device::named(&args.device)?.run(Accepting { addr: SocketAddr::new(args.addr, 0) })
}

/// What the queue pairs of one side share.
struct Shared<F: Fabric> {
    fabric: F,
    channel: F::Channel,
    init: QpInit<F>,
    live: HashMap<IdKey, Id<F>>,
}

impl<F: Fabric> Shared<F> {
    fn new(fabric: F) -> Result<Shared<F>, Failure> {
        let cq = CompletionQueue::new(&fabric, 4096)?;
        let srq = SharedReceive::new(&fabric, 64)?;
        let init = QpInit::rc().send_wr(16).recv_wr(0).send_cq(&cq).recv_cq(&cq).srq(&srq);
        Ok(Shared { channel: fabric.open_channel()?, init, live: HashMap::new(), fabric })
    }
}

struct Accepting {
    addr: SocketAddr,
}

impl Program for Accepting {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut shared = Shared::new(fabric)?;
        let mut listener = Id::create(&shared.fabric, Some(&shared.channel), PortSpace::Tcp)?;
        listener.bind(self.addr)?;
        listener.listen(0)?;
        let addr = listener.local_addr().ok_or_else(|| Failure::new("it has no address"))?;
        say(&format!("{addr}\n"))?;
        let unwanted = Arc::new(AtomicBool::new(false));
        let over = unwanted.clone();
        thread::spawn(move || {
            // Nothing arrives here but the end.
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Ordering::Relaxed);
        });
        while !unwanted.load(Ordering::Relaxed) {
            if let Some(event) = shared.channel.next(LOOK)? {
                shared.accept(event)?;
            }
        }
        Ok(())
    }
}

impl<F: Fabric> Shared<F> {
    fn accept(&mut self, event: Event<F>) -> Result<(), Failure> {
        match (event.kind, event.request) {
            (EventKind::ConnectRequest, Some(request)) => {
                let mut id = Id::of_request(&self.fabric, request);
                id.create_qp(&self.init)?;
                // A client that has given up meanwhile is not a failure of this side.
                if id.accept(&ConnParam::default()).is_ok() {
                    self.live.insert(id.key(), id);
                }
            }
            (EventKind::Established | EventKind::TimewaitExit, _) => {}
            _ => {
                if let Some(mut id) = self.live.remove(&event.key) {
                    // Both ends disconnect (CM-10). This fails if the connection never was up.
                    let _ = id.disconnect();
                }
            }
        }
        Ok(())
    }
}

struct Client {
    addr: SocketAddr,
    at_once: u32,
    time: Duration,
}

impl Program for Client {
    type Output = Result<(u64, Duration), Failure>;

    /// Connections made and ended, and the time they took, after a fifth of it to warm up.
    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut shared = Shared::new(fabric)?;
        shared.come_and_go(&self, self.time / 5)?;
        shared.come_and_go(&self, self.time)
    }
}

impl<F: Fabric> Shared<F> {
    fn come_and_go(&mut self, client: &Client, time: Duration) -> Result<(u64, Duration), Failure> {
        let start = Instant::now();
        for _ in 0..client.at_once {
            self.begin(client.addr)?;
        }
        let mut ended = 0;
        while !self.live.is_empty() {
            let Some(event) = self.channel.next(LIMIT)? else {
                return Err(Failure::new(format!("nothing happened within {LIMIT:?}: a bug")));
            };
            let Some(id) = self.live.get_mut(&event.key) else { continue };
            match event.kind {
                EventKind::AddrResolved => id.resolve_route(LIMIT)?,
                EventKind::RouteResolved => {
                    id.create_qp(&self.init)?;
                    id.connect(&ConnParam::default())?;
                }
                EventKind::Established => id.disconnect()?,
                EventKind::Disconnected => {
                    self.live.remove(&event.key);
                    ended += 1;
                    if start.elapsed() < time {
                        self.begin(client.addr)?;
                    }
                }
                EventKind::TimewaitExit => {}
                kind => {
                    let text = format!("a connection failed: {kind:?}, status {}", event.status);
                    return Err(Failure::new(text));
                }
            }
        }
        Ok((ended, start.elapsed()))
    }

    fn begin(&mut self, addr: SocketAddr) -> Result<(), Failure> {
        let mut id = Id::create(&self.fabric, Some(&self.channel), PortSpace::Tcp)?;
        id.resolve_addr(None, addr, LIMIT)?;
        self.live.insert(id.key(), id);
        Ok(())
    }
}
