//! Each role of the program, from its set-up to what it prints at its end.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use doorbell::alloc::MapRequest;
use doorbell::prelude::*;
use doorbell::worker::{DestinationId, PeerData};
use doorbell::{UdParam, clock_ns};

use crate::capture::{self, Writer};
use crate::clock::since_midnight;
use crate::exchange::{Exchange, PACKET_MAX};
use crate::log::{RECORD, STAGE};
use crate::place::{self, Failure};
use crate::recorder::Recorder;
use crate::replay::Replay;
use crate::trader::{Plan, Trader};
use crate::wire::GREETING;

/// Where the exchange is, and what it trades.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Address and device.
    #[command(flatten)]
    pub place: place::Place,
    /// Port; the exchange on port 0 takes a free one and prints it.
    #[arg(long, global = true, default_value_t = 7490)]
    pub port: u16,
    /// Multicast groups of the lines A and B.
    #[arg(long, global = true, value_delimiter = ',', default_value = "239.1.2.10,239.1.2.11")]
    pub lines: Vec<IpAddr>,
    /// Securities.
    #[arg(
        long, global = true, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub symbols: u16,
    /// Core for the worker.
    #[arg(long, global = true)]
    pub core: Option<usize>,
}

/// Options of an exchange.
#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// Be the standby of the exchange at this port.
    #[arg(long)]
    pub standby_of: Option<u16>,
    /// Messages of the feed to keep, for those who miss some.
    #[arg(long, default_value_t = crate::exchange::FEED_KEPT)]
    pub keep: usize,
    /// Write all orders to this file.
    #[arg(long)]
    pub capture: Option<PathBuf>,
}

/// Every peer may have the whole window of answers under way at once.
fn config() -> Config {
    Config { peers: 64, datagrams: 1024, datagram_bytes: PACKET_MAX, ..Config::DEFAULT }
}

/// A runtime with one worker.
fn runtime<F: Fabric, H: Handler<F>>(
    nic: &F,
    place: &Place,
    handler: impl FnOnce(Stop) -> H,
) -> Result<Runtime<F, H>, CmError> {
    let mut runtime = Runtime::new(nic, &config());
    runtime.on_cores(place.core);
    let handler = handler(runtime.stopper());
    runtime.add(handler)?;
    Ok(runtime)
}

/// A port in the groups of the lines, and the way to each.
fn lines<F: Fabric>(
    nic: &F,
    place: &Place,
    intake: &Intake<F>,
) -> Result<(Port<F>, Vec<UdParam>), CmError> {
    let mut port = Port::open(nic, place.place.at(0), intake)?;
    let ways = place.lines.iter().map(|line| port.join(*line)).collect::<Result<_, _>>()?;
    Ok((port, ways))
}

/// The lines as destinations of a worker.
fn destinations<F: Fabric, H: Handler<F>>(
    worker: &mut Worker<F, H>,
    ways: &[UdParam],
) -> Result<Vec<DestinationId>, Failure> {
    let mut groups = Vec::new();
    for way in ways {
        groups.push(worker.outbox().resolve(&way.to, way.qp_num, way.qkey)?);
    }
    Ok(groups)
}

/// Is an exchange, until SIGINT or SIGTERM.
///
/// # Errors
/// The first failure of its set-up, of the device, or of the file.
pub fn serve<F: Fabric>(nic: &F, place: &Place, serve: &Serve) -> Result<(), Failure> {
    let exchange = |stop| Exchange::new(place.symbols, serve.keep, since_midnight, stop);
    let mut runtime = runtime(nic, place, exchange)?;
    let (_port, ways) = lines(nic, place, &runtime.intakes()[0].clone())?;
    let worker = &mut runtime.workers()[0];
    let groups = destinations(worker, &ways)?;
    let stage = worker.adopt_own(nic, Mapping::plain(STAGE as usize * RECORD)?)?;
    worker.handler_mut().publish_on(groups);
    worker.handler_mut().send_log_from(stage);
    if let Some(path) = &serve.capture {
        let writer = Writer::create(path, &place.lines)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        worker.handler_mut().capture_to(writer);
    }
    worker.outbox().set_timer(0, 0);
    let mut listener = Listener::bind(nic, place.place.at(place.port))?;
    let greeting = PeerData::new(GREETING).unwrap_or_default();
    listener.on_request(move |_| Answer::accept().with_data(greeting));
    if let Some(primary) = serve.standby_of {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = MapRequest::new(Exchange::log_bytes() as usize).shared(true).map()?;
        let region = worker.adopt(nic.register(memory, rights)?);
        worker.handler_mut().follow(region, || println!("ready to take over"));
        runtime.dial(place.place.at(primary))?;
    }
    println!("listening on {}", listener.local_addr().ok_or("the listener has no address")?);
    runtime.add_listener(listener);
    runtime.stop_on_signals()?;
    runtime.run()?;
    let handler = runtime.workers()[0].handler_mut();
    if let Some(orders) = handler.end_capture().map_err(|error| format!("capture: {error}"))? {
        println!("{orders} orders captured");
    }
    let (published, sum, counts) = (handler.published(), handler.sum(), handler.counts());
    println!("{published} messages of the feed, books {sum:016x}; {counts:?}");
    Ok(())
}

/// Trades, and returns the trader when it has ended. `standby`: the port of one.
///
/// # Errors
/// The first failure of its set-up or of the device, and books or answers that differ.
pub fn trader<F: Fabric>(
    nic: &F,
    place: &Place,
    plan: Plan,
    standby: Option<u16>,
    report: impl FnOnce(&Trader),
) -> Result<(), Failure> {
    let mut runtime = runtime(nic, place, |stop| Trader::new(plan, clock_ns, stop))?;
    let (_port, _) = lines(nic, place, &runtime.intakes()[0].clone())?;
    for port in [Some(place.port), standby].into_iter().flatten() {
        runtime.dial(place.place.at(port))?;
    }
    runtime.stop_on_signals()?;
    runtime.run()?;
    let trader = runtime.workers()[0].handler();
    report(trader);
    let results = trader.results();
    match (&results.wrong, results.equal) {
        (Some(wrong), _) => Err(wrong.clone().into()),
        (None, Some(true)) => Ok(()),
        (None, Some(false)) => Err("the books or the answers differ".into()),
        (None, None) => Err(format!("it ended too early: {:?}", results.down).into()),
    }
}

/// Trades, and prints what it saw.
///
/// # Errors
/// Those of [`trader`].
pub fn trade<F: Fabric>(
    nic: &F,
    place: &Place,
    plan: Plan,
    standby: Option<u16>,
) -> Result<(), Failure> {
    trader(nic, place, plan, standby, |trader| {
        let (results, ((made, taken, answered), times)) =
            (trader.results(), (trader.orders().counts(), trader.orders().times()));
        let (seen, snapshots) = trader.follower().seen();
        println!(
            "{made} requests and {taken} provoked, {answered} orders answered, {} executions, \
             welcomed {} times",
            results.executions, results.welcomes
        );
        for (what, latency) in [
            ("order to ack from the time it was due", &times.order_to_ack),
            ("tick to trade from the exchange's stamp", &times.tick_to_trade),
            ("tick to trade within this client", &times.in_client),
        ] {
            if latency.count() > 0 {
                let [p50, p90, p99, p999, longest] = latency.row();
                println!(
                    "{what}, in us: p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, p99.9 {p999:.2}, \
                     longest {longest:.0}"
                );
            }
        }
        println!(
            "feed: {} messages, {} came twice, {} early; {} datagrams dropped, {} requests for \
             gaps, {snapshots} snapshots",
            seen.messages, seen.twice, seen.early, results.dropped, results.asked
        );
    })?;
    println!("the books are equal, and every answer came once");
    Ok(())
}

/// Records the feed, for that many seconds or until SIGINT or SIGTERM.
///
/// # Errors
/// The first failure of its set-up, of the device, or of the file.
pub fn record<F: Fabric>(
    nic: &F,
    place: &Place,
    path: &Path,
    seconds: Option<u64>,
) -> Result<(), Failure> {
    let failed = |error| format!("{}: {error}", path.display());
    let writer = Writer::create(path, &place.lines).map_err(failed)?;
    let mut runtime = runtime(nic, place, |stop| Recorder::new(writer, stop))?;
    let (_port, _) = lines(nic, place, &runtime.intakes()[0].clone())?;
    println!("recording");
    runtime.stop_on_signals()?;
    if let Some(seconds) = seconds {
        let stop = runtime.stopper();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            stop.stop();
        });
    }
    runtime.run()?;
    let packets = runtime.workers()[0].handler_mut().finish().map_err(failed)?;
    println!("{packets} datagrams of the feed captured");
    Ok(())
}

/// Replays a capture, `speed` times as fast as it was.
///
/// # Errors
/// A damaged file, and the first failure of its set-up or of the device.
pub fn replay<F: Fabric>(nic: &F, place: &Place, path: &Path, speed: f64) -> Result<(), Failure> {
    if !(speed.is_finite() && speed > 0.0) {
        return Err("the speed has to be above 0".into());
    }
    let packets =
        capture::read_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut runtime = runtime(nic, place, |stop| Replay::new(packets, speed, clock_ns, stop))?;
    let (_port, ways) = lines(nic, place, &runtime.intakes()[0].clone())?;
    let worker = &mut runtime.workers()[0];
    let groups = destinations(worker, &ways)?;
    worker.handler_mut().publish_on(groups);
    for _ in 0..worker.handler().users() {
        runtime.dial(place.place.at(place.port))?;
    }
    runtime.stop_on_signals()?;
    runtime.run()?;
    let replayed = runtime.workers()[0].handler().replayed();
    println!(
        "{} packets replayed, {} without room; late by, in us: p50 {:.2}, p99 {:.2}, longest {:.0}",
        replayed.sent,
        replayed.unsent,
        replayed.late.us(0.5),
        replayed.late.us(0.99),
        replayed.late.us(1.0)
    );
    if let Some(digest) = replayed.digest {
        println!("{} messages of the feed, books {:016x}", digest.sequence - 1, digest.sum);
    }
    if replayed.whole { Ok(()) } else { Err("the exchange is gone, or it was stopped".into()) }
}
