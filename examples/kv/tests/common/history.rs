//! Histories of a store, and whether they are linearizable: each operation took effect at one
//! moment between its call and its end, and each get returned what was there at its moment.
//!
//! The search is that of Wing and Gong, with the states that were visited remembered (Lowe 2017).
//! Keys are independent of each other, so each key has a search of its own.
use std::collections::{BTreeMap, HashSet};

/// An operation on one key. Values have numbers, and no two puts have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put(u64),
    /// And whether the key was there, if that is known.
    Delete(Option<bool>),
    Get(Option<u64>),
    /// The value with that number expires, if it is there.
    Expire(u64),
}

/// An operation with its time. Equal times count as overlapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) op: Op,
    pub(crate) from: u64,
    /// `u64::MAX`: nobody knows whether it took effect, and when.
    pub(crate) to: u64,
}

/// A history being recorded. Times are the numbers of its events, so operations that follow each
/// other at one moment of the clock do not overlap.
#[derive(Default)]
pub(crate) struct History {
    keys: BTreeMap<u32, Vec<Event>>,
    /// The clock at each event.
    clock: Vec<u64>,
    expiries: Vec<(u32, u64, Expiry)>,
    /// The least and the most by which the server's clock is ahead of the clock here.
    ahead: Option<(i64, i64)>,
}

/// When a value expires.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expiry {
    /// At that time of the server's clock.
    Server(u64),
    /// At that time of the clock here, or later: nobody knows whether it was put, and when.
    After(u64),
}

impl History {
    /// Something happens at that time: its number. The clock must not go back.
    pub(crate) fn tick(&mut self, clock: u64) -> u64 {
        self.clock.push(clock);
        2 * self.clock.len() as u64
    }

    /// An operation took place between two ticks.
    pub(crate) fn add(&mut self, key: u32, op: Op, from: u64, to: u64) {
        self.keys.entry(key).or_default().push(Event { op, from, to });
    }

    /// A value expires.
    pub(crate) fn expires(&mut self, key: u32, value: u64, expiry: Expiry) {
        self.expiries.push((key, value, expiry));
    }

    /// The server's clock showed that between these times of the clock here.
    pub(crate) fn compare_clocks(&mut self, server: u64, from: u64, to: u64) {
        let (least, most) = (server as i64 - to as i64, server as i64 - from as i64);
        let known = self.ahead.unwrap_or((least, most));
        self.ahead = Some((known.0.max(least), known.1.min(most)));
    }

    /// The moment of that time: behind each earlier event, before the others.
    fn moment(&self, clock: i64) -> u64 {
        2 * self.clock.partition_point(|tick| (*tick as i64) < clock) as u64 + 1
    }

    /// Operations recorded.
    pub(crate) fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// The first key whose history cannot be explained.
    pub(crate) fn check(mut self) -> Result<(), String> {
        let (least, most) = self.ahead.unwrap_or_default();
        if least > most {
            return Err(format!("the server's clock is {least} ns ahead at least, {most} at most"));
        }
        for (key, value, expiry) in std::mem::take(&mut self.expiries) {
            let (from, to) = match expiry {
                Expiry::Server(at) => {
                    (self.moment(at as i64 - most), self.moment(at as i64 - least))
                }
                Expiry::After(clock) => (self.moment(clock as i64), u64::MAX),
            };
            self.keys.entry(key).or_default().push(Event { op: Op::Expire(value), from, to });
        }
        for (key, events) in &mut self.keys {
            events.sort_by_key(|event| event.from);
            if let Some(stuck) = unexplained(events) {
                return Err(format!("key {key} is not linearizable: {stuck}"));
            }
        }
        Ok(())
    }
}

/// The value after an operation, if the operation can have met the value before it.
fn apply(op: Op, value: Option<u64>) -> Option<Option<u64>> {
    match op {
        Op::Put(new) => Some(Some(new)),
        Op::Delete(known) => known.is_none_or(|was| was == value.is_some()).then_some(None),
        Op::Get(seen) => (seen == value).then_some(value),
        Op::Expire(old) if value == Some(old) => Some(None),
        Op::Expire(_) => Some(value),
    }
}

/// Searches for an order of the events, which must be sorted by their beginning. `None`: there is
/// one. Otherwise how far the search came.
pub(crate) fn unexplained(events: &[Event]) -> Option<String> {
    let mut search = Search::new(events);
    if search.run() {
        return None;
    }
    let Search { farthest, .. } = search;
    let line = |n: usize| format!("\n  {:?}", events[n]);
    let last = farthest.iter().skip(farthest.len().saturating_sub(8));
    let before = last.map(|n| line(*n)).collect::<String>();
    let done: HashSet<usize> = farthest.iter().copied().collect();
    let rest = (0..events.len()).filter(|n| !done.contains(n)).take(12);
    let rest = rest.map(line).collect::<String>();
    Some(format!(
        "{} of {} events have an order, the last of them{before}\nand none of these can \
         follow:{rest}",
        farthest.len(),
        events.len()
    ))
}

/// An event that was put next, and what to try instead of it.
struct Step {
    /// Events that may come next, and how many were tried.
    may: Vec<usize>,
    tried: usize,
    /// The value before.
    value: Option<u64>,
}

struct Search<'a> {
    events: &'a [Event],
    done: Vec<u64>,
    /// All events before this one are done.
    first: usize,
    /// The events that are done, in the order tried; and the longest such order.
    order: Vec<usize>,
    farthest: Vec<usize>,
    /// States that led nowhere: the first event that is not done, those done behind it, the value.
    seen: HashSet<(usize, Vec<u64>, Option<u64>)>,
}

impl Search<'_> {
    fn new(events: &[Event]) -> Search<'_> {
        let done = vec![0; events.len().div_ceil(64)];
        let (order, farthest, seen) = (Vec::new(), Vec::new(), HashSet::new());
        Search { events, done, first: 0, order, farthest, seen }
    }

    fn is_done(&self, n: usize) -> bool {
        self.done[n / 64] >> (n % 64) & 1 == 1
    }

    /// The events that may come next: none that begins after another one has ended. `None`: what is
    /// left need never have taken effect.
    fn candidates(&self) -> Option<Vec<usize>> {
        let (mut end, mut may) = (u64::MAX, Vec::new());
        for n in self.first..self.events.len() {
            // Later ones begin later, and end later still.
            if self.events[n].from > end {
                break;
            }
            if !self.is_done(n) {
                end = end.min(self.events[n].to);
                may.push(n);
            }
        }
        may.retain(|n| self.events[*n].from <= end);
        (end != u64::MAX).then_some(may)
    }

    /// True if this state was not seen before.
    fn is_new(&mut self, value: Option<u64>) -> bool {
        let behind = &self.done[(self.first / 64).min(self.done.len())..];
        let used = behind.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.seen.insert((self.first, behind[..used].to_vec(), value))
    }

    fn flip(&mut self, n: usize) {
        self.done[n / 64] ^= 1 << (n % 64);
        self.first = self.first.min(n);
        while self.first < self.events.len() && self.is_done(self.first) {
            self.first += 1;
        }
    }

    /// True if there is an order.
    fn run(&mut self) -> bool {
        let (mut steps, mut value): (Vec<Step>, _) = (Vec::new(), None);
        loop {
            let may = match self.candidates() {
                None => return true,
                Some(may) if self.is_new(value) => may,
                Some(_) => Vec::new(),
            };
            steps.push(Step { may, tried: 0, value });
            value = loop {
                let Some(step) = steps.last_mut() else { return false };
                let Some(n) = step.may.get(step.tried).copied() else {
                    // Nothing is left to try here: takes the event before back.
                    steps.pop();
                    if self.order.len() > self.farthest.len() {
                        self.farthest.clone_from(&self.order);
                    }
                    if let Some(n) = self.order.pop() {
                        self.flip(n);
                    }
                    continue;
                };
                step.tried += 1;
                if let Some(next) = apply(self.events[n].op, step.value) {
                    self.flip(n);
                    self.order.push(n);
                    break next;
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: u64 = u64::MAX;

    fn events(list: &[(Op, u64, u64)]) -> Vec<Event> {
        list.iter().map(|(op, from, to)| Event { op: *op, from: *from, to: *to }).collect()
    }

    #[test]
    fn what_can_be_explained_is_accepted() {
        let good: &[&[(Op, u64, u64)]] = &[
            &[(Op::Put(1), 0, 1), (Op::Get(Some(1)), 2, 3), (Op::Delete(Some(true)), 4, 5)],
            // The get overlaps the put: it may see it or not.
            &[(Op::Put(1), 0, 9), (Op::Get(None), 1, 2), (Op::Get(Some(1)), 3, 4)],
            // A lost put may take effect much later, or never.
            &[(Op::Put(1), 0, NEVER), (Op::Get(None), 1, 2), (Op::Get(Some(1)), 3, 4)],
            &[(Op::Put(1), 0, NEVER), (Op::Get(None), 1, 2), (Op::Get(None), 3, 4)],
            &[(Op::Put(1), 0, 1), (Op::Expire(1), 5, 5), (Op::Get(None), 6, 7)],
            &[
                (Op::Put(1), 0, 1),
                (Op::Put(2), 2, 3),
                (Op::Expire(1), 5, 5),
                (Op::Get(Some(2)), 6, 7),
            ],
        ];
        for list in good {
            assert_eq!(unexplained(&events(list)), None, "{list:?}");
        }
    }

    #[test]
    fn what_cannot_is_found() {
        let bad: &[&[(Op, u64, u64)]] = &[
            &[(Op::Get(Some(1)), 0, 1)],
            &[(Op::Put(1), 0, 1), (Op::Get(None), 2, 3)],
            &[(Op::Put(1), 0, 1), (Op::Delete(Some(false)), 2, 3)],
            // Seen, and then gone again.
            &[(Op::Put(1), 0, 9), (Op::Get(Some(1)), 1, 2), (Op::Get(None), 3, 4)],
            &[(Op::Put(1), 0, NEVER), (Op::Get(Some(1)), 1, 2), (Op::Get(None), 3, 4)],
            // Two readers see two puts in different orders.
            &[
                (Op::Put(1), 0, 20),
                (Op::Put(2), 1, 20),
                (Op::Get(Some(1)), 2, 3),
                (Op::Get(Some(2)), 4, 5),
                (Op::Get(Some(1)), 6, 7),
            ],
            &[(Op::Put(1), 0, 1), (Op::Expire(1), 5, 5), (Op::Get(Some(1)), 6, 7)],
        ];
        for list in bad {
            assert!(unexplained(&events(list)).is_some(), "{list:?}");
        }
    }

    /// As many events on one key as a test has at most, with one overlap for each.
    #[test]
    fn a_long_history_takes_little_time() {
        let put = |n: u64| Event { op: Op::Put(n), from: 10 * n, to: 10 * n + 12 };
        let get = |n: u64| Event { op: Op::Get(Some(n)), from: 10 * n + 3, to: 10 * n + 14 };
        let mut long: Vec<Event> = (1..20_000).flat_map(|n| [put(n), get(n)]).collect();
        assert_eq!(unexplained(&long), None);
        let last = long.len() - 1;
        long[last].op = Op::Get(Some(1));
        assert!(unexplained(&long).is_some());
    }

    #[test]
    fn a_value_expires_between_the_ticks() {
        let mut history = History::default();
        let times = [0, 10, 20, 30].map(|clock| history.tick(clock));
        history.add(1, Op::Put(5), times[0], times[0]);
        history.add(1, Op::Get(Some(5)), times[1], times[1]);
        history.add(1, Op::Get(None), times[2], times[3]);
        history.expires(1, 5, Expiry::Server(120));
        history.compare_clocks(105, 0, 10);
        history.compare_clocks(110, 10, 20);
        assert_eq!(history.check(), Ok(()));
    }
}
