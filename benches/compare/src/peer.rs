//! How to get a figure from each peer: its own program, with its usual settings, two processes,
//! each on a core of its own.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::contest::{Contest, Entry, Peer, Setting, Test};
use crate::error::Failure;
use crate::process::{Program, free_port, heard, mute};
use crate::ucx;

/// About how long a round trip of libfabric's program takes: nanoseconds, and for each byte.
const LIBFABRIC_NS: (f64, f64) = (600.0, 0.6);

/// The least number of its round trips, which include its warm-up.
const LIBFABRIC_COUNT_MIN: u64 = 200;

/// One figure. Fields that do not apply, or that the peer's program does not report, are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Half a round trip, in nanoseconds: the median of single ones, and the mean of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ns: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mean_ns: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
}

impl Figure {
    /// Prints it for [`Figure::read`]: the last line of a side's output.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        let text = serde_json::to_string(self).map_err(Failure::at("write a figure"))?;
        println!("{text}");
        Ok(())
    }

    fn read(text: &str) -> Result<Figure, Failure> {
        serde_json::from_str(text).map_err(Failure::at("read a figure"))
    }

    /// The one that counts: the median time, else the mean; or the rate.
    pub(crate) fn main(&self, test: Test) -> Option<f64> {
        match test.is_time() {
            true => self.p50_ns.or(self.mean_ns),
            false => self.messages_per_second,
        }
    }
}

/// Gets one figure from one entry.
pub(crate) fn ask(contest: &Contest, entry: &Entry, set: &Setting) -> Result<Figure, Failure> {
    match entry.peer {
        Peer::Doorbell | Peer::Untouched => doorbell(contest, entry, set),
        Peer::Uct | Peer::Ucx { .. } => ucx::ask(contest, entry, set),
        Peer::Iceoryx2 => iceoryx2(contest, set),
        Peer::Libfabric => libfabric(contest, set),
        Peer::Copy | Peer::Memcpy => limit(contest, entry, set),
    }
}

/// About this many messages fill the time, if each takes that long, and longer for each byte.
pub(crate) fn count(time: Duration, size: u32, (each_ns, byte_ns): (f64, f64)) -> u64 {
    (time.as_nanos() as f64 / (each_ns + byte_ns * f64::from(size))) as u64
}

/// This program, for a role of its own.
fn own(start: fn(std::path::PathBuf) -> Command) -> Result<Command, Failure> {
    std::env::current_exe().map(start).map_err(Failure::at("find this program"))
}

/// Runs a server and its client, both roles of this program. The client waits for the server.
fn roles(
    set: &Setting,
    contest: &Contest,
    words: impl Fn(&mut Command, &str),
) -> Result<Figure, Failure> {
    let common = |command: &mut Command, side: &str| {
        words(command, side);
        command.args(["--size", &contest.size.to_string()]);
        command.args(["--seconds", &set.time.as_secs_f64().to_string()]);
    };
    let (mut server, mut client) = (own(mute)?, own(heard)?);
    common(&mut server, "server");
    common(&mut client, "client");
    let server = Program::start(&mut server, Some(set.cores[1]))?;
    let text = Program::start(&mut client, Some(set.cores[0]))?.finish()?;
    server.part();
    Figure::read(&text)
}

fn doorbell(contest: &Contest, entry: &Entry, set: &Setting) -> Result<Figure, Failure> {
    let task = match contest.test {
        Test::Latency => "ping",
        Test::Rate => "stream",
        Test::Put => "put",
        Test::PutRate => "put-stream",
        Test::GetRate => "get-stream",
        Test::Rpc => "rpc",
        Test::Large => "large",
        Test::LargeBoth => "large-both",
    };
    let port = free_port()?.to_string();
    roles(set, contest, |command, side| {
        command.args(["doorbell", "--side", side, "--port", &port, "--task", task]);
        if let Some(batch) = entry.batch {
            command.args(["--batch", &batch.to_string()]);
        }
        if entry.peer == Peer::Untouched {
            command.arg("--untouched");
        }
    })
}

fn iceoryx2(contest: &Contest, set: &Setting) -> Result<Figure, Failure> {
    let name = format!("doorbell-compare-{}-{}", std::process::id(), free_port()?);
    roles(set, contest, |command, side| {
        command.args(["iceoryx2", "--side", side, "--name", &name]);
        if contest.test == Test::Rate {
            command.arg("--rate");
        }
    })
}

fn limit(contest: &Contest, entry: &Entry, set: &Setting) -> Result<Figure, Failure> {
    let kind = match (entry.peer, contest.test) {
        (Peer::Copy, _) => "owned",
        (_, Test::LargeBoth) => "memcpy-both",
        _ => "memcpy",
    };
    let [here, there] = set.cores;
    let mut command = own(heard)?;
    command.args(["limit", "--kind", kind, "--cores", &format!("{here},{there}")]);
    command.args(["--size", &contest.size.to_string()]);
    command.args(["--seconds", &set.time.as_secs_f64().to_string()]);
    // It pins its threads itself.
    Figure::read(&Program::start(&mut command, None)?.finish()?)
}

fn libfabric(contest: &Contest, set: &Setting) -> Result<Figure, Failure> {
    let port = free_port()?.to_string();
    let words = |command: &mut Command| {
        let count = count(set.time, contest.size, LIBFABRIC_NS).max(LIBFABRIC_COUNT_MIN);
        command.args(["-p", "shm", "-e", "rdm", "-S", &contest.size.to_string()]);
        command.args(["-I", &count.to_string()]);
    };
    let (mut server, mut client) = (mute("fi_pingpong"), heard("fi_pingpong"));
    server.args(["-B", &port]);
    client.args(["-P", &port, "127.0.0.1"]);
    let text = pair(server, client, &port, set, words)?;
    libfabric_figure(&text)
}

/// The last line: bytes, sent, acknowledged, total, time, MB/sec, usec/xfer, Mxfers/sec. A
/// transfer is half a round trip.
fn libfabric_figure(text: &str) -> Result<Figure, Failure> {
    let line = text.lines().rev().find(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let micros = words.get(6).and_then(|word| word.parse::<f64>().ok());
    match micros {
        Some(micros) => Ok(Figure { mean_ns: Some(micros * 1e3), ..Figure::default() }),
        None => Err(Failure::new(format!("fi_pingpong told no figures: {}", text.trim()))),
    }
}

/// Runs a server that listens on a port, then its client, with the same arguments; returns the
/// client's output.
pub(crate) fn pair(
    mut server: Command,
    mut client: Command,
    port: &str,
    set: &Setting,
    words: impl Fn(&mut Command),
) -> Result<String, Failure> {
    words(&mut server);
    words(&mut client);
    let port = port.parse().map_err(Failure::at("a port"))?;
    let mut server = Program::start(&mut server, Some(set.cores[1]))?;
    server.listens(port)?;
    let text = Program::start(&mut client, Some(set.cores[0]))?.finish()?;
    server.part();
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What version 1.17.0 printed.
    #[test]
    fn the_line_of_libfabric_is_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   \
                    Mxfers/sec\n64      200k    =200k    24m         0.37s     68.92       0.93 \
                    \x20     1.08\n";
        assert_eq!(libfabric_figure(text).unwrap().mean_ns, Some(930.0));
        assert!(libfabric_figure("no provider").is_err());
    }

    #[test]
    fn a_figure_is_read_back() {
        let figure = Figure { p50_ns: Some(60.0), mean_ns: Some(62.5), ..Figure::default() };
        let text = serde_json::to_string(&figure).unwrap();
        assert_eq!(text, r#"{"p50_ns":60.0,"mean_ns":62.5}"#);
        assert_eq!(Figure::read(&text).unwrap(), figure);
        assert!(Figure::read("no json").is_err());
        assert_eq!(figure.main(Test::Put), Some(60.0));
        assert_eq!(figure.main(Test::PutRate), None);
    }

    #[test]
    fn fewer_long_messages_fill_the_time() {
        let time = Duration::from_micros(100);
        assert_eq!(count(time, 0, (100.0, 1.0)), 1000);
        assert_eq!(count(time, 900, (100.0, 1.0)), 100);
    }
}
