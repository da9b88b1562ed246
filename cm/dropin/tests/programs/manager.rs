//! Programs of librdmacm.

use crate::pairs::{HERE, Meets, PORT, Sides, free_port, meet};

/// Messages, WRITE and READ in turn, connections by the dozen, endpoints, datagrams and groups.
/// Each line: the server, the client without its address, the option for that, and the text with
/// which both end.
#[test]
fn programs_of_the_connection_manager_run() {
    let runs: &[(&[&str], &[&str], &str)] = &[
        (
            &["rping", "-s", "-C", "20", "-v", "-V"],
            &["rping", "-c", "-C", "20", "-v", "-V", "-a", HERE],
            "rdma-ping-19:",
        ),
        (&["rping", "-s", "-q"], &["rping", "-c", "-q", "-v", "-C", "3", "-a", HERE], ""),
        (&["rdma_server"], &["rdma_client", "-s", HERE], ": end 0"),
        (&["rdma_xserver", "-c", "r"], &["rdma_xclient", "-c", "r", "-s", HERE], ": end 0"),
        (&["rdma_xserver", "-c", "x"], &["rdma_xclient", "-c", "x", "-s", HERE], ": end 0"),
        (
            &["ucmatose", "-c", "8", "-C", "20"],
            &["ucmatose", "-c", "8", "-C", "20", "-s", HERE],
            "return status 0",
        ),
        (
            &["ucmatose", "-c", "10", "-C", "100"],
            &["ucmatose", "-c", "10", "-C", "100", "-s", HERE],
            "return status 0",
        ),
        (&["ucmatose", "-m"], &["ucmatose", "-m", "-s", HERE], "return status 0"),
    ];
    for (server, client, end) in runs {
        let port = ["-p", PORT];
        let sides =
            Sides::new(&[server, &port[..]].concat(), &[client, &port[..]].concat(), Meets::Soft);
        for text in sides.run().into_iter().flatten() {
            assert!(text.contains(end), "{client:?}: nobody says {end}: {text}");
        }
    }
}

/// Datagrams. The program has a port of its own.
#[test]
fn datagrams_of_the_connection_manager_run() {
    for more in [&[][..], &["-c", "5"]] {
        let server = [&["udaddy"], more].concat();
        let client = [server.as_slice(), &["-s", HERE]].concat();
        let sides = Sides::new(&server, &client, Meets::Soft).at(7174);
        for text in sides.run().into_iter().flatten() {
            assert!(text.contains("return status 0"), "{more:?}: {text}");
        }
    }
}

/// The times of a hundred connections, step by step. The server goes on.
#[test]
fn the_connection_manager_is_timed() {
    let client = ["cmtime", "-p", PORT, "-c", "100", "-s", HERE];
    let sides = Sides::new(&client[..3], &client, Meets::Soft).goes_on();
    let Some(text) = sides.run_client() else { return };
    let steps = ["create id", "resolve addr", "connect", "disconnect", "destroy"];
    let missing = steps.iter().find(|step| !text.lines().any(|line| line.starts_with(**step)));
    assert_eq!(missing, None, "{text}");
}

/// A group with one member, and one that only sends to it. The group is this run's own.
#[test]
fn multicast_of_the_connection_manager_runs() {
    let [high, low] = free_port().to_be_bytes();
    let group = format!("239.7.{high}.{low}");
    let receiver = ["mckey", "-m", &group, "-b", HERE];
    let sender = ["mckey", "-s", "-m", &group, "-b", HERE];
    let name = format!("ffffef07{high:02x}{low:02x}");
    for text in meet(&receiver, &sender, &name).into_iter().flatten() {
        assert!(text.contains("return status 0"), "{text}");
    }
}
