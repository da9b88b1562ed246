//! The simulation finds what is planted, and comes again.

use doorbell_engine::provider::fault::Plant;

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

#[test]
fn a_few_seeds_hold() {
    for seed in 0..20 {
        let report = run(seed, None, false).expect("it can be made");
        assert_eq!(report.failure, None, "seed {seed}");
    }
}

/// The same seed, the same history to the last event; another, another.
#[test]
fn a_seed_replays() {
    let histories = [3, 4].map(|seed| {
        let first = run(seed, None, false).expect("it can be made");
        let again = run(seed, None, false).expect("it can be made");
        assert_eq!(first.history, again.history, "seed {seed}");
        assert!(first.history.1 > 500, "something happened");
        first.history.0
    });
    assert_ne!(histories[0], histories[1]);
}
