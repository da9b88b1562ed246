//! ucx_perftest, UCX's own benchmark. It neither writes nor reads the payload between messages: an
//! advantage of its figures.

use std::process::Command;
use std::time::Duration;

use crate::contest::{Api, Contest, Entry, Peer, Setting, Test};
use crate::error::Failure;
use crate::peer::{self, Figure};
use crate::process::{free_port, heard, mute};

/// `UCX_POSIX_FIFO_ELEM_SIZE`: its default, and what an element holds beside the payload.
const ELEM_SIZE: u32 = 128;
const ELEM_HEAD: u32 = 36;

/// Sizes of an element that are tried for UCX's protocols. The largest holds a whole segment.
const TRIED: [u32; 3] = [ELEM_SIZE, 2048, 8320];

/// Longest message for which they matter.
const TRIED_MAX: u32 = 8192;

/// About how long a round trip and a message take, to choose a number of them that fills the time:
/// nanoseconds, and for each byte.
const ROUND_TRIP_NS: (f64, f64) = (300.0, 0.2);
const MESSAGE_NS: (f64, f64) = (50.0, 0.08);

/// ucx_perftest takes its median of the last this many times. Of fewer it would take it of zeros,
/// too.
const TIMES: u64 = 2048;

/// The sizes of an element to try for an entry; none if they do not matter.
pub(crate) fn elem_sizes(contest: &Contest, entry: &Entry) -> Vec<u32> {
    let is_two_sided = matches!(contest.test, Test::Latency | Test::Rate | Test::Rpc);
    if !is_two_sided || contest.size > TRIED_MAX || contest.size + ELEM_HEAD <= ELEM_SIZE {
        return Vec::new();
    }
    match entry.peer {
        // One that holds the message, which then is copied once less.
        Peer::Uct => vec![ELEM_SIZE, (contest.size + ELEM_HEAD).next_multiple_of(64)],
        Peer::Ucx { api: Api::Tag | Api::Am, .. } => TRIED.to_vec(),
        _ => Vec::new(),
    }
}

/// The test's name.
fn test(contest: &Contest, peer: Peer) -> &'static str {
    let time = contest.test.is_time();
    match peer {
        Peer::Ucx { api: Api::Tag, .. } if time => "tag_lat",
        Peer::Ucx { api: Api::Tag, .. } => "tag_bw",
        Peer::Ucx { api: Api::Am, .. } if time => "ucp_am_lat",
        Peer::Ucx { api: Api::Am, .. } => "ucp_am_bw",
        Peer::Ucx { api: Api::Put, .. } if time => "ucp_put_lat",
        Peer::Ucx { api: Api::Put, .. } => "ucp_put_bw",
        Peer::Ucx { api: Api::Get, .. } => "ucp_get",
        _ if time => "am_lat",
        _ => "am_bw",
    }
}

/// Options of both sides. The transport alone has a layout: short if an element holds the message.
fn options(contest: &Contest, entry: &Entry, time: Duration) -> Vec<String> {
    let (each_ns, least) = match contest.test.is_time() {
        true => (ROUND_TRIP_NS, TIMES),
        false => (MESSAGE_NS, 10),
    };
    let count = peer::count(time, contest.size, each_ns).max(least);
    let mut words = vec!["-t".to_owned(), test(contest, entry.peer).to_owned()];
    if entry.peer == Peer::Uct {
        let elem = entry.fifo_elem_size.unwrap_or(ELEM_SIZE);
        let layout = if contest.size + ELEM_HEAD <= elem { "short" } else { "bcopy" };
        words.extend(["-x", "posix", "-d", "memory", "-D", layout].map(str::to_owned));
    }
    words.extend(["-s".to_owned(), contest.size.to_string()]);
    words.extend(["-n".to_owned(), count.to_string()]);
    words.extend(["-w".to_owned(), (count / 5).max(1).to_string()]);
    words.extend(["-f", "-v"].map(str::to_owned));
    words
}

/// Gets one figure.
pub(crate) fn ask(contest: &Contest, entry: &Entry, set: &Setting) -> Result<Figure, Failure> {
    let port = free_port()?.to_string();
    let words = |command: &mut Command| {
        command.args(options(contest, entry, set.time)).args(["-p", &port]);
        if let Peer::Ucx { cma, .. } = entry.peer {
            command.env("UCX_TLS", if cma { "posix,cma,self" } else { "posix,self" });
        }
        if let Some(size) = entry.fifo_elem_size {
            command.env("UCX_POSIX_FIFO_ELEM_SIZE", size.to_string());
        }
    };
    let mut client = heard("ucx_perftest");
    client.arg("localhost");
    let text = peer::pair(mute("ucx_perftest"), client, &port, set, words)?;
    figure(&text, contest.test)
}

/// The last line: iterations, then microseconds of half a round trip or of a message (median,
/// average, overall), MB/s (average, overall), messages a second (average, overall).
fn figure(text: &str, test: Test) -> Result<Figure, Failure> {
    let fields = |line: &str| -> Option<Vec<f64>> {
        line.split(',').map(|field| field.trim().parse().ok()).collect()
    };
    let line = text.lines().rev().find_map(|line| fields(line).filter(|line| line.len() == 8));
    let Some(line) = line else {
        return Err(Failure::new(format!("ucx_perftest told no figures: {}", text.trim())));
    };
    Ok(match test.is_time() {
        true => Figure {
            p50_ns: (line[0] >= TIMES as f64).then_some(line[1] * 1e3),
            mean_ns: Some(line[3] * 1e3),
            ..Figure::default()
        },
        false => Figure { messages_per_second: Some(line[7]), ..Figure::default() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What version 1.13.1 printed for tag_lat of 64 KiB, without its other lines.
    const RECORDED: &str = "\
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
5752,6.755,19.123,19.123,3268.27,3268.27,52292,52292
";

    #[test]
    fn the_line_is_read() {
        let latency = figure(RECORDED, Test::Latency).unwrap();
        assert_eq!((latency.p50_ns, latency.mean_ns), (Some(6755.0), Some(19_123.0)));
        let rate = figure(RECORDED, Test::Rate).unwrap();
        assert_eq!((rate.messages_per_second, rate.p50_ns), (Some(52_292.0), None));
    }

    #[test]
    fn a_median_of_too_few_times_is_not_taken() {
        let figure = figure(&RECORDED.replace("5752,", "2047,"), Test::Latency).unwrap();
        assert_eq!((figure.p50_ns, figure.mean_ns), (None, Some(19_123.0)));
        let tag = Entry::new(Peer::Ucx { api: Api::Tag, cma: true });
        let long = contest(Test::Latency, 1 << 20);
        let words = options(&long, &tag, Duration::from_millis(60)).join(" ");
        assert!(words.contains("-n 2048 "), "{words}");
    }

    /// What it printed for a layout that does not fit.
    #[test]
    fn an_error_is_told() {
        let text = "[1795645676.684929] [vm:20892:0] perftest_run.c:334  UCX  ERROR Failed to run \
                    test: Unsupported operation\n";
        let failure = figure(text, Test::Rate).unwrap_err().to_string();
        assert!(failure.contains("Unsupported operation"), "{failure}");
    }

    fn contest(test: Test, size: u32) -> Contest {
        Contest { test, size, entries: Vec::new() }
    }

    #[test]
    fn the_layout_follows_from_the_element() {
        let words = |size, elem| {
            let entry = Entry { fifo_elem_size: elem, ..Entry::new(Peer::Uct) };
            options(&contest(Test::Latency, size), &entry, Duration::from_millis(100)).join(" ")
        };
        assert!(words(92, None).contains("-t am_lat -x posix -d memory -D short -s 92"));
        assert!(words(93, None).contains("-D bcopy"));
        assert!(words(208, Some(256)).contains("-D short"));
        assert!(words(221, Some(256)).contains("-D bcopy"));
        let tag = Entry::new(Peer::Ucx { api: Api::Tag, cma: true });
        let words = options(&contest(Test::Rate, 1 << 20), &tag, Duration::from_secs(1)).join(" ");
        assert!(words.starts_with("-t tag_bw -s 1048576 -n ") && words.ends_with("-f -v"));
    }

    #[test]
    fn elements_are_tried_where_they_matter() {
        let sizes = |test, size, peer| elem_sizes(&contest(test, size), &Entry::new(peer));
        let tag = Peer::Ucx { api: Api::Tag, cma: false };
        assert_eq!(sizes(Test::Latency, 208, Peer::Uct), [128, 256]);
        assert_eq!(sizes(Test::Rate, 4096, tag), TRIED);
        assert!(sizes(Test::Rate, 64 << 10, tag).is_empty());
        assert!(sizes(Test::Latency, 64, tag).is_empty());
        assert!(sizes(Test::Latency, 208, Peer::Iceoryx2).is_empty());
    }
}
