//! How often other programs take the core of a thread: its involuntary context switches (proc(5)).

use std::fs;
use std::time::Instant;

/// The count of the calling thread at a time.
pub(crate) struct Switches {
    count: u64,
    start: Instant,
}

impl Switches {
    /// Begins to count; `None` if the system does not say.
    pub(crate) fn begin() -> Option<Switches> {
        Some(Switches { count: count()?, start: Instant::now() })
    }

    /// Switches a second since then.
    pub(crate) fn per_second(&self) -> Option<f64> {
        let seconds = self.start.elapsed().as_secs_f64();
        Some((count()?.saturating_sub(self.count)) as f64 / seconds)
    }
}

fn count() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/status").ok()?;
    let (_, rest) = text.split_once("nonvoluntary_ctxt_switches:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_one_core_take_it_from_each_other() {
        let core = doorbell_tune::cores()[0];
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let over = || is_over.load(std::sync::atomic::Ordering::Relaxed);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                doorbell_tune::pin(core).unwrap();
                while !over() {}
            });
            let counting = scope.spawn(|| {
                doorbell_tune::pin(core).unwrap();
                let switches = Switches::begin().unwrap();
                let mut found = 0.0;
                while found == 0.0 {
                    found = switches.per_second().unwrap();
                }
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                found
            });
            counting.join().unwrap()
        });
        assert!(found > 0.0);
    }
}
