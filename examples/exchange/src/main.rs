//! `exchange`: an exchange over RDMA, and traders.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::{Fabric, Program};
use doorbell_exchange::load::{self, Measure};
use doorbell_exchange::orders::Load;
use doorbell_exchange::place::Failure;
use doorbell_exchange::run::{self, Place, Serve};
use doorbell_exchange::trader::Plan;

/// An exchange over RDMA: OUCH 5.0 by RC, ITCH 5.0 by UD on two lines.
#[derive(Parser)]
#[command(name = "exchange")]
struct Line {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    place: Place,
}

#[derive(Subcommand)]
enum What {
    /// Be the exchange, until SIGINT or SIGTERM.
    Serve(Serve),
    /// Send orders, follow the feed, and compare the books at the end.
    Trade(Trade),
    /// Find the peak rate, and the latencies at half and at 90 % of it.
    Load(Measure),
    /// Write the feed to a file.
    Capture {
        file: PathBuf,
        /// For so long; otherwise until SIGINT or SIGTERM.
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Send what a file holds at the recorded times: the feed on the lines, orders to the exchange.
    Replay {
        file: PathBuf,
        /// So many times as fast.
        #[arg(long, default_value_t = 1.0)]
        speed: f64,
    },
}

#[derive(Args)]
struct Trade {
    /// Orders, cancels and replacements.
    #[arg(long, default_value_t = 100_000)]
    orders: u64,
    /// How many a second, as a Poisson process.
    #[arg(long, default_value_t = 20_000)]
    rate: u64,
    /// Of the orders that become the best of their side, take one in this number; 0: none.
    #[arg(long, default_value_t = 0)]
    take: u64,
    /// Datagrams in a thousand to drop, on each line.
    #[arg(long, default_value_t = 0)]
    drop: u32,
    /// Of the flow of orders; also the number of the user, who trades once in a day.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The port of the standby.
    #[arg(long)]
    standby: Option<u16>,
}

impl Program for Line {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let place = &self.place;
        match self.what {
            What::Serve(serve) => run::serve(&nic, place, &serve),
            What::Trade(Trade { orders, rate, take, drop, seed, standby }) => {
                let load = Load { orders, rate, lasts: u64::MAX, seed };
                let welcomed = |n| println!("welcome {n}");
                let plan = Plan { symbols: place.symbols, load, take, drop, welcomed };
                run::trade(&nic, place, plan, standby)
            }
            What::Load(measure) => load::measure(&nic, place, &measure),
            What::Capture { file, seconds } => run::record(&nic, place, &file, seconds),
            What::Replay { file, speed } => run::replay(&nic, place, &file, speed),
        }
    }
}

fn main() -> ExitCode {
    let line = Line::parse();
    let place = line.place.place.clone();
    place.run(line)
}
