//! `exchange`: an exchange over RDMA, and traders.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand};
use doorbell::alloc::MapRequest;
use doorbell::prelude::*;
use doorbell::worker::PeerData;
use doorbell::{UdParam, clock_ns};
use doorbell_exchange::exchange::{Exchange, PACKET_MAX};
use doorbell_exchange::log::{RECORD, STAGE};
use doorbell_exchange::trader::{Plan, Trader};
use doorbell_exchange::wire::GREETING;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An exchange over RDMA: OUCH 5.0 by RC, ITCH 5.0 by UD on two lines.
#[derive(Parser)]
#[command(name = "exchange")]
struct Line {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: Place,
}

#[derive(Args, Clone, Debug)]
struct Place {
    /// Address to listen on, or to connect to.
    #[arg(long, global = true, default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Port; the exchange on port 0 takes a free one and prints it.
    #[arg(long, global = true, default_value_t = 7490)]
    port: u16,
    /// Device, such as soft0 or mlx5_0; by default DOORBELL_DEVICE, else the one that owns the
    /// address.
    #[arg(long, global = true)]
    device: Option<String>,
    /// Multicast groups of the lines A and B.
    #[arg(long, global = true, value_delimiter = ',', default_value = "239.1.2.10,239.1.2.11")]
    lines: Vec<IpAddr>,
    /// Securities.
    #[arg(long, global = true, default_value_t = 8)]
    symbols: u16,
}

#[derive(Subcommand)]
enum What {
    /// Be the exchange, until SIGINT or SIGTERM.
    Serve {
        /// Be the standby of the exchange at this port.
        #[arg(long)]
        standby_of: Option<u16>,
    },
    /// Send orders, follow the feed, and compare the books at the end.
    Trade {
        /// Orders, cancels and replacements.
        #[arg(long, default_value_t = 100_000)]
        orders: u64,
        /// How many a second.
        #[arg(long, default_value_t = 20_000)]
        rate: u64,
        /// Datagrams in a thousand to drop, on each line.
        #[arg(long, default_value_t = 0)]
        drop: u32,
        /// Of the flow of orders; also the number of the user.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The port of the standby.
        #[arg(long)]
        standby: Option<u16>,
    },
}

/// Nanoseconds since midnight, UTC.
fn since_midnight() -> u64 {
    let day = Duration::from_secs(24 * 60 * 60).as_nanos();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() % day) as u64
}

/// Every peer may have the whole window of answers under way at once.
fn config() -> Config {
    Config { peers: 64, datagrams: 1024, datagram_bytes: PACKET_MAX, ..Config::DEFAULT }
}

impl Program for Line {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let place = &self.place;
        match self.what {
            What::Serve { standby_of } => serve(&nic, place, standby_of),
            What::Trade { orders, rate, drop, seed, standby } => {
                let every = 1_000_000_000 / rate.max(1);
                let welcomed = |n| println!("welcome {n}");
                let plan = Plan { symbols: place.symbols, orders, every, drop, seed, welcomed };
                trade(&nic, place, plan, standby)
            }
        }
    }
}

/// A port in the groups of the lines, and the way to each.
fn lines<F: Fabric>(
    nic: &F,
    place: &Place,
    intake: &Intake<F>,
) -> Result<(Port<F>, Vec<UdParam>), CmError> {
    let mut port = Port::open(nic, SocketAddr::new(place.addr, 0), intake)?;
    let ways = place.lines.iter().map(|line| port.join(*line)).collect::<Result<_, _>>()?;
    Ok((port, ways))
}

fn serve<F: Fabric>(nic: &F, place: &Place, standby_of: Option<u16>) -> Result<(), Failure> {
    let mut runtime = Runtime::new(nic, &config());
    let stop = runtime.stopper();
    runtime.add(Exchange::new(place.symbols, since_midnight, stop))?;
    let (_port, ways) = lines(nic, place, &runtime.intakes()[0].clone())?;
    let worker = &mut runtime.workers()[0];
    let mut groups = Vec::new();
    for way in &ways {
        groups.push(worker.outbox().resolve(&way.to, way.qp_num, way.qkey)?);
    }
    let stage = worker.adopt_own(nic, Mapping::plain(STAGE as usize * RECORD)?)?;
    worker.handler_mut().publish_on(groups);
    worker.handler_mut().send_log_from(stage);
    worker.outbox().set_timer(0, 0);
    let mut listener = Listener::bind(nic, SocketAddr::new(place.addr, place.port))?;
    let greeting = PeerData::new(GREETING).unwrap_or_default();
    listener.on_request(move |_| Answer::accept().with_data(greeting));
    if let Some(primary) = standby_of {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = MapRequest::new(Exchange::log_bytes() as usize).shared(true).map()?;
        let region = worker.adopt(nic.register(memory, rights)?);
        worker.handler_mut().follow(region, || println!("ready to take over"));
        runtime.dial(SocketAddr::new(place.addr, primary))?;
    }
    println!("listening on {}", listener.local_addr().ok_or("the listener has no address")?);
    runtime.add_listener(listener);
    runtime.stop_on_signals()?;
    runtime.run()?;
    let handler = runtime.workers()[0].handler();
    println!("{} messages of the feed; {:?}", handler.published(), handler.counts());
    Ok(())
}

fn trade<F: Fabric>(
    nic: &F,
    place: &Place,
    plan: Plan,
    standby: Option<u16>,
) -> Result<(), Failure> {
    let mut runtime = Runtime::new(nic, &config());
    let stop = runtime.stopper();
    runtime.add(Trader::new(plan, clock_ns, stop))?;
    let (_port, _) = lines(nic, place, &runtime.intakes()[0].clone())?;
    for port in [Some(place.port), standby].into_iter().flatten() {
        runtime.dial(SocketAddr::new(place.addr, port))?;
    }
    runtime.stop_on_signals()?;
    runtime.run()?;
    let (results, seen) = runtime.workers()[0].handler().results();
    let us = |share: f64| results.order_to_ack.quantile(share) as f64 / 1000.0;
    println!(
        "{} requests, {} orders answered, {} executions, welcomed {} times",
        results.sent, results.answered, results.executions, results.welcomes
    );
    println!(
        "order to ack from the intended time, in us: p50 {:.2}, p99 {:.2}, p99.9 {:.2}",
        us(0.5),
        us(0.99),
        us(0.999)
    );
    println!(
        "feed: {} messages, {} came twice, {} early; {} datagrams dropped, {} requests for gaps",
        seen.messages, seen.twice, seen.early, results.dropped, results.asked
    );
    match (&results.wrong, results.equal) {
        (Some(wrong), _) => Err(wrong.clone().into()),
        (None, Some(true)) => {
            println!("the books are equal, and every answer came once");
            Ok(())
        }
        (None, Some(false)) => Err("the books or the answers differ".into()),
        (None, None) => Err(format!("it ended too early: {:?}", results.down).into()),
    }
}

fn main() -> ExitCode {
    let line = Line::parse();
    let device = Device::choose(line.place.device.as_deref(), Some(line.place.addr));
    match device.map_err(Failure::from).and_then(|device| device.run(line)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exchange: {error}");
            ExitCode::FAILURE
        }
    }
}
