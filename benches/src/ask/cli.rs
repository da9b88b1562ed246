//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use doorbell::worker::{Config, SEND_BATCH};

use crate::ask::request::{Op, Transport};
use crate::ask::values::{
    Arrivals, Slo, Span, address, arrivals, bytes, core, per_second, percent, seconds, sizes, slo,
};
use crate::ranks::launch::RANKS_MAX;
use crate::ranks::pattern::Pattern;

/// Core-pinned benchmarks of Doorbell: two processes of one machine, two threads of one process,
/// two hosts, or many ranks below mpirun or srun.
#[derive(Debug, Parser)]
#[command(name = "doorbell-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Cmd,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Cmd {
    /// Half a round trip of one message that the other side sends back in place
    Latency(LatencyArgs),
    /// Messages a second, one way
    Rate(RateArgs),
    /// Round trips of messages that are due at a rate of yours, counted from when each is due
    Load(LoadArgs),
    /// Round trips a second with 1 to 512 messages in flight; a lone message with and without
    /// batching
    Sweep(SweepArgs),
    /// Round trips of a few busy connections among thousands of idle ones on one receive queue
    Crowd(CrowdArgs),
    /// Bytes a second, one way, of the device alone, in turn with memcpy
    Bandwidth(BandwidthArgs),
    /// Instructions a message, of the worker and of the device alone, counted by callgrind
    Overhead(OverheadArgs),
    /// Connections a second, each one made from nothing and ended
    Connect(ConnectArgs),
    /// Many kinds of traffic, each in turn with a naive ring in shared memory
    Traffic(TrafficArgs),
    /// Two runs, or two builds in turn, figure by figure: ratios, how sure they are, and a verdict
    /// in the last line
    Compare(CompareArgs),
    /// The usual latencies, rates and loads, as report.html and report.json
    Report(ReportArgs),
    /// Runs all of these and writes one page of Markdown with all figures and aims
    Results(ResultsArgs),
    /// The serving process
    #[command(hide = true)]
    Serve(ServeArgs),
    /// The process below callgrind
    #[command(hide = true)]
    Count(CountArgs),
    /// The serving process of `connect`
    #[command(hide = true)]
    ConnectServe(ConnectServeArgs),
}

impl Cmd {
    /// The options that all tests of messages share.
    pub(crate) fn common(&mut self) -> Option<&mut Common> {
        match self {
            Cmd::Latency(args) => Some(&mut args.common),
            Cmd::Rate(args) => Some(&mut args.common),
            Cmd::Load(args) => Some(&mut args.common),
            Cmd::Sweep(args) => Some(&mut args.common),
            Cmd::Crowd(args) => Some(&mut args.common),
            Cmd::Bandwidth(args) => Some(&mut args.common),
            Cmd::Report(args) => Some(&mut args.common),
            Cmd::Traffic(args) => Some(&mut args.common),
            Cmd::Overhead(_) | Cmd::Count(_) | Cmd::Serve(_) => None,
            Cmd::Connect(_) | Cmd::ConnectServe(_) | Cmd::Results(_) | Cmd::Compare(_) => None,
        }
    }
}

/// Options of every test.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// The device, like soft0 or mlx5_0 [default: $DOORBELL_DEVICE, else the RDMA device that
    /// owns the address, else soft0]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Bytes of a message, such as 64, 4K or 1M; several as 8,64, doubling as 8..4K, and in steps
    /// as 64..256+64 [default: 8,32,64,200,1K,4K for latency, 8,64,200 for rate, 4K,64K,1M,16M for
    /// bandwidth, else 64]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = sizes)]
    pub(crate) size: Vec<Span<u32>>,
    /// The core of the connecting side, then one for each worker of the serving side; if the other
    /// side is another host, only the cores of this side [default: chosen]
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = core)]
    pub(crate) cores: Vec<usize>,
    /// Take device, cores and memory node from a file of `tune plan`: its first worker connects,
    /// the others serve [default: $DOORBELL_PLAN, unless --cores is given]
    #[arg(long, value_name = "FILE", conflicts_with = "cores")]
    pub(crate) plan: Option<PathBuf>,
    /// Both sides in one process
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    pub(crate) threads: bool,
    /// Serve one other host there, which chooses what to measure
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = address,
        conflicts_with_all = ["connect", "json"])]
    pub(crate) listen: Option<SocketAddr>,
    /// Measure with another host, which runs --listen
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = address)]
    pub(crate) connect: Option<SocketAddr>,
    /// The local address both sides use [default: 127.0.0.1 on soft0, else the device's]
    #[arg(long, value_name = "IP", conflicts_with_all = ["listen", "connect"])]
    pub(crate) addr: Option<IpAddr>,
    /// Write the figures as JSON there; - is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the figures as CSV there, a line each
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) csv: Option<PathBuf>,
    /// Compare with this run, which --json wrote: the last line is the verdict, and the exit code
    /// is 4 if a figure is slower (see compare); with --json - it is on standard error
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    pub(crate) baseline: Option<PathBuf>,
    /// Time of each figure, after a fifth of it to warm up [default: 2, with --quick 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,
    /// Less time for each figure
    #[arg(long)]
    pub(crate) quick: bool,
    /// One send in this many asks for a completion
    #[arg(long, value_name = "N", default_value_t = Config::DEFAULT.signal_every,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SIGNAL_MAX)))]
    pub(crate) signal_every: u32,
    /// Print on standard error what the memory lacks, and the cure
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// The most idle connections: the soft device has 16 384 queue pairs.
const IDLE_MAX: i64 = 16_000;

/// The longest run of unsignalled sends: half of the send queue.
const SIGNAL_MAX: u32 = Config::DEFAULT.send_queue / 2;

impl Common {
    /// Time of each figure.
    pub(crate) fn time(&self) -> Duration {
        let usual = if self.quick { Duration::from_millis(300) } else { Duration::from_secs(2) };
        self.duration.unwrap_or(usual)
    }

    /// The sizes on the command line, or the usual ones.
    pub(crate) fn sizes(&self, usual: &[u32]) -> Vec<u32> {
        if self.size.is_empty() { usual.to_vec() } else { Span::all(&self.size) }
    }
}

/// Options of many ranks: processes that mpirun, srun or `--ranks` has started.
#[derive(Clone, Debug, Args)]
pub(crate) struct RankArgs {
    /// Which ranks send to which [default: pairs, for an odd number of ranks all-to-all]
    #[arg(long, value_enum, value_name = "PATTERN")]
    pub(crate) pattern: Option<Pattern>,
    /// Start this many ranks on this machine, without mpirun or srun
    #[arg(long, value_name = "N", conflicts_with_all = ["threads", "listen", "connect"],
        value_parser = clap::value_parser!(u32).range(2..=i64::from(RANKS_MAX)))]
    pub(crate) ranks: Option<u32>,
    /// Where rank 0 listens for the other ranks [default: this host, or the first one of the Slurm
    /// step, at a port that follows from the job]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) rendezvous: Option<String>,
    /// How long a rank may not come, or make no progress
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub(crate) wait: Duration,
    /// Workers of each rank, one core each, each with its own links; between two sides, workers of
    /// the serving side, one core each, on one shared receive queue (rate only)
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: u32,
    /// Mix all sizes of --size in one figure, with a weight each or equally often; ranks only
    #[arg(long, value_name = "W,W", num_args = 0.., require_equals = true, value_delimiter = ',')]
    pub(crate) mix: Option<Vec<u32>>,
    /// Links that carry nothing, from each worker that calls others, to those in turn; ranks only
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=IDLE_MAX))]
    pub(crate) idle_links: u32,
}

/// Options of `latency`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LatencyArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// The device alone, without worker and handler
    #[arg(long, conflicts_with = "idle_qps")]
    pub(crate) bare: bool,
    #[command(flatten)]
    pub(crate) alone: DeviceArgs,
    /// Also measure beside this many idle connections, in turn with none
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=IDLE_MAX))]
    pub(crate) idle_qps: u32,
}

/// Options of the device alone.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// The type of the queue pairs; uc and ud with the device alone, because a worker has reliable
    /// connections
    #[arg(long, value_enum, value_name = "TYPE", default_value = "rc")]
    pub(crate) transport: Transport,
    /// Receives of the queue pair's own, not of a shared receive queue; with the device alone,
    /// because all connections of a worker share one
    #[arg(long)]
    pub(crate) no_srq: bool,
}

/// Options of `load`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Messages due each second, whether or not earlier ones are back, such as 500k or 1.5M;
    /// several as 1k,1M, doubling as 10k..1M, and in steps as 1M..4M+1M. With --slo one rate is
    /// where the search begins, and of several each is tried [default: with --slo 10k, with
    /// recorded arrivals their own]
    #[arg(long, value_name = "R[,R]", value_delimiter = ',', value_parser = per_second)]
    pub(crate) rate: Vec<Span<f64>>,
    /// When messages are due: fixed is evenly, poisson is independently of each other, and the name
    /// of a file is as recorded there: a time in nanoseconds a line, ascending, again from the
    /// first when all are over
    #[arg(long, value_name = "HOW", default_value = "fixed", value_parser = arrivals)]
    pub(crate) arrivals: Arrivals,
    /// Arrivals that are drawn follow from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Search for the highest rate at which a percentile of the round trips stays within a time:
    /// p50, p90, p99, p99.9, p99.99 or max, and ns, us or ms
    #[arg(long, value_name = "p99.9=5us", value_parser = slo)]
    pub(crate) slo: Option<Slo>,
    /// Of several rates, one keeps --slo if more than half of this many tries do. A search makes
    /// four times as many around the best rate
    #[arg(long, value_name = "N", default_value_t = 5, requires = "slo",
        value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) tries: u32,
}

/// Options of `sweep`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Messages in flight
    #[arg(long, value_name = "N[,N]", value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,512",
        value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) depth: Vec<u32>,
    /// Fail if a rate is less than 0.9 times the best one with fewer in flight, or if batching
    /// costs a lone message more than 3 %; exit with 3 if the cores did not stay near or far long
    /// enough
    #[arg(long)]
    pub(crate) check: bool,
}

/// Options of `crowd`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CrowdArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Busy connections
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) qps: u32,
    /// Idle connections beside them, in turn with the busy ones alone
    #[arg(long, value_name = "N", default_value_t = 9992,
        value_parser = clap::value_parser!(u32).range(0..=IDLE_MAX))]
    pub(crate) idle_qps: u32,
    /// Receives of the queue that all connections share
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(64..=65_536))]
    pub(crate) receives: u32,
    /// Messages in flight of each busy connection
    #[arg(long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) depth: u32,
}

/// Options of `bandwidth`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BandwidthArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// The type of the queue pairs; uc with --op write
    #[arg(long, value_enum, value_name = "TYPE", default_value = "rc")]
    pub(crate) transport: Transport,
    /// RDMA WRITE or READ of memory that the other side exposes, or SEND to its receives
    #[arg(
        long,
        value_enum,
        value_name = "OP[,OP]",
        value_delimiter = ',',
        default_value = "write"
    )]
    pub(crate) op: Vec<Op>,
    /// The most requests outstanding; fewer if they would take more than 64 MiB
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) batch: u32,
}

/// Options of `rate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Messages to a doorbell
    #[arg(long, value_name = "N[,N]", value_delimiter = ',', default_value = "16",
        value_parser = clap::value_parser!(u32).range(1..=SEND_BATCH as i64))]
    pub(crate) batch: Vec<u32>,
    /// Connections that carry messages in turn [default: one for each worker]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) qps: Option<u32>,
    /// Also measure beside this many idle connections, in turn with none
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=IDLE_MAX))]
    pub(crate) idle_qps: u32,
}

/// Bytes of the messages that `overhead` counts.
pub(crate) const OVERHEAD_SIZES: [u32; 3] = [8, 64, 200];

/// Options of `overhead`.
#[derive(Clone, Debug, Args)]
pub(crate) struct OverheadArgs {
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = OVERHEAD_SIZES,
        value_parser = bytes)]
    pub(crate) size: Vec<u32>,
    /// The device: only soft0 runs no code of a driver
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Fewer messages
    #[arg(long, conflicts_with_all = ["check", "save"])]
    pub(crate) quick: bool,
    /// Write the figures as JSON there; - is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Fail if a message takes more than one instruction above its limit in benches/overhead.json,
    /// or the hot functions are more than a tenth larger; exit with 3 if the limits were counted
    /// with another compiler
    #[arg(long, conflicts_with = "save")]
    pub(crate) check: bool,
    /// Write the figures there as the new limits
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
}

/// Options of the process below callgrind. Only this program passes them.
#[derive(Clone, Debug, Args)]
pub(crate) struct CountArgs {
    #[arg(long, value_delimiter = ',')]
    pub(crate) size: Vec<u32>,
    #[arg(long)]
    pub(crate) messages: u64,
}

/// Options of `report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    /// Write report.html and report.json to this folder
    #[arg(long, value_name = "FOLDER", default_value = "target/doorbell")]
    pub(crate) out: PathBuf,
    /// The JSON of `cargo xtask compare`: draws the other libraries beside
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// A folder with the JSON of past runs, in the order of their file names: draws them and this
    /// run over their commits
    #[arg(long, value_name = "FOLDER")]
    pub(crate) past: Option<PathBuf>,
}

/// Options of `traffic`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TrafficArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Only the rows with this in their name, such as ping, poisson or peers-8
    #[arg(long, value_name = "PATTERN[,PATTERN]", value_delimiter = ',')]
    pub(crate) rows: Vec<String>,
    /// Arrivals, sizes and handler times follow from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Rounds of each row; the figures are medians over them [default: 9, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Give a wrong byte to this message of each row, to show that it is noticed
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) spoil: Option<u64>,
}

/// Options of `compare`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A figure is slower or faster if the interval of the ratio leaves out 1 and \
the ratio is\nbeyond --least and beyond the change of the floor. The exit code is 0 for no \
difference and\nfaster, 4 for slower, and 3 if nothing could be compared.\n\nTwo builds in turn, \
which is surer than two files, because the machine changes:\n  doorbell-bench compare \
old/doorbell-bench new/doorbell-bench -- latency --size 8,64"
)]
pub(crate) struct CompareArgs {
    /// The JSON of the first run, which --json wrote; with COMMAND the first build of this program
    pub(crate) before: PathBuf,
    /// The JSON of the second run, or the second build
    pub(crate) after: PathBuf,
    /// A test and its options, such as latency --size 8,64: both builds measure it in turn, in
    /// rounds, for 0.2 s each figure unless it says --duration
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// Rounds of both builds; four times as many while the noise decides nothing
    #[arg(long, value_name = "N", default_value_t = 16, requires = "command",
        value_parser = clap::value_parser!(u32).range(11..=200))]
    pub(crate) rounds: u32,
    /// Write the figures of all rounds as JSON there
    #[arg(long, value_name = "FILE", requires = "command")]
    pub(crate) json: Option<PathBuf>,
    /// Differences below this count as none, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = LEAST, value_parser = percent)]
    pub(crate) least: f64,
    /// Write the table as CSV there
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

/// Differences below this count as none for `--baseline`, in percent.
pub(crate) const LEAST: f64 = 5.0;

/// Options of `results`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ResultsArgs {
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "benches/RESULTS.md")]
    pub(crate) out: PathBuf,
    /// Less time for each figure
    #[arg(long)]
    pub(crate) quick: bool,
    /// The cores of both sides [default: chosen]
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = core)]
    pub(crate) cores: Vec<usize>,
    /// The JSON of `cargo xtask compare`: adds the other libraries, or renews their section
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,
    /// Measure nothing: replace the sections of --compare and --perftest in the page that is there
    #[arg(long)]
    pub(crate) only_compare: bool,
    /// What `cargo xtask compare --device NAME` printed: adds the RDMA device beside perftest, or
    /// renews it
    #[arg(long, value_name = "FILE")]
    pub(crate) perftest: Option<PathBuf>,
    /// This program, built without link-time optimization: adds its instructions a message
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) without_lto: Option<PathBuf>,
}

/// Options of `connect`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    /// The device [default: as for the other tests]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// The local address both sides use [default: 127.0.0.1 on soft0, else the device's]
    #[arg(long, value_name = "IP")]
    pub(crate) addr: Option<IpAddr>,
    /// The cores of client and server [default: chosen]
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = core)]
    pub(crate) cores: Vec<usize>,
    /// Connections under way at the same time
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) at_once: u32,
    /// Write the figures as JSON there; - is standard output, instead of the line
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Time, after a fifth of it to warm up [default: 2, with --quick 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Less time
    #[arg(long)]
    quick: bool,
}

impl ConnectArgs {
    /// Time of the figure.
    pub(crate) fn time(&self) -> Duration {
        let usual = if self.quick { Duration::from_millis(300) } else { Duration::from_secs(2) };
        self.duration.unwrap_or(usual)
    }
}

/// Options of the serving process of `connect`. Only this program passes them.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectServeArgs {
    #[arg(long)]
    pub(crate) device: String,
    #[arg(long)]
    pub(crate) addr: IpAddr,
    #[arg(long)]
    pub(crate) core: usize,
}

/// Options of the serving process. Only this program passes them.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    #[arg(long)]
    pub(crate) device: String,
    #[arg(long)]
    pub(crate) addr: IpAddr,
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// The process that it must not outlive
    #[arg(long)]
    pub(crate) parent: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
