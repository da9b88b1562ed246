//! Programs of Debian's packages, unmodified, on both sides over the drop-in. A program that is not
//! installed is skipped.

mod pairs;

use pairs::{Pair, run};

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
}

/// The contents of each message are checked, also of those that are longer than a link's ring.
#[test]
fn a_pingpong_finds_its_bytes_unchanged() {
    for size in ["4096", "100000"] {
        let args = ["-d", "soft0", "-g", "0", "-n", "50", "-c", "-s", size];
        let pair = Pair { program: "ibv_rc_pingpong", args: &args, more: &[] };
        let Some(text) = pair.run() else { continue };
        assert!(!text.contains("invalid data"), "{text}");
    }
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
        // These watch memory, or leave the other side to itself.
        ("ib_write_lat", &[]),
        ("ib_write_bw", &["-s", "4096"]),
        ("ib_write_bw", &["-s", "4096", "-c", "UC"]),
        ("ib_read_lat", &[]),
        ("ib_read_bw", &["-s", "4096", "-e"]),
        ("ib_atomic_lat", &[]),
        ("ib_atomic_bw", &[]),
    ];
    for (program, more) in runs {
        let Some(text) = (Pair { program, args: BASE, more }).run() else { continue };
        let rows = text.lines().filter(|line| line.split_whitespace().nth(1) == Some("200"));
        assert_eq!(rows.count(), 1, "{program} {more:?}: {text}");
    }
}
