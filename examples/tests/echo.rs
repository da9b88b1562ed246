//! `echo` in two processes: it ends with the error's text whatever fails, and cleanly on a signal.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod process;

use process::{Running, program};

const ECHO: &str = env!("CARGO_BIN_EXE_echo");

#[test]
fn a_client_gets_its_answers_and_the_server_ends_after_it() {
    let mut server =
        Running::start(program(ECHO).args(["server", "--connections", "1", "--port", "0"]));
    let port = server.port();
    let client = Running::start(program(ECHO).args(["client", "--count", "3000"]).args(port));
    client.ends_with(0, "3000 of 3000 answers right");
    server.ends_with(0, "3000 messages, 1 peers");
}

/// The server promises a client 128 receives at most, so sends beyond those wait for credit.
#[test]
fn a_window_beyond_the_credit_waits_for_it() {
    let mut server =
        Running::start(program(ECHO).args(["server", "--connections", "1", "--port", "0"]));
    let port = server.port();
    let words = ["client", "--count", "3000", "--window", "200"];
    let client = Running::start(program(ECHO).args(words).args(port));
    client.ends_with(0, "3000 of 3000 answers right");
    server.ends_with(0, "3000 messages, 1 peers");
}

#[test]
fn signals_end_a_server_with_its_counters() {
    for signal in ["INT", "TERM"] {
        let mut server = Running::start(program(ECHO).args(["server", "--port", "0"]));
        let port = server.port();
        let client = Running::start(program(ECHO).args(["client", "--count", "10"]).args(port));
        client.ends_with(0, "10 of 10 answers right");
        server.signal(signal);
        server.ends_with(0, "10 messages, ");
    }
}

/// The whole server is gone, so the client gets an error and does not wait for ever.
#[test]
fn a_client_ends_with_its_server() {
    let mut server = Running::start(program(ECHO).args(["server", "--port", "0"]));
    let port = server.port();
    let words = ["client", "--count", "1000000000000"];
    let client = Running::start(program(ECHO).args(words).args(port));
    server.signal("KILL");
    client.ends_with(1, "echo: ");
}

#[test]
fn a_worker_too_many_ends_the_server_with_the_numbers() {
    let server = Running::start(program(ECHO).args(["server", "--workers", "17"]));
    server.ends_with(1, "of 1024 blocks 0 are not promised");
}

#[test]
fn a_port_in_use_ends_the_server() {
    let mut first = Running::start(program(ECHO).args(["server", "--port", "0"]));
    let port = first.port();
    let second = Running::start(program(ECHO).arg("server").args(port));
    second.ends_with(1, "the port is taken");
    first.signal("TERM");
    first.ends_with(0, "worker 1: 0 messages");
}

#[test]
fn an_unknown_device_ends_both_sides() {
    for side in ["server", "client"] {
        let echo = Running::start(program(ECHO).args([side, "--device", "mlx5_77"]));
        echo.ends_with(1, "there is no such device here");
    }
}

#[test]
fn a_refused_dial_ends_the_client() {
    let client = Running::start(program(ECHO).args(["client", "--port", "1"]));
    client.ends_with(1, "nobody listens there");
}
