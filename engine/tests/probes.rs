//! The static probes are in a program that uses a worker: `readelf -n` lists them.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeMap;
use std::env::current_exe;
use std::process::Command;

use doorbell_alloc::Mapping;
use doorbell_engine::worker::{
    Config, Handler, Message, Outbox, PeerId, Request, SharedRecv, Verdict, Worker,
};
use doorbell_seam::provider::Provider;
use doorbell_seam::remote::RequestOp;
use doorbell_soft::{Host, Soft};

/// Makes each call that has a probe.
struct All;

impl<P: Provider> Handler<P> for All {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Reply { len: message.len() }
    }
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let request = Request { op: RequestOp::SEND, pieces: &[], fence: false, token: 1 };
        let _ = (out.send(peer, b"one"), out.send_now(peer, b"two"), out.request(peer, &request));
    }
}

/// The probes of this program: the number of places of each, and its arguments.
fn listed() -> BTreeMap<String, (usize, usize)> {
    let done = Command::new("readelf").arg("-n").arg(current_exe().unwrap()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    let mut probes = BTreeMap::new();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for lines in lines.windows(4).filter(|lines| lines[0] == "Provider: doorbell") {
        let name = lines[1].strip_prefix("Name: ").unwrap();
        assert!(lines[2].starts_with("Location: 0x"), "{lines:?}");
        let arguments = lines[3].strip_prefix("Arguments:").unwrap();
        let place: &mut (usize, usize) = probes.entry(name.to_owned()).or_default();
        *place = (place.0 + 1, arguments.split_whitespace().count());
    }
    probes
}

#[test]
fn readelf_lists_the_probes() {
    let nic = Soft::new("soft0", Host::alone(|| 0), None);
    let config = &Config { peers: 2, recv_blocks: 512, ..Config::DEFAULT };
    let shared =
        SharedRecv::new(&nic, Mapping::plain(config.recv_bytes()).unwrap(), config).unwrap();
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    let (mut worker, _intake) = Worker::new(&nic, &shared, memory, All, config).unwrap();
    worker.turn();
    let probes = listed();
    for (name, arguments) in [
        ("message", 2),
        ("send", 2),
        ("reply", 2),
        ("request", 2),
        ("request_done", 3),
        ("doorbell", 2),
        ("credit_stall", 1),
        ("peer_up", 1),
        ("peer_down", 1),
    ] {
        let found = probes.get(name).copied().unwrap_or_default();
        assert!(found.0 > 0 && found.1 == arguments, "{name}: {found:?} of {probes:?}");
    }
}
