//! What a contest comes to: every round, and the medians over those figures that count.
//!
//! A hypervisor moves cores nearer and farther unseen, and other programs use their share, so
//! figures of different times are not comparable. A figure counts if the floor before and after it
//! was about the same, and if nobody else used the cores. Medians are of figures of one mode, NEAR
//! or FAR, and ratios are of two such figures of one round. On a machine that is never quiet,
//! disturbed figures are better than none, and are marked as such.

use serde::Serialize;

use crate::contest::{Contest, Entry, Peer, Test};
use crate::floor::Floor;
use crate::peer::Figure;

/// The largest ratio between the probes before and after a figure.
const SPREAD: f64 = 1.3;

/// The share of the two cores' time that others may use while a figure is taken.
const OTHERS: f64 = 0.05;

/// A figure with the conditions it was taken in.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Measured {
    /// Before and after.
    pub(crate) floor_ns: [f64; 2],
    /// NEAR, FAR or MIX.
    pub(crate) mode: &'static str,
    /// The share of the cores that others used meanwhile.
    pub(crate) others: f64,
    /// It is one of the figures that medians and ratios are taken of.
    pub(crate) counts: bool,
    #[serde(flatten)]
    pub(crate) figure: Figure,
}

/// How far a figure can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// The cores moved meanwhile.
    Moved,
    /// Other programs used the cores.
    Disturbed,
    Sound,
}

impl Measured {
    pub(crate) fn new(floor: Floor, others: f64, figure: Figure) -> Measured {
        let floor_ns = [floor.before_ns, floor.after_ns];
        Measured { floor_ns, mode: floor.mode(), others, counts: false, figure }
    }

    pub(crate) fn worth(&self) -> Worth {
        let [before, after] = self.floor_ns;
        if self.mode == "MIX" || before.max(after) / before.min(after) > SPREAD {
            Worth::Moved
        } else if self.others > OTHERS {
            Worth::Disturbed
        } else {
            Worth::Sound
        }
    }
}

/// The figures of all entries, in the order of the contest; none where an entry gave none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// From 1 on.
    pub(crate) number: u32,
    /// The entry that was first; the others followed in turn.
    pub(crate) first: usize,
    pub(crate) figures: Vec<Option<Measured>>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
}

/// The result of a contest so far.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) entries: Vec<Entry>,
    /// The mode of the figures that count.
    pub(crate) mode: &'static str,
    /// No figure of ours was quiet: those that count were disturbed by other programs.
    pub(crate) disturbed: bool,
    pub(crate) rounds: Vec<Round>,
    /// Settings of peers that were tried, and what came out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tried: Vec<String>,
    /// Entries without figures, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) absent: Vec<(Peer, String)>,
}

impl Outcome {
    pub(crate) fn new(contest: &Contest) -> Outcome {
        Outcome {
            test: contest.test,
            size: contest.size,
            entries: contest.entries.clone(),
            mode: Floor::NEAR,
            disturbed: false,
            rounds: Vec::new(),
            tried: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// Adds a round, and chooses anew which figures count: those of the mode in which Doorbell has
    /// most sound ones, or most disturbed ones where none is sound. If equal, the near ones.
    pub(crate) fn add(&mut self, round: Round) {
        self.rounds.push(round);
        let of = |mode, worth| {
            let ours = self.rounds.iter().filter_map(|round| round.figures.first()?.as_ref());
            ours.filter(|ours| ours.mode == mode && ours.worth() == worth).count()
        };
        let count = |worth| (of(Floor::NEAR, worth), of(Floor::FAR, worth));
        let sound = count(Worth::Sound);
        let disturbed = sound == (0, 0);
        let (near, far) = if disturbed { count(Worth::Disturbed) } else { sound };
        let mode = if far > near { Floor::FAR } else { Floor::NEAR };
        (self.mode, self.disturbed) = (mode, disturbed);
        let least = if disturbed { Worth::Disturbed } else { Worth::Sound };
        for measured in self.rounds.iter_mut().flat_map(|round| round.figures.iter_mut().flatten())
        {
            measured.counts = measured.mode == mode && measured.worth() >= least;
        }
    }

    /// A figure of an entry, if it counts.
    pub(crate) fn counted<'a>(&self, round: &'a Round, entry: usize) -> Option<&'a Measured> {
        round.figures.get(entry)?.as_ref().filter(|measured| measured.counts)
    }

    /// Rounds in which our figure counts.
    pub(crate) fn kept(&self) -> usize {
        self.rounds.iter().filter(|round| self.counted(round, 0).is_some()).count()
    }

    /// Where an entry is.
    pub(crate) fn place(&self, peer: Peer, batch: Option<u32>) -> Option<usize> {
        self.entries.iter().position(|entry| entry.peer == peer && entry.batch == batch)
    }

    /// The median of a number of an entry.
    pub(crate) fn median(&self, entry: usize, of: impl Fn(&Figure) -> Option<f64>) -> Option<f64> {
        let counted = self.rounds.iter().filter_map(|round| self.counted(round, entry));
        median(counted.filter_map(|measured| of(&measured.figure)).collect())
    }

    /// The ratios of two entries, one for each round in which both count.
    pub(crate) fn ratios(
        &self,
        over: usize,
        under: usize,
        of: impl Fn(&Figure) -> Option<f64>,
    ) -> Vec<f64> {
        let ratio = |round: &Round| {
            let over = of(&self.counted(round, over)?.figure)?;
            Some(over / of(&self.counted(round, under)?.figure)?)
        };
        self.rounds.iter().filter_map(ratio).collect()
    }

    /// The median floor around the figures that count.
    pub(crate) fn floor(&self) -> Option<f64> {
        let all = self.rounds.iter().flat_map(|round| {
            (0..self.entries.len()).filter_map(|entry| self.counted(round, entry))
        });
        median(all.flat_map(|measured| measured.floor_ns).collect())
    }

    /// The largest share of the cores that others used during a figure that counts.
    pub(crate) fn others(&self) -> f64 {
        let all = self.rounds.iter().flat_map(|round| {
            (0..self.entries.len()).filter_map(|entry| self.counted(round, entry))
        });
        all.map(|measured| measured.others).fold(0.0, f64::max)
    }
}

/// The middle value; for an even number the mean of the middle two.
pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let half = figures.len() / 2;
    match figures.len() {
        0 => None,
        even if even % 2 == 0 => Some((figures[half - 1] + figures[half]) / 2.0),
        _ => Some(figures[half]),
    }
}

/// Outcomes for tests.
#[cfg(test)]
pub(crate) mod made {
    use super::*;

    /// A round of figures: the floor, and the main number, which is all of the figure.
    pub(crate) fn round(number: u32, test: Test, figures: &[(f64, f64)]) -> Round {
        let measured = |&(floor_ns, value): &(f64, f64)| {
            let floor = Floor { before_ns: floor_ns, after_ns: floor_ns };
            let time = test.is_time().then_some(value);
            let rate = (!test.is_time()).then_some(value);
            let figure = Figure { p50_ns: time, mean_ns: time, messages_per_second: rate };
            Some(Measured::new(floor, 0.0, figure))
        };
        let figures = figures.iter().map(measured).collect();
        Round { number, first: 0, figures, errors: Vec::new() }
    }

    /// An outcome with these entries and rounds, all at a floor of 50 ns.
    pub(crate) fn outcome(test: Test, size: u32, entries: &[Entry], rounds: &[&[f64]]) -> Outcome {
        let mut outcome = Outcome::new(&Contest { test, size, entries: entries.to_vec() });
        for (figures, number) in rounds.iter().zip(1..) {
            let figures: Vec<_> = figures.iter().map(|value| (50.0, *value)).collect();
            outcome.add(round(number, test, &figures));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worth(before_ns: f64, after_ns: f64, others: f64) -> Worth {
        Measured::new(Floor { before_ns, after_ns }, others, Figure::default()).worth()
    }

    #[test]
    fn a_figure_during_which_the_cores_moved_does_not_count() {
        assert_eq!(worth(50.0, 52.0, 0.0), Worth::Sound);
        assert_eq!(worth(240.0, 200.0, 0.0), Worth::Sound);
        assert_eq!(worth(50.0, 240.0, 0.0), Worth::Moved, "another mode");
        assert_eq!(worth(50.0, 70.0, 0.0), Worth::Moved, "too far apart");
        assert_eq!(worth(95.0, 105.0, 0.0), Worth::Moved, "near and far, however close");
        assert_eq!(worth(50.0, 50.0, 0.2), Worth::Disturbed);
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    const ENTRIES: [Entry; 2] = [
        Entry { peer: Peer::Doorbell, batch: None, fifo_elem_size: None },
        Entry { peer: Peer::Uct, batch: None, fifo_elem_size: None },
    ];

    #[test]
    fn ratios_are_of_one_round_each() {
        let rounds: &[&[f64]] = &[&[60.0, 120.0], &[75.0, 150.0], &[70.0, 210.0]];
        let outcome = made::outcome(Test::Latency, 8, &ENTRIES, rounds);
        assert_eq!(outcome.median(0, |figure| figure.p50_ns), Some(70.0));
        // The ratio of the medians would be 150 / 70.
        let ratios = outcome.ratios(1, 0, |figure| figure.p50_ns);
        assert_eq!(ratios, [2.0, 2.0, 3.0]);
        assert_eq!((outcome.floor(), outcome.kept()), (Some(50.0), 3));
    }

    #[test]
    fn figures_of_the_mode_with_most_of_ours_count_and_all_are_kept() {
        let mut outcome = made::outcome(Test::Latency, 8, &ENTRIES, &[&[60.0, 120.0]]);
        let (far, near) = (240.0, 50.0);
        outcome.add(made::round(2, Test::Latency, &[(far, 200.0), (far, 400.0)]));
        assert_eq!((outcome.mode, outcome.kept()), ("NEAR", 1));
        outcome.add(made::round(3, Test::Latency, &[(far, 220.0), (near, 100.0)]));
        assert_eq!((outcome.mode, outcome.kept()), ("FAR", 2));
        // In the third round the two are not of one mode.
        assert_eq!(outcome.ratios(0, 1, |figure| figure.p50_ns), [0.5]);
        assert_eq!(outcome.rounds.len(), 3);
    }

    #[test]
    fn disturbed_figures_count_where_none_is_sound() {
        let mut outcome = made::outcome(Test::Latency, 8, &ENTRIES, &[]);
        let mut noisy = made::round(1, Test::Latency, &[(50.0, 60.0), (50.0, 120.0)]);
        noisy.figures.iter_mut().flatten().for_each(|measured| measured.others = 0.4);
        outcome.add(noisy);
        assert!(outcome.disturbed && outcome.kept() == 1 && outcome.others() == 0.4);
        outcome.add(made::round(2, Test::Latency, &[(50.0, 66.0), (50.0, 120.0)]));
        assert!(!outcome.disturbed && outcome.kept() == 1);
        assert_eq!(outcome.median(0, |figure| figure.p50_ns), Some(66.0));
    }
}
