//! Finds the peak rate of an exchange and a client, and how long things take at half and at 90 % of
//! it.
//!
//! Each measurement has a fresh exchange, in a process of its own, and one client, which makes the
//! flow of orders and trades on the feed. At the peak the client sends whenever there is room. At
//! the other rates orders are due at the times of a Poisson process, and their latency counts from
//! then: an exchange that falls behind cannot hide it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use clap::Args;
use doorbell::prelude::*;

use crate::orders::{Load, Times};
use crate::place::Failure;
use crate::run::{Place, trader};
use crate::trader::Plan;

/// Most orders of a measurement: the exchange keeps them all.
const ORDERS_MAX: u64 = 4_000_000;

/// Options of a measurement.
#[derive(Args, Clone, Debug)]
pub struct Measure {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Of the orders that become the best of their side, the client takes one in this number.
    #[arg(long, default_value_t = 16)]
    pub take: u64,
    /// Of the flow, and of its times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Core for the exchange; that of the client is --core.
    #[arg(long)]
    pub exchange_core: Option<usize>,
}

/// An exchange in a process of its own, which ends with this object.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an exchange. Returns its port too.
fn start(place: &Place, measure: &Measure) -> Result<(Served, u16), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    let lines: Vec<String> = place.lines.iter().map(ToString::to_string).collect();
    command.args(["serve", "--port", "0", "--lines", &lines.join(",")]);
    command.args(["--addr", &place.place.addr.to_string()]);
    command.args(["--symbols", &place.symbols.to_string()]);
    if let Some(device) = &place.place.device {
        command.args(["--device", device]);
    }
    if let Some(core) = measure.exchange_core {
        command.args(["--core", &core.to_string()]);
    }
    let mut served = Served(command.stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    if let Some(out) = served.0.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let port = line.trim_end().rsplit(':').next().and_then(|port| port.parse().ok());
    Ok((served, port.ok_or("the exchange has not started")?))
}

/// Runs a load against a fresh exchange. Returns the requests and how long they took.
fn run<F: Fabric>(
    nic: &F,
    place: &Place,
    measure: &Measure,
    load: Load,
) -> Result<(u64, Times), Failure> {
    let (_served, port) = start(place, measure)?;
    let place = Place { port, ..place.clone() };
    let plan = Plan { symbols: place.symbols, load, take: measure.take, drop: 0, welcomed: |_| () };
    let mut result = (0, Times::default());
    trader(nic, &place, plan, None, |trader| {
        let (made, taken, _) = trader.orders().counts();
        result = (made + taken, trader.orders().times().clone());
    })?;
    Ok(result)
}

/// Finds the peak, measures at half and at 90 % of it, and prints a table.
///
/// # Errors
/// The first failure of an exchange or of the client.
pub fn measure<F: Fabric>(nic: &F, place: &Place, measure: &Measure) -> Result<(), Failure> {
    let lasts = measure.seconds.clamp(1, 3600) * 1_000_000_000;
    let load = Load { orders: ORDERS_MAX, rate: 0, lasts, seed: measure.seed };
    let (requests, times) = run(nic, place, measure, load)?;
    let peak = (requests as f64 * 1e9 / times.span.max(1) as f64) as u64;
    println!("peak: {peak} requests a second");
    println!("| load | requests/s | latency in µs | p50 | p90 | p99 | p99.9 | longest |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, percent) in [("half", 50), ("90 %", 90)] {
        let rate = (peak * percent / 100).max(1);
        let (requests, times) = run(nic, place, measure, Load { rate, ..load })?;
        let had = requests * 1_000_000_000 / times.span.max(1);
        for (what, latency) in [
            ("order to ack", &times.order_to_ack),
            ("tick to trade", &times.tick_to_trade),
            ("of it in the client", &times.in_client),
        ] {
            let row = latency.row().map(|us| format!("{us:.1}")).join(" | ");
            println!("| {name} | {had} | {what} | {row} |");
        }
    }
    Ok(())
}
