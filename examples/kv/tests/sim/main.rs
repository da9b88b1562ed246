//! A server's workers and their clients over a lossy network in virtual time, from one number. The
//! histories of all keys must be linearizable, and each planted mistake must show in some seed.
//!
//! `DOORBELL_KV_SEEDS=FIRST..END` runs other seeds.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod clock;
#[path = "../common/mod.rs"]
mod common;
mod plan;
mod run;
mod world;

use doorbell_kv::plant::Mistake;

use run::{Totals, run};

/// Seeds of each run of the checks.
const SEEDS: std::ops::Range<u64> = 0..150;

/// Seeds in which a planted mistake must show.
const PLANTED: u64 = 400;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("DOORBELL_KV_SEEDS") else { return SEEDS };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn every_history_is_linearizable() {
    let mut totals = Totals::default();
    for seed in seeds() {
        let (failure, counts) = run(seed, None);
        assert_eq!(failure, None, "seed {seed}");
        totals.add(&counts);
    }
    println!("{totals:?}");
    // The faults that the checks are for have happened.
    let Totals { operations, torn, alone, asked, growths, expired, downs, lost, .. } = totals;
    let all = [operations, torn, alone, asked, growths, expired, downs, lost];
    assert!(all.iter().all(|count| *count > 50), "{totals:?}");
}

#[test]
fn planted_mistakes_are_found() {
    for mistake in Mistake::ALL {
        let fails = |seed| run(seed, Some(mistake)).0.map(|failure| (seed, failure));
        let Some((seed, failure)) = (0..PLANTED).find_map(fails) else {
            panic!("no seed finds {mistake:?}");
        };
        println!("{mistake:?}: seed {seed}: {}", failure.lines().next().unwrap_or_default());
    }
}

#[test]
fn a_seed_replays() {
    for seed in 0..5 {
        assert_eq!(run(seed, None), run(seed, None), "seed {seed}");
    }
}
