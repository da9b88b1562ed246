//! Programs of Debian's packages, unmodified, on both sides over the drop-in. A program that is not
//! installed is skipped.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod absent;
mod hooks;
mod hostile;
mod kills;
mod left;
mod libraries;
mod links;
mod manager;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod opened;
mod pairs;
mod perftest;
mod pyverbs;
mod rust;
mod side;
mod silent;
mod sockets;
mod starved;
mod threads;

use pairs::{Meets, Sides, run};

/// What `ibv_devices` and `ibv_devinfo` print.
#[test]
fn the_device_is_listed_and_describes_itself() {
    let Some(text) = run(&["ibv_devices"]) else { return };
    assert!(text.contains("soft0"), "{text}");
    let Some(text) = run(&["ibv_devinfo", "-v"]) else { return };
    for line in ["hca_id:\tsoft0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "ATOMIC_HCA"] {
        assert!(text.contains(line), "no {line} in {text}");
    }
}

/// A pingpong program of rdma-core, with further options.
fn pingpong(program: &str, more: &[&str]) -> Sides {
    let base = [program, "-d", "soft0", "-g", "0", "-n", "200"];
    Sides::same(&[&base[..], more].concat(), Meets::Tcp)
}

/// The pingpong programs of rdma-core, polling and sleeping. They exchange GID, number and the rest
/// over a socket of their own.
#[test]
fn pingpongs_of_every_transport_run() {
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for more in [&[][..], &["-e"]] {
            let Some(text) = pingpong(program, more).run_client() else { continue };
            assert!(text.contains("200 iters in"), "{program} {more:?}: {text}");
        }
    }
    // This one polls a queue of a channel only.
    for more in [&[][..], &["-e"]] {
        let Some(text) = pingpong("ibv_xsrq_pingpong", more).run_client() else { continue };
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
        let Some(text) = pingpong("ibv_rc_pingpong", &[option]).run_client() else { continue };
        assert!(text.contains(says), "{option}: {text}");
    }
}

/// The contents of each message are checked, also of those that are longer than a link's ring.
#[test]
fn a_pingpong_finds_its_bytes_unchanged() {
    for size in ["4096", "100000"] {
        let Some([text, _]) = pingpong("ibv_rc_pingpong", &["-c", "-s", size]).run() else {
            continue;
        };
        // The server alone looks at the bytes.
        assert!(!text.contains("invalid data"), "{text}");
    }
}

/// With another device in `DOORBELL_DEVICE`, programs run as they are.
#[test]
fn another_device_is_left_to_rdma_core() {
    let preload = |device| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_doorbell"))
            .args(["run", "--", "sh", "-c", "echo preload $LD_PRELOAD"])
            .env("DOORBELL_DROPIN", side::library())
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
