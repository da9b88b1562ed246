//! Talks to real RDMA programs as their counterpart.
//!
//! ```text
//! interop rdma-server --addr 192.168.77.1 --port 7471     with   rdma_client -s 192.168.77.1
//! rdma_server -s 192.168.77.1                             with   interop rdma-client --addr …
//! ```
//! Exits with 0 if everything was as expected; otherwise with 1 and one line that says what was
//! not.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use doorbell::provider::QpType;
use doorbell::{CmError, Device, Program};
use doorbell_examples::interop::{
    CmtimeServer, LIMIT, Mckey, MckeyReceiver, MckeySender, Pingpong, Plan, RdmaClient, RdmaServer,
    RdmaXclient, RdmaXserver, RpingClient, RpingServer, Rstream, RstreamClient, RstreamServer,
    SrqPingpong, UcmatoseClient, UcmatoseServer, UdaddyClient, UdaddyServer,
};

#[derive(Parser)]
#[command(about = "The counterpart of well-known RDMA programs", version)]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

/// The subcommands. Each is named after the program that it replaces.
#[derive(Subcommand)]
enum Part {
    /// Serve one `rdma_client`.
    RdmaServer(Where),
    /// Be the client of one `rdma_server`.
    RdmaClient(Where),
    /// Serve one `rping -c`; no round may have more than SIZE bytes.
    RpingServer(Amount),
    /// Be the client of one `rping -s`: COUNT rounds of SIZE bytes (10 of 64).
    RpingClient(Amount),
    /// Serve one `ucmatose -s`: COUNT messages of SIZE bytes each way (10 of 100).
    UcmatoseServer(Amount),
    /// Be the client of one `ucmatose`: COUNT messages of SIZE bytes each way (10 of 100).
    UcmatoseClient(Amount),
    /// Serve one `rdma_xclient -c r`.
    RdmaXserver(Where),
    /// Be the client of one `rdma_xserver -c r`.
    RdmaXclient(Where),
    /// Serve one `udaddy -s`: COUNT datagrams of SIZE bytes each way (10 of 100).
    UdaddyServer(Amount),
    /// Be the client of one `udaddy`: COUNT datagrams of SIZE bytes each way (10 of 100).
    UdaddyClient(Amount),
    /// Receive from one `mckey -s`: COUNT datagrams of SIZE bytes (10 of 100).
    MckeyReceiver(Group),
    /// Send to all who run `mckey`: COUNT datagrams of SIZE bytes (10 of 100).
    MckeySender(Group),
    /// Serve one `ibv_rc_pingpong HOST`, or with another TRANSPORT `ibv_uc_pingpong` or
    /// `ibv_ud_pingpong`: COUNT messages of SIZE bytes each way (1000 of 4096; 1024 over UD).
    PingpongServer(Pings),
    /// Be the client of one of these.
    PingpongClient(Pings),
    /// Serve one `ibv_srq_pingpong HOST`: COUNT messages of SIZE bytes each way (1000 of 4096)
    /// over QPS queue pairs.
    SrqPingpongServer(Shared),
    /// Be the client of one.
    SrqPingpongClient(Shared),
    /// Serve one `rstream -s HOST -S SIZE -C COUNT -I ROUNDS -T v` (1000 bytes, 1000 times, once).
    RstreamServer(Streams),
    /// Be the client of one such `rstream`.
    RstreamClient(Streams),
    /// Serve `cmtime -s`: COUNT connections (100).
    CmtimeServer(Amount),
}

#[derive(clap::Args)]
struct Where {
    /// Address to listen on or to connect to.
    #[arg(long, default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Port; by default that of the peer. A server on port 0 takes a free one and prints it.
    #[arg(long)]
    port: Option<u16>,
    /// Device; by default DOORBELL_DEVICE, else the RDMA device that owns the address, else soft0.
    #[arg(long)]
    device: Option<String>,
    /// Seconds that the whole exchange may take.
    #[arg(long, default_value_t = LIMIT.as_secs())]
    limit: u64,
}

#[derive(clap::Args)]
struct Amount {
    #[command(flatten)]
    place: Where,
    /// Number of messages; by default that of the peer.
    #[arg(long)]
    count: Option<u32>,
    /// Bytes of each; by default those of the peer.
    #[arg(long)]
    size: Option<usize>,
}

#[derive(clap::Args)]
struct Group {
    #[command(flatten)]
    amount: Amount,
    /// The multicast group.
    #[arg(long)]
    group: IpAddr,
}

impl Group {
    fn mckey(&self) -> Mckey {
        let (count, size) = (self.amount.count(10), self.amount.size(100));
        Mckey { plan: self.amount.place.plan(0), group: self.group, count, size }
    }
}

#[derive(clap::Args)]
struct Shared {
    #[command(flatten)]
    amount: Amount,
    /// Number of queue pairs on one shared receive queue.
    #[arg(long, default_value_t = 16)]
    qps: usize,
}

impl Shared {
    fn pingpong(&self, serves: bool) -> SrqPingpong {
        let plan = self.amount.place.plan(18515);
        let (count, size) = (self.amount.count(1000), self.amount.size(4096));
        SrqPingpong { plan, serves, count, size, qps: self.qps }
    }
}

#[derive(clap::Args)]
struct Streams {
    #[command(flatten)]
    amount: Amount,
    /// Number of rounds.
    #[arg(long, default_value_t = 1)]
    rounds: u32,
}

impl Streams {
    fn rstream(&self) -> Rstream {
        let (count, size) = (self.amount.count(1000), self.amount.size(1000));
        Rstream { plan: self.amount.place.plan(7471), count, size, rounds: self.rounds }
    }
}

#[derive(clap::Args)]
struct Pings {
    #[command(flatten)]
    amount: Amount,
    /// The transport.
    #[arg(long, value_enum, default_value_t = Transport::Rc)]
    transport: Transport,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Transport {
    Rc,
    Uc,
    Ud,
}

impl Pings {
    fn pingpong(&self, serves: bool) -> Pingpong {
        let (kind, size) = match self.transport {
            Transport::Rc => (QpType::Rc, 4096),
            Transport::Uc => (QpType::Uc, 4096),
            Transport::Ud => (QpType::Ud, 1024),
        };
        let (count, size) = (self.amount.count(1000), self.amount.size(size));
        Pingpong { plan: self.amount.place.plan(18515), kind, serves, count, size }
    }
}

impl Where {
    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }

    fn plan(&self, port: u16) -> Plan {
        let addr = SocketAddr::new(self.addr, self.port.unwrap_or(port));
        Plan { addr, deadline: Instant::now() + self.limit() }
    }

    fn run(&self, program: impl Program<Output = Result<(), CmError>>) -> Result<(), CmError> {
        Device::choose(self.device.as_deref(), Some(self.addr))?.run(program)
    }
}

impl Amount {
    fn count(&self, usual: u32) -> u32 {
        self.count.unwrap_or(usual)
    }

    fn size(&self, usual: usize) -> usize {
        self.size.unwrap_or(usual)
    }
}

impl Part {
    fn place(&self) -> &Where {
        match self {
            Part::RdmaServer(place)
            | Part::RdmaClient(place)
            | Part::RdmaXserver(place)
            | Part::RdmaXclient(place) => place,
            Part::RpingServer(amount)
            | Part::RpingClient(amount)
            | Part::UcmatoseServer(amount)
            | Part::UcmatoseClient(amount)
            | Part::UdaddyServer(amount)
            | Part::UdaddyClient(amount)
            | Part::CmtimeServer(amount) => &amount.place,
            Part::MckeyReceiver(group) | Part::MckeySender(group) => &group.amount.place,
            Part::PingpongServer(pings) | Part::PingpongClient(pings) => &pings.amount.place,
            Part::SrqPingpongServer(shared) | Part::SrqPingpongClient(shared) => {
                &shared.amount.place
            }
            Part::RstreamServer(streams) | Part::RstreamClient(streams) => &streams.amount.place,
        }
    }

    /// Runs it. The default ports are those of the C programs.
    fn run(&self) -> Result<(), CmError> {
        let place = self.place();
        let (plan, rping) = (place.plan(7471), place.plan(7174));
        match self {
            Part::RdmaServer(_) => place.run(RdmaServer { plan }),
            Part::RdmaClient(_) => place.run(RdmaClient { plan }),
            Part::RpingServer(amount) => {
                place.run(RpingServer { plan: rping, size: amount.size(64) })
            }
            Part::RpingClient(amount) => {
                let (count, size) = (amount.count(10) as usize, amount.size(64));
                place.run(RpingClient { plan: rping, count, size })
            }
            Part::UcmatoseServer(amount) => {
                let (count, size) = (amount.count(10), amount.size(100));
                place.run(UcmatoseServer { plan, count, size })
            }
            Part::UcmatoseClient(amount) => {
                let (count, size) = (amount.count(10), amount.size(100));
                place.run(UcmatoseClient { plan, count, size })
            }
            Part::UdaddyServer(amount) => {
                let (count, size) = (amount.count(10), amount.size(100));
                place.run(UdaddyServer { plan: rping, count, size })
            }
            Part::UdaddyClient(amount) => {
                let (count, size) = (amount.count(10), amount.size(100));
                place.run(UdaddyClient { plan: rping, count, size })
            }
            Part::PingpongServer(pings) => place.run(pings.pingpong(true)),
            Part::PingpongClient(pings) => place.run(pings.pingpong(false)),
            Part::MckeyReceiver(group) => place.run(MckeyReceiver(group.mckey())),
            Part::MckeySender(group) => place.run(MckeySender(group.mckey())),
            Part::SrqPingpongServer(shared) => place.run(shared.pingpong(true)),
            Part::SrqPingpongClient(shared) => place.run(shared.pingpong(false)),
            Part::RstreamServer(streams) => place.run(RstreamServer(streams.rstream())),
            Part::RstreamClient(streams) => place.run(RstreamClient(streams.rstream())),
            Part::RdmaXserver(_) => place.run(RdmaXserver { plan }),
            Part::RdmaXclient(_) => place.run(RdmaXclient { plan }),
            Part::CmtimeServer(amount) => {
                place.run(CmtimeServer { plan, connections: amount.count(100) as usize })
            }
        }
    }
}

fn main() -> ExitCode {
    let part = Arguments::parse().part;
    let limit = part.place().limit();
    let (done, ended) = mpsc::channel();
    // In a thread, so that the program ends at the limit even if a call never returns.
    thread::spawn(move || done.send(part.run()));
    // One more second: a call that times out at the limit reports what it waited for.
    let error = match ended.recv_timeout(limit + Duration::from_secs(1)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(mpsc::RecvTimeoutError::Timeout) => format!("it did not end within {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => "it panicked".to_owned(),
    };
    eprintln!("interop: {error}");
    ExitCode::FAILURE
}
