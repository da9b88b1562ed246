//! Programs of Debian's packages, unmodified, on both sides over the drop-in. A program that is not
//! installed is skipped.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kills;
mod libraries;
mod pairs;
mod pyverbs;
mod sockets;

use pairs::{CmPair, Pair, Port, run};

/// What `ibv_devices` and `ibv_devinfo` print.
#[test]
fn the_device_is_listed_and_describes_itself() {
    let Some(text) = run("ibv_devices", &[]) else { return };
    assert!(text.contains("soft0"), "{text}");
    let Some(text) = run("ibv_devinfo", &["-v"]) else { return };
    for line in ["hca_id:\tsoft0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "ATOMIC_GLOB"] {
        assert!(text.contains(line), "no {line} in {text}");
    }
}

/// The pingpong programs of rdma-core, polling and sleeping. They exchange GID, number and the rest
/// over a socket of their own.
#[test]
fn pingpongs_of_every_transport_run() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for more in [&[][..], &["-e"]] {
            let pair = Pair { program, args: &["-d", "soft0", "-g", "0", "-n", "200"], more };
            let Some(text) = pair.run() else { continue };
            assert!(text.contains("200 iters in"), "{program} {more:?}: {text}");
        }
    }
    // This one polls a queue of a channel only.
    let args = ["-d", "soft0", "-g", "0", "-n", "200"];
    for more in [&[][..], &["-e"]] {
        let pair = Pair { program: "ibv_xsrq_pingpong", args: &args, more };
        let Some(text) = pair.run() else { continue };
        assert!(text.contains("success"), "{more:?}: {text}");
    }
}

/// `ibv_rc_pingpong` with timestamps, which it takes from an extended completion queue, and with
/// the extended post.
#[test]
fn a_pingpong_uses_the_extended_interfaces() {
    for (option, says) in
        [("-t", "Average receive completion clock cycles"), ("-N", "200 iters in")]
    {
        let args = ["-d", "soft0", "-g", "0", "-n", "200", option];
        let pair = Pair { program: "ibv_rc_pingpong", args: &args, more: &[] };
        let Some(text) = pair.run() else { continue };
        assert!(text.contains(says), "{option}: {text}");
    }
}

/// The contents of each message are checked, also of those that are longer than a link's ring.
#[test]
fn a_pingpong_finds_its_bytes_unchanged() {
    for size in ["4096", "100000"] {
        let args = ["-d", "soft0", "-g", "0", "-n", "50", "-c", "-s", size];
        let pair = Pair { program: "ibv_rc_pingpong", args: &args, more: &[] };
        let Some((_, text)) = pair.run_both() else { continue };
        // The server alone looks at the bytes.
        assert!(!text.contains("invalid data"), "{text}");
    }
}

/// The rows of perftest's table: a size, a number of messages, and figures.
fn rows(text: &str) -> usize {
    let is_row = |line: &&str| {
        let mut words = line.split_whitespace();
        (0..2).all(|_| words.next().is_some_and(|word| word.parse::<u64>().is_ok()))
            && words.next().is_some_and(|word| word.parse::<f64>().is_ok())
    };
    text.lines().filter(is_row).count()
}

/// perftest: messages, WRITE, READ, atomics; latency and rate; and its options.
#[test]
fn perftest_runs() {
    const BASE: &[&str] = &["-d", "soft0", "-x", "0", "-F", "-n", "200"];
    let runs: &[(&str, &[&str])] = &[
        ("ib_send_lat", &[]),
        ("ib_send_lat", &["-e"]),
        ("ib_send_lat", &["-c", "UC"]),
        ("ib_send_lat", &["-c", "UD"]),
        ("ib_send_lat", &["-I", "64"]),
        ("ib_send_bw", &["-s", "4096"]),
        ("ib_send_bw", &["-s", "4096", "-b", "-q", "2"]),
        ("ib_send_bw", &["-s", "4096", "--use-srq", "-q", "4"]),
        ("ib_send_bw", &["-s", "2048", "-c", "UD"]),
        // These watch memory, or leave the other side to itself.
        ("ib_write_lat", &[]),
        ("ib_write_bw", &["-s", "4096"]),
        ("ib_write_bw", &["-s", "4096", "-c", "UC"]),
        ("ib_read_lat", &[]),
        ("ib_read_bw", &["-s", "4096", "-e"]),
        ("ib_send_lat", &["-c", "XRC"]),
        ("ib_write_bw", &["-s", "4096", "-c", "XRC"]),
        ("ib_read_lat", &["-c", "XRC"]),
        ("ib_atomic_lat", &[]),
        ("ib_atomic_bw", &[]),
    ];
    for (program, more) in runs {
        let Some(text) = (Pair { program, args: BASE, more }).run() else { continue };
        assert_eq!(rows(&text), 1, "{program} {more:?}: {text}");
    }
}

/// Programs of librdmacm: messages, WRITE and READ in turn, connections by the dozen, endpoints,
/// datagrams and groups.
#[test]
fn programs_of_the_connection_manager_run() {
    let here = "127.0.0.1";
    let runs: &[(&[&str], &[&str], [&str; 2])] = &[
        (
            &["rping", "-s", "-C", "20", "-v", "-V"],
            &["rping", "-c", "-a", here, "-C", "20", "-v", "-V"],
            ["rdma-ping-19:", "rdma-ping-19:"],
        ),
        (
            &["rdma_server"],
            &["rdma_client", "-s", here],
            ["rdma_server: end 0", "rdma_client: end 0"],
        ),
        (
            &["rdma_xserver", "-c", "r"],
            &["rdma_xclient", "-c", "r", "-s", here],
            ["rdma_xserver: end 0", "rdma_xclient: end 0"],
        ),
        (
            &["rdma_xserver", "-c", "x"],
            &["rdma_xclient", "-c", "x", "-s", here],
            ["rdma_xserver: end 0", "rdma_xclient: end 0"],
        ),
        (
            &["ucmatose", "-c", "8", "-C", "20"],
            &["ucmatose", "-c", "8", "-C", "20", "-s", here],
            ["return status 0", "return status 0"],
        ),
    ];
    for (server, client, ends) in runs {
        let Some(texts) = (CmPair { server, client, port: Port::By("-p") }).run() else { continue };
        for (text, end) in texts.iter().zip(ends) {
            assert!(text.contains(end), "{server:?} does not say {end}: {text}");
        }
    }
}

/// Datagrams. The program has a port of its own.
#[test]
fn datagrams_of_the_connection_manager_run() {
    let client = ["udaddy", "-s", "127.0.0.1"];
    let pair = CmPair { server: &["udaddy"], client: &client, port: Port::Always(7174) };
    for text in pair.run().into_iter().flatten() {
        assert!(text.contains("return status 0"), "{text}");
    }
}

/// perftest, which exchanges its parameters by a connection of its own.
#[test]
fn perftest_connects_by_the_manager() {
    for program in ["ib_send_lat", "ib_write_bw", "ib_read_lat"] {
        let base = [program, "-R", "-F", "-x", "0", "-n", "200"];
        let client = [base.as_slice(), &["127.0.0.1"]].concat();
        // It listens twice at one port, and its client does not wait for the second time.
        let pair = CmPair { server: &base, client: &client, port: Port::By("-p") };
        let Some([_, text]) = pair.run() else { continue };
        assert_eq!(rows(&text), 1, "{program}: {text}");
    }
}

/// With another device in `DOORBELL_DEVICE`, programs run as they are.
#[test]
fn another_device_is_left_to_rdma_core() {
    let preload = |device| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"))
            .args(["run", "--", "sh", "-c", "echo preload $LD_PRELOAD"])
            .env("DOORBELL_DROPIN", pairs::library())
            .env("DOORBELL_DEVICE", device)
            .env_remove("LD_PRELOAD")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(preload("rxe0"), "preload\n");
    for own in ["", "soft0"] {
        assert!(preload(own).contains("doorbell_dropin"), "{own}");
    }
}
