//! Workers over devices with faults: the legal ones do not show, a planted one does.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use doorbell_alloc::Mapping;
use doorbell_engine::worker::{Config, Handler, Intake, Message, Outbox, PeerData, PeerId};
use doorbell_engine::worker::{SharedRecv, Verdict, Worker};
use doorbell_seam::prng::Prng;
use doorbell_seam::provider::fault::{Fault, FaultQp, Odds, Plant};
use doorbell_seam::provider::{Provider, Qp};
use doorbell_soft::{Host, LINK_BYTES, LinkShared, Soft, SoftQpEx, SoftQpInit, Wiring};

#[derive(Default)]
struct Log {
    up: Option<PeerId>,
    got: Vec<Vec<u8>>,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        self.got.push(message.bytes().to_vec());
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, P>) {
        self.up = Some(peer);
    }
}

struct Side {
    nic: Fault<Soft>,
    worker: Worker<Fault<Soft>, Log>,
    intake: Intake<Fault<Soft>>,
}

fn side(odds: Odds, plant: Option<Plant>) -> Side {
    let config = Config { peers: 2, recv_blocks: 64, refill: 8, ..Config::DEFAULT };
    let nic = Fault::new(Soft::new("soft0", Host::alone(|| 0), None), Prng::new(5), odds, plant);
    let memory = Mapping::plain(config.recv_bytes()).unwrap();
    let shared = SharedRecv::new(&nic, memory, &config).unwrap();
    let memory = Mapping::plain(config.send_bytes()).unwrap();
    let (worker, intake) = Worker::new(&nic, &shared, memory, Log::default(), &config).unwrap();
    Side { nic, worker, intake }
}

fn queue_pair(side: &Side) -> FaultQp<Soft> {
    let cq = side.intake.cq();
    let qp = side.nic.inner().create_qp(&SoftQpInit {
        kind: doorbell_seam::provider::QpType::Rc,
        send_cq: cq.inner(),
        recv_cq: cq.inner(),
        srq: Some(side.intake.srq().inner()),
        caps: side.intake.qp_caps(),
        signal_all: false,
        ex: SoftQpEx::default(),
    });
    side.nic.wrap(qp.unwrap(), cq)
}

/// Sends 200 messages, in batches, over a device with these faults; what arrives.
fn cross(odds: Odds, plant: Option<Plant>) -> Vec<Vec<u8>> {
    let mut sides = [side(odds, plant), side(odds, plant)];
    let qps = [queue_pair(&sides[0]), queue_pair(&sides[1])];
    let nums = [qps[0].num(), qps[1].num()];
    let mut grants = [0, 1].map(|n| sides[n].intake.reserve().ok());
    let data = PeerData::default();
    let handshakes = grants.each_ref().map(|grant| grant.as_ref().unwrap().handshake(&data));
    let (one, two) = LinkShared::pair(Mapping::plain(LINK_BYTES).unwrap()).unwrap();
    for (n, (qp, link)) in qps.into_iter().zip([Arc::new(one), Arc::new(two)]).enumerate() {
        let control = qp.inner().control();
        control.attach(&link);
        let wiring = Wiring {
            peer: nums[1 - n],
            peer_rnr_retry: 7,
            rnr_timer_ns: 0,
            initiator_depth: 4,
            responder_depth: 4,
        };
        control.connect(&link, wiring);
        let Some(grant) = grants[n].take() else { continue };
        let greeting = sides[n].intake.check_peer(handshakes[1 - n].bytes()).unwrap();
        assert!(sides[n].intake.admit(qp, grant, None, Some(greeting)).is_ok());
        assert!(sides[n].intake.up(nums[n], greeting));
        sides[n].worker.turn();
    }
    let mut sent = 0u8;
    for round in 0..3000 {
        let peer = sides[0].worker.handler().up.unwrap();
        for _ in 0..round % 4 {
            let message = vec![sent; usize::from(sent) % 50];
            if sent < 200 && sides[0].worker.outbox().send(peer, &message).is_ok() {
                sent += 1;
            }
        }
        sides.iter_mut().for_each(|side| {
            side.worker.turn();
        });
    }
    for stats in sides.each_ref().map(|side| side.worker.stats()) {
        assert!(stats.doorbells <= stats.sent, "a refused post is no doorbell: {stats:?}");
    }
    core::mem::take(&mut sides[1].worker.handler_mut().got)
}

fn all() -> Vec<Vec<u8>> {
    (0..200u8).map(|n| vec![n; usize::from(n) % 50]).collect()
}

/// Legal faults do not show: what a post left over is sent later, unaltered.
#[test]
fn legal_faults_do_not_show() {
    assert_eq!(cross(Odds::default(), None), all());
    let odds = Odds {
        partial_post: 600,
        refuse: 600,
        early_doorbell: 300,
        more: 300,
        empty_poll: 300,
        short_poll: 300,
        doze: 3,
        refuse_command: 0,
    };
    assert_eq!(cross(odds, None), all());
    let refusals = Odds { refuse: 1024, partial_post: 1000, ..Odds::default() };
    assert_eq!(cross(refusals, None), all());
}

/// A mistake is made on its own path only. Messages go inline with a later doorbell; where the
/// device refuses that, they go as a list of requests.
#[test]
fn a_mistake_shows_on_its_own_path() {
    let lists = Odds { refuse: 1024, ..Odds::default() };
    for (odds, plant) in [(Odds::default(), Plant::LostLater), (lists, Plant::LostTail)] {
        let got = cross(odds, Some(plant));
        assert!(got.len() < 200 && got != all(), "{plant:?}");
    }
    assert_eq!(cross(lists, Some(Plant::LostLater)), all());
}
