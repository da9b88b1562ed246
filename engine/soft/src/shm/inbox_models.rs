//! Models of an inbox and its senders.

use core::cell::Cell;
use core::mem::ManuallyDrop;

use doorbell_alloc::{Ask, MapRequest};
use doorbell_base::models::{Model, check};
use loom::thread;

use super::*;
use crate::steps::sleep::before_last_look;

pub(crate) const MODELS: &[Model] = &[
    ("two datagrams", two),
    ("a slot in the next lap", next_lap),
    ("a slot that was given back", given_back),
    ("a datagram for a sleeper", for_a_sleeper),
    ("whose inbox it is", owner),
];

std::thread_local! {
    /// How often the notifier was rung. All threads of a model run on one.
    static RINGS: Cell<u32> = const { Cell::new(0) };
}

/// The memory of an inbox, and a sender's side, which keeps nothing of a run. All sides map the
/// memory at one address, because loom knows its words by address.
fn place() -> (Arc<Mapping>, Arc<Outlet>) {
    let map = || MapRequest::new(INBOX_BYTES).pages(Ask::Plain).map().expect("memory");
    let memory = Arc::new(map());
    let slots = Slots::over(&memory).expect("long enough");
    let outlet = Outlet { slots, process: 77, open, notifier: Mutex::new(None), _memory: map() };
    (memory, Arc::new(outlet))
}

fn open(process: i32, name: FileName) -> Option<Notifier> {
    assert_eq!((process, name), (77, NAME), "the notifier of the inbox's owner");
    let ring = |_| RINGS.set(RINGS.get() + 1);
    Some(Notifier::new(0, Arc::new(()), ring, |_| ()))
}

const NAME: FileName = FileName { fd: 3, inode: 9 };

/// An inbox whose next ticket is the first. It does not announce its end: after a failed run nobody
/// would hear it.
fn empty(memory: &Arc<Mapping>) -> ManuallyDrop<Inbox> {
    RINGS.set(0);
    let slots = Slots::over(memory).expect("long enough");
    // Loom must know all words before there are threads.
    for offset in (0..LINE).step_by(8) {
        slots.word(offset).store(0, Ordering::Relaxed);
    }
    for (ticket, n) in (0..3).flat_map(|ticket| (0..8).map(move |n| (ticket, n))) {
        slots.slot(ticket, n).store(0, Ordering::Relaxed);
    }
    let [fd, inode] = slots.notifier();
    fd.store(u64::from(NAME.fd) + 1, Ordering::Relaxed);
    inode.store(NAME.inode, Ordering::Relaxed);
    ManuallyDrop::new(Inbox { slots, at: 0, since_ns: None, memory: memory.clone() })
}

fn put(outlet: &Outlet, n: u32) {
    let payload = [n as u8; 12];
    let length = payload.len() as u32;
    let gid = Gid([n as u8; 16]);
    let stamp = Stamp { length, from: n, gid, qkey: n, imm: Some(n), solicited: false };
    outlet.put_bytes(&stamp, &payload);
}

/// The next datagram, if there is one: it must be whole.
fn take(inbox: &mut Inbox, clock: fn() -> u64) -> Option<u32> {
    let stamp = inbox.first(clock)?;
    let mut bytes = [0; 12];
    assert_eq!(stamp.length, 12, "parts of another datagram");
    inbox.fetch_into(&mut bytes);
    inbox.advance();
    let n = stamp.from;
    let whole = (Gid([n as u8; 16]), n, Some(n), [n as u8; 12]);
    assert_eq!((stamp.gid, stamp.qkey, stamp.imm, bytes), whole, "parts of another datagram");
    Some(n)
}

fn still() -> u64 {
    0
}

/// A clock that exceeds every wait with each look.
fn racing() -> u64 {
    std::thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }
    NOW.set(NOW.get() + 2 * PATIENCE_NS);
    NOW.get()
}

fn two() {
    let (memory, outlet) = place();
    check(move || {
        let (mut inbox, outlet) = (empty(&memory), outlet.clone());
        let sender = thread::spawn(move || (1..3).for_each(|n| put(&outlet, n)));
        let early = take(&mut inbox, still);
        sender.join().expect("the sender");
        let late = take(&mut inbox, still);
        let got = if early.is_some() { [early, late] } else { [late, take(&mut inbox, still)] };
        assert_eq!(got, [Some(1), Some(2)], "each once, in order");
    });
}

/// A sender writes to a slot that was read a moment ago.
fn next_lap() {
    let (memory, outlet) = place();
    check(move || {
        let (mut inbox, outlet) = (empty(&memory), outlet.clone());
        put(&outlet, 1);
        // As if all slots behind it were in use.
        outlet.slots.hint().store(SLOTS, Ordering::Relaxed);
        let sender = thread::spawn(move || put(&outlet, 2));
        assert_eq!(take(&mut inbox, still), Some(1));
        inbox.at = SLOTS;
        let early = take(&mut inbox, still);
        sender.join().expect("the sender");
        let late = take(&mut inbox, still);
        assert!([early, late].iter().all(|it| it.is_none_or(|n| n == 2)));
    });
}

/// A sender that is too slow gives its slot back, and the owner gives the slot to another.
fn given_back() {
    let (memory, outlet) = place();
    check(move || {
        let (mut inbox, slow, other) = (empty(&memory), outlet.clone(), outlet.clone());
        let ticket = slow.claim().expect("a slot");
        let sender = thread::spawn(move || {
            wrote(slow.slots.payload(ticket).as_ptr(), 8);
            slow.publish(ticket);
        });
        let owner = thread::spawn(move || {
            // The owner waits once, then no more.
            let _ = inbox.first(racing);
            let _ = inbox.first(racing);
            // As if all slots behind it were in use, and the next one held a datagram.
            inbox.at = SLOTS;
            inbox.slots.slot(SLOTS + 1, 0).store(state(1, READY), Ordering::Relaxed);
            let _ = inbox.first(racing);
        });
        let next = thread::spawn(move || {
            // Relaxed loads, to wait until there is something to find.
            if other.slots.slot(ticket, 0).load(Ordering::Relaxed) == state(2, FREE) {
                other.slots.hint().store(2 * SLOTS, Ordering::Relaxed);
                put(&other, 2);
            }
        });
        for thread in [sender, owner, next] {
            thread.join().expect("no panic");
        }
    });
}

/// CP-6: the last look sees the datagram, or the sender wakes the owner.
fn for_a_sleeper() {
    let (memory, outlet) = place();
    check(move || {
        let (mut inbox, outlet) = (empty(&memory), outlet.clone());
        let sender = thread::spawn(move || put(&outlet, 1));
        inbox.set_asleep(true);
        before_last_look(|| ());
        let seen = take(&mut inbox, still).is_some();
        sender.join().expect("the sender");
        assert!(seen || RINGS.get() == 1, "asleep for good");
    });
}

/// A sender that finds the inbox's owner finds that owner's notifier.
fn owner() {
    let (memory, outlet) = place();
    check(move || {
        let (_, outlet) = (empty(&memory), outlet.clone());
        let [fd, inode] = outlet.slots.notifier();
        fd.store(0, Ordering::Relaxed);
        inode.store(0, Ordering::Relaxed);
        let slots = outlet.slots;
        let sender = thread::spawn(move || {
            if outlet.is_for(5) {
                let [fd, inode] = outlet.slots.notifier().map(|word| word.load(Ordering::Relaxed));
                assert_eq!((fd, inode), (u64::from(NAME.fd) + 1, NAME.inode), "another notifier");
            }
        });
        slots.say_whose(5, Some(NAME));
        sender.join().expect("the sender");
    });
}

#[test]
fn models_datagrams_are_whole_and_wake() {
    MODELS.iter().for_each(|(_, model)| model());
}
