//! Rounds: all entries of a contest in turn, each between two probes of the floor. Every contest
//! has a round before any has its second, so that a run that is interrupted has figures of each.

use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_tune as tune;

use crate::busy::Busy;
use crate::contest::{Contest, Entry, Setting};
use crate::error::Failure;
use crate::floor::Floor;
use crate::outcome::{Measured, Outcome, Round};
use crate::peer::{self, Figure};
use crate::ucx;

/// Rounds tried for each one wanted.
const TRIES: u32 = 2;

/// What takes the figures and hears of each round.
pub(crate) trait Run {
    /// Gets one figure from one entry.
    fn ask(&mut self, contest: &Contest, entry: &Entry) -> Result<Figure, Failure>;

    /// The floor, in nanoseconds.
    fn floor(&mut self) -> Result<f64, Failure>;

    /// Processor time so far.
    fn busy(&mut self) -> Busy;

    /// True if the run is to end.
    fn is_over(&mut self) -> bool;

    /// A contest has had one more round, the last one of its outcome.
    fn had(&mut self, outcomes: &[Outcome], at: usize) -> Result<(), Failure>;
}

/// Runs rounds until each contest has `wanted` in which our figure counts, or too many were tried.
///
/// # Errors
/// Doorbell itself gave no figure, the floor cannot be measured, or a round cannot be noted. What
/// was measured until then is in `outcomes`.
pub(crate) fn all(
    contests: &[Contest],
    wanted: u32,
    tries: Tries,
    run: &mut impl Run,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), Failure> {
    *outcomes = contests.iter().map(Outcome::new).collect();
    let most = if tries == Tries::Many { wanted * TRIES } else { wanted };
    for number in 1..=most {
        for at in 0..contests.len() {
            if number > wanted && outcomes[at].kept() >= wanted as usize {
                continue;
            }
            if number == 1 {
                choose(&contests[at], tries, run, &mut outcomes[at]);
            }
            if run.is_over() {
                return Ok(());
            }
            let done = round(number, run, &mut outcomes[at]);
            run.had(outcomes, at)?;
            done?;
        }
    }
    Ok(())
}

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tries {
    /// Settings of peers, and more rounds where some do not count.
    Many,
    /// No more than the rounds; peers have the settings that are usually the best.
    Few,
}

/// Chooses settings of peers for a contest. Each setting is tried once, and the best one is taken.
fn choose(contest: &Contest, tries: Tries, run: &mut impl Run, outcome: &mut Outcome) {
    for at in 0..outcome.entries.len() {
        let entry = outcome.entries[at];
        let sizes = ucx::elem_sizes(contest, &entry);
        // The last one has room for the message.
        let Some(last) = sizes.last() else { continue };
        if tries == Tries::Few {
            outcome.entries[at].fifo_elem_size = Some(*last);
            continue;
        }
        let mut best = None;
        let mut text = format!("{}, UCX_POSIX_FIFO_ELEM_SIZE", entry.name());
        for size in &sizes {
            if run.is_over() {
                return;
            }
            let tried = Entry { fifo_elem_size: Some(*size), ..entry };
            let figure = run.ask(contest, &tried).ok().and_then(|it| it.main(contest.test));
            let Some(figure) = figure else { continue };
            text.push_str(&format!(" {size}: {figure:.0}"));
            let less =
                |than: f64| if contest.test.is_time() { figure < than } else { figure > than };
            if best.is_none_or(|(_, than)| less(than)) {
                best = Some((*size, figure));
            }
        }
        outcome.entries[at].fifo_elem_size = best.map(|(size, _)| size);
        outcome.tried.push(text);
    }
}

/// Runs one round.
fn round(number: u32, run: &mut impl Run, outcome: &mut Outcome) -> Result<(), Failure> {
    let Outcome { test, size, entries, .. } = outcome;
    let contest = Contest { test: *test, size: *size, entries: entries.clone() };
    let entries = contest.entries.len();
    let first = (number as usize - 1) % entries;
    let mut round = Round { number, first, figures: vec![None; entries], errors: Vec::new() };
    let mut before_ns = run.floor()?;
    let mut ours = Ok(());
    for at in (first..entries).chain(0..first) {
        let entry = contest.entries[at];
        if run.is_over() {
            break;
        }
        // One failure may be chance, so an absent peer is asked once more.
        let absent = outcome.absent.iter().position(|(peer, _)| *peer == entry.peer);
        if let Some(place) = absent {
            if number > 2 {
                continue;
            }
            outcome.absent.remove(place);
        }
        let before = run.busy();
        let figure = run.ask(&contest, &entry);
        let others = run.busy().others_since(&before);
        let after_ns = run.floor()?;
        let floor = Floor { before_ns, after_ns };
        before_ns = after_ns;
        match figure {
            Ok(figure) => round.figures[at] = Some(Measured::new(floor, others, figure)),
            // Its program was interrupted too.
            Err(_) if run.is_over() => break,
            Err(failure) => {
                let why = format!("{}: {failure}", entry.name());
                // An entry that never answered is absent; one that did may have failed by chance.
                let answered = |round: &Round| round.figures[at].is_some();
                if !entry.peer.is_ours() && !outcome.rounds.iter().any(answered) {
                    outcome.absent.push((entry.peer, failure.to_string()));
                } else if entry.peer.is_ours() {
                    ours = Err(Failure::new(format!("{contest}: {why}")));
                }
                round.errors.push(why);
            }
        }
    }
    outcome.add(round);
    ours
}

/// Takes the figures on this machine.
pub(crate) struct Machine<'a, N> {
    pub(crate) set: &'a Setting,
    pub(crate) interrupted: &'a AtomicBool,
    /// Hears of each round.
    pub(crate) note: N,
}

impl<N: FnMut(&[Outcome], usize) -> Result<(), Failure>> Run for Machine<'_, N> {
    fn ask(&mut self, contest: &Contest, entry: &Entry) -> Result<Figure, Failure> {
        peer::ask(contest, entry, self.set)
    }

    fn floor(&mut self) -> Result<f64, Failure> {
        tune::floor(self.set.cores).map_err(|error| Failure::new(error.to_string()))
    }

    fn busy(&mut self) -> Busy {
        Busy::now(self.set.cores)
    }

    fn is_over(&mut self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn had(&mut self, outcomes: &[Outcome], at: usize) -> Result<(), Failure> {
        (self.note)(outcomes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{Api, Peer, Test};

    /// Answers with the number of the question, and notes the questions.
    struct Fake {
        asked: Vec<String>,
        /// The rounds that were noted, as (size, number).
        had: Vec<(u32, u32)>,
        /// The floor of each probe, the last one for ever.
        floors: Vec<f64>,
        /// Entries that fail.
        broken: &'static str,
        /// Questions after which the run is over.
        limit: usize,
    }

    impl Fake {
        fn new() -> Fake {
            let (asked, had) = (Vec::new(), Vec::new());
            Fake { asked, had, floors: vec![50.0], broken: "none", limit: usize::MAX }
        }

        fn names(&self) -> Vec<&str> {
            self.asked.iter().map(String::as_str).collect()
        }
    }

    impl Run for Fake {
        fn ask(&mut self, contest: &Contest, entry: &Entry) -> Result<Figure, Failure> {
            let elem = entry.fifo_elem_size.map_or(String::new(), |size| format!("/{size}"));
            self.asked.push(format!("{}{elem} {}", entry.name(), contest.size));
            if entry.name() == self.broken {
                return Err(Failure::new("broken"));
            }
            // The second of three settings is the best.
            let ns = if elem == "/2048" { 10.0 } else { 100.0 };
            Ok(Figure { p50_ns: Some(ns), mean_ns: Some(ns), messages_per_second: Some(1e9 / ns) })
        }

        fn floor(&mut self) -> Result<f64, Failure> {
            Ok(if self.floors.len() > 1 { self.floors.remove(0) } else { self.floors[0] })
        }

        fn busy(&mut self) -> Busy {
            Busy::default()
        }

        fn is_over(&mut self) -> bool {
            self.asked.len() >= self.limit
        }

        fn had(&mut self, outcomes: &[Outcome], at: usize) -> Result<(), Failure> {
            let number = outcomes[at].rounds.last().unwrap().number;
            self.had.push((outcomes[at].size, number));
            Ok(())
        }
    }

    const TAG: Peer = Peer::Ucx { api: Api::Tag, cma: false };

    fn contest(size: u32, peers: &[Peer]) -> Contest {
        let entries = peers.iter().map(|peer| Entry::new(*peer)).collect();
        Contest { test: Test::Latency, size, entries }
    }

    fn run(
        contests: &[Contest],
        wanted: u32,
        tries: Tries,
        fake: &mut Fake,
    ) -> (Result<(), Failure>, Vec<Outcome>) {
        let mut outcomes = Vec::new();
        let done = all(contests, wanted, tries, fake, &mut outcomes);
        (done, outcomes)
    }

    #[test]
    fn entries_have_turns_and_every_contest_a_round_before_any_has_two() {
        let peers = [Peer::Doorbell, Peer::Iceoryx2];
        let contests = [contest(8, &peers), contest(64, &peers)];
        let mut fake = Fake::new();
        let (done, outcomes) = run(&contests, 2, Tries::Many, &mut fake);
        done.unwrap();
        let expected = [
            "doorbell 8",
            "iceoryx2 8",
            "doorbell 64",
            "iceoryx2 64",
            "iceoryx2 8",
            "doorbell 8",
            "iceoryx2 64",
            "doorbell 64",
        ];
        assert_eq!(fake.names(), expected);
        assert_eq!(fake.had, [(8, 1), (64, 1), (8, 2), (64, 2)]);
        assert!(outcomes.iter().all(|outcome| outcome.kept() == 2));
    }

    #[test]
    fn a_contest_whose_cores_moved_has_another_round_and_keeps_both() {
        let contests = [contest(8, &[Peer::Doorbell])];
        let mut fake = Fake { floors: vec![50.0, 240.0, 50.0], ..Fake::new() };
        let (_, outcomes) = run(&contests, 1, Tries::Many, &mut fake);
        assert_eq!((outcomes[0].rounds.len(), outcomes[0].kept()), (2, 1));
        let mut fake = Fake { floors: vec![50.0, 240.0, 50.0], ..Fake::new() };
        let (_, outcomes) = run(&contests, 1, Tries::Few, &mut fake);
        assert_eq!((outcomes[0].rounds.len(), outcomes[0].kept()), (1, 0));
    }

    #[test]
    fn settings_are_tried_once_and_the_best_is_taken() {
        let contests = [contest(208, &[Peer::Doorbell, TAG])];
        let mut fake = Fake::new();
        let (_, outcomes) = run(&contests, 2, Tries::Many, &mut fake);
        let tried = ["UCX tag/128 208", "UCX tag/2048 208", "UCX tag/8320 208"];
        assert_eq!(fake.names()[..3], tried);
        let rest = ["doorbell 208", "UCX tag/2048 208", "UCX tag/2048 208", "doorbell 208"];
        assert_eq!(fake.names()[3..], rest);
        assert_eq!(outcomes[0].entries[1].fifo_elem_size, Some(2048));
        let mut fake = Fake::new();
        run(&contests, 1, Tries::Few, &mut fake).0.unwrap();
        assert_eq!(fake.names(), ["doorbell 208", "UCX tag/8320 208"]);
    }

    #[test]
    fn a_peer_that_failed_twice_is_absent_and_ours_ends_the_run() {
        let contests = [contest(8, &[Peer::Doorbell, Peer::Libfabric])];
        let mut fake = Fake { broken: "libfabric", ..Fake::new() };
        let (done, outcomes) = run(&contests, 3, Tries::Many, &mut fake);
        assert!(done.is_ok() && outcomes[0].kept() == 3);
        let rounds = ["doorbell 8", "libfabric 8", "libfabric 8", "doorbell 8", "doorbell 8"];
        assert_eq!(fake.names(), rounds);
        assert_eq!(outcomes[0].absent, [(Peer::Libfabric, "broken".to_owned())]);
        let mut fake = Fake { broken: "doorbell", ..Fake::new() };
        let (done, outcomes) = run(&contests, 2, Tries::Many, &mut fake);
        assert!(done.unwrap_err().to_string().contains("latency, 8 B: doorbell: broken"));
        // The other entry's figure of that round is kept, and was noted.
        assert!(outcomes[0].rounds[0].figures[1].is_some() && fake.had == [(8, 1)]);
    }

    #[test]
    fn an_interrupted_run_keeps_what_it_has() {
        let peers = [Peer::Doorbell, Peer::Iceoryx2];
        let contests = [contest(8, &peers), contest(64, &peers)];
        let mut fake = Fake { limit: 3, ..Fake::new() };
        let (done, outcomes) = run(&contests, 2, Tries::Many, &mut fake);
        assert!(done.is_ok());
        assert_eq!(fake.had, [(8, 1), (64, 1)]);
        let second = &outcomes[1].rounds[0].figures;
        assert!(second[0].is_some() && second[1].is_none());
    }
}
