//! Two devices over the wire: the ports hide the faults of the network, or report them.
#![expect(unsafe_code, reason = "posts, and looks at memory the device writes")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "one owner of all memory: the test")]

mod one_sided;

use std::cell::Cell;
use std::vec::Vec;

use doorbell_alloc::Mapping;

use super::*;
use crate::error::SetupError;
use crate::provider::{Access, Poller, Provider, Qp, QpCaps, QpType, Region, Sharing, Srq};
use crate::wc::{Status, Wc};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use crate::{Host, Soft, SoftPoller, SoftQp, SoftQpEx, SoftQpInit, SoftRegion, SoftSrq, Wiring};

std::thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

fn memory(bytes: usize) -> Result<Mapping, SetupError> {
    Ok(Mapping::plain(bytes).unwrap())
}

struct End {
    nic: Soft,
    poller: SoftPoller,
    qp: SoftQp,
    srq: SoftSrq,
    region: SoftRegion,
    seen: Vec<Wc>,
}

const CAPS: QpCaps = QpCaps { send_wr: 1024, recv_wr: 0, send_sge: 1, recv_sge: 1, inline: 64 };
const BLOCK: usize = 4096;

fn end() -> End {
    let nic = Soft::new("sim0", Host::alone(|| NOW.get()), None);
    let (cq, poller) = nic.create_cq(4096, Sharing::Exclusive).unwrap();
    let srq = nic.create_srq(1024).unwrap();
    let init = SoftQpInit {
        kind: QpType::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: Some(&srq),
        caps: CAPS,
        signal_all: false,
        ex: SoftQpEx::default(),
    };
    let qp = nic.create_qp(&init).unwrap();
    let region = nic.register(memory(1024 * BLOCK).unwrap(), Access::all()).unwrap();
    End { nic, poller, qp, srq, region, seen: Vec::new() }
}

impl End {
    fn sge(&self, block: usize, length: usize) -> Sge {
        let addr = self.region.as_ptr() as u64 + (block * BLOCK) as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    fn recv(&self, count: u64) {
        for n in 0..count {
            let wr = RecvWr { wr_id: n, sge: self.sge(n as usize, BLOCK) };
            unsafe { self.srq.post(&[wr]) }.unwrap();
        }
    }

    /// Message `n`, from a block of its own: its number, padded to a varying length.
    fn send(&mut self, n: u64) {
        let at = 512 + n as usize % 512;
        let length = 8 + (mix(n) % 3000) as usize;
        unsafe {
            self.region.as_ptr().add(at * BLOCK).cast::<u64>().write(n);
        }
        let wr = SendWr {
            wr_id: n,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            sge: self.sge(at, length),
            more: &[],
        };
        unsafe { self.qp.post(&[wr]) }.unwrap();
    }

    fn number_in(&self, block: u64) -> u64 {
        unsafe { self.region.as_ptr().add(block as usize * BLOCK).cast::<u64>().read() }
    }
}

const FAIR: Weather =
    Weather { loss: 0, double: 0, reorder: 0, delay_ns_min: 700, delay_ns_max: 700 };
const PATIENCE: Patience = Patience { timeout_ns: 20_000, retry_cnt: 5, window: 16, kept: 32 };

struct Pair {
    conn: usize,
    wire: Wire,
    ends: [End; 2],
    events: Vec<(u64, Event)>,
}

fn pair(weather: Weather, rnr_retry: u8) -> Pair {
    let mut wire = Wire::new(Prng::new(1), weather, PATIENCE, memory);
    let ends = [end(), end()];
    let wiring = Wiring {
        peer: 0,
        peer_rnr_retry: rnr_retry,
        rnr_timer_ns: 1000,
        initiator_depth: 4,
        responder_depth: 4,
    };
    let controls = [ends[0].qp.control(), ends[1].qp.control()];
    let conn = wire.connect([&controls[0], &controls[1]], [wiring; 2]).unwrap();
    wire.start(conn, &controls[0], wiring);
    Pair { conn, wire, ends, events: Vec::new() }
}

impl Pair {
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            for end in &mut self.ends {
                let mut out = [Wc::default(); 8];
                let count = end.poller.poll(&mut out);
                end.seen.extend(&out[..count]);
            }
            NOW.set(NOW.get() + 500);
            self.wire.advance(NOW.get());
            self.events.extend(self.wire.events());
            assert_eq!(self.wire.broken(), None);
        }
    }

    fn assert_all_arrived(&mut self, count: u64) {
        let [one, two] = &self.ends;
        let sent: Vec<_> = one.seen.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(sent, (0..count).map(|n| (n, Status::Success)).collect::<Vec<_>>());
        let got: Vec<_> = two.seen.iter().map(|wc| two.number_in(wc.wr_id)).collect();
        assert_eq!(got, (0..count).collect::<Vec<_>>());
        let lengths = two.seen.iter().map(|wc| u64::from(wc.byte_len)).collect::<Vec<_>>();
        assert_eq!(lengths, (0..count).map(|n| 8 + mix(n) % 3000).collect::<Vec<_>>());
    }

    fn has(&self, wanted: fn(&Event) -> bool) -> bool {
        self.events.iter().any(|(_, event)| wanted(event))
    }
}

#[test]
fn fair_weather_delivers_in_order() {
    let mut pair = pair(FAIR, 7);
    pair.ends[1].recv(200);
    (0..200).for_each(|n| pair.ends[0].send(n));
    pair.run(2000);
    pair.assert_all_arrived(200);
    assert!(!pair.has(|event| matches!(event, Event::TimedOut { .. })));
}

/// Loss, doubles and reordering happen and do not show.
#[test]
fn foul_weather_is_hidden() {
    let mut pair = pair(Weather { loss: 100, double: 200, reorder: 300, ..FAIR }, 7);
    pair.ends[1].recv(300);
    (0..300).for_each(|n| pair.ends[0].send(n));
    pair.run(40_000);
    pair.assert_all_arrived(300);
    assert!(pair.has(|event| matches!(event, Event::TimedOut { .. })));
    assert!(pair.has(|event| matches!(event, Event::Sent { copies: 2, .. })));
    assert!(pair.has(|event| matches!(event, Event::Arrived { new: false, .. })));
}

/// Nothing gets through: the first send fails with status 12 after all retries, the rest is
/// flushed.
#[test]
fn a_dead_network_ends_in_retry_exhaustion() {
    let mut pair = pair(Weather { loss: 1024, ..FAIR }, 7);
    pair.ends[1].recv(10);
    (0..3).for_each(|n| pair.ends[0].send(n));
    pair.run(220);
    assert!(pair.ends[0].seen.is_empty(), "five retries take longer");
    pair.run(60);
    let ends: Vec<_> = pair.ends[0].seen.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let want = [(0, Status::RetryExceeded), (1, Status::Flushed), (2, Status::Flushed)];
    assert_eq!(ends, want);
    assert!(pair.ends[1].seen.is_empty());
    let tries = pair.events.iter().filter(|(_, event)| matches!(event, Event::TimedOut { .. }));
    assert_eq!(tries.count(), 5);
}

/// A send completes only when the far domain took it, not when its port did.
#[test]
fn nothing_completes_before_it_is_taken() {
    let mut pair = pair(FAIR, 7);
    (0..3).for_each(|n| pair.ends[0].send(n));
    pair.run(400);
    assert!(pair.ends[0].seen.is_empty(), "nobody has a receive");
    assert!(pair.has(|event| matches!(event, Event::Arrived { new: true, .. })));
    pair.ends[1].recv(3);
    pair.run(400);
    pair.assert_all_arrived(3);
}

/// A refusal of the far domain crosses a network that loses most of what it carries.
#[test]
fn refusals_come_back_through_loss() {
    let mut pair = pair(Weather { loss: 400, ..FAIR }, 0);
    pair.ends[1].recv(2);
    (0..4).for_each(|n| pair.ends[0].send(n));
    pair.run(4000);
    let ends: Vec<_> = pair.ends[0].seen.iter().map(|wc| wc.status).collect();
    use Status::{Flushed, RnrRetryExceeded, Success};
    assert_eq!(ends, [Success, Success, RnrRetryExceeded, Flushed]);
    assert_eq!(pair.ends[1].seen.len(), 2);
}

/// The same seed gives the same history, to the last packet.
#[test]
fn a_seed_replays() {
    let history = || {
        NOW.set(0);
        let mut pair = pair(Weather { loss: 100, double: 100, reorder: 100, ..FAIR }, 7);
        pair.ends[1].recv(50);
        (0..50).for_each(|n| pair.ends[0].send(n));
        pair.run(4000);
        pair.events
    };
    let first = history();
    assert!(first.len() > 100);
    assert_eq!(first, history());
}

/// Lines are reused, but not once their last connection is gone.
#[test]
fn connections_come_and_go() {
    let mut pair = pair(FAIR, 7);
    let wiring = Wiring {
        peer: 0,
        peer_rnr_retry: 7,
        rnr_timer_ns: 0,
        initiator_depth: 4,
        responder_depth: 4,
    };
    for n in 0..5 {
        pair.wire.close(n);
        let fresh = end();
        let nic = fresh.nic.clone();
        let other = core::mem::replace(&mut pair.ends[0], fresh);
        drop((other, nic));
        pair.ends[1] = end();
        let ends = [pair.ends[0].qp.control(), pair.ends[1].qp.control()];
        let conn = pair.wire.connect([&ends[0], &ends[1]], [wiring; 2]).unwrap();
        pair.wire.start(conn, &ends[0], wiring);
        assert_eq!(conn, n + 1);
        pair.ends[1].recv(3);
        (0..3).for_each(|n| pair.ends[0].send(n));
        pair.run(400);
        pair.assert_all_arrived(3);
    }
}
