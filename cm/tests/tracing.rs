//! The events that the control plane tells `tracing`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{Dialer, Listener, Runtime};
use doorbell_engine::worker::{
    Config, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell_seam::provider::Provider;
use doorbell_soft::SoftDevice;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps each event as a line: level, message, fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => write!(self.message, "{value:?}").unwrap(),
            name => write!(self.fields, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "doorbell"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let line = format!("{} {}{}", event.metadata().level(), line.message, line.fields);
        self.0.lock().unwrap().push(line);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Panics at a peer that is up, if it is told to.
struct Plain(bool);

impl<P: Provider> Handler<P> for Plain {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
    fn on_peer_up(&mut self, _: PeerId, _: &mut Outbox<'_, P>) {
        assert!(!self.0, "as it was told");
    }
}

fn worker(nic: &SoftDevice, config: &Config) -> (Worker<SoftDevice, Plain>, Intake<SoftDevice>) {
    let shared = SharedRecv::new(nic, Mapping::plain(config.recv_bytes()).unwrap(), config);
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    Worker::new(nic, &shared.unwrap(), memory, Plain(false), config).unwrap()
}

/// One test, because a process has one subscriber for all threads.
#[test]
fn connections_are_told_from_their_beginning_to_their_end() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let has = |start: &str, part: &str| {
        let lines = lines.0.lock().unwrap();
        lines.iter().any(|line| line.starts_with(start) && line.contains(part))
    };
    let nic = SoftDevice::open().unwrap();
    let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr().unwrap();
    // Room for one peer: the second is refused.
    let (mut serving, intake) = worker(&nic, &Config { peers: 1, ..Config::DEFAULT });
    listener.feed(intake);
    let (mut dialing, intake) = worker(&nic, &Config { peers: 4, ..Config::DEFAULT });
    let limit = Duration::from_secs(60);
    let dialer = std::thread::scope(|scope| {
        let dials = scope.spawn(|| {
            let mut dialer = Dialer::new(&nic).unwrap();
            drop(dialer.dial(addr, &intake, limit).unwrap());
            dialer.dial(addr, &intake, limit).map(drop).unwrap_err();
            dialer
        });
        while !dials.is_finished() {
            listener.step(Duration::from_millis(1)).unwrap();
        }
        dials.join().unwrap()
    });
    for (start, part) in [
        ("INFO connecting", &*format!("peer={addr}")),
        ("INFO accepted", "peer=\"127.0.0.1"),
        ("INFO connected", &*format!("peer=\"{addr}\" qp=")),
        ("WARN refused", "reason=NoSlot"),
        ("WARN not connected", "event=Rejected"),
    ] {
        assert!(has(start, part), "{start} {part}: {:?}", lines.0);
    }
    assert!(!has("INFO ended", "") && !has("WARN ended", ""), "{:?}", lines.0);
    drop(dialer);
    let begin = Instant::now();
    while !has("WARN ended", "why=\"the peer ended it\"") {
        listener.step(Duration::from_millis(1)).unwrap();
        serving.turn();
        dialing.turn();
        assert!(begin.elapsed() < limit, "the end is not told: {:?}", lines.0);
    }
    let mut runtime = Runtime::new(&nic, &Config { peers: 4, ..Config::DEFAULT });
    runtime.add(Plain(true)).unwrap();
    let addr = runtime.listen("127.0.0.1:0").unwrap();
    runtime.dial(addr).unwrap();
    runtime.run().unwrap_err();
    assert!(has("ERROR lost", "part=\"worker 0\""), "{:?}", lines.0);
}
