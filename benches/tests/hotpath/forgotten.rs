//! A worker whose control plane nobody steps: it looks for ended peers by itself, at fixed numbers
//! of turns. A program that is busy elsewhere meets such a look between two messages, so it may
//! make a system call, and no allocation. Runs on the device that `DOORBELL_DEVICE` names.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use doorbell::alloc::Mapping;
use doorbell::provider::Provider;
use doorbell::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell::{Device, Dialer, Fabric, Listener, PeerState, Program};

use crate::child::CONFIG;
use crate::count::allocations;

/// A worker looks once in at most this many turns, if its control plane has not been stepped.
const LOOKS_WITHIN: u64 = 1 << 21;

/// Longer than anything takes that is awaited here.
const SOON: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counts {
    up: usize,
    down: usize,
}

impl<P: Provider> Handler<P> for Counts {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }

    fn on_peer_up(&mut self, _: PeerId, _: &mut Outbox<'_, P>) {
        self.up += 1;
    }

    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.down += 1;
    }
}

fn worker<F: Fabric>(device: &F) -> (Worker<F, Counts>, Intake<F>) {
    const TWO: Config = Config { peers: 2, inline_bytes: 64, ..CONFIG };
    let shared = SharedRecv::new(device, Mapping::plain(TWO.recv_bytes()).unwrap(), &TWO).unwrap();
    let memory = Mapping::plain(TWO.send_bytes()).unwrap();
    Worker::new(device, &shared, memory, Counts::default(), &TWO).unwrap()
}

#[test]
fn a_look_at_a_forgotten_control_plane_allocates_nothing() {
    Device::choose(None, None).unwrap().run(Forgotten);
}

/// The address of the device.
fn address() -> IpAddr {
    let given = std::env::var("DOORBELL_ADDR").ok();
    given.as_deref().unwrap_or("127.0.0.1").parse().unwrap()
}

struct Forgotten;

impl Program for Forgotten {
    type Output = ();

    /// The control planes make exactly the steps that bring the connection up, so that the looks
    /// find what the last of them leaves in the channels.
    fn run<F: Fabric>(self, device: F) {
        let mut listener = Listener::bind(&device, SocketAddr::new(address(), 0)).unwrap();
        let (mut served, intake) = worker(&device);
        listener.feed(intake);
        let (mut caller, intake) = worker(&device);
        let mut dialer = Dialer::new(&device).unwrap();
        let addr = listener.local_addr().unwrap();
        let handle = dialer.start(addr, &[], &intake, SOON).unwrap();
        let start = Instant::now();
        while caller.handler().up + served.handler().up < 2 {
            if handle.state() == PeerState::Connecting {
                dialer.step(Duration::ZERO).unwrap();
            }
            if served.handler().up == 0 {
                listener.step(Duration::ZERO).unwrap();
            }
            caller.turn();
            served.turn();
            assert!(start.elapsed() < SOON, "the connection does not come up");
        }
        let before = allocations();
        for worker in [&mut caller, &mut served] {
            let end = worker.stats().turns + 2 * LOOKS_WITHIN;
            while worker.stats().turns < end {
                worker.turn();
            }
        }
        assert_eq!(allocations() - before, 0);
        // They did look: each sees the end of its peer by nothing else.
        drop(dialer);
        let end = caller.stats().turns + 8 * LOOKS_WITHIN;
        while caller.handler().down + served.handler().down < 2 {
            caller.turn();
            served.turn();
            // On an emulated machine two looks may take a minute.
            let late = start.elapsed() > SOON && caller.stats().turns > end;
            assert!(!late, "a worker does not look");
        }
        drop(listener);
    }
}
