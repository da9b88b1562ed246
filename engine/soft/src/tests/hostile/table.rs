//! A peer with a false table, while one-sided requests are carried out directly in its memory: a
//! lie ends in memory that the peer has shown, or the request goes the usual way.

use super::super::local_rdma::{device, near, read_only};
use super::*;
use crate::model::limits::QPS;
use crate::model::slot::Slot;
use crate::model::table::{Table, index_of};

/// The most bytes of a request, and the size of the part of a region for each direction.
const MOST: usize = 4000;
const HALF: usize = 64 << 10;
/// Words of a region in the table.
const SLOT_WORDS: usize = size_of::<Slot>() / 8;

std::thread_local! {
    /// The file that may be mapped, because a lie may name any file of this process, including
    /// another test's.
    static SHOWN: Cell<Option<u64>> = const { Cell::new(None) };
}

fn attach(_: i32, file: FileName, len: u64) -> Option<Mapping> {
    (SHOWN.get() == Some(file.fd.into())).then(|| again(file.fd, len as usize)).flatten()
}

/// A device that believes a peer's table, and that peer.
struct Believer {
    one: End,
    two: End,
    shown: Arc<Mapping>,
    _link: (Arc<LinkShared>, Arc<LinkShared>),
}

impl Believer {
    fn new() -> Believer {
        let (mut one, mut two) = (near(device().0), near(device().0));
        let shown = Arc::new(mapping(DIRECTORY_BYTES));
        let table = NonNull::new(shown.as_ptr()).unwrap();
        let look: Look = |process, file, len| {
            attach(process, file, len).and_then(|_| read_only(file.fd, len as usize))
        };
        let openers = Openers { attach, look, notifier: |_, _| None };
        let map = unsafe { RemoteMap::new(table, shown.clone(), 0, openers) };
        let (maker, taker) = LinkShared::pair(heap(LINK_BYTES)).unwrap();
        let (maker, taker) =
            (Arc::new(maker.with_remote_map(Some(Arc::new(map)))), Arc::new(taker));
        one.qp.attach(&maker);
        two.qp.attach(&taker);
        wire(&mut one.qp, &mut two.qp, &maker, &taker, 7);
        one.poll();
        two.poll();
        let truth = core::ptr::from_ref(two.nic.nic.memory.table()).cast::<u8>();
        unsafe { truth.copy_to_nonoverlapping(shown.as_ptr(), DIRECTORY_BYTES) };
        let believer = Believer { one, two, shown, _link: (maker, taker) };
        SHOWN.set(Some(believer.slot().fd.load(Ordering::Relaxed) - 1));
        believer
    }

    fn table(&self) -> &Table {
        unsafe { self.shown.as_ptr().cast::<Table>().as_ref().unwrap() }
    }

    fn slot(&self) -> &Slot {
        &self.table().slots[index_of(self.two.region.rkey())]
    }

    /// What the lie is about: the region's address and length; or any of its fields, and the queue
    /// pair. (With a wrong key or right nothing else matters.)
    fn areas(&self, all: bool) -> Vec<Area> {
        let slot = core::ptr::from_ref(self.slot()).cast::<u64>().cast_mut();
        let qp = core::ptr::from_ref(&self.table().qps[self.two.qp.num() as usize % QPS]);
        match all {
            true => [Area::new(slot.cast(), SLOT_WORDS), Area::new(qp.cast_mut().cast(), 1)].into(),
            false => [Area::new(unsafe { slot.add(1) }.cast(), 2)].into(),
        }
    }

    /// One WRITE from the first half of our region, or READ into the second: it succeeds, and
    /// nothing else of ours changes.
    fn request(&mut self, dice: &mut Dice) {
        let (at, length) = (dice.below(HALF - MOST), 1 + dice.below(MOST));
        let there = self.two.region.remote(dice.below(HALF));
        let reads = dice.one_in(2);
        let before = self.one.bytes(0, 2 * HALF);
        let (op, at) = match reads {
            true => (SendOp::Read(there), HALF + at),
            false => (SendOp::Write(there), at),
        };
        self.one.post(1, op, self.one.sge(at, length), SendFlags::SIGNALED).unwrap();
        let mut ends = Vec::new();
        for _ in 0..200 {
            assert!(self.two.poll().is_empty());
            ends.extend(self.one.poll());
            if !ends.is_empty() {
                break;
            }
        }
        let [wc] = ends[..] else { panic!("{ends:?}") };
        assert_eq!((wc.wr_id, wc.status), (1, Status::Success));
        let mut want = before;
        if reads {
            want[at..at + length].copy_from_slice(&self.one.bytes(at, length));
        }
        assert!(self.one.bytes(0, 2 * HALF) == want, "written beyond {length} bytes at {at}");
    }
}

#[test]
fn the_table_of_a_peer() {
    let (mut mapped, mut went) = (0, 0);
    seeds("the table", 24, |seed| {
        let mut believer = Believer::new();
        let mut dice = Dice::new(seed);
        believer.one.fill(0, &pattern(seed as usize, 2 * HALF));
        let mut hints = Hints::default();
        let Remote { addr, rkey } = believer.two.region.remote(0);
        hints.regions.push((addr, believer.two.region.len() as u64, rkey));
        hints.nums.push(believer.two.qp.num());
        // Some lies are told before anything is mapped.
        if dice.one_in(2) {
            believer.request(&mut dice);
            mapped += 1;
        }
        let scribbler = Scribbler::new(!seed, believer.areas(seed % 3 == 0), hints, 400);
        under_attack(scribbler, || {
            believer.request(&mut dice);
            went += 1;
            true
        });
        believer.request(&mut dice);
    });
    assert!(mapped > 5 && went > 300, "{mapped} mapped, {went} requests");
}
