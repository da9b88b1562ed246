//! A hostile peer: while traffic runs, a second thread writes anything into one shared structure
//! after the other. Both sides of the link are victims, because each takes the other for the
//! attacker. Nothing may panic, nothing may be read or written without a right, each request must
//! return once with its memory, and connections over other links must go on.
//!
//! A seed decides what is written and which traffic there is, but not how the two interleave.

mod datagrams;
mod party;
mod table;

use self::party::{DEEP, Kind, LONGEST, Party};
use super::local_rdma::device;
use super::scribbler::{
    Area, Dice, Hints, Part, Pulse, Scribbler, area_of_inbox, areas_of, heap, seeds, under_attack,
};
use super::*;
use crate::wc::{Status, WcOpcode};

/// A connection between the attacked device, on the same completion queue, and one that is not
/// attacked: everything on it succeeds, whatever happens to others.
struct Honest {
    near: SoftQp,
    region: SoftRegion,
    far: End,
    _link: (Arc<LinkShared>, Arc<LinkShared>),
    /// Exchanges so far, and whether one is in progress.
    count: usize,
    waits: Option<(usize, bool, bool)>,
}

const NEAR_BYTES: usize = 4 << 10;

/// In the slot, in the ring, in fragments.
const LENGTHS: [usize; 5] = [8, 40, 1, 200, 4090];

impl Honest {
    fn new(party: &Party) -> Honest {
        let far = end(DEEP, false);
        let mut honest = Honest {
            near: make_qp(&party.nic, &party.cq, None, DEEP),
            region: party.nic.register(heap(NEAR_BYTES), Access::all()).unwrap(),
            _link: LinkShared::pair(heap(LINK_BYTES)).map(|(a, b)| (a.into(), b.into())).unwrap(),
            far,
            count: 0,
            waits: None,
        };
        let (maker, taker) = &honest._link;
        honest.near.attach(maker);
        honest.far.qp.attach(taker);
        wire(&mut honest.near, &mut honest.far.qp, maker, taker, 7);
        honest
    }

    fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at + len <= NEAR_BYTES);
        unsafe { core::slice::from_raw_parts_mut(self.region.as_ptr().add(at), len) }
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.region.as_ptr() as u64 + at as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }

    /// Begins or continues an exchange: a message from the other side, one from here, a WRITE and a
    /// READ from here. Its completions here are in the list.
    fn step(&mut self, came: &[Wc]) {
        let n = self.count;
        let (bytes, op) = (pattern(n, LENGTHS[n % LENGTHS.len()]), n % 4);
        let wr =
            |op, sge| SendWr { wr_id: n as u64, op, flags: SendFlags::SIGNALED, sge, more: &[] };
        let Some((length, near, far)) = &mut self.waits else {
            assert!(came.is_empty(), "{came:?}");
            self.waits = Some((bytes.len(), false, op > 1));
            let (here, there) = (self.sge(0, bytes.len()), self.far.sge(0, bytes.len()));
            self.bytes(0, NEAR_BYTES).fill(0xee);
            if op == 0 || op == 3 {
                self.far.fill(0, &bytes);
            } else {
                self.bytes(0, bytes.len()).copy_from_slice(&bytes);
                self.far.fill(0, &std::vec![0xee; bytes.len()]);
            }
            let receive = |sge| RecvWr { wr_id: n as u64, sge };
            let remote = self.far.region.remote(0);
            unsafe {
                match op {
                    0 => self.near.post_recv(&[receive(here)]).unwrap(),
                    1 => self.far.qp.post_recv(&[receive(there)]).unwrap(),
                    _ => {}
                }
                match op {
                    0 => self.far.qp.post(&[wr(SendOp::Send, there)]).unwrap(),
                    1 => self.near.post(&[wr(SendOp::Send, here)]).unwrap(),
                    2 => self.near.post(&[wr(SendOp::Write(remote), here)]).unwrap(),
                    _ => self.near.post(&[wr(SendOp::Read(remote), here)]).unwrap(),
                }
            }
            return;
        };
        let length = *length;
        for (list, ended) in [(came, near), (&self.far.poll(), far)] {
            for wc in list {
                assert_eq!((wc.status, wc.wr_id), (Status::Success, n as u64), "{op} {wc:?}");
                assert!(!*ended && (wc.opcode != WcOpcode::Recv || wc.byte_len as usize == length));
                *ended = true;
            }
        }
        if matches!(self.waits, Some((_, true, true))) {
            assert_eq!(self.bytes(0, length), bytes, "{op}");
            assert_eq!(self.far.bytes(0, length), bytes, "{op}");
            let rest = NEAR_BYTES - length;
            assert!(*self.bytes(length, rest) == [0xee; NEAR_BYTES][..rest], "beyond {length}");
            (self.waits, self.count) = (None, n + 1);
        }
    }
}

/// The results of a life.
#[derive(Debug, Default)]
struct Fates {
    works: u32,
    ended: u32,
    still: u32,
    good: u32,
    exchanges: usize,
}

/// A connection, its traffic, an attack on a part of it, and the aftermath.
struct Life {
    dice: Dice,
    one: Party,
    two: Party,
    honest: Honest,
    /// Whose turn it is in a ping-pong.
    speaks: usize,
    talks: bool,
    pulse: Pulse,
}

impl Life {
    fn new(seed: u64, kind: Kind) -> (Life, Arc<LinkShared>) {
        let mut dice = Dice::new(seed);
        let (nics, maps): (Vec<_>, Vec<_>) = (0..2)
            .map(|_| match kind.mapped {
                true => {
                    let (nic, map) = device();
                    (nic, Some(map))
                }
                false => (Soft::new("soft0", Host::alone(clock), None), None),
            })
            .unzip();
        let most = [64, 2000, LONGEST][dice.below(3)];
        let [one, two] = [0, 1].map(|n| Party::new(nics[n].clone(), (kind, n == 1), most));
        let honest = Honest::new(&two);
        let talks = dice.one_in(3);
        let mut life = Life { dice, one, two, honest, speaks: 0, talks, pulse: Pulse::default() };
        let link = life.connect(|n| maps[n].clone());
        (life, link)
    }

    /// Joins both sides; the attack is on this link.
    fn connect(&mut self, map: impl Fn(usize) -> Option<Arc<RemoteMap>>) -> Arc<LinkShared> {
        let (maker, taker) = LinkShared::pair(heap(LINK_BYTES)).unwrap();
        let maker = Arc::new(maker.with_remote_map(map(1)));
        let taker = Arc::new(taker.with_remote_map(map(0)));
        self.one.qp.attach(&maker);
        self.two.qp.attach(&taker);
        wire(&mut self.one.qp, &mut self.two.qp, &maker, &taker, 7);
        maker
    }

    /// Lets everybody do something.
    fn round(&mut self) {
        let Life { dice, one, two, honest, pulse, .. } = self;
        let goals = [one.goal(), two.goal()];
        for (n, side) in [&mut *one, &mut *two].into_iter().enumerate() {
            side.stock(dice);
            if self.talks {
                if self.speaks % 4 == 2 * n {
                    side.send(dice, &goals[1 - n], true);
                }
            } else if dice.one_in(2) {
                for _ in 0..dice.below(4) {
                    side.send(dice, &goals[1 - n], false);
                }
            }
        }
        self.speaks += 1;
        if dice.one_in(2) {
            pulse.wait();
        }
        for _ in 0..1 + dice.below(3) {
            let others = one.poll();
            assert!(others.is_empty(), "{others:?}");
            let others = two.poll();
            honest.step(&others);
        }
    }

    fn good(&self) -> u32 {
        self.one.ledger.good + self.two.ledger.good
    }

    fn errors(&self) -> u32 {
        self.one.errors + self.two.errors
    }

    /// The attack is over. The connection works, has ended, or is ended now; then everything comes
    /// home.
    fn end(&mut self, fates: &mut Fates) {
        let before = self.good();
        for _ in 0..60 {
            self.round();
        }
        match (self.errors(), self.good() - before) {
            (1.., _) => fates.ended += 1,
            (0, 1..) => fates.works += 1,
            (0, 0) => fates.still += 1,
        }
        self.give_up();
        fates.good += self.good();
    }

    fn polls(&mut self, count: u32) {
        for _ in 0..count {
            let others = self.one.poll();
            assert!(others.is_empty(), "{others:?}");
            let others = self.two.poll();
            self.honest.step(&others);
        }
    }

    /// Both sides fail their queue pairs. A request behind all others is flushed, which shows that
    /// those before it are over.
    fn give_up(&mut self) {
        for party in [&mut self.one, &mut self.two] {
            party.qp.fail();
        }
        self.polls(40);
        let goals = [self.one.goal(), self.two.goal()];
        self.one.say_nothing(&goals[1]);
        self.two.say_nothing(&goals[0]);
        self.polls(20);
        for party in [&self.one, &self.two] {
            assert_eq!(party.ledger.posted().0, 0, "sends did not come back");
        }
    }

    /// Others use the receives left in shared queues, each once.
    fn use_the_rest(&mut self) {
        self.one.reset();
        self.two.reset();
        let _link = self.connect(|_| None);
        for _ in 0..400 {
            let goals = [self.one.goal(), self.two.goal()];
            let left = [self.one.ledger.posted().1, self.two.ledger.posted().1];
            if left == [0, 0] {
                break;
            }
            for (n, side) in [&mut self.one, &mut self.two].into_iter().enumerate() {
                let in_flight = side.ledger.posted().0;
                if left[1 - n] > in_flight {
                    side.say_nothing(&goals[1 - n]);
                }
            }
            self.polls(1);
        }
        self.give_up();
    }
}

/// One seed of an attack on a part of a link, or on memory that both sides expose to each other.
fn live(seed: u64, kind: Kind, part: Option<Part>, fates: &mut Fates) {
    let (mut life, link) = Life::new(seed, kind);
    for _ in 0..life.dice.below(40) {
        life.round();
    }
    assert_eq!(life.errors(), 0, "before the attack");
    (life.one.polite, life.two.polite) = (false, false);
    let mut hints = Hints::default();
    life.one.hint(&mut hints);
    life.two.hint(&mut hints);
    let areas = match part {
        Some(part) => areas_of(&link, part),
        None => [&life.one, &life.two]
            .map(|party| Area::new(party.open.as_ptr(), party.open.len() / 8))
            .into(),
    };
    let mut after = 40;
    let scribbler = Scribbler::new(!seed, areas, hints, 150);
    let before = std::mem::replace(&mut life.pulse, scribbler.pulse());
    under_attack(scribbler, || {
        life.round();
        // A life that has ended shows little more.
        after -= u32::from(life.errors() > 0);
        after > 0
    });
    life.pulse = before;
    life.end(fates);
    life.use_the_rest();
    for party in [&mut life.one, &mut life.two] {
        party.ledger.close();
        party.keeps_its_secrets(&link);
    }
    let before = life.honest.count;
    life.polls(400);
    assert!(life.honest.count > before + 20, "{before} and no more");
    fates.exchanges += life.honest.count;
}

const RC: Kind = Kind { qp: QpType::Rc, srq: true, mapped: false };
const OWN: Kind = Kind { srq: false, ..RC };
const MAPPED: Kind = Kind { mapped: true, ..RC };
const UC: Kind = Kind { qp: QpType::Uc, ..OWN };
const XRC: Kind = Kind { qp: QpType::XrcSend, ..OWN };

fn attack(name: &'static str, part: Option<Part>, kinds: &[Kind], count: u64) {
    let mut fates = Fates::default();
    seeds(name, count, |seed| {
        let kind = kinds[seed as usize % kinds.len()];
        live(seed, kind, part, &mut fates);
    });
    std::println!("{name}: {fates:?}");
    assert!(fates.good > 100 && fates.exchanges > 100, "{fates:?}");
}

#[test]
fn the_header_of_a_link() {
    attack("the header", Some(Part::Header), &[RC, OWN, UC, XRC], 24);
}

#[test]
fn the_slot_of_a_link() {
    attack("the slot", Some(Part::Slot), &[RC, OWN, UC, XRC], 64);
}

#[test]
fn the_tails_of_a_link() {
    attack("the tails", Some(Part::Tails), &[RC, OWN, UC, XRC], 64);
}

#[test]
fn acknowledgements_of_a_link() {
    attack("what was taken", Some(Part::Taken), &[RC, OWN, UC, XRC], 64);
}

#[test]
fn the_records_of_a_link() {
    attack("the records", Some(Part::Records), &[RC, OWN, MAPPED, UC], 128);
}

#[test]
fn the_records_of_a_link_of_xrc() {
    attack("the records of XRC", Some(Part::Records), &[XRC], 48);
}

#[test]
fn everything_of_a_link() {
    attack("all of a link", Some(Part::All), &[RC, OWN, UC, XRC, MAPPED], 80);
}

/// Memory that both sides expose, while they read and write each other's.
#[test]
fn exposed_memory() {
    attack("what is exposed", None, &[RC, MAPPED, XRC], 36);
}
