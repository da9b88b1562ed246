//! A hostile peer of a worker: a second thread writes anything into the link and into the credit
//! words, while messages, replies and requests go both ways. Every block comes home, each request
//! is answered once, and other peers of the worker are served as usual.

use super::*;
use crate::provider::{Access, Region};
use crate::remote::RequestOp;
use crate::wr::{Remote, SendOp};
use doorbell_soft::scribbler::{
    Area, Dice, Hints, Part, Scribbler, areas_of, heap, seeds, under_attack,
};

const WILD: Config = Config { window: 16, window_min: 4, keeps: 32, drain_turns: 100, ..CONFIG };
/// Without credits: a sender without a receive at its peer waits.
const PLAIN: Config = Config { window: 0, ..WILD };

/// Handles messages at random, except those of one peer, which it sends back.
struct Wild {
    dice: Dice,
    up: Vec<PeerId>,
    down: Vec<PeerId>,
    honest: Option<PeerId>,
    /// The messages it keeps, with their peers and contents.
    kept: Vec<(Token, PeerId, Vec<u8>)>,
    asked: Vec<u64>,
    got: u32,
}

impl Wild {
    fn new(seed: u64) -> Wild {
        Wild {
            dice: Dice::new(seed),
            up: Vec::new(),
            down: Vec::new(),
            honest: None,
            kept: Vec::new(),
            asked: Vec::new(),
            got: 0,
        }
    }

    /// Checks that kept messages are unchanged, and gives some of them back.
    fn look_after<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
        for (token, _, bytes) in &self.kept {
            let message = out.kept(*token).expect("it is kept");
            assert!(message.bytes() == bytes.as_slice(), "a kept message has changed");
        }
        if self.dice.one_in(2)
            && let Some((token, _, bytes)) = self.kept.pop()
            && (self.dice.one_in(2) || out.reply(token, bytes.len()).is_err())
        {
            out.give_back(token);
        }
    }
}

impl<P: Provider> Handler<P> for Wild {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        assert!(message.len() <= WILD.block_bytes as usize);
        let peer = message.peer();
        if self.honest == Some(peer) {
            return Verdict::Reply { len: message.len() };
        }
        self.got += 1;
        match self.dice.below(6) {
            0 => Verdict::Reply { len: message.len() },
            1 => {
                let bytes = message.bytes().to_vec();
                match out.keep(&message) {
                    Some(token) => {
                        self.kept.push((token, peer, bytes));
                        Verdict::Keep(token)
                    }
                    None => Verdict::Done,
                }
            }
            2 => {
                let _ = out.send(peer, message.bytes());
                Verdict::Done
            }
            _ => Verdict::Done,
        }
    }

    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        assert!(!self.up.contains(&peer));
        self.up.push(peer);
    }

    fn on_peer_down(&mut self, peer: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        assert!(self.up.contains(&peer) && !self.down.contains(&peer));
        self.down.push(peer);
        self.kept.retain(|(_, of, _)| *of != peer);
    }

    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        _: Result<(), Status>,
        _: &mut Outbox<'_, P>,
    ) {
        let place = self.asked.iter().position(|asked| *asked == token);
        self.asked.swap_remove(place.expect("asked for, and not answered before"));
    }
}

/// Two attacked workers, each with memory that the other may use, and a third worker that talks to
/// the second and is not attacked.
struct Three {
    dice: Dice,
    sides: [Side<Wild>; 2],
    regions: [(RegionId, Remote); 2],
    peers: [PeerId; 2],
    third: Side,
    /// The messages of the third worker.
    sent: usize,
    asked: u64,
}

/// Connects two workers over a link in heap memory; returns where their credit words are.
fn connect_over_heap<A: Handler<Soft>, B: Handler<Soft>>(
    one: &mut Side<A>,
    two: &mut Side<B>,
) -> (Nums, Arc<LinkShared>, [u64; 2]) {
    let (nums, link, greetings) = admit_over(heap(LINK_BYTES), one, two);
    assert!(one.intake.up(nums.one, nums.greeting) && two.intake.up(nums.two, Greeting::default()));
    one.worker.turn();
    two.worker.turn();
    let word = |greeting: Greeting| greeting.handshake.unwrap().word.addr;
    (nums, link, greetings.map(word))
}

impl Three {
    /// As `turns` go by, each side sends something.
    fn round(&mut self) {
        for n in 0..2 {
            let (dice, side) = (&mut self.dice, &mut self.sides[n]);
            for _ in 0..dice.below(3) {
                let length = [8, 40, 64, 65, 300, 512][dice.below(6)];
                let bytes = &[n as u8; 512][..length];
                let out = &mut side.worker.outbox();
                let peer = self.peers[n];
                let _ = match dice.below(4) {
                    0 => out.send_now(peer, bytes),
                    1 => out.send_imm(peer, bytes, 7),
                    2 => out.send_list(peer, &[&bytes[..8]; 4]).map_err(|_| SendError::Full),
                    _ => out.send(peer, bytes),
                };
            }
            if dice.one_in(4) {
                self.ask(n);
            }
            let Side { worker, .. } = &mut self.sides[n];
            let mut handler = std::mem::replace(worker.handler_mut(), Wild::new(0));
            handler.look_after(&mut worker.outbox());
            *worker.handler_mut() = handler;
        }
        if self.third.worker.handler().got.len() == self.sent {
            let peer = self.third.only_peer();
            let bytes = payload(self.sent, 1 + self.sent * 37 % 512);
            if self.third.worker.outbox().send(peer, &bytes).is_ok() {
                self.sent += 1;
            }
        }
        self.turns(1 + self.sent % 3);
    }

    /// A request to the other's memory.
    fn ask(&mut self, n: usize) {
        let length = [8, 100, 2000][self.dice.below(3)];
        let at = self.regions[1 - n].1.offset(8 * self.dice.below(200) as u64);
        let op = if self.dice.one_in(2) { SendOp::Read(at) } else { SendOp::Write(at) };
        let pieces = &[Piece { region: self.regions[n].0, offset: 2048, length }];
        self.asked += 1;
        let op = RequestOp::unchecked(op);
        let request = Request { op, pieces, fence: false, token: self.asked };
        let side = &mut self.sides[n];
        if side.worker.outbox().request(self.peers[n], &request).is_ok() {
            side.worker.handler_mut().asked.push(self.asked);
        }
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            for side in &mut self.sides {
                side.worker.turn();
            }
            self.third.worker.turn();
        }
    }

    /// Every reply to the third worker is what it sent.
    fn serves_the_third(&mut self) {
        let log = self.third.worker.handler();
        assert_eq!(log.down, []);
        for (n, (_, bytes, _)) in log.got.iter().enumerate() {
            assert_eq!(*bytes, payload(n, 1 + n * 37 % 512));
        }
    }
}

/// The parts of a link, and the credit words.
const PARTS: [Option<Part>; 8] = [
    None,
    Some(Part::Slot),
    Some(Part::Tails),
    Some(Part::Taken),
    Some(Part::Records),
    Some(Part::Records),
    Some(Part::All),
    Some(Part::Header),
];

fn live(seed: u64, totals: &mut [u32; 3]) {
    let part = PARTS[seed as usize % PARTS.len()];
    let config = if (seed / 8).is_multiple_of(2) { WILD } else { PLAIN };
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let mut sides = [1, 2].map(|n| side_of(&config, Wild::new(seed * 2 + n)));
    let mut third = side(&config, false);
    let regions = sides.each_mut().map(|side| {
        let region = side.nic.register(heap(4096), rights).unwrap();
        let remote = region.remote(0);
        (side.worker.adopt(region), remote)
    });
    let honest = connect(&mut third, &mut sides[1]);
    let handler = sides[1].worker.handler_mut();
    handler.honest = handler.up.last().copied();
    let [one, two] = &mut sides;
    let (nums, link, words) = connect_over_heap(one, two);
    let peers = sides.each_mut().map(|side| *side.worker.handler().up.last().unwrap());
    let dice = Dice::new(seed);
    let mut three = Three { dice, sides, regions, peers, third, sent: 0, asked: 0 };
    for _ in 0..20 {
        three.round();
    }
    assert!(three.sides.each_mut().iter_mut().all(|side| side.worker.handler().down.is_empty()));
    let areas = match part {
        Some(part) => areas_of(&link, part),
        None => {
            words.map(|at| Area::new(std::ptr::with_exposed_provenance_mut(at as usize), 1)).into()
        }
    };
    let hints = Hints {
        nums: [nums.one, nums.two].into(),
        regions: regions.iter().map(|(_, at)| (at.addr, 4096, at.rkey)).collect(),
        queues: Vec::new(),
    };
    let mut after = 30;
    under_attack(Scribbler::new(!seed, areas, hints, 200), || {
        three.round();
        after -= u32::from(three.sides.iter_mut().any(|s| !s.worker.handler().down.is_empty()));
        after > 0
    });
    for _ in 0..30 {
        three.round();
    }
    let ended = three.sides.each_mut().map(|side| !side.worker.handler().down.is_empty());
    // The control plane notices the end of a connection by itself.
    assert!(three.sides[0].intake.gone(nums.one) && three.sides[1].intake.gone(nums.two));
    three.turns(400);
    for (n, side) in three.sides.iter_mut().enumerate() {
        let handler = side.worker.handler();
        assert_eq!((handler.down.as_slice(), handler.kept.len()), (&[peers[n]][..], 0));
        assert_eq!(handler.asked, [], "not answered");
        let worker = &side.worker;
        assert_eq!((worker.pending(), worker.kept()), (0, 0));
        totals[0] += side.worker.handler().got;
        totals[1] += u32::from(ended[n]);
    }
    let before = three.sent;
    for _ in 0..60 {
        three.round();
    }
    assert!(three.sent > before + 10, "{before} and no more");
    three.serves_the_third();
    totals[2] += three.sent as u32;
    assert!(three.third.intake.gone(honest.0) && three.sides[1].intake.gone(honest.1));
    three.turns(400);
    for side in &three.sides {
        let (receives, sends) = (side.worker.recv_blocks_home(), side.worker.send_blocks_home());
        assert_eq!((sends, side.worker.in_flight()), (config.send_blocks as usize, 0));
        let posted = doorbell_soft::sim::posted(side.intake.srq()) as usize;
        assert_eq!(receives + posted, config.recv_blocks as usize, "receive blocks");
    }
}

#[test]
fn a_hostile_peer_costs_a_worker_that_peer_alone() {
    let mut totals = [0; 3];
    seeds("a worker's peer", 96, |seed| live(seed, &mut totals));
    let [got, ended, served] = totals;
    std::println!("{got} messages, {ended} ends, {served} served");
    assert!(got > 1000 && ended > 10 && served > 1000, "{totals:?}");
}
