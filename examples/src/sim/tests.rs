//! The simulation finds what is planted, and comes again.

use doorbell::provider::fault::Plant;
use doorbell::soft::sim::Mistake;

use super::*;

/// The first seed that fails.
fn found(plant: Plant, seeds: u64) -> Option<u64> {
    (0..seeds).find(|seed| {
        // A broken invariant of the engine that asserts has been found as well.
        let report = std::panic::catch_unwind(|| run(*seed, Some(plant), false));
        report.map_or(true, |report| report.expect("it can be made").failure.is_some())
    })
}

#[test]
fn an_early_slot_is_found() {
    assert!(found(Plant::EarlySlot, 2000).is_some());
}

#[test]
fn a_lost_tail_is_found() {
    assert!(found(Plant::LostTail, 2000).is_some());
}

#[test]
fn a_double_repost_is_found() {
    assert!(found(Plant::DoubleRepost, 2000).is_some());
}

/// What the first seed that fails says, where that is planted in the wire.
fn said(mistake: Mistake) -> String {
    let runs = (0..500).map(|seed| bare::run(seed, Some(mistake), false).expect("it can be made"));
    let failure = runs.filter_map(|report| report.failure).next();
    failure.unwrap_or_else(|| panic!("{mistake:?} is not found"))
}

/// Each mistake of the wire is found, and by the check that is there for it.
#[test]
fn mistakes_of_the_wire_are_found() {
    let cases = [
        (Mistake::ReplayedAtomic, "additions went well"),
        (Mistake::StaleRead, "the READ does not bring"),
        (Mistake::LateWrite, "comes before the WRITE"),
        (Mistake::ShortDatagram, "bytes of a datagram"),
        (Mistake::WrongSender, "says that it is from"),
    ];
    for (mistake, words) in cases {
        let said = said(mistake);
        assert!(said.contains(words), "{mistake:?}: {said}");
    }
}

#[test]
fn a_few_seeds_hold() {
    for seed in 0..20 {
        let report = run(seed, None, false).expect("it can be made");
        assert_eq!(report.failure, None, "seed {seed}");
    }
}

/// And with queue pairs alone; everything there is to do has been done, and refused.
#[test]
fn a_few_seeds_hold_without_workers() {
    let mut sum = book::Counts::default();
    for seed in 0..60 {
        let report = bare::run(seed, None, false).expect("it can be made");
        assert_eq!(report.failure, None, "seed {seed}");
        sum.messages += report.counts.messages;
        sum.requests += report.counts.requests;
        sum.atomics += report.counts.atomics;
        sum.datagrams += report.counts.datagrams;
        sum.refused += report.counts.refused;
    }
    let counts = [sum.messages, sum.requests, sum.atomics, sum.datagrams, sum.refused];
    assert!(counts.iter().all(|count| *count > 50), "{sum:?}");
}

/// The same seed, the same history to the last event; another, another.
#[test]
fn a_seed_replays() {
    let histories = [3, 4].map(|seed| {
        let first = run(seed, None, false).expect("it can be made");
        let again = run(seed, None, false).expect("it can be made");
        assert_eq!(first.history, again.history, "seed {seed}");
        assert!(first.history.1 > 500, "something happened");
        let (first_bare, again_bare) = (bare::run(seed, None, false), bare::run(seed, None, false));
        let histories = [first_bare, again_bare].map(|run| run.expect("it can be made").history);
        assert_eq!(histories[0], histories[1], "seed {seed}, without workers");
        first.history.0
    });
    assert_ne!(histories[0], histories[1]);
}
