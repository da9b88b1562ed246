//! The inbox between threads: the order of each sender, whole datagrams, dying senders, nonsense.

use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::vec;
use std::vec::Vec;

use doorbell_alloc::{Ask, MapRequest};

use super::*;

static NOW: AtomicU64 = AtomicU64::new(0);

fn clock() -> u64 {
    NOW.load(Ordering::Relaxed)
}

/// A clock that exceeds every wait with each look.
fn racing() -> u64 {
    NOW.fetch_add(2 * PATIENCE_NS, Ordering::Relaxed)
}

/// A clock that gives a sender the time of a few looks.
fn hasty() -> u64 {
    NOW.fetch_add(PATIENCE_NS / 40, Ordering::Relaxed)
}

/// An inbox, and the memory of a sender's side.
fn pair() -> (Inbox, Outlet) {
    let memory = MapRequest::new(INBOX_BYTES).pages(Ask::Plain).shared(true).map().unwrap();
    let path = std::format!("/proc/self/fd/{}", memory.fd().unwrap().as_raw_fd());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let other = Mapping::from_memfd(file.into(), INBOX_BYTES).unwrap();
    let name = FileName { fd: 3, inode: 9 };
    let inbox = Inbox::new(memory, 5, Some(name)).unwrap();
    (inbox, Outlet::new(other, 77, notifier).unwrap())
}

impl Inbox {
    /// A sender claims the next slot and ends.
    pub(crate) fn claim_and_leave(&self) {
        let claimed = state(self.at / SLOTS, CLAIMED);
        self.slots.slot(self.at, 0).store(claimed, Ordering::Relaxed);
    }
}

static RINGS: AtomicU64 = AtomicU64::new(0);

fn notifier(process: i32, name: FileName) -> Option<Notifier> {
    assert_eq!((process, name), (77, FileName { fd: 3, inode: 9 }));
    let ring = |_| _ = RINGS.fetch_add(1, Ordering::Relaxed);
    Some(Notifier::new(0, std::sync::Arc::new(()), ring, |_| ()))
}

/// A sleeping owner is woken once, by the first sender.
#[test]
fn a_sleeping_owner_is_woken() {
    let (inbox, outlet) = pair();
    let rings = || RINGS.load(Ordering::Relaxed);
    put(&outlet, 1, &[1]);
    assert_eq!(rings(), 0);
    inbox.set_asleep(true);
    put(&outlet, 1, &[1]);
    put(&outlet, 1, &[1]);
    assert_eq!(rings(), 1);
    inbox.set_asleep(true);
    inbox.set_asleep(false);
    put(&outlet, 1, &[1]);
    assert_eq!(rings(), 1);
}

fn put(outlet: &Outlet, from: u32, payload: &[u8]) {
    let length = payload.len() as u32;
    let gid = Gid([from as u8; 16]);
    let stamp = Stamp { length, from, gid, qkey: 9, imm: Some(from), solicited: false };
    outlet.put_bytes(&stamp, payload);
}

fn take(inbox: &mut Inbox, clock: fn() -> u64) -> Option<(Stamp, Vec<u8>)> {
    let stamp = inbox.first(clock)?;
    let mut bytes = vec![0; stamp.length as usize];
    inbox.fetch_into(&mut bytes);
    inbox.advance();
    Some((stamp, bytes))
}

#[test]
fn datagrams_come_out_as_put_in_and_excess_is_dropped() {
    let (mut inbox, outlet) = pair();
    for round in 0..5u8 {
        for n in 0..SLOTS as u8 + 3 {
            put(&outlet, n.into(), &vec![n ^ round; usize::from(n) * 40]);
        }
        for n in 0..SLOTS as u8 {
            let (stamp, bytes) = take(&mut inbox, clock).unwrap();
            assert_eq!((stamp.from, stamp.imm, stamp.qkey), (n.into(), Some(n.into()), 9));
            assert_eq!((stamp.gid, bytes), (Gid([n; 16]), vec![n ^ round; usize::from(n) * 40]));
        }
        assert_eq!(take(&mut inbox, clock), None);
    }
}

#[test]
fn an_inbox_says_whose_it_is_until_it_goes() {
    let (inbox, outlet) = pair();
    assert!(outlet.is_for(5) && !outlet.is_for(6));
    drop(inbox);
    assert!(!outlet.is_for(5));
}

/// The owner waits for a sender that died in the middle, then goes on; that slot is lost, and no
/// other.
#[test]
fn a_dead_sender_stops_nobody_for_long() {
    let (mut inbox, outlet) = pair();
    for n in 0..3u32 {
        put(&outlet, n, &[1; 8]);
        assert!(outlet.claim().is_some());
        put(&outlet, n + 10, &[2; 8]);
        assert_eq!(take(&mut inbox, clock).unwrap().0.from, n);
        assert_eq!(take(&mut inbox, clock), None, "it is waited for");
        assert!(inbox.waits_for_sender());
        NOW.fetch_add(PATIENCE_NS, Ordering::Relaxed);
        assert_eq!(take(&mut inbox, clock).unwrap().0.from, n + 10);
        assert_eq!(take(&mut inbox, clock), None);
        assert!(!inbox.waits_for_sender());
    }
    for _ in 0..4 {
        for n in 0..SLOTS as u32 {
            put(&outlet, n, &[3; 8]);
        }
        let got = core::iter::from_fn(|| take(&mut inbox, clock)).count();
        assert_eq!(got, SLOTS as usize - 3);
    }
}

/// A sender that was only slow gives its slot back, wherever owner and senders are by then.
#[test]
fn a_slow_sender_gives_its_slot_back() {
    for passed in 0..4 * SLOTS as u32 {
        let (mut inbox, outlet) = pair();
        let ticket = outlet.claim().unwrap();
        assert_eq!(take(&mut inbox, racing), None);
        assert_eq!(take(&mut inbox, racing), None);
        // With and without senders that run ahead of the owner.
        let ahead = passed % 50;
        for n in 0..passed {
            put(&outlet, n, &[1; 8]);
            if n < passed - ahead {
                assert_eq!(take(&mut inbox, clock).unwrap().0.from, n);
            }
        }
        assert!(!outlet.publish(ticket), "it is told");
        for n in passed - ahead..passed {
            assert_eq!(take(&mut inbox, clock).unwrap().0.from, n, "after {passed}");
        }
        for n in 0..3 * SLOTS as u32 {
            put(&outlet, n, &[2; 8]);
            assert_eq!(take(&mut inbox, clock).map(|(stamp, _)| stamp.from), Some(n));
        }
        // The slot is in use again.
        for n in 0..SLOTS as u32 {
            put(&outlet, n, &[3; 8]);
        }
        let got = core::iter::from_fn(|| take(&mut inbox, clock)).count();
        assert_eq!(got, SLOTS as usize, "after {passed}");
    }
}

/// Also if the ring was full meanwhile, and senders have skipped the slot.
#[test]
fn a_slot_that_was_passed_by_stops_nobody() {
    let (mut inbox, outlet) = pair();
    for before in [0, 1, SLOTS as u32 - 2, SLOTS as u32 - 1] {
        let ticket = outlet.claim().unwrap();
        assert_eq!(take(&mut inbox, racing), None);
        assert_eq!(take(&mut inbox, racing), None);
        for n in 0..before {
            put(&outlet, n, &[1; 8]);
            assert_eq!(take(&mut inbox, clock).map(|(stamp, _)| stamp.from), Some(n));
        }
        for n in 0..3 * SLOTS as u32 {
            put(&outlet, n, &[1; 8]);
        }
        outlet.publish(ticket);
        let got = core::iter::from_fn(|| take(&mut inbox, clock)).count();
        assert_eq!(got, SLOTS as usize - 1, "after {before}");
        for n in 0..3 * SLOTS as u32 {
            put(&outlet, n, &[2; 8]);
            assert_eq!(take(&mut inbox, clock).map(|(stamp, _)| stamp.from), Some(n));
        }
    }
}

/// Several senders, and an owner that never waits: each datagram arrives whole, and each sender's
/// in order.
#[test]
fn datagrams_are_whole_and_in_order_even_if_the_owner_never_waits() {
    for clock in [clock as fn() -> u64, racing] {
        let (mut inbox, outlet) = pair();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for sender in 0..3u32 {
                let (outlet, stop) = (&outlet, &stop);
                scope.spawn(move || {
                    let mut count = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        count += 1;
                        let words = vec![count << 2 | u64::from(sender); 1 + count as usize % 60];
                        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
                        put(outlet, sender, &bytes);
                        if count.is_multiple_of(16) {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut last = [0; 3];
            let mut got = 0;
            while got < 20_000 {
                let Some((stamp, bytes)) = take(&mut inbox, clock) else {
                    thread::yield_now();
                    continue;
                };
                got += 1;
                let words: Vec<u64> = bytes
                    .chunks(8)
                    .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                    .collect();
                assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
                let (sender, count) = (words[0] & 3, words[0] >> 2);
                assert_eq!((u64::from(stamp.from), words.len()), (sender, 1 + count as usize % 60));
                assert!(count > last[sender as usize], "order");
                last[sender as usize] = count;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// A sender that the owner sometimes gives up: nothing is lost while there is room.
#[test]
fn a_slow_sender_loses_nothing() {
    let (mut inbox, outlet) = pair();
    let sent = AtomicU64::new(0);
    let taken = AtomicU64::new(0);
    let rounds = 20_000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=rounds {
                put(&outlet, 0, &[7; 64]);
                sent.store(n, Ordering::Release);
                while taken.load(Ordering::Acquire) < n {
                    core::hint::spin_loop();
                }
            }
        });
        for n in 1..=rounds {
            let mut came = None;
            while came.is_none() && sent.load(Ordering::Acquire) < n {
                came = take(&mut inbox, hasty);
            }
            let came = came.or_else(|| take(&mut inbox, hasty));
            taken.store(if came.is_some() { n } else { rounds }, Ordering::Release);
            assert!(came.is_some(), "number {n} is lost");
        }
    });
}

/// Whatever is written to the memory, the owner returns lengths that fit, and comes to an end.
#[test]
fn nonsense_in_the_memory_is_harmless() {
    let (mut inbox, outlet) = pair();
    let mut x = 88172645463325252u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..20_000 {
        put(&outlet, 1, &[7; 100]);
        let odd = [u64::MAX, 0, 1, random(), random() % 64, random() % 8][random() as usize % 6];
        match random() % 4 {
            0 => outlet.slots.hint().store(odd, Ordering::Relaxed),
            _ => {
                let ticket = if random() % 2 == 0 { inbox.at } else { random() };
                outlet.slots.slot(ticket, random() as usize % 8).store(odd, Ordering::Relaxed);
            }
        }
        if let Some((stamp, _)) = take(&mut inbox, racing) {
            assert!(stamp.length <= DATAGRAM_MAX && stamp.from <= 0x00ff_ffff);
        }
    }
}
