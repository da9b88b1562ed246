//! Datagrams of workers: to a port, to a group, and back to the sender.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use doorbell_cm::{Fabric, Port, UDP_QKEY, UdParam};
use doorbell_engine::worker::{
    Config, Datagram, DestinationId, DownReason, Handler, Message, Outbox, PeerId, SendError,
    Verdict,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use crate::bed::{CONFIG, Pair, Side, address, cases, until};

cases! {
    datagrams_go_both_ways_beside_a_peer
    a_group_reaches_every_member_and_answers_find_the_sender
    more_datagrams_than_receives_are_dropped_and_the_rest_goes_on
    ways_are_bounded_and_a_closed_one_is_used_again
    a_port_that_is_gone_may_be_followed_by_another
    a_worker_without_receives_for_datagrams_has_no_port
    a_worker_that_does_not_turn_or_has_ended_gets_no_port
}

const WITH: Config = Config { datagrams: 16, datagram_bytes: 512, destinations: 3, ..CONFIG };

/// Records what arrives, and answers it if told to.
#[derive(Default)]
struct Log {
    answers: bool,
    got: Vec<(u32, Vec<u8>, Option<u32>)>,
    ways: Vec<(u32, DestinationId)>,
    up: Vec<PeerId>,
    messages: usize,
}

impl<P: Provider> Handler<P> for Log {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.messages += 1;
        Verdict::Done
    }
    fn on_datagram(&mut self, datagram: Datagram<'_>, out: &mut Outbox<'_, P>) {
        let from = datagram.source_qp();
        self.got.push((from, datagram.bytes().to_vec(), datagram.imm()));
        if !self.answers {
            return;
        }
        // Each sender is resolved when its first datagram arrives.
        let known = self.ways.iter().find(|(qp, _)| *qp == from).map(|(_, way)| *way);
        let way = known.unwrap_or_else(|| {
            let sender = out.sender_of(&datagram).expect("it has a header");
            let way = out.resolve(&sender, from, UDP_QKEY).expect("a way back");
            self.ways.push((from, way));
            way
        });
        let answered = out.send_to(way, datagram.bytes(), datagram.imm().map(|imm| imm + 1));
        // Datagrams may come faster than answers leave. Who misses an answer asks again.
        assert!(matches!(answered, Ok(()) | Err(SendError::Full)), "{answered:?}");
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {}
}

type Logs<F> = Pair<F, Log, Log>;

fn answers() -> Log {
    Log { answers: true, ..Log::default() }
}

fn open<F: Fabric>(nic: &F, side: &mut Side<F, Log>) -> Port<F> {
    let port = Port::open(nic, SocketAddr::new(address(), 0), &side.intake).expect("a port");
    side.worker.turn();
    port
}

fn way<F: Fabric>(side: &mut Side<F, Log>, to: &UdParam) -> DestinationId {
    side.worker.outbox().resolve(&to.to, to.qp_num, to.qkey).expect("a way")
}

fn datagrams_go_both_ways_beside_a_peer<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &WITH, (Log::default(), answers()), 1);
    let (here, there) = (open(nic, &mut pair.one), open(nic, &mut pair.two));
    let to = way(&mut pair.one, &there.here().expect("where it is"));
    let peer = pair.one.worker.handler().up[0];
    // Inline, in a block, and empty; more of them than there are receives and slots.
    let lengths = [4, 300, 0, 512, 64, 65];
    for round in 0..60 {
        let bytes = vec![round as u8; lengths[round % lengths.len()]];
        let imm = (round % 2 == 0).then_some(round as u32);
        pair.one.worker.outbox().send_to(to, &bytes, imm).expect("sent");
        pair.until("a message", |pair| pair.one.worker.outbox().send(peer, &bytes).is_ok());
        pair.until("an answer", |pair| pair.one.worker.handler().got.len() == round + 1);
        let (from, answer, word) = pair.one.worker.handler().got[round].clone();
        assert_eq!((from, word), (there.here().expect("there").qp_num, imm.map(|imm| imm + 1)));
        assert_eq!(answer, bytes);
        let asked = &pair.two.worker.handler().got[round];
        assert_eq!((asked.0, &asked.1), (here.here().expect("here").qp_num, &bytes));
    }
    pair.until("all messages", |pair| pair.two.worker.handler().messages == 60);
    let long = [0; 513];
    assert_eq!(pair.one.worker.outbox().send_to(to, &long, None), Err(SendError::TooLong));
    pair.until("all sends are over", |pair| pair.one.worker.in_flight() < 16);
    let (one, two) = (pair.one.worker.stats(), pair.two.worker.stats());
    assert_eq!((one.datagrams_sent, one.datagrams_received), (60, 60));
    assert_eq!((two.datagrams_received, two.errors, one.errors, two.strays), (60, 0, 0, 0));
    assert!(pair.one.worker.datagrams_home() <= 4, "a quarter at most");
}

fn a_group_reaches_every_member_and_answers_find_the_sender<F: Fabric>(nic: &F) {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let group = IpAddr::from(Ipv4Addr::new(239, 111, high, low));
    let mut pair = Logs::new(nic, &WITH, (Log::default(), answers()), 0);
    let mut third = Side::new(nic, &WITH, answers());
    let here = open(nic, &mut pair.one);
    let mut members = [open(nic, &mut pair.two), open(nic, &mut third)];
    let there = members.each_mut().map(|port| port.join(group).expect("joined"));
    let to = way(&mut pair.one, &there[0]);
    // A network may need a moment to reach a new member.
    let mut heard = Vec::new();
    pair.until("both answer", |pair| {
        let _ = pair.one.worker.outbox().send_to(to, b"who is there", Some(1));
        third.worker.turn();
        heard = pair.one.worker.handler().got.iter().map(|got| got.0).collect();
        heard.sort_unstable();
        heard.dedup();
        heard.len() == 2
    });
    let mut known = members.each_ref().map(|port| port.here().expect("there").qp_num);
    known.sort_unstable();
    assert_eq!(heard, known);
    let one = here.here().expect("here").qp_num;
    for log in [pair.two.worker.handler(), third.worker.handler()] {
        assert!(log.got.iter().all(|got| *got == (one, b"who is there".to_vec(), Some(1))));
    }
    members[1].leave(group).expect("left");
}

fn more_datagrams_than_receives_are_dropped_and_the_rest_goes_on<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &WITH, (Log::default(), Log::default()), 1);
    let (_here, there) = (open(nic, &mut pair.one), open(nic, &mut pair.two));
    let to = way(&mut pair.one, &there.here().expect("where it is"));
    let mut sent = 0;
    // Sending waits for nobody: the other side does not turn.
    until("more are sent than there are receives", &mut pair.one, |one| {
        sent += usize::from(one.worker.outbox().send_to(to, &[7; 100], None).is_ok());
        sent > 100
    });
    pair.until("all receives are used", |pair| pair.two.worker.handler().got.len() >= 16);
    for _ in 0..2000 {
        pair.turn();
    }
    let got = pair.two.worker.handler().got.len();
    assert!(got < sent, "{got} of {sent}");
    pair.one.worker.outbox().send_to(to, b"after", None).expect("sent");
    pair.until("the next comes", |pair| {
        pair.two.worker.handler().got.last().is_some_and(|got| got.1 == b"after")
    });
    // They used none of the peer's receives.
    let peer = pair.one.worker.handler().up[0];
    assert_eq!(pair.one.worker.outbox().room(peer), 7);
}

fn ways_are_bounded_and_a_closed_one_is_used_again<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &WITH, (Log::default(), Log::default()), 0);
    let (_here, there) = (open(nic, &mut pair.one), open(nic, &mut pair.two));
    let to = there.here().expect("where it is");
    for _ in 0..20 {
        let ways = [(); 3].map(|()| way(&mut pair.one, &to));
        let error = pair.one.worker.outbox().resolve(&to.to, 1, 1).expect_err("one too many");
        assert_eq!(error.code(), Code::NoMemory);
        for way in ways {
            let mut out = pair.one.worker.outbox();
            out.send_to(way, &[1; 200], None).expect("sent");
            assert!(out.release_destination(way) && !out.release_destination(way));
            assert_eq!(out.send_to(way, &[], None), Err(SendError::NotConnected));
        }
        pair.until("they are free", |pair| pair.one.worker.in_flight() == 0);
    }
    pair.until("all has come", |pair| pair.two.worker.handler().got.len() == 60);
    assert_eq!(pair.one.worker.send_blocks_home(), 16);
}

fn a_port_that_is_gone_may_be_followed_by_another<F: Fabric>(nic: &F) {
    let mut pair = Logs::new(nic, &WITH, (Log::default(), answers()), 0);
    let there = open(nic, &mut pair.two);
    let to = way(&mut pair.one, &there.here().expect("where it is"));
    for round in 1..=5 {
        assert_eq!(pair.one.worker.outbox().send_to(to, &[], None), Err(SendError::NotConnected));
        let here = open(nic, &mut pair.one);
        // More than there are receives; the last of them while sends and answers are in flight.
        for number in 0..20 {
            pair.one.worker.outbox().send_to(to, &[number; 100], None).expect("sent");
            pair.until("an answer", |pair| {
                pair.one.worker.handler().got.len() == round * 20 - 19 + usize::from(number)
            });
        }
        for _ in 0..6 {
            pair.one.worker.outbox().send_to(to, &[round as u8; 300], None).expect("sent");
        }
        drop(here);
        pair.one.worker.turn();
        assert_eq!((pair.one.worker.in_flight(), pair.one.worker.datagrams_home()), (0, 0));
        assert_eq!(
            pair.one.worker.send_blocks_home(),
            16,
            "blocks of sends that were on their way"
        );
        // Nobody gets the answers to datagrams that were in flight.
        pair.until("it has come", |pair| pair.two.worker.handler().got.len() >= round * 26 - 6);
        for (_, way) in std::mem::take(&mut pair.two.worker.handler_mut().ways) {
            assert!(pair.two.worker.outbox().release_destination(way));
        }
    }
}

fn a_worker_without_receives_for_datagrams_has_no_port<F: Fabric>(nic: &F) {
    let side = Side::new(nic, &CONFIG, Log::default());
    let refused = Port::open(nic, SocketAddr::new(address(), 0), &side.intake);
    let error = refused.err().expect("it has no receives");
    assert_eq!(error.code(), Code::Invalid);
    assert!(error.to_string().contains("Config::datagrams"), "{error}");
}

fn a_worker_that_does_not_turn_or_has_ended_gets_no_port<F: Fabric>(nic: &F) {
    let Side { worker, intake, .. } = Side::new(nic, &WITH, Log::default());
    let open = || Port::open(nic, SocketAddr::new(address(), 0), &intake);
    // There is room for three letters of each peer, and 16 more.
    let room = WITH.peers as usize * 3 + 16;
    let mut ports = Vec::new();
    let busy = loop {
        assert!(ports.len() <= room, "the worker takes none of them");
        match open() {
            Ok(port) => ports.push(port),
            Err(error) => break error,
        }
    };
    assert_eq!(busy.code(), Code::Busy, "{busy}");
    assert!(busy.to_string().contains("let the worker turn"), "{busy}");
    drop(worker);
    let ended = open().err().expect("there is no worker");
    assert_eq!(ended.code(), Code::Reset, "{ended}");
    assert!(ended.to_string().contains("the worker ends"), "{ended}");
}
