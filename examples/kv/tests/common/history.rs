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
    let done = vec![0; events.len().div_ceil(64)];
    let mut search =
        Search { events, done, order: Vec::new(), farthest: Vec::new(), seen: HashSet::new() };
    if search.go(0, None) {
        return None;
    }
    let Search { farthest, .. } = search;
    let before = farthest.iter().skip(farthest.len().saturating_sub(8)).map(|n| events[*n]);
    let before = before.map(|event| format!("\n  {event:?}")).collect::<String>();
    let rest = (0..events.len()).filter(|n| !farthest.contains(n)).take(12);
    let rest = rest.map(|n| format!("\n  {:?}", events[n])).collect::<String>();
    Some(format!(
        "{} of {} events have an order, the last of them{before}\nand none of these can \
        follow:{rest}",
        farthest.len(),
        events.len()
    ))
}

struct Search<'a> {
    events: &'a [Event],
    done: Vec<u64>,
    /// The events that are done, in the order tried; and the longest such order.
    order: Vec<usize>,
    farthest: Vec<usize>,
    seen: HashSet<(Vec<u64>, Option<u64>)>,
}

impl Search<'_> {
    fn is_done(&self, n: usize) -> bool {
        self.done[n / 64] >> (n % 64) & 1 == 1
    }

    /// Everything before `first` is done. Recursive: as deep as there are events.
    fn go(&mut self, first: usize, value: Option<u64>) -> bool {
        let open = (first..self.events.len()).filter(|n| !self.is_done(*n));
        let open: Vec<usize> = open.collect();
        let Some(end) = open.iter().map(|n| self.events[*n].to).min() else { return true };
        if end == u64::MAX {
            // What is left need never have taken effect.
            return true;
        }
        if !self.seen.insert((self.done.clone(), value)) {
            return false;
        }
        for n in open {
            let event = self.events[n];
            if event.from > end {
                break;
            }
            let Some(next) = apply(event.op, value) else { continue };
            self.done[n / 64] ^= 1 << (n % 64);
            self.order.push(n);
            if self.order.len() > self.farthest.len() {
                self.farthest.clone_from(&self.order);
            }
            let first = (first..self.events.len()).find(|n| !self.is_done(*n));
            if self.go(first.unwrap_or(self.events.len()), next) {
                return true;
            }
            self.order.pop();
            self.done[n / 64] ^= 1 << (n % 64);
        }
        false
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
