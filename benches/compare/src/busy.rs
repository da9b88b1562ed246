//! How much of the cores other programs used meanwhile. The floor does not show that: it is a
//! median, and a shared core is as near as before.

use std::fs;

/// Processor time so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    /// Of the two cores: in total, and not idle. Stolen time is not idle.
    all: u64,
    busy: u64,
    /// Of this process and its ended children.
    own: u64,
}

impl Busy {
    /// Reads the times (`man 5 proc`); zeros if the system does not report them.
    pub(crate) fn now(cores: [usize; 2]) -> Busy {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let [one, two] = cores.map(|core| of_core(&stat, core));
        Busy { all: one.0 + two.0, busy: one.1 + two.1, own: of_process(&own) }
    }

    /// The share of the two cores that others used since then, from 0 to 1.
    pub(crate) fn others_since(&self, then: &Busy) -> f64 {
        let all = self.all.saturating_sub(then.all);
        let own = self.own.saturating_sub(then.own);
        let others = self.busy.saturating_sub(then.busy).saturating_sub(own);
        if all == 0 { 0.0 } else { others as f64 / all as f64 }
    }
}

/// All ticks of a core, and those that were not idle. Its line holds user, nice, system, idle,
/// wait, interrupts, soft interrupts, stolen; the fields after those are part of user and nice.
fn of_core(stat: &str, core: usize) -> (u64, u64) {
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all, all - idle)
}

/// Ticks of a process and its ended children: the 14th to 17th word. The second word is a name in
/// brackets that may contain spaces.
fn of_process(stat: &str) -> u64 {
    let Some((_, words)) = stat.rsplit_once(')') else { return 0 };
    let ticks = words.split_whitespace().skip(11).take(4);
    ticks.filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_neither_idle_nor_ours_belongs_to_others() {
        let stat = "cpu  9 9 9 9 9 9 9 9\ncpu1 10 0 5 70 10 1 1 3 2 0\ncpu10 1 1 1 1 1 1 1 1\n";
        assert_eq!(of_core(stat, 1), (100, 20));
        assert_eq!(of_core(stat, 2), (0, 0));
        let own = "7 (a) b) R 1 1 1 0 -1 4 5 6 7 8 20 30 40 50 20 0\n";
        assert_eq!(of_process(own), 140);
        let then = Busy { all: 100, busy: 20, own: 5 };
        let now = Busy { all: 300, busy: 120, own: 85 };
        assert_eq!(now.others_since(&then), 0.1);
        assert_eq!(then.others_since(&then), 0.0);
    }

    #[test]
    fn this_system_tells() {
        let core = doorbell_tune::cores()[0];
        assert!(Busy::now([core, core]).all > 0);
    }
}
