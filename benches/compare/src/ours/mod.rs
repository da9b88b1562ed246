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
    measure(args)?.as_ref().map_or(Ok(()), Figure::print)
}

/// Runs one side; the client returns its figure.
fn measure(args: &SideArgs) -> Result<Option<Figure>, Failure> {
    match args.task {
        Task::Ping | Task::Stream => messages::run(args),
        Task::Put | Task::PutStream | Task::GetStream => onesided::run(args),
        Task::Rpc => calls::run(args),
        Task::Large | Task::LargeBoth => transfers::run(args),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::process::free_port;

    fn figure(task: Task, size: u32, batch: u32, untouched: bool) -> Result<Figure, Failure> {
        let port = free_port()?;
        let args =
            move |side| SideArgs { side, port, task, size, seconds: 0.001, batch, untouched };
        let server = thread::spawn(move || measure(&args(Side::Server)));
        let figure = measure(&args(Side::Client));
        let served = server.join().map_err(|_| Failure::new("the server broke off"))?;
        assert_eq!(served?, None, "a server has no figure");
        figure?.ok_or_else(|| Failure::new("the client has no figure"))
    }

    #[test]
    fn both_sides_of_every_task_come_to_an_end_with_a_figure() {
        let sizes: [&[u32]; 2] = [&[8, 208, 1024, 4096, 65_536], &[262_144]];
        for task in Task::value_variants() {
            let is_large = matches!(task, Task::Large | Task::LargeBoth);
            let is_time = matches!(task, Task::Ping | Task::Put | Task::Rpc);
            for size in sizes[usize::from(is_large)] {
                let figure = figure(*task, *size, 16, false)
                    .unwrap_or_else(|failure| panic!("{task:?} {size}: {failure}"));
                let numbers = [figure.p50_ns, figure.mean_ns, figure.messages_per_second];
                assert_eq!(
                    numbers.map(|number| number.is_some_and(|number| number > 0.0)),
                    [is_time, is_time, !is_time],
                    "{task:?} {size}"
                );
            }
        }
        for task in [Task::Ping, Task::Stream] {
            assert!(figure(task, 16 << 10, 16, true).is_ok(), "{task:?}, untouched");
        }
        assert!(figure(Task::Stream, 64, 1, false).is_ok());
    }
}
