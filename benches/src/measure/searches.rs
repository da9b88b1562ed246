//! A search for each mode of the cores. A hypervisor may move them between near and far ones, and
//! the best rate of near cores is a multiple of that of far ones. So a try counts for the search of
//! the mode in which it ran, and the first search that ends decides.

use crate::machine::floor::Floor;
use crate::measure::search::Search;

/// After this many tries in a row that did not count, the next one does.
const SPARE_TRIES: u32 = 4;

/// The searches, between two tries.
pub(crate) struct Searches {
    /// By mode: `None` if no floor is known.
    all: Vec<(Option<&'static str>, Search)>,
    /// What each search takes: how often to try a rate.
    tries: u32,
    /// The place in `all` of the search that asks for the next rate.
    last: usize,
    /// Tries in a row that did not count.
    spare: u32,
    /// The rate of the first try.
    first: f64,
}

impl Searches {
    /// Searches that begin there, with as many tries.
    pub(crate) fn from(first: f64, tries: u32) -> Searches {
        Searches { all: Vec::new(), tries, last: 0, spare: 0, first }
    }

    /// The rate to try next; `None` at the end.
    pub(crate) fn next(&self) -> Option<f64> {
        self.all.get(self.last).map_or(Some(self.first), |(_, search)| search.next())
    }

    /// Takes the outcome of a try of that rate, which ran in that mode. False if it does not count:
    /// the cores moved, or `disturbed` says that other programs took them. A try that has to count
    /// nevertheless does so for the search that asked for its rate.
    pub(crate) fn tell(
        &mut self,
        mode: Option<&'static str>,
        rate: f64,
        holds: bool,
        disturbed: bool,
    ) -> bool {
        let moved = mode == Some(Floor::MIX);
        let known = self.all.iter().position(|(known, _)| *known == mode);
        let suits = !moved && !disturbed && known.is_none_or(|at| at == self.last);
        if !suits && self.spare < SPARE_TRIES {
            self.spare += 1;
            self.last = known.unwrap_or(self.last);
            return false;
        }
        self.spare = 0;
        if self.all.is_empty() || known.is_none() && !moved {
            self.last = self.all.len();
            self.all.push((mode, Search::from(rate, self.tries)));
        }
        self.all[self.last].1.tell(holds);
        true
    }

    /// The highest rate that held in the search that has ended.
    pub(crate) fn best(&self) -> Option<f64> {
        self.all.get(self.last).and_then(|(_, search)| search.best())
    }

    /// False for tries in a mode whose search has not ended: they decide nothing.
    pub(crate) fn decides(&self, mode: Option<&'static str>) -> bool {
        let known = self.all.iter().position(|(known, _)| *known == mode);
        known.is_none_or(|at| at == self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::random::Random;

    /// The best rates of near and of far cores.
    const BEST: [f64; 2] = [3e7, 1.8e7];

    /// Searches on cores that are moved after each try with that chance, in percent.
    fn find(seed: u64, moves: u64) -> (Searches, u32) {
        let random = &mut Random::new(seed, 0);
        let (mut searches, mut tries, mut at) = (Searches::from(1e6, 5), 0, 0);
        while let Some(rate) = searches.next() {
            let before = at;
            at = if random.below(100) < moves { 1 - at } else { at };
            let mode = match before == at {
                true => [Floor::NEAR, Floor::FAR][at],
                false => Floor::MIX,
            };
            searches.tell(Some(mode), rate, rate <= BEST[at], false);
            tries += 1;
            assert!(tries < 1000, "it does not end");
        }
        (searches, tries)
    }

    #[test]
    fn the_first_mode_that_is_searched_through_decides() {
        for seed in 0..100 {
            let (searches, tries) = find(seed, 5);
            let is_near = searches.decides(Some(Floor::NEAR));
            let knee = BEST[usize::from(!is_near)];
            let times = searches.best().expect("a rate holds") / knee;
            assert!((0.95..=1.0).contains(&times), "{is_near} {times} after {tries}, seed {seed}");
        }
    }

    /// Nothing counts for long, and yet the search ends.
    #[test]
    fn cores_that_always_move_do_not_keep_the_search_alive() {
        find(1, 100);
        let mut searches = Searches::from(1e6, 5);
        while let Some(rate) = searches.next() {
            searches.tell(None, rate, rate <= 3e6, true);
        }
        assert!(searches.best().is_some());
        // In another mode at each try, and never during one.
        let (mut searches, mut tries) = (Searches::from(1e6, 5), 0);
        while let Some(rate) = searches.next() {
            searches.tell(Some([Floor::NEAR, Floor::FAR][tries % 2]), rate, rate <= 3e6, false);
            tries += 1;
            assert!(tries < 2000, "it does not end");
        }
    }

    #[test]
    fn a_try_in_another_mode_does_not_count() {
        let mut searches = Searches::from(1e6, 5);
        assert!(searches.tell(Some(Floor::NEAR), 1e6, true, false));
        assert!(searches.tell(Some(Floor::FAR), 4e6, true, false), "that search begins with it");
        assert!(!searches.tell(Some(Floor::NEAR), 16e6, false, false));
        assert_eq!(searches.next(), Some(4e6), "near goes on where it was");
        assert!(!searches.tell(Some(Floor::MIX), 4e6, false, false));
        assert!(!searches.tell(Some(Floor::NEAR), 4e6, false, true));
        assert_eq!(searches.next(), Some(4e6));
    }
}
