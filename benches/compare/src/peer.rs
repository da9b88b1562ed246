//! How to get a figure from each peer: its own program, with its usual settings, two processes,
//! each on a core of its own.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::contest::{Contest, Entry, Peer, Setting, Test};
use crate::error::Failure;
use crate::process::{Program, free_port, heard, mute};

/// Longest message that takes UCX's short path over shared memory, in bytes; longer ones are copied
/// out.
const UCX_SHORT_MAX: u32 = 92;

/// About how long a round trip and a message take a peer, to choose a number of them that fills the
/// time.
const ROUND_TRIP_NS: f64 = 300.0;
const MESSAGE_NS: f64 = 50.0;

/// The least number of round trips of libfabric's program, which includes its warm-up.
const LIBFABRIC_COUNT_MIN: u64 = 100_000;

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

/// Gets one figure from one entry.
pub(crate) fn ask(contest: &Contest, entry: &Entry, set: &Setting) -> Result<Figure, Failure> {
    match entry.peer {
        Peer::Doorbell => doorbell(contest, entry, set),
        Peer::Ucx => ucx(contest, set),
        Peer::Iceoryx2 => iceoryx2(contest, set),
        Peer::Libfabric => libfabric(contest, set),
    }
}

/// About this many fill the time.
fn count(time: Duration, each_ns: f64) -> u64 {
    (time.as_nanos() as f64 / each_ns) as u64
}

fn doorbell(contest: &Contest, entry: &Entry, set: &Setting) -> Result<Figure, Failure> {
    let [here, there] = set.cores;
    let mut command = heard(&set.bench);
    command.arg(if contest.test == Test::Latency { "latency" } else { "rate" });
    command.args(["--device", "soft0", "--json", "-"]);
    command.args(["--size", &contest.size.to_string()]);
    command.args(["--cores", &format!("{here},{there}")]);
    command.args(["--duration", &set.time.as_secs_f64().to_string()]);
    if let Some(batch) = entry.batch {
        command.args(["--batch", &batch.to_string()]);
    }
    // It pins both of its sides itself.
    doorbell_figure(&Program::start(&mut command, None)?.finish()?)
}

fn doorbell_figure(text: &str) -> Result<Figure, Failure> {
    let wrong = Failure::at("read the figures of doorbell-bench");
    let document: Value = serde_json::from_str(text).map_err(wrong)?;
    let number = |path: &str| document.pointer(path).and_then(Value::as_f64);
    if document.pointer("/machine/build").and_then(Value::as_str) == Some("debug") {
        return Err(Failure::new("doorbell-bench is a debug build; build it with --release"));
    }
    Ok(Figure {
        p50_ns: number("/results/0/half_rtt_ns/p50"),
        mean_ns: number("/results/0/half_rtt_ns/mean"),
        messages_per_second: number("/results/0/messages_per_second"),
    })
}

fn ucx(contest: &Contest, set: &Setting) -> Result<Figure, Failure> {
    let port = free_port()?.to_string();
    let layout = if contest.size <= UCX_SHORT_MAX { "short" } else { "bcopy" };
    let (test, each_ns) = match contest.test {
        Test::Latency => ("am_lat", ROUND_TRIP_NS),
        Test::Rate => ("am_bw", MESSAGE_NS),
    };
    let words = |command: &mut Command| {
        command.args(["-x", "posix", "-d", "memory", "-t", test, "-D", layout, "-f", "-v"]);
        command.args(["-s", &contest.size.to_string(), "-p", &port]);
        command.args(["-n", &count(set.time, each_ns).to_string()]);
    };
    let mut client = heard("ucx_perftest");
    client.arg("localhost");
    let text = pair(mute("ucx_perftest"), client, &port, set, words)?;
    ucx_figure(&text, contest.test)
}

/// The last line: iterations, then microseconds of half a round trip (median, average, overall),
/// MB/s (average, overall), messages a second (average, overall).
fn ucx_figure(text: &str, test: Test) -> Result<Figure, Failure> {
    let fields = |line: &str| -> Option<Vec<f64>> {
        line.split(',').map(|field| field.trim().parse().ok()).collect()
    };
    let line = text.lines().rev().find_map(|line| fields(line).filter(|line| line.len() == 8));
    let Some(line) = line else {
        return Err(Failure::new(format!("ucx_perftest told no figures: {}", text.trim())));
    };
    Ok(match test {
        Test::Latency => Figure {
            p50_ns: Some(line[1] * 1e3),
            mean_ns: Some(line[3] * 1e3),
            ..Figure::default()
        },
        Test::Rate => Figure { messages_per_second: Some(line[7]), ..Figure::default() },
    })
}

fn libfabric(contest: &Contest, set: &Setting) -> Result<Figure, Failure> {
    let port = free_port()?.to_string();
    let words = |command: &mut Command| {
        let count = count(set.time, ROUND_TRIP_NS).max(LIBFABRIC_COUNT_MIN);
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

fn iceoryx2(contest: &Contest, set: &Setting) -> Result<Figure, Failure> {
    let own = std::env::current_exe().map_err(Failure::at("find this program"))?;
    let name = format!("doorbell-compare-{}-{}", std::process::id(), free_port()?);
    let words = |command: &mut Command, side: &str| {
        command.args(["iceoryx2", "--side", side, "--name", &name]);
        command.args(["--size", &contest.size.to_string()]);
        command.args(["--seconds", &set.time.as_secs_f64().to_string()]);
        if contest.test == Test::Rate {
            command.arg("--rate");
        }
    };
    let (mut server, mut client) = (mute(&own), heard(&own));
    words(&mut server, "server");
    words(&mut client, "client");
    let server = Program::start(&mut server, Some(set.cores[1]))?;
    let text = Program::start(&mut client, Some(set.cores[0]))?.finish()?;
    server.part();
    serde_json::from_str(&text).map_err(Failure::at("read the figures of iceoryx2"))
}

/// Runs a server that listens on a port, then its client, with the same arguments; returns the
/// client's output.
fn pair(
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

    #[test]
    fn the_line_of_ucx_is_read() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,\
                    overall_mr\n3000000,0.125,0.2,0.150,39.34,39.34,5155897,6000000\n";
        let figure = ucx_figure(text, Test::Latency).unwrap();
        assert_eq!((figure.p50_ns, figure.mean_ns), (Some(125.0), Some(150.0)));
        let figure = ucx_figure(text, Test::Rate).unwrap();
        assert_eq!(figure.messages_per_second, Some(6e6));
        assert!(ucx_figure("no such transport", Test::Rate).is_err());
    }

    #[test]
    fn the_line_of_libfabric_is_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   \
                    Mxfers/sec\n64      200k    =200k    24m         0.37s     68.92       0.93 \
                    \x20     1.08\n";
        assert_eq!(libfabric_figure(text).unwrap().mean_ns, Some(930.0));
        assert!(libfabric_figure("no provider").is_err());
    }

    #[test]
    fn the_record_of_doorbell_is_read_and_a_debug_build_is_refused() {
        let text = r#"{"results":[{"half_rtt_ns":{"p50":60.0,"mean":62.5}}],
            "machine":{"build":"release"}}"#;
        let figure = doorbell_figure(text).unwrap();
        assert_eq!((figure.p50_ns, figure.mean_ns), (Some(60.0), Some(62.5)));
        assert!(doorbell_figure(&text.replace("release", "debug")).is_err());
        assert!(doorbell_figure("no json").is_err());
    }
}
