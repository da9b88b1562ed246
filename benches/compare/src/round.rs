//! Rounds: everybody in turn, each between two probes of the floor.
//!
//! A hypervisor moves cores nearer and farther unseen, and other programs take their share: what
//! was measured at different times is not comparable. So a round counts only if all of its probes
//! found the cores in one mode, and about as far from each other before a figure as after it; and
//! the medians are of rounds of one mode.

use serde::Serialize;

use crate::contest::{Contest, Entry, Peer, Setting, Test};
use crate::error::Failure;
use crate::floor::{self, Floor};
use crate::peer::{self, Figure};

/// Rounds tried for one that is wanted.
const TRIES: u32 = 4;

/// How far apart the probes before and after a figure may be.
const SPREAD: f64 = 1.3;

/// Everybody's figures, in the order of the contest's entries.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// NEAR or FAR.
    pub(crate) mode: &'static str,
    /// The entry that was first; the others followed in turn.
    pub(crate) first: usize,
    pub(crate) figures: Vec<Measured>,
}

/// A figure with the floor around it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    /// Mean of the probes before and after, in nanoseconds.
    pub(crate) floor_ns: f64,
    #[serde(flatten)]
    pub(crate) figure: Figure,
}

/// What came out of a contest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) entries: Vec<Entry>,
    /// The mode of the rounds that count.
    pub(crate) mode: &'static str,
    pub(crate) rounds: Vec<Round>,
    /// Why each of the others does not.
    pub(crate) dropped: Vec<String>,
    /// Who could not be asked, and why.
    pub(crate) absent: Vec<(Peer, String)>,
}

impl Outcome {
    /// Rounds that count.
    pub(crate) fn kept(&self) -> usize {
        self.rounds.len()
    }
}

/// Runs rounds until enough of one mode are there, or too many were tried.
pub(crate) fn run(contest: &Contest, set: &Setting, wanted: u32) -> Result<Outcome, Failure> {
    let mut contest = contest.clone();
    let (mut rounds, mut dropped, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..wanted * TRIES {
        match round(&mut contest, set, number as usize, &mut absent)? {
            Ok(round) => rounds.push(round),
            Err(why) => dropped.push(why),
        }
        if most(&rounds).1 >= wanted as usize {
            break;
        }
    }
    let (mode, kept) = most(&rounds);
    if kept == 0 {
        return Err(Failure::new(format!(
            "the cores did not keep still for one round of {contest}; try again when the machine \
             is idle; last: {}",
            dropped.last().map_or("", String::as_str)
        )));
    }
    let others = rounds.iter().filter(|round| round.mode != mode);
    dropped.extend(others.map(|round| format!("{}, the others {mode}", round.mode)));
    rounds.retain(|round| round.mode == mode);
    // A peer that went missing later leaves its early figures behind: not enough to compare.
    for round in &mut rounds {
        round.figures.truncate(contest.entries.len());
    }
    let Contest { test, size, entries } = contest;
    Ok(Outcome { test, size, entries, mode, rounds, dropped, absent })
}

/// The mode with most rounds, and how many. Of equals the near one.
fn most(rounds: &[Round]) -> (&'static str, usize) {
    let count = |mode| rounds.iter().filter(|round| round.mode == mode).count();
    let (near, far) = (count("NEAR"), count("FAR"));
    if far > near { ("FAR", far) } else { ("NEAR", near) }
}

/// One round, or why it does not count. A peer that cannot be asked leaves the contest.
fn round(
    contest: &mut Contest,
    set: &Setting,
    number: usize,
    absent: &mut Vec<(Peer, String)>,
) -> Result<Result<Round, String>, Failure> {
    let first = number % contest.entries.len();
    let mut figures = vec![None; contest.entries.len()];
    let mut probes = vec![floor::probe(set.cores)?];
    for step in 0..contest.entries.len() {
        let at = (first + step) % contest.entries.len();
        let entry = contest.entries[at];
        let figure = match peer::ask(contest, &entry, set) {
            Ok(figure) => figure,
            Err(failure) if entry.peer == Peer::Doorbell => return Err(failure),
            Err(failure) => {
                absent.push((entry.peer, failure.to_string()));
                contest.entries.retain(|entry| entry.peer != absent[absent.len() - 1].0);
                return Ok(Err(format!("{:?}: {failure}", entry.peer)));
            }
        };
        let before_ns = probes[probes.len() - 1];
        let after_ns = floor::probe(set.cores)?;
        probes.push(after_ns);
        let floor = Floor { before_ns, after_ns };
        if let Some(why) = moved(&floor, &probes) {
            return Ok(Err(why));
        }
        figures[at] = Some(Measured { floor_ns: floor.ns(), figure });
    }
    let mode = Floor { before_ns: probes[0], after_ns: probes[0] }.mode();
    Ok(Ok(Round { mode, first, figures: figures.into_iter().flatten().collect() }))
}

/// Why a figure does not count, if so.
fn moved(floor: &Floor, probes: &[f64]) -> Option<String> {
    let Floor { before_ns, after_ns } = *floor;
    let round = Floor { before_ns: probes[0], after_ns };
    if floor.mode() == "MIX" || round.mode() == "MIX" {
        return Some(format!("the floor went from {:.0} to {after_ns:.0} ns", probes[0]));
    }
    let spread = before_ns.max(after_ns) / before_ns.min(after_ns);
    (spread > SPREAD)
        .then(|| format!("the floor was {before_ns:.0} ns before and {after_ns:.0} ns after"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(probes: &[f64]) -> bool {
        let last = probes.len() - 1;
        moved(&Floor { before_ns: probes[last - 1], after_ns: probes[last] }, probes).is_none()
    }

    #[test]
    fn a_round_in_which_the_cores_moved_is_dropped() {
        assert!(kept(&[50.0, 52.0]) && kept(&[240.0, 200.0]));
        assert!(!kept(&[50.0, 240.0]), "another mode");
        assert!(!kept(&[50.0, 70.0]), "too far apart");
        assert!(!kept(&[95.0, 105.0]), "near and far, however close");
    }

    #[test]
    fn the_mode_with_most_rounds_counts() {
        let round = |mode| Round { mode, first: 0, figures: Vec::new() };
        assert_eq!(most(&[]).1, 0);
        assert_eq!(most(&[round("FAR"), round("NEAR")]), ("NEAR", 1));
        assert_eq!(most(&[round("FAR"), round("NEAR"), round("FAR")]), ("FAR", 2));
    }
}
