//! Rounds: all entries in turn, each between two probes of the floor.
//!
//! A hypervisor moves cores nearer and farther unseen, and other programs use their share, so
//! figures of different times are not comparable. A round counts only if all its probes found the
//! cores in one mode, if the floor was about the same before and after each figure, and if nobody
//! else used the cores. The medians are of rounds of one mode. On a machine that is never quiet,
//! disturbed rounds are better than none, and are marked as such.

use doorbell_tune as tune;
use serde::Serialize;

use crate::busy::Busy;
use crate::contest::{Contest, Entry, Peer, Setting, Test};
use crate::error::Failure;
use crate::floor::Floor;
use crate::peer::{self, Figure};

/// Rounds tried for each one wanted.
const TRIES: u32 = 3;

/// The largest ratio between the probes before and after a figure.
const SPREAD: f64 = 1.3;

/// The share of the two cores' time that others may use while a figure is taken.
const OTHERS: f64 = 0.05;

/// The figures of all entries, in the order of the contest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// NEAR or FAR.
    pub(crate) mode: &'static str,
    /// The entry that was first; the others followed in turn.
    pub(crate) first: usize,
    /// The largest share of the cores that others used during one of the figures.
    pub(crate) others: f64,
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

/// The result of a contest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) entries: Vec<Entry>,
    /// The mode of the rounds that count.
    pub(crate) mode: &'static str,
    pub(crate) rounds: Vec<Round>,
    /// No round was quiet: these were disturbed by other programs, and are only a hint.
    pub(crate) disturbed: bool,
    /// Why each dropped round does not count.
    pub(crate) dropped: Vec<String>,
    /// Entries without figures, and why.
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
    let (mut rounds, mut noisy) = (Vec::<Round>::new(), Vec::<Round>::new());
    let (mut dropped, mut absent) = (Vec::new(), Vec::new());
    for number in 0..wanted * TRIES {
        match round(&contest, set, number as usize) {
            Ok(round) if round.others <= OTHERS => rounds.push(round),
            Ok(round) => noisy.push(round),
            Err(Miss::Moved(why)) => dropped.push(why),
            Err(Miss::Failed(Peer::Doorbell, failure)) => return Err(failure),
            // An entry that never answered is absent; one that did may have failed by chance.
            Err(Miss::Failed(peer, failure)) if rounds.is_empty() && noisy.is_empty() => {
                contest.entries.retain(|entry| entry.peer != peer);
                absent.push((peer, failure.to_string()));
            }
            Err(Miss::Failed(_, failure)) => dropped.push(failure.to_string()),
        }
        if most(&rounds).1 >= wanted as usize {
            break;
        }
    }
    let disturbed = rounds.is_empty();
    if disturbed {
        rounds = noisy;
    } else {
        let percent = |round: Round| format!("others had {:.0} % of it", round.others * 100.0);
        dropped.extend(noisy.into_iter().map(percent));
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
    rounds.truncate(wanted as usize);
    let Contest { test, size, entries } = contest;
    Ok(Outcome { test, size, entries, mode, rounds, disturbed, dropped, absent })
}

/// The mode with most rounds, and their number. If equal, the near one.
fn most(rounds: &[Round]) -> (&'static str, usize) {
    let count = |mode| rounds.iter().filter(|round| round.mode == mode).count();
    let (near, far) = (count("NEAR"), count("FAR"));
    if far > near { ("FAR", far) } else { ("NEAR", near) }
}

/// Why there is no round.
enum Miss {
    /// The cores moved.
    Moved(String),
    /// An entry gave no figure.
    Failed(Peer, Failure),
}

/// Runs one round.
fn round(contest: &Contest, set: &Setting, number: usize) -> Result<Round, Miss> {
    // Without the floor none of our figures means anything.
    let failed = |error: tune::MeasureError| Failure::new(error.to_string());
    let probe =
        || tune::floor(set.cores).map_err(|error| Miss::Failed(Peer::Doorbell, failed(error)));
    let entries = contest.entries.len();
    let first = number % entries;
    let mut figures = vec![None; entries];
    let start_ns = probe()?;
    let (mut before_ns, mut others) = (start_ns, 0.0);
    for at in (first..entries).chain(0..first) {
        let peer = contest.entries[at].peer;
        let before = Busy::now(set.cores);
        let figure = peer::ask(contest, &contest.entries[at], set);
        let figure = figure.map_err(|failure| Miss::Failed(peer, failure))?;
        others = Busy::now(set.cores).others_since(&before).max(others);
        let floor = Floor { before_ns, after_ns: probe()? };
        if let Some(why) = moved(start_ns, &floor) {
            return Err(Miss::Moved(format!("{peer:?}: {why}")));
        }
        figures[at] = Some(Measured { floor_ns: floor.ns(), figure });
        before_ns = floor.after_ns;
    }
    let mode = Floor { before_ns: start_ns, after_ns: before_ns }.mode();
    Ok(Round { mode, first, others, figures: figures.into_iter().flatten().collect() })
}

/// Why a figure does not count, if it does not: `start_ns` was the floor when its round began.
fn moved(start_ns: f64, floor: &Floor) -> Option<String> {
    let Floor { before_ns, after_ns } = *floor;
    if (Floor { before_ns: start_ns, after_ns }).mode() == "MIX" {
        return Some(format!("the floor went from {start_ns:.0} to {after_ns:.0} ns"));
    }
    let spread = before_ns.max(after_ns) / before_ns.min(after_ns);
    (spread > SPREAD)
        .then(|| format!("the floor was {before_ns:.0} ns before and {after_ns:.0} ns after"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(start_ns: f64, before_ns: f64, after_ns: f64) -> bool {
        moved(start_ns, &Floor { before_ns, after_ns }).is_none()
    }

    #[test]
    fn a_round_in_which_the_cores_moved_is_dropped() {
        assert!(kept(50.0, 50.0, 52.0) && kept(240.0, 240.0, 200.0));
        assert!(!kept(50.0, 50.0, 240.0) && !kept(240.0, 240.0, 50.0), "another mode");
        assert!(!kept(50.0, 50.0, 70.0), "too far apart");
        assert!(!kept(95.0, 95.0, 105.0), "near and far, however close");
    }

    #[test]
    fn the_mode_with_most_rounds_counts() {
        let round = |mode| Round { mode, first: 0, others: 0.0, figures: Vec::new() };
        assert_eq!(most(&[]).1, 0);
        assert_eq!(most(&[round("FAR"), round("NEAR")]), ("NEAR", 1));
        assert_eq!(most(&[round("FAR"), round("NEAR"), round("FAR")]), ("FAR", 2));
    }
}
