//! `sweep`: round trips a second with 1 to 512 messages in flight, and half a round trip of a lone
//! message with batching and without. Batching must cost nothing: the rate never falls as load
//! rises, and a lone message waits for nothing.
//!
//! A hypervisor moves the cores now and then. So a round is short and measures everything once; a
//! round in which the floor changed does not count; and rounds are repeated until enough of them
//! were in one mode. Figures are compared within a round, and the median over the rounds counts.

use std::time::{Duration, Instant};

use doorbell::Fabric;

use crate::ask::plan::{SWEEP_LONE as LONE, SWEEP_ROUNDS as ROUNDS, Step};
use crate::error::Failure;
use crate::machine::clock::Clock;
use crate::machine::floor::Floor;
use crate::machine::interrupt;
use crate::measure::latency;
use crate::measure::outcome::{Outcome, Round};
use crate::measure::piece::{Piece, Pieces, median};
use crate::measure::record::{Figures, round};
use crate::meet::tally::Tally;
use crate::meet::wire;
use crate::side::session::{Ping, Session};

/// Turns between two looks at the clock.
const LOOK_EVERY: u32 = 64;

/// The most rounds that are tried.
pub(crate) const ROUNDS_MAX: usize = 4 * ROUNDS as usize;

/// A round: every depth in turn, then a lone message without and with batching, twice. Returns an
/// outcome for each piece.
pub(crate) fn measure<F: Fabric>(
    session: &mut Session<F>,
    step: &Step,
    clock: &Clock,
) -> Result<Vec<Outcome>, Failure> {
    let (size, time) = (step.request.size as usize, step.piece_time());
    let mut pieces = Vec::new();
    for &depth in &step.depths {
        pieces.push(piece(session, size, depth, time)?);
    }
    for n in 0..LONE {
        let mut ping = Ping { session, batching: n % 2 == 1 };
        let piece = latency::measure(&mut ping, size, clock, time)?;
        // The depths count round trips, so this does too.
        pieces.push(Piece { messages: piece.messages / 2, ..piece });
    }
    let memory = &session.tally;
    let outcome = |piece| Outcome { memory: memory.clone(), ..Outcome::of(Pieces(vec![piece])) };
    Ok(pieces.into_iter().map(outcome).collect())
}

/// The rounds of one step.
#[derive(Default)]
pub(crate) struct Rounds(Vec<Round>);

impl Rounds {
    pub(crate) fn add(&mut self, round: Round) {
        self.0.push(round);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True until enough rounds were in one mode, or too many were tried.
    pub(crate) fn are_wanted(&self) -> bool {
        self.0.len() < ROUNDS_MAX && self.most().1 < ROUNDS as usize
    }

    /// The most frequent mode, and how many rounds kept it throughout. Without a floor all rounds
    /// count as one mode.
    fn most(&self) -> (Option<&'static str>, usize) {
        let count = |mode| self.0.iter().filter(|round| mode_of(round) == mode).count();
        let modes = [None, Some(Floor::NEAR), Some(Floor::FAR)];
        let counts = modes.map(|mode| (mode, count(mode)));
        counts.into_iter().max_by_key(|(_, count)| *count).unwrap_or_default()
    }

    /// Merges the rounds of the most frequent mode into one: each depth, and a lone message without
    /// and with batching.
    pub(crate) fn merge(self, depths: &[u32]) -> Round {
        let ((mode, count), all) = (self.most(), self.0.len());
        // If no round kept a mode, merge them all, to show at least what happened.
        let counts = |round: &Round| count == 0 || mode_of(round) == mode;
        let rounds: Vec<Round> = self.0.into_iter().filter(counts).collect();
        let floors: Vec<Floor> = rounds.iter().filter_map(|round| round.floor).collect();
        let switches: Vec<f64> = rounds.iter().filter_map(|round| round.switches).collect();
        let of = |pick: fn(&Floor) -> f64| median(floors.iter().map(pick));
        let floor = of(|floor| floor.before_ns).zip(of(|floor| floor.after_ns));
        let floor = floor.map(|(before_ns, after_ns)| Floor { before_ns, after_ns });
        // The lone messages were measured in turn: without, with, without, with batching.
        let contestants = depths.len() + 2;
        let place = |n: usize| if n < contestants { n } else { n - 2 };
        let mut pieces: Vec<Pieces> = (0..contestants).map(|_| Pieces(Vec::new())).collect();
        let mut theirs = vec![Tally::default(); contestants];
        let mut memory = Tally::default();
        for round in rounds {
            for (n, (outcome, tally)) in round.outcomes.into_iter().zip(round.theirs).enumerate() {
                memory = outcome.memory;
                pieces[place(n)].0.extend(outcome.pieces.0);
                theirs[place(n)].add(tally);
            }
        }
        let figures = figures(depths, &pieces);
        let switches = median(switches.into_iter());
        let outcome = |(pieces, figures): (Pieces, Figures)| {
            let rounds = (Some(count as u32), Some((all - count) as u32));
            let figures = Figures { rounds: rounds.0, rounds_left_out: rounds.1, ..figures };
            Outcome { memory: memory.clone(), figures, ..Outcome::of(pieces) }
        };
        Round {
            outcomes: pieces.into_iter().zip(figures).map(outcome).collect(),
            theirs,
            floor,
            switches,
        }
    }
}

fn mode_of(round: &Round) -> Option<&'static str> {
    round.floor.map(|floor| floor.mode())
}

/// The figures of each depth, then of a lone message without and with batching.
fn figures(depths: &[u32], pieces: &[Pieces]) -> Vec<Figures> {
    let rates: Vec<f64> = pieces.iter().map(|pieces| pieces.rate().unwrap_or_default()).collect();
    let of = |n: usize| match depths.get(n) {
        Some(&depth) => {
            let best = (0..n).max_by(|one, two| rates[*one].total_cmp(&rates[*two]));
            // This compares times, so the rate of this depth stands in the denominator.
            let times = best.and_then(|best| pieces[best].cost_over(&pieces[n]));
            let times_best_below = times.map(|times| round(times, 3));
            Figures { depth: Some(depth), times_best_below, ..Figures::default() }
        }
        None => {
            let batching = n > depths.len();
            let times = batching.then(|| pieces[n].cost_over(&pieces[n - 1])).flatten();
            let times_without_batching = times.map(|times| round(times, 3));
            let (depth, batching) = (Some(1), Some(batching));
            Figures { depth, batching, times_without_batching, ..Figures::default() }
        }
    };
    (0..pieces.len()).map(of).collect()
}

/// Round trips with that many messages in flight.
fn piece<F: Fabric>(
    session: &mut Session<F>,
    size: usize,
    depth: u32,
    time: Duration,
) -> Result<Piece, Failure> {
    let mut payload = wire::filled(size);
    let wrong_before = session.worker.handler().wrong;
    circulate(session, &mut payload, depth, time / 5)?;
    session.settle(wire::MARK)?;
    session.mark();
    let start = Instant::now();
    let messages = circulate(session, &mut payload, depth, time)?;
    let passed = start.elapsed();
    let tally = session.tally();
    session.settle(wire::END)?;
    let lost = session.worker.handler().wrong - wrong_before;
    Ok(Piece { half_rtt_ns: None, passed: Some(passed), messages, lost, tally, parts: Vec::new() })
}

/// Keeps that many in flight for that long, and waits until all are back.
fn circulate<F: Fabric>(
    session: &mut Session<F>,
    payload: &mut [u8],
    depth: u32,
    time: Duration,
) -> Result<u64, Failure> {
    let before = session.worker.handler().echoes;
    let mut sent = before;
    let start = Instant::now();
    let mut turns = 0_u32;
    loop {
        let until = session.worker.handler().echoes + u64::from(depth);
        while sent < until {
            wire::stamp(payload, sent);
            if !session.try_send(payload, false)? {
                break;
            }
            sent += 1;
        }
        session.turn()?;
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(LOOK_EVERY) && (start.elapsed() >= time || interrupt::is_asked()) {
            break;
        }
    }
    while session.worker.handler().echoes < sent {
        session.turn()?;
    }
    Ok(sent - before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round with these rates of two depths and these times of lone messages, at those floors.
    fn a_round(rates: [u64; 2], lone: [f64; 4], floors: (f64, f64)) -> Round {
        let rate = |messages| Piece {
            half_rtt_ns: None,
            passed: Some(Duration::from_secs(1)),
            messages,
            lost: 0,
            tally: Tally::default(),
            parts: Vec::new(),
        };
        let time = |mean| {
            let half = crate::measure::record::HalfRtt {
                p50: mean,
                p90: mean,
                p99: mean,
                p99_9: mean,
                p99_99: mean,
                max: mean,
                mean,
            };
            Piece { half_rtt_ns: Some(half), passed: None, ..rate(1) }
        };
        let pieces = rates.map(rate).into_iter().chain(lone.map(time));
        let outcomes: Vec<Outcome> = pieces.map(|piece| Outcome::of(Pieces(vec![piece]))).collect();
        let theirs = vec![Tally::default(); outcomes.len()];
        let (before_ns, after_ns) = floors;
        Round { outcomes, theirs, floor: Some(Floor { before_ns, after_ns }), switches: None }
    }

    const NEAR: (f64, f64) = (50.0, 52.0);
    const FAR: (f64, f64) = (240.0, 245.0);
    const MIX: (f64, f64) = (50.0, 240.0);

    #[test]
    fn only_rounds_of_the_most_frequent_mode_count() {
        let mut rounds = Rounds::default();
        for n in 0..ROUNDS {
            assert!(rounds.are_wanted(), "{n}");
            // A far round is slower in everything. A mixed round makes no sense.
            rounds.add(a_round([10, 11], [200.0, 220.0, 200.0, 220.0], FAR));
            rounds.add(a_round([100, 1], [200.0, 50.0, 50.0, 200.0], MIX));
            if n > 0 {
                rounds.add(a_round([100, 95], [50.0, 51.0, 52.0, 53.0], NEAR));
            }
        }
        assert!(!rounds.are_wanted());
        let merged = rounds.merge(&[1, 2]);
        assert_eq!(mode_of(&merged), Some("FAR"));
        let figures: Vec<&Figures> = merged.outcomes.iter().map(|of| &of.figures).collect();
        assert_eq!((figures[0].rounds, figures[0].rounds_left_out), (Some(15), Some(29)));
        assert_eq!((figures[0].times_best_below, figures[1].times_best_below), (None, Some(1.1)));
        assert_eq!((figures[2].batching, figures[3].batching), (Some(false), Some(true)));
        assert_eq!(figures[3].times_without_batching, Some(1.1));
        assert_eq!(merged.outcomes[3].pieces.0.len(), 2 * ROUNDS as usize);
    }

    #[test]
    fn rounds_end_if_the_cores_never_stay() {
        let mut rounds = Rounds::default();
        let mut count = 0;
        while rounds.are_wanted() {
            rounds.add(a_round([100, 100], [50.0; 4], MIX));
            count += 1;
        }
        assert_eq!(count, ROUNDS_MAX);
        let merged = rounds.merge(&[1, 2]);
        assert_eq!((mode_of(&merged), merged.outcomes.len()), (Some("MIX"), 4));
        assert_eq!(merged.outcomes[0].figures.rounds, Some(0));
    }
}
