//! `kv`: a key-value store over RDMA, its server, its clients and its benchmark.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::prelude::DownReason;
use doorbell::{Fabric, Program, Runtime, Stop};
use doorbell_kv::bench::Bench;
use doorbell_kv::bench::workload::Workload;
use doorbell_kv::caller::Caller;
use doorbell_kv::client::{Client, How, Outcome, Settings};
use doorbell_kv::guest;
use doorbell_kv::host::{Host, Options};
use doorbell_kv::message::{Call, Op};
use doorbell_kv::place::{self, Failure};

/// A key-value store over RDMA: get by one-sided READ, put and delete by SEND.
#[derive(Parser)]
#[command(name = "kv")]
struct Line {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: Place,
}

#[derive(Args, Clone, Debug)]
struct Place {
    #[command(flatten)]
    place: place::Place,
    /// Port; a server on port 0 takes a free one and prints it.
    #[arg(long, global = true, default_value_t = 7480)]
    port: u16,
    /// Workers of the server; its clients have to know.
    #[arg(
        long, global = true, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..)
    )]
    workers: u8,
    /// Bytes of a slot: the longest value with its key, and 32 bytes more.
    #[arg(
        long, global = true, default_value_t = 1088,
        value_parser = clap::value_parser!(u32).range(64..=65_536)
    )]
    slot_bytes: u32,
}

#[derive(Subcommand)]
enum What {
    /// Serve until SIGINT or SIGTERM.
    Serve {
        /// Slots of each worker's first table.
        #[arg(long, default_value_t = 4096)]
        slots: u32,
        /// The most slots of a worker's table.
        #[arg(long, default_value_t = 1 << 20)]
        slots_max: u32,
        /// Clients at a time.
        #[arg(long, default_value_t = 64)]
        clients: u32,
    },
    /// Print the value of a key.
    Get {
        key: String,
        #[arg(long, value_enum, default_value = "read")]
        get: How,
    },
    /// Store a value under a key.
    Put {
        key: String,
        value: String,
        /// Lifetime in milliseconds; 0: for ever.
        #[arg(long, default_value_t = 0)]
        ttl_ms: u64,
    },
    /// Delete a key.
    Delete { key: String },
    /// Run a workload of YCSB. Without --remote it starts a server of its own.
    Bench(BenchArgs),
}

#[derive(Args, Clone, Debug)]
struct BenchArgs {
    #[arg(long, value_enum, default_value = "c")]
    workload: Workload,
    /// How to get: one way, or several in turn.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read,send")]
    get: Vec<How>,
    /// Rounds that count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[arg(
        long, default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=1 << 28)
    )]
    records: u32,
    #[arg(long, default_value_t = 1000)]
    value_bytes: u32,
    /// Operations of a round.
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// Client threads.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Operations of a client at a time.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Use the server at --addr and --port.
    #[arg(long)]
    remote: bool,
}

impl Program for Line {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let Line { what, place } = self;
        let one = |op, key: String, value: String, ttl, how| {
            OneCall { op, key, value, ttl, how }.run(&nic, &place)
        };
        match what {
            What::Serve { slots, slots_max, clients } => {
                let mut host =
                    Host::new(&nic, place.at(), &place.options(slots, slots_max, clients))?;
                println!("listening on {}", host.addr());
                host.runtime().stop_on_signals()?;
                host.run()?;
                for (n, worker) in host.runtime().workers().iter().enumerate() {
                    let (keys, generation) = worker.handler().size();
                    let answered = worker.handler().answered();
                    println!("worker {n}: {answered} calls, {keys} keys, table {generation}");
                }
                Ok(())
            }
            What::Get { key, get } => one(Op::Get, key, String::new(), 0, get),
            What::Put { key, value, ttl_ms } => {
                one(Op::Put, key, value, ttl_ms.saturating_mul(1_000_000), How::Send)
            }
            What::Delete { key } => one(Op::Delete, key, String::new(), 0, How::Send),
            What::Bench(args) => bench(&nic, &place, &args),
        }
    }
}

impl Place {
    fn at(&self) -> SocketAddr {
        self.place.at(self.port)
    }

    fn options(&self, homes: u32, homes_max: u32, clients: u32) -> Options {
        let (workers, slot_bytes) = (self.workers.into(), self.slot_bytes);
        Options { workers, homes, homes_max, slot_bytes, clients, mistake: None }
    }
}

fn bench<F: Fabric>(nic: &F, place: &Place, args: &BenchArgs) -> Result<(), Failure> {
    let BenchArgs { workload, rounds, records, value_bytes, operations, clients, depth, .. } =
        *args;
    let (servers, slot_bytes) = (place.workers.into(), place.slot_bytes);
    let hows = args.get.clone();
    let bench = Bench {
        workload,
        hows,
        rounds,
        records,
        value_bytes,
        operations,
        clients,
        depth,
        servers,
        slot_bytes,
    };
    let report = if args.remote {
        bench.run(nic, place.at())?
    } else {
        let homes = (4 * records / u32::from(place.workers)).next_power_of_two();
        let local = place.place.at(0);
        let mut host = Host::new(nic, local, &place.options(homes, homes, clients))?;
        let (addr, stop) = (host.addr(), host.runtime().stopper());
        std::thread::scope(|scope| {
            let served = scope.spawn(|| host.run());
            let report = bench.run(nic, addr);
            stop.stop();
            match served.join() {
                Ok(Err(error)) => Err(error),
                _ => report,
            }
        })?
    };
    println!("{report}");
    report.check()
}

/// One operation from the command line.
struct OneCall {
    op: Op,
    key: String,
    value: String,
    ttl: u64,
    how: How,
}

impl OneCall {
    fn run<F: Fabric>(self, nic: &F, place: &Place) -> Result<(), Failure> {
        let settings = Settings {
            depth: 1,
            slot_max: place.slot_bytes,
            how: self.how,
            parts: 1,
            mistake: None,
        };
        let who = (settings, u32::from(place.workers));
        let mut runtime: Runtime<F, _> = guest::runtime(nic, who, 1);
        let stop = runtime.stopper();
        let once = Once { call: Some(self), said: None, stop };
        guest::add(&mut runtime, nic, who, once)?;
        guest::dial(&mut runtime, place.at(), who.1)?;
        runtime.stop_on_signals()?;
        runtime.run()?;
        match runtime.workers()[0].handler_mut().caller.said.take() {
            Some(Ok(text)) => println!("{text}"),
            Some(Err(text)) => return Err(text.into()),
            None => return Err("no answer".into()),
        }
        Ok(())
    }
}

/// Makes one call, and stops.
struct Once {
    call: Option<OneCall>,
    said: Option<Result<String, String>>,
    stop: Stop,
}

impl Caller for Once {
    fn next(&mut self, client: &mut Client) {
        let Some(OneCall { op, key, value, ttl, .. }) = self.call.take_if(|_| client.is_ready())
        else {
            return;
        };
        let (key, value) = (key.as_bytes(), value.as_bytes());
        if !client.start(Call { op, ttl, key, value }, 0) {
            self.said = Some(Err("a key has 1 to 255 bytes".into()));
            self.stop.stop();
        }
    }

    fn ended(&mut self, _token: u64, outcome: Outcome<'_>) {
        self.said = Some(match outcome {
            Outcome::Value { value, .. } => Ok(String::from_utf8_lossy(value).into_owned()),
            Outcome::Done { version, .. } => Ok(format!("done, version {version}")),
            Outcome::Missing => Err("there is no such key".into()),
            Outcome::Refused(why) => Err(format!("the server refuses: {why:?}")),
            Outcome::Lost => Err("the server is gone; the operation was done or not".into()),
        });
        self.stop.stop();
    }

    fn lost(&mut self, why: DownReason) {
        self.said.get_or_insert_with(|| Err(format!("the server is gone: {why}")));
        self.stop.stop();
    }
}

fn main() -> ExitCode {
    let line = Line::parse();
    let place = line.place.place.clone();
    place.run(line)
}
