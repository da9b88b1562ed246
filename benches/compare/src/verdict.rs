//! The aims, whether a run met them, and what the machine allows: a message whose every byte one
//! core writes and the other reads takes at least as long as to copy lines that the other core has
//! just written. An aim beyond that limit stays an aim, and is missed; the table says so beside it.

use serde::Serialize;

use crate::contest::{Api, Peer, Test, bytes};
use crate::outcome::{Outcome, median};
use crate::peer::Figure;

/// A bound of our figure, as a multiple of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, ratio: f64) -> bool {
        match self {
            Aim::AtMost(bound) => ratio <= bound,
            Aim::AtLeast(bound) => ratio >= bound,
        }
    }

    /// True if the machine's limit misses the aim, and our figure is within that limit.
    fn is_beyond(self, limit: f64, ours: f64) -> bool {
        let is_within = match self {
            Aim::AtMost(_) => ours >= limit,
            Aim::AtLeast(_) => ours <= limit,
        };
        is_within && !self.is_met(limit)
    }

    pub(crate) fn text(self) -> String {
        match self {
            Aim::AtMost(bound) => format!("≤ {bound}"),
            Aim::AtLeast(bound) => format!("≥ {bound}"),
        }
    }
}

/// An aim of a contest.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    /// Our entry.
    ours: Peer,
    /// Its batch.
    batch: Option<u32>,
    /// The best of these counts.
    theirs: &'static [Peer],
    aim: Aim,
    /// Means are compared, because their program reports no median.
    by_mean: bool,
}

const UCT: &[Peer] = &[Peer::Uct];
const TAG: &[Peer] =
    &[Peer::Ucx { api: Api::Tag, cma: false }, Peer::Ucx { api: Api::Tag, cma: true }];
const TAG_OR_AM: &[Peer] = &[
    Peer::Ucx { api: Api::Tag, cma: false },
    Peer::Ucx { api: Api::Tag, cma: true },
    Peer::Ucx { api: Api::Am, cma: false },
    Peer::Ucx { api: Api::Am, cma: true },
];
const ICEORYX2: &[Peer] = &[Peer::Iceoryx2];
const LIBFABRIC: &[Peer] = &[Peer::Libfabric];
const MEMCPY: &[Peer] = &[Peer::Memcpy];

/// The aims of a test at a size.
fn rules(test: Test, size: u32) -> Vec<Rule> {
    let rule =
        |theirs, aim| Rule { ours: Peer::Doorbell, batch: None, theirs, aim, by_mean: false };
    let batch = |batch, theirs, aim| Rule { batch: Some(batch), ..rule(theirs, aim) };
    // Where their program neither writes nor reads the payload, ours is judged both ways.
    let both = |theirs, aim| {
        [Peer::Doorbell, Peer::Untouched].map(|ours| Rule { ours, ..batch(16, theirs, aim) })
    };
    let mut rules = Vec::new();
    match test {
        Test::Latency => {
            match size {
                ..=32 => rules.push(rule(UCT, Aim::AtMost(0.6))),
                33..=200 => rules.push(rule(UCT, Aim::AtMost(0.65))),
                201..=1024 => rules.push(rule(UCT, Aim::AtMost(1.0))),
                _ => {}
            }
            match size {
                ..1024 => {}
                1024..=0x4000 => rules.push(rule(TAG, Aim::AtMost(0.6))),
                _ => rules.push(rule(TAG, Aim::AtMost(0.7))),
            }
            rules.push(rule(ICEORYX2, Aim::AtMost(1.0)));
            rules.push(Rule { by_mean: true, ..rule(LIBFABRIC, Aim::AtMost(1.0)) });
        }
        Test::Rate => {
            let (one, many) = match size {
                ..=32 => (Some(2.0), Some(4.0)),
                33..=64 => (Some(1.8), Some(3.5)),
                65..=200 => (Some(1.8), Some(3.0)),
                201..=1024 => (None, Some(1.0)),
                _ => (None, None),
            };
            rules.extend(one.map(|bound| batch(1, UCT, Aim::AtLeast(bound))));
            rules.extend(many.map(|bound| batch(16, UCT, Aim::AtLeast(bound))));
            if size >= 1024 {
                rules.extend(both(TAG_OR_AM, Aim::AtLeast(2.0)));
            }
            if size >= 64 << 10 {
                rules.extend(both(MEMCPY, Aim::AtLeast(0.85)));
            }
            rules.push(batch(16, ICEORYX2, Aim::AtLeast(1.0)));
        }
        Test::Large | Test::LargeBoth => rules.push(rule(MEMCPY, Aim::AtLeast(0.9))),
        Test::Put | Test::PutRate | Test::GetRate | Test::Rpc => {}
    }
    rules
}

/// What the machine can do at best for one of our entries. The bytes of the untouched one are not
/// written anew for each message, so only a copy of the receiver's own holds it back.
fn limit(ours: Peer) -> Option<Peer> {
    match ours {
        Peer::Doorbell => Some(Peer::Copy),
        Peer::Untouched => Some(Peer::Memcpy),
        _ => None,
    }
}

/// True unless the limit would be held against itself.
fn theirs_is_no_limit(rule: &Rule) -> bool {
    limit(rule.ours).is_none_or(|limit| !rule.theirs.contains(&limit))
}

/// An aim with the figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    /// The test and the size.
    pub(crate) contest: String,
    /// Our entry, and theirs.
    pub(crate) ours: String,
    pub(crate) theirs: String,
    /// The medians of both: nanoseconds, or messages a second.
    pub(crate) figures: [f64; 2],
    /// The median of the ratios of each round, and all of them.
    pub(crate) ratio: f64,
    pub(crate) each: Vec<f64>,
    pub(crate) aim: Aim,
    pub(crate) met: bool,
    /// The same ratio for what the machine can do at best, where that was measured.
    pub(crate) limit: Option<f64>,
    /// Even the limit misses the aim, and our figure is no better than the limit.
    pub(crate) beyond_limit: bool,
    #[serde(skip)]
    is_time: bool,
}

impl Judged {
    /// The two figures, with units.
    pub(crate) fn figures(&self) -> [String; 2] {
        self.figures.map(|figure| with_unit(figure, self.is_time))
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match (self.met, self.beyond_limit) {
            (true, _) => "met",
            (false, false) => "**missed**",
            (false, true) => "**missed**, beyond the limit",
        }
    }

    /// The ratio of the machine's limit.
    pub(crate) fn limit(&self) -> String {
        self.limit.map_or_else(|| "-".to_owned(), |limit| format!("{limit:.2}"))
    }

    /// The ratio of each round.
    pub(crate) fn each(&self) -> String {
        let each: Vec<String> = self.each.iter().map(|ratio| format!("{ratio:.2}")).collect();
        each.join(" ")
    }
}

/// A time, or a rate of messages.
pub(crate) fn with_unit(figure: f64, is_time: bool) -> String {
    match (is_time, figure) {
        (true, ..1e4) => format!("{figure:.0} ns"),
        (true, _) => format!("{:.1} µs", figure / 1e3),
        (false, 1e6..) => format!("{:.2} M/s", figure / 1e6),
        (false, _) => format!("{:.1} k/s", figure / 1e3),
    }
}

/// The number of aims of an outcome.
pub(crate) fn aims(outcome: &Outcome) -> usize {
    rules(outcome.test, outcome.size).len()
}

/// The aims of an outcome for which there are figures.
pub(crate) fn judge(outcome: &Outcome) -> Vec<Judged> {
    let rules = rules(outcome.test, outcome.size);
    rules.into_iter().filter_map(|rule| judge_one(outcome, &rule)).collect()
}

fn judge_one(outcome: &Outcome, rule: &Rule) -> Option<Judged> {
    let (test, by_mean) = (outcome.test, rule.by_mean);
    let of = |figure: &Figure| if by_mean { figure.mean_ns } else { figure.main(test) };
    let ours = outcome.place(rule.ours, rule.batch)?;
    let places = rule.theirs.iter().filter_map(|peer| outcome.place(*peer, None));
    let medians = places.filter_map(|place| Some((place, outcome.median(place, of)?)));
    // By the median, because the best of a few rounds is luck.
    let (theirs, figure) = medians.min_by(|one, two| match test.is_time() {
        true => one.1.total_cmp(&two.1),
        false => two.1.total_cmp(&one.1),
    })?;
    let each = outcome.ratios(ours, theirs, of);
    let ratio = median(each.clone())?;
    let limit = limit(rule.ours).and_then(|peer| outcome.place(peer, None));
    let limit = limit.and_then(|limit| median(outcome.ratios(limit, theirs, of)));
    let limit = limit.filter(|_| theirs_is_no_limit(rule));
    let names = [ours, theirs].map(|place| outcome.entries[place].name());
    let [ours_name, theirs_name] = names;
    Some(Judged {
        contest: format!("{}, {}", test.name(), bytes(outcome.size)),
        ours: ours_name + if by_mean { " (mean)" } else { "" },
        theirs: theirs_name,
        figures: [outcome.median(ours, of)?, figure],
        ratio,
        each,
        aim: rule.aim,
        met: rule.aim.is_met(ratio),
        limit,
        beyond_limit: limit.is_some_and(|limit| rule.aim.is_beyond(limit, ratio)),
        is_time: test.is_time(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{Contest, Entry, SIZES};
    use crate::outcome::made;

    #[test]
    fn every_aim_is_of_entries_that_are_measured() {
        for contest in Contest::all(&[], false) {
            for rule in rules(contest.test, contest.size) {
                let has = |peer, batch| {
                    contest.entries.iter().any(|it| it.peer == peer && it.batch == batch)
                };
                assert!(has(rule.ours, rule.batch), "{contest}");
                assert!(rule.theirs.iter().any(|peer| has(*peer, None)), "{contest}: {rule:?}");
            }
        }
    }

    #[test]
    fn the_aims_are_those_of_the_size() {
        let bound = |test, size, theirs: &[Peer]| {
            let all = rules(test, size);
            let of: Vec<Aim> =
                all.iter().filter(|rule| rule.theirs == theirs).map(|rule| rule.aim).collect();
            of
        };
        for size in SIZES {
            let tag = bound(Test::Latency, size, TAG);
            let expected = match size {
                ..1024 => vec![],
                1024..=16_384 => vec![Aim::AtMost(0.6)],
                _ => vec![Aim::AtMost(0.7)],
            };
            assert_eq!(tag, expected, "{size}");
            let memcpy = bound(Test::Rate, size, MEMCPY);
            assert_eq!(memcpy.len(), 2 * usize::from(size >= 65_536), "{size}");
            assert_eq!(bound(Test::Latency, size, LIBFABRIC), [Aim::AtMost(1.0)]);
        }
        assert_eq!(bound(Test::Latency, 208, UCT), [Aim::AtMost(1.0)]);
        assert_eq!(bound(Test::Rate, 64, UCT), [Aim::AtLeast(1.8), Aim::AtLeast(3.5)]);
        assert_eq!(bound(Test::LargeBoth, 1 << 20, MEMCPY), [Aim::AtLeast(0.9)]);
    }

    #[test]
    fn the_best_of_theirs_counts_round_by_round() {
        let entries = [
            Entry { batch: Some(16), ..Entry::new(Peer::Doorbell) },
            Entry::new(Peer::Ucx { api: Api::Tag, cma: false }),
            Entry::new(Peer::Ucx { api: Api::Am, cma: false }),
        ];
        // The active messages are faster twice, and the tags once.
        let rounds: &[&[f64]] = &[&[3e6, 1e6, 2e6], &[5e6, 1e6, 2e6], &[4.2e6, 9e6, 2e6]];
        let judged = judge(&made::outcome(Test::Rate, 4096, &entries, rounds));
        assert_eq!(judged.len(), 1, "iceoryx2 was not measured");
        let judged = &judged[0];
        assert_eq!((judged.contest.as_str(), judged.theirs.as_str()), ("rate, 4 KiB", "UCX am"));
        assert_eq!(judged.figures(), ["4.20 M/s", "2.00 M/s"]);
        assert_eq!((judged.ratio, judged.each().as_str()), (2.1, "1.50 2.50 2.10"));
        assert!(judged.met);

        // Of times the shortest is the best.
        let tags = [false, true].map(|cma| Entry::new(Peer::Ucx { api: Api::Tag, cma }));
        let entries = [Entry::new(Peer::Doorbell), tags[0], tags[1]];
        let times = made::outcome(Test::Latency, 64 << 10, &entries, &[&[3000.0, 6000.0, 5000.0]]);
        let judged = judge(&times);
        assert_eq!((judged[0].theirs.as_str(), judged[0].ratio), ("UCX tag cma", 0.6));
    }

    #[test]
    fn a_slower_time_misses_and_the_same_meets() {
        let entries = [Entry::new(Peer::Doorbell), Entry::new(Peer::Uct)];
        let verdict = |ours| {
            let judged = judge(&made::outcome(Test::Latency, 512, &entries, &[&[ours, 180.0]]));
            judged[0].verdict()
        };
        assert_eq!((verdict(180.0), verdict(181.0)), ("met", "**missed**"));
    }

    #[test]
    fn an_aim_beyond_the_limit_of_the_machine_is_missed_and_said_to_be() {
        let tag = Peer::Ucx { api: Api::Tag, cma: false };
        let entries = [Peer::Doorbell, tag, Peer::Copy].map(Entry::new);
        let judged = |figures: &[f64]| {
            let outcome = made::outcome(Test::Latency, 16 << 10, &entries, &[figures]);
            let judged = judge(&outcome).remove(0);
            (judged.limit(), judged.verdict())
        };
        // At most 0.6 times theirs is wanted.
        assert_eq!(
            judged(&[900.0, 1000.0, 700.0]),
            ("0.70".to_owned(), "**missed**, beyond the limit")
        );
        assert_eq!(judged(&[900.0, 1000.0, 500.0]), ("0.50".to_owned(), "**missed**"));
        assert_eq!(judged(&[600.0, 1000.0, 700.0]), ("0.70".to_owned(), "met"));
        // What ours undercuts is no limit.
        assert_eq!(judged(&[650.0, 1000.0, 700.0]), ("0.70".to_owned(), "**missed**"));
        let untouched =
            [Entry { batch: Some(16), ..Entry::new(Peer::Untouched) }, Entry::new(Peer::Memcpy)];
        let outcome = made::outcome(Test::Rate, 64 << 10, &untouched, &[&[3e5, 6e5]]);
        assert_eq!(judge(&outcome)[0].limit(), "-", "memcpy is no limit of itself");
    }

    #[test]
    fn means_are_compared_where_there_is_no_median() {
        let entries = [Entry::new(Peer::Doorbell), Entry::new(Peer::Libfabric)];
        let mut outcome = made::outcome(Test::Latency, 512, &entries, &[&[100.0, 150.0]]);
        for measured in outcome.rounds[0].figures.iter_mut().flatten() {
            measured.figure.p50_ns = measured.figure.p50_ns.filter(|ns| *ns < 120.0);
        }
        if let Some(ours) = &mut outcome.rounds[0].figures[0] {
            ours.figure.mean_ns = Some(300.0);
        }
        let judged = judge(&outcome);
        assert_eq!((judged[0].ratio, judged[0].met), (2.0, false));
        assert_eq!(judged[0].ours, "doorbell (mean)");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(with_unit(105.4, true), "105 ns");
        assert_eq!(with_unit(74_786.0, true), "74.8 µs");
        assert_eq!(with_unit(67_600_000.0, false), "67.60 M/s");
        assert_eq!(with_unit(1676.0, false), "1.7 k/s");
    }
}
