//! Receive queues: order, room, prefetches and the limit.

use super::*;

fn wr(n: u64) -> RecvWr {
    RecvWr { wr_id: n, ..RecvWr::default() }
}

fn attach(queue: &RecvQueue) -> Prefetch {
    queue.attach(&Arc::new(LocalWaker::new(None)), Used::default()).unwrap()
}

fn drain(queue: &RecvQueue, prefetch: &mut Prefetch) -> Vec<u64> {
    let mut seen = Vec::new();
    loop {
        if prefetch.len() == 0 {
            let _ = queue.fetch(prefetch, false);
        }
        let Some(first) = prefetch.first() else { return seen };
        seen.push(first.wr_id);
        prefetch.advance(1);
    }
}

/// A spin is shortened by a list of receives only if the queue has one domain: the thread of
/// another may have posted the list.
#[test]
fn lists_are_told_to_a_lone_domain() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let _one = attach(&queue);
    assert!(queue.post_one(|| wr(0)));
    assert_eq!(queue.listed(), Some(0), "one alone is no list");
    queue.post(&[wr(1), wr(2)]).unwrap();
    assert_eq!(queue.listed(), Some(3));
    let mut two = attach(&queue);
    assert_eq!(queue.listed(), None);
    let _ = queue.detach(&mut two);
    assert_eq!(queue.listed(), Some(3));
}

/// The shared domain prefetches as others do while nobody else uses the queue, and one receive
/// at a time otherwise.
#[test]
fn the_shared_domain_keeps_no_receive_that_another_may_lack() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    queue.post(&(0..64).map(wr).collect::<Vec<_>>()).unwrap();
    let mut one = attach(&queue);
    assert!(!queue.fetch(&mut one, true));
    assert_eq!(one.len(), 16);
    let mut two = attach(&queue);
    assert!(!queue.fetch(&mut two, true));
    assert_eq!(two.len(), 1);
}

/// A receive that is posted alone finds the room that a list finds.
#[test]
fn a_single_receive_finds_no_more_room_than_a_list() {
    let queue = RecvQueue::new(0, 8, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    let mut numbers = 0..;
    let mut one = || queue.post(&[wr(numbers.next().unwrap())]);
    (0..8).for_each(|_| one().unwrap());
    assert!(one().is_err());
    assert!(!queue.fetch(&mut prefetch, false));
    assert_eq!(prefetch.len(), 2);
    assert!(one().is_err(), "the prefetched ones keep their places");
    prefetch.advance(2);
    (0..2).for_each(|_| one().unwrap());
    assert!(one().is_err());
    assert_eq!(drain(&queue, &mut prefetch), [2, 3, 4, 5, 6, 7, 10, 11]);
    let _ = queue.detach(&mut prefetch);
    (12..20).for_each(|n| queue.post(&[wr(n)]).unwrap());
}

/// PL-5: a post stops at the first receive without room, and those before it are posted.
#[test]
fn pl_5_post_beyond_depth_takes_the_first() {
    let queue = RecvQueue::new(0, 3, PdMark::default(), Threads::UNKNOWN);
    let list: Vec<_> = (0..5).map(wr).collect();
    let error = queue.post(&list).unwrap_err();
    assert_eq!((error.accepted, error.cause), (3, PostCause::Full));
    assert_eq!(drain(&queue, &mut attach(&queue)), [0, 1, 2]);
}

/// PL-5: the depth counts the receives that a domain has prefetched and not used, and nothing
/// else.
#[test]
fn pl_5_the_depth_includes_prefetched_receives() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    let list: Vec<_> = (0..64).map(wr).collect();
    queue.post(&list).unwrap();
    let _ = queue.fetch(&mut prefetch, false);
    assert_eq!(prefetch.len(), 16);
    assert_eq!(queue.post(&list[..1]).unwrap_err().accepted, 0);
    for used in 1..=16 {
        prefetch.advance(1);
        queue.post(&list[..1]).unwrap();
        assert_eq!(queue.post(&list[..1]).unwrap_err().cause, PostCause::Full, "{used}");
    }
}

/// The same where fewer are left than were prefetched, and a list is posted that would fit
/// without the prefetched ones: none is lost or doubled when they come back.
#[test]
fn pl_5_a_list_leaves_room_for_prefetched_receives() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    let list: Vec<_> = (0..128).map(wr).collect();
    queue.post(&list[..64]).unwrap();
    for ahead in [16, 12, 9] {
        assert_eq!(prefetch.len(), 0);
        let _ = queue.fetch(&mut prefetch, false);
        assert_eq!(prefetch.len(), ahead);
        prefetch.advance(if ahead == 9 { 0 } else { ahead });
    }
    assert_eq!(queue.post(&list[64..64 + 37]).unwrap_err().accepted, 28);
    let _ = queue.give_back(&mut prefetch);
    assert_eq!(drain(&queue, &mut prefetch), (28..92).collect::<Vec<_>>());
}

/// CP-6: receives that come back wake a sleeping domain that found none; a domain that finds
/// none wakes a sleeping one that has prefetched some.
#[test]
fn cp_6_receives_that_come_back_wake_the_domain_that_lacks_them() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let sleepers = [(); 2].map(|()| Arc::new(LocalWaker::new(None)));
    let attach = |n: usize| queue.attach(&sleepers[n], Used::default()).unwrap();
    let (mut one, mut two) = (attach(0), attach(1));
    queue.post(&[wr(0), wr(1)]).unwrap();
    for prefetch in [&mut one, &mut two] {
        let _ = queue.fetch(prefetch, false);
        assert_eq!(prefetch.len(), 1);
    }
    two.advance(1);
    sleepers.iter().for_each(|local_waker| local_waker.set(true));
    let _ = queue.fetch(&mut two, false);
    assert_eq!(two.len(), 0);
    assert!(!sleepers[0].is_asleep() && sleepers[1].is_asleep());
    let _ = queue.give_back(&mut one);
    assert!(!sleepers[1].is_asleep());
    // No domain lacks any now.
    let _ = queue.fetch(&mut two, false);
    sleepers.iter().for_each(|local_waker| local_waker.set(true));
    let _ = queue.give_back(&mut two);
    assert!(sleepers.iter().all(|local_waker| local_waker.is_asleep()));
}

/// A domain that was asked gives its receives back once, though another one that was asked does not
/// look for a long time. It is asked again when the next domain finds none.
#[test]
fn a_domain_gives_back_once_each_time_it_is_asked() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let [mut busy, mut quick, mut dry] = [(); 3].map(|()| attach(&queue));
    queue.post(&(0..64).map(wr).collect::<Vec<_>>()).unwrap();
    let _ = queue.fetch(&mut busy, false);
    let _ = queue.fetch(&mut quick, false);
    for _ in 0..2 {
        drain(&queue, &mut dry);
        assert!(busy.is_asked() && quick.is_asked() && !dry.is_asked());
        let _ = queue.give_back(&mut quick);
        assert!(busy.is_asked() && !quick.is_asked());
        let _ = queue.fetch(&mut quick, false);
        assert!(quick.len() > 0 && !quick.is_asked(), "it keeps these");
        queue.post(&[wr(64)]).unwrap();
    }
}

/// A domain prefetches ahead of messages only where that makes no event come early and leaves
/// some for the others; and a domain that finds none then lacks none.
#[test]
fn only_spare_receives_are_prefetched_early() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    queue.prefetch_ahead(&mut prefetch, false);
    assert!(prefetch.len() == 0 && !queue.is_starved());
    let list: Vec<_> = (0..12).map(wr).collect();
    queue.post(&list).unwrap();
    queue.set_limit(10);
    for (ahead, limit) in [(2, 10), (0, 10)] {
        queue.prefetch_ahead(&mut prefetch, false);
        assert_eq!((prefetch.len(), queue.limit()), (ahead, limit));
        prefetch.advance(ahead);
    }
    queue.set_limit(0);
    queue.prefetch_ahead(&mut prefetch, false);
    assert_eq!(prefetch.len(), 2);
}

/// A queue of one queue pair prefetches the last receive too: no other domain can lack it.
#[test]
fn the_last_receive_is_prefetched_from_a_queue_that_is_not_shared() {
    for is_shared in [false, true] {
        let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
        let queue = if is_shared { queue.shared() } else { queue };
        let mut prefetch = attach(&queue);
        queue.post(&[wr(0)]).unwrap();
        queue.prefetch_ahead(&mut prefetch, true);
        assert_eq!(prefetch.len(), u32::from(!is_shared));
    }
}

/// First in, first out, across prefetch and give-back.
#[test]
fn receives_leave_in_order_also_after_a_give_back() {
    let queue = RecvQueue::new(0, 256, PdMark::default(), Threads::UNKNOWN);
    let mut one = attach(&queue);
    let mut two = attach(&queue);
    let list: Vec<_> = (0..256).map(wr).collect();
    queue.post(&list).unwrap();
    let _ = queue.fetch(&mut one, false);
    assert_eq!(one.len(), 32);
    one.advance(1);
    let rest = drain(&queue, &mut two);
    assert_eq!(rest.first(), Some(&32));
    assert!(one.is_asked());
    let _ = queue.give_back(&mut one);
    assert!(!one.is_asked());
    assert_eq!(one.len(), 0);
    assert_eq!(drain(&queue, &mut two), (1..32).collect::<Vec<_>>());
}

/// A resize loses no receive and keeps their order, also of those that are prefetched and come
/// back; a depth that is too small changes nothing.
#[test]
fn a_queue_of_another_size_has_the_same_receives() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    let list: Vec<_> = (0..128).map(wr).collect();
    queue.post(&list[..64]).unwrap();
    let _ = queue.fetch(&mut prefetch, false);
    prefetch.advance(10);
    queue.post(&list[64..74]).unwrap();
    assert_eq!((prefetch.len(), queue.resize(63)), (6, Err(64)));
    assert_eq!(queue.post(&list[..1]).unwrap_err().accepted, 0, "it is as it was");
    queue.resize(100).unwrap();
    queue.post(&list[74..110]).unwrap();
    assert_eq!(queue.post(&list[..1]).unwrap_err().accepted, 0);
    let _ = queue.give_back(&mut prefetch);
    queue.resize(100).unwrap();
    assert_eq!(drain(&queue, &mut prefetch), (10..110).collect::<Vec<_>>());
    queue.set_limit(8);
    assert_eq!(queue.resize(7), Err(8));
    queue.resize(8).unwrap();
    assert_eq!(queue.post(&list[..9]).unwrap_err().accepted, 8);
    assert_eq!(drain(&queue, &mut prefetch), (0..8).collect::<Vec<_>>());
}

/// One event when fewer than the limit are left, however many were prefetched before; then none
/// until a limit is set again.
#[test]
fn srq_limit_fires_once_when_fewer_are_left() {
    let queue = RecvQueue::new(0, 256, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    let list: Vec<_> = (0..200).map(wr).collect();
    queue.post(&list).unwrap();
    queue.set_limit(60);
    let mut used = 0;
    let mut fired = Vec::new();
    while used < 200 {
        if prefetch.len() == 0 && queue.fetch(&mut prefetch, false) {
            fired.push(200 - used - prefetch.len());
            assert_eq!(queue.limit(), 0);
        }
        used += prefetch.len();
        prefetch.advance(prefetch.len());
    }
    assert_eq!(fired, [59]);
    assert!(!queue.fetch(&mut prefetch, false), "it is empty, and the limit is gone");
}

/// Receives that were prefetched before the limit was set leave no trace in the queue when a
/// message uses them. The domain finds out when it gives the others back, or has none left.
#[test]
fn srq_limit_fires_for_receives_that_were_prefetched_before() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let mut prefetch = attach(&queue);
    queue.post(&(0..64).map(wr).collect::<Vec<_>>()).unwrap();
    assert!(!queue.fetch(&mut prefetch, false));
    prefetch.advance(1);
    queue.set_limit(60);
    prefetch.advance(3);
    assert!(!queue.give_back(&mut prefetch), "60 are left");
    assert!(!prefetch.is_asked());
    queue.set_limit(50);
    assert!(!queue.fetch(&mut prefetch, false));
    assert_eq!(prefetch.len(), 10);
    for (used, limit) in [(1, 60), (14, 46)] {
        queue.set_limit(limit);
        prefetch.advance(used);
        assert!(prefetch.is_asked() && queue.give_back(&mut prefetch), "{limit}");
        assert_eq!(queue.limit(), 0);
        assert!(!queue.give_back(&mut prefetch), "once");
        let _ = queue.fetch(&mut prefetch, false);
    }
}

/// The receives that another domain has prefetched count as well, and it gives them back.
#[test]
fn srq_limit_counts_what_other_domains_have_prefetched() {
    let queue = RecvQueue::new(0, 64, PdMark::default(), Threads::UNKNOWN);
    let sleeper = Arc::new(LocalWaker::new(None));
    let (mut one, mut two) = (attach(&queue), queue.attach(&sleeper, Used::default()).unwrap());
    queue.post(&(0..64).map(wr).collect::<Vec<_>>()).unwrap();
    assert!(!queue.fetch(&mut two, false));
    sleeper.set(true);
    queue.set_limit(50);
    assert!(!sleeper.is_asleep());
    assert!(!queue.give_back(&mut one));
    assert!(two.is_asked(), "the other has not looked");
    let mut left = 64;
    let mut use_one = |one: &mut Prefetch| {
        let fired = one.len() == 0 && queue.fetch(one, false);
        one.advance(1);
        left -= 1;
        (fired, left)
    };
    // Nothing but receives below the limit, and those of the other, is left above it.
    while queue.posted() + one.len() >= 50 {
        assert!(!use_one(&mut one).0);
    }
    sleeper.set(true);
    assert_eq!(use_one(&mut one), (false, 49 + two.len() - 1));
    assert!(!sleeper.is_asleep());
    assert!(!queue.give_back(&mut two));
    assert!(!two.is_asked());
    let fired = loop {
        if let (true, left) = use_one(&mut one) {
            break left;
        }
    };
    assert_eq!((fired, queue.limit()), (49, 0));
}
