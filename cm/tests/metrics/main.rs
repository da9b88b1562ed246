//! Metrics of several workers, listeners and dialers: one text, as Prometheus reads it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod checker;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use checker::check;
use doorbell_alloc::Mapping;
use doorbell_cm::{Backoff, Dialer, Listener, Runtime, read_metrics};
use doorbell_engine::latency::Latency;
use doorbell_engine::metrics::Metrics;
use doorbell_engine::worker::{
    Config, Handler, Intake, Message, Outbox, SharedRecv, Stats, Verdict, Worker,
};
use doorbell_seam::provider::Provider;
use doorbell_soft::SoftDevice;

struct Echo;

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Reply { len: message.len() }
    }
}

fn worker(nic: &SoftDevice) -> (Worker<SoftDevice, Echo>, Intake<SoftDevice>) {
    let config = &Config { peers: 4, ..Config::DEFAULT };
    let shared = SharedRecv::new(nic, Mapping::plain(config.recv_bytes()).unwrap(), config);
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    Worker::new(nic, &shared.unwrap(), memory, Echo, config).unwrap()
}

/// Two listeners; a dialer with a connection to one of them and one that it has given up; and three
/// workers.
fn text() -> String {
    let nic = SoftDevice::open().unwrap();
    let any = || Listener::bind(&nic, "127.0.0.1:0".parse().unwrap()).unwrap();
    let (mut quotes, orders) = (any(), any());
    let (mut serving, intake) = worker(&nic);
    quotes.feed(intake);
    let (mut dialing, intake) = worker(&nic);
    let (mut resting, _intake) = worker(&nic);
    let mut dialer = Dialer::new(&nic).unwrap();
    let addr = quotes.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while quotes.connections() == 0 {
                quotes.step(Duration::from_millis(5)).unwrap();
            }
        });
        dialer.dial(addr, &intake, Duration::from_secs(60)).unwrap();
    });
    // Nobody listens at the address of `orders` once it is dropped.
    let gone = orders.local_addr().unwrap();
    drop(orders);
    let orders = any();
    dialer.keep(gone, &intake, Backoff { tries: 1, ..Backoff::DEFAULT });
    let begin = Instant::now();
    while dialer.given_up().count() == 0 {
        dialer.step(Duration::from_millis(5)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60), "it is never given up");
    }
    for _ in 0..5000 {
        [&mut serving, &mut dialing, &mut resting].into_iter().for_each(|worker| {
            worker.turn();
        });
    }
    let mut metrics = Metrics::new();
    for (name, stats) in [
        ("0", serving.handle().stats()),
        ("1", dialing.handle().stats()),
        ("a \"name\" with \\ and\na line", resting.handle().stats()),
    ] {
        metrics.worker(name, &stats);
    }
    metrics.worker("0", &serving.handle().stats()); // It replaces the first.
    let failed = Stats { errors: 4, ..Stats::default() };
    metrics.worker("failed", &Stats { errors_by_status: [4; 22], ..failed });
    quotes.report("quotes", &mut metrics);
    orders.report("orders", &mut metrics);
    dialer.report("feeds", &mut metrics);
    let mut latency = Latency::new();
    (1..1000).for_each(|value| latency.record(value * value));
    for call in ["get", "put"] {
        let help = "Time from a call to its answer.";
        metrics.latency("doorbell_call_seconds", help, &[("call", call)], &latency, 1e-9);
    }
    metrics.latency("doorbell_idle_seconds", "Never recorded.", &[], &Latency::new(), 1e-9);
    metrics.gauge("1 own", "A name that may not be,\nand help in two lines.", &[("a b", "")], 1);
    metrics.to_string()
}

#[test]
fn the_text_keeps_the_rules() {
    let text = text();
    check(&text).unwrap_or_else(|what| panic!("{what}\n{text}"));
    ask_promtool(&text);
    for line in [
        "doorbell_worker_peers{worker=\"0\"} 1\n",
        "doorbell_worker_peers{worker=\"1\"} 1\n",
        "doorbell_listener_connections{listener=\"quotes\"} 1\n",
        "doorbell_listener_connections{listener=\"orders\"} 0\n",
        "doorbell_dialer_connections{dialer=\"feeds\"} 1\n",
        "doorbell_dialer_given_up{dialer=\"feeds\"} 1\n",
        "doorbell_worker_status_errors_total{worker=\"failed\",status=\"13\"} 4\n",
        "doorbell_call_seconds_count{call=\"put\"} 999\n",
        "{worker=\"a \\\"name\\\" with \\\\ and\\na line\"} ",
        "_1_own{a_b=\"\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// The verdict of the tool itself, where it is installed (Debian's package `prometheus`).
fn ask_promtool(text: &str) {
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut running) = tool.stdout(Stdio::piped()).spawn() else { return };
    running.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && said.is_empty(), "{said}");
}

/// A runtime serves its metrics from its control plane: of a program that listens, that dials, and
/// that does both.
#[test]
fn a_runtime_exports_its_metrics() {
    let process = std::process::id().to_string();
    let nic = SoftDevice::open().unwrap();
    let mut server = Runtime::new(&nic, &Config { peers: 4, ..Config::DEFAULT });
    server.add(Echo).unwrap();
    let addr = server.listen("127.0.0.1:0").unwrap();
    for both in [true, false] {
        let mut runtime = Runtime::new(&nic, &Config { peers: 4, ..Config::DEFAULT });
        runtime.add(Echo).unwrap();
        runtime.add(Echo).unwrap();
        let own = both.then(|| runtime.listen("127.0.0.1:0").unwrap());
        runtime.dial(own.unwrap_or(addr)).unwrap();
        runtime.export().unwrap();
        let control = match own {
            Some(addr) => format!("doorbell_listener_connections{{listener=\"{addr}\"}} 1\n"),
            None => "doorbell_dialer_connections{dialer=\"0\"} 1\n".to_owned(),
        };
        let (stop, stop_server) = (runtime.stopper(), server.stopper());
        let text = std::thread::scope(|scope| {
            let serving = (!both).then(|| scope.spawn(|| server.run().unwrap()));
            let running = scope.spawn(|| runtime.run().unwrap());
            let begin = Instant::now();
            let text = loop {
                let text = read_metrics(&process).unwrap_or_default();
                if text.contains(&control) || begin.elapsed() > Duration::from_secs(60) {
                    break text;
                }
            };
            stop.stop();
            running.join().unwrap();
            if let Some(serving) = serving {
                stop_server.stop();
                serving.join().unwrap();
            }
            text
        });
        check(&text).unwrap_or_else(|what| panic!("{what}\n{text}"));
        for line in [
            "doorbell_worker_peers{worker=\"0\"} ",
            "doorbell_worker_peers{worker=\"1\"} ",
            &control,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
    assert!(read_metrics(&process).is_err(), "the export ends with the run");
}

/// Each rule of the checker catches a text that breaks it.
#[test]
fn the_checker_finds_each_mistake() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n";
    let histogram = "# HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\n\
                     h_bucket{le=\"+Inf\"} 3\nh_sum 4\nh_count 3\n";
    assert_eq!(check(&format!("{good}{histogram}")), Ok(()));
    for (from, to) in [
        ("a_total{b=\"c\"} 1\n", "a_total{b=\"c\"} 1\na_total{b=\"c\"} 1\n"),
        ("a_total{b=\"c\"} 1\n", "b_total{b=\"c\"} 1\n"),
        ("a_total{b=\"c\"} 1\n", "a_total{b=\"c\"} one\n"),
        ("a_total{b=\"c\"} 1\n", "a_total{b=\"c\"} -1\n"),
        ("b=\"c\"", "b=\"c\",b=\"d\""),
        ("b=\"c\"", "b=\"c\","),
        ("b=\"c\"", "b=\"\\c\""),
        ("b=\"c\"", "b=\"c"),
        ("b=\"c\"", "__b=\"c\""),
        ("b=\"c\"", "le=\"1\""),
        ("# HELP a_total A.\n", ""),
        ("# HELP a_total A.\n", "# HELP a_total \n"),
        ("# TYPE a_total counter\n", ""),
        ("# TYPE a_total counter\n", "# TYPE a_total gauge\n"),
        ("# TYPE a_total counter\n", "# TYPE a_total counter\n# TYPE a_total counter\n"),
        ("# TYPE a_total counter\n", "# TYPE a_total number\n"),
        ("a_total", "a"),
        ("a_total", "a_ms"),
        ("a_total", "A_total"),
        ("h_bucket{le=\"1\"} 2\n", "h_bucket{le=\"1\"} 4\n"),
        ("h_bucket{le=\"+Inf\"} 3\n", ""),
        ("h_bucket{le=\"+Inf\"} 3\n", "h_bucket{le=\"0\"} 3\n"),
        ("h_count 3\n", "h_count 2\n"),
        ("h_sum 4\n", ""),
    ] {
        let text = format!("{good}{histogram}").replace(from, to);
        assert!(check(&text).is_err(), "nothing is found in\n{text}");
    }
    assert!(check(good.trim_end()).is_err(), "the last line does not end");
    let twice = format!("{good}{histogram}{}", good.replace("\"c\"", "\"d\""));
    assert!(check(&twice).is_err(), "a family in two places");
}
