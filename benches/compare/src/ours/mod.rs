//! Doorbell's own two sides of a contest, a process each, on the device in software. A [`session`]
//! is a worker with its connection; over it go [`messages`], requests to the peer's memory
//! ([`onesided`]), [`calls`] and messages larger than a block ([`transfers`]).

mod calls;
mod messages;
mod onesided;
mod session;
mod transfers;

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::error::Failure;
use crate::peer::Figure;

/// Which side this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Side {
    Server,
    Client,
}

/// What the two sides do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Task {
    /// A message goes there and back.
    Ping,
    /// Messages go one way.
    Stream,
    /// A WRITE there, which the other side sees in its memory, and one back.
    Put,
    /// WRITEs one way, several at a time.
    PutStream,
    /// READs, several at a time.
    GetStream,
    /// A call and its answer.
    Rpc,
    /// Messages larger than a block, one way.
    Large,
    /// The same, both ways at once.
    LargeBoth,
}

/// The role of this process.
#[derive(Debug, Args)]
pub(crate) struct SideArgs {
    #[arg(long, value_enum)]
    side: Side,
    #[arg(long)]
    port: u16,
    #[arg(long, value_enum)]
    task: Task,
    #[arg(long)]
    size: u32,
    #[arg(long)]
    seconds: f64,
    /// Messages to a doorbell.
    #[arg(long, default_value_t = 1)]
    batch: u32,
    /// Neither side writes or reads more of a message than its first word.
    #[arg(long)]
    untouched: bool,
}

impl SideArgs {
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Runs one side; the client prints its figure.
pub(crate) fn run(args: &SideArgs) -> Result<(), Failure> {
    let figure = match args.task {
        Task::Ping | Task::Stream => messages::run(args)?,
        Task::Put | Task::PutStream | Task::GetStream => onesided::run(args)?,
        Task::Rpc => calls::run(args)?,
        Task::Large | Task::LargeBoth => transfers::run(args)?,
    };
    figure.as_ref().map_or(Ok(()), Figure::print)
}
