//! The inbox of a UD queue pair, to which everybody can write. Its owner takes datagrams out and
//! others put them in, while a scribbler writes to its slots, its hint, and its sleep word.

use core::sync::atomic::AtomicU64;

use super::super::datagrams::{attach, remote_map};
use super::party::{LONGEST, Ledger};
use super::*;
use crate::model::table::InboxSlot;
use crate::provider::{AddressHandle, AddressVector, Datagrams, GRH_BYTES};
use crate::shm::inbox::{DATAGRAM_MAX, INBOX_BYTES};
use crate::wr::Destination;

const QKEY: u32 = 7;

/// A clock that advances with each look, by a part of the owner's wait for a sender.
fn ticks() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(20_000, Ordering::Relaxed)
}

/// A device that others find by the name of its table.
fn named() -> Soft {
    let neighbours = Neighbours {
        process: 77,
        memory: |len| Ok(shared(len)),
        remote_map,
        attach,
        name_notifier: |_| None,
        notifier: |_, _| None,
        join: |_, _, _| Err(SetupError::new(Code::NotSupported, "a group", "there is none here")),
        members: |_, _| Vec::new(),
        changes: |_| Err(SetupError::new(Code::NotSupported, "a group", "there is none here")),
    };
    let host = Host { name_file, neighbours: Some(neighbours), ..Host::alone(ticks) };
    Soft::new("soft0", host, Some(shared(DIRECTORY_BYTES)))
}

/// A queue pair that sends and receives datagrams, with its account.
struct Post {
    qp: SoftQp,
    ledger: Ledger,
    errors: u32,
}

impl Post {
    fn new(nic: &Soft, cq: &SoftCq) -> Post {
        let qp = make_qp_of(QpType::Ud, nic, cq, None, DEEP);
        qp.control().set_qkey(QKEY);
        qp.control().open();
        Post { qp, ledger: Ledger::new(nic, false), errors: 0 }
    }

    fn stock(&mut self, dice: &mut Dice) {
        while self.ledger.posted().1 < 12 {
            let whole = GRH_BYTES + DATAGRAM_MAX as usize;
            let least = [0, whole, LONGEST, LONGEST][dice.below(4)];
            let Some(wr) = self.ledger.receive(dice, least) else { return };
            unsafe { self.qp.post_recv(&[wr]) }.unwrap();
        }
    }

    fn send(&mut self, dice: &mut Dice, (ah, to): (&SoftAh, u32)) {
        let to = Destination { ah: ah.name(), qpn: to, qkey: QKEY };
        let imm = dice.any() as u32;
        let op = if dice.one_in(2) { SendOp::SendTo(to) } else { SendOp::SendToWithImm(to, imm) };
        let length = party::length(dice, DATAGRAM_MAX as usize);
        let wr = self.ledger.outward(dice, op, length);
        if unsafe { self.qp.post(&[wr]) }.is_err() {
            self.ledger.unsend();
        }
    }

    fn complete(&mut self, wc: &Wc) {
        self.errors += u32::from(!wc.status.is_ok());
        let longest = GRH_BYTES as u32 + DATAGRAM_MAX;
        assert!(!wc.status.is_ok() || wc.opcode != WcOpcode::Recv || wc.byte_len <= longest);
        self.ledger.complete(wc);
    }
}

/// A device with several of them, on one completion queue.
struct Office {
    nic: Soft,
    poller: SoftPoller,
    posts: Vec<Post>,
}

impl Office {
    fn new(count: usize) -> Office {
        let nic = named();
        let (cq, mut poller) = nic.create_cq(256, Sharing::Exclusive).unwrap();
        let posts = (0..count).map(|_| Post::new(&nic, &cq)).collect();
        poller.poll(&mut []);
        Office { nic, poller, posts }
    }

    /// Posts receives to the first `count` parties at random, and hands each party its
    /// completions; the list has those of others.
    fn poll(&mut self, dice: &mut Dice, count: usize) -> Vec<Wc> {
        let mut out = [Wc::default(); 16];
        for post in &mut self.posts[..count] {
            post.stock(dice);
        }
        let taken = self.poller.poll(&mut out);
        let mut others = Vec::new();
        for wc in &out[..taken] {
            match self.posts[..count].iter_mut().find(|post| post.qp.num() == wc.qp_num) {
                Some(post) => post.complete(wc),
                None => others.push(*wc),
            }
        }
        others
    }

    /// The inbox of a queue pair, as anybody maps it.
    fn inbox(&self, post: usize) -> Mapping {
        let num = self.posts[post].qp.num();
        let of = |slot: &&InboxSlot| slot.qp.load(Ordering::Relaxed) == num;
        let slot = self.nic.nic.memory.table().inboxes.iter().find(of).unwrap();
        again(slot.fd.load(Ordering::Relaxed), INBOX_BYTES).unwrap()
    }
}

/// The traffic of the two queue pairs that nobody attacks: one datagram at a time, each whole.
#[derive(Default)]
struct Calm {
    count: usize,
    waits: bool,
    came: u32,
}

impl Calm {
    /// The index of that queue pair on both sides, behind the attacked ones.
    fn step(&mut self, offices: &mut [Office; 2], lists: &[Vec<Wc>; 2], ah: &SoftAh) {
        let [one, two] = offices;
        let bytes = pattern(self.count, LENGTHS[self.count % LENGTHS.len()]);
        let (from, to) = (&mut one.posts[1], &mut two.posts[1]);
        let n = self.count as u64;
        if !self.waits {
            self.waits = true;
            from.ledger.fill(0, &bytes);
            let wr = RecvWr { wr_id: n, sge: to.ledger.sge(0, 5000) };
            unsafe { to.qp.post_recv(&[wr]) }.unwrap();
            let op = SendOp::SendTo(Destination { ah: ah.name(), qpn: to.qp.num(), qkey: QKEY });
            let sge = from.ledger.sge(0, bytes.len());
            let wr = SendWr { wr_id: n, op, flags: SendFlags::SIGNALED, sge, more: &[] };
            return unsafe { from.qp.post(&[wr]) }.unwrap();
        }
        for wc in lists.iter().flatten() {
            assert_eq!((wc.status, wc.wr_id), (Status::Success, n), "{wc:?}");
            self.came += 1;
        }
        if self.came == 2 {
            assert_eq!(to.ledger.read(GRH_BYTES, bytes.len()), bytes);
            (self.waits, self.came, self.count) = (false, 0, self.count + 1);
        }
    }
}

fn live_of_datagrams(seed: u64) -> (u32, usize) {
    let mut dice = Dice::new(seed);
    let mut offices = [Office::new(2), Office::new(2)];
    let hosts = [0, 1].map(|n| AddressVector::to(offices[n].nic.gid()));
    let [there, back] = [(0, 1), (1, 0)].map(|(a, b)| offices[a].nic.create_ah(&hosts[b]).unwrap());
    let mut calm = Calm::default();
    let inboxes = [0, 1].map(|n| offices[n].inbox(0));
    let areas = inboxes.iter().map(|inbox| area_of_inbox(inbox.as_ptr()));
    let mut hints = Hints::default();
    for post in offices.iter().flat_map(|office| &office.posts) {
        hints.nums.push(post.qp.num());
        hints.regions.push(post.ledger.hint());
    }
    let scribbler = Scribbler::new(!seed, areas.collect(), hints, 600);
    let pulse = scribbler.pulse();
    let mut round = |offices: &mut [Office; 2], sends: usize| {
        let nums = [0, 1].map(|n| offices[n].posts[0].qp.num());
        for (n, ah) in [&there, &back].into_iter().enumerate() {
            for _ in 0..dice.below(1 + sends) {
                offices[n].posts[0].send(&mut dice, (ah, nums[1 - n]));
            }
        }
        if sends > 0 {
            pulse.wait();
        }
        let lists = [0, 1].map(|n| offices[n].poll(&mut dice, 1));
        calm.step(offices, &lists, &there);
        calm.count
    };
    for _ in 0..10 {
        round(&mut offices, 3);
    }
    under_attack(scribbler, || {
        round(&mut offices, 3);
        true
    });
    for n in 0..100 {
        round(&mut offices, usize::from(n < 50));
    }
    let count = calm_after(&mut offices, round);
    let mut good = 0;
    for office in &mut offices {
        let post = &mut office.posts[0];
        assert_eq!(post.errors, 0, "no error is reported for a datagram");
        post.qp.fail();
        let mut out = [Wc::default(); 16];
        for _ in 0..20 {
            let taken = office.poller.poll(&mut out);
            let num = post.qp.num();
            let ours = out[..taken].iter().filter(|wc| wc.qp_num == num);
            ours.for_each(|wc| post.complete(wc));
        }
        post.ledger.close();
        good += post.ledger.good;
    }
    (good, count)
}

/// The others' exchanges continue.
fn calm_after(
    offices: &mut [Office; 2],
    mut round: impl FnMut(&mut [Office; 2], usize) -> usize,
) -> usize {
    let before = round(offices, 0);
    let after = (0..100).map(|_| round(offices, 0)).last().unwrap();
    assert!(after > before + 20, "{before} and {after}");
    after
}

#[test]
fn the_inbox_of_datagrams() {
    const { assert!(GRH_BYTES + DATAGRAM_MAX as usize <= LONGEST) };
    let (mut good, mut exchanges) = (0, 0);
    seeds("the inbox", 60, |seed| {
        let (came, count) = live_of_datagrams(seed);
        (good, exchanges) = (good + came, exchanges + count);
    });
    std::println!("the inbox: {good} completions, {exchanges} exchanges");
    assert!(good > 1000 && exchanges > 1000);
}
