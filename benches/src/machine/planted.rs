//! A build that is a tenth slower, for the trials of `compare` (`cargo xtask trials`): the side
//! that measures waits now and then for a tenth of the time since it last did. A wait for a fixed
//! time would be a tenth near and less far. Other builds have none of it.

use crate::machine::clock;

/// True in a build with that variable.
const IS_ON: bool = option_env!("DOORBELL_BENCH_PLANTED").is_some();

/// Calls between two waits: looking at the clock takes a part of a round trip itself. A stream
/// calls once in a thousand messages, because its queue would hide a short wait.
const EVERY: u32 = 64;

/// A wait is the time since the last one, divided by this.
const PART: u64 = 10;

/// A side that waits.
#[derive(Debug, Default)]
pub(crate) struct Planted {
    calls: u32,
    /// When the last wait ended, in ticks.
    since: u64,
}

impl Planted {
    /// Does nothing, unless the build is a planted one.
    #[inline(always)]
    pub(crate) fn work(&mut self) {
        if IS_ON {
            self.count();
        }
    }

    fn count(&mut self) {
        self.calls += 1;
        if self.calls == EVERY {
            self.calls = 0;
            self.wait();
        }
    }

    fn wait(&mut self) {
        let now = clock::ticks();
        let until = end(self.since, now);
        while clock::ticks() < until {
            std::hint::spin_loop();
        }
        self.since = clock::ticks();
    }
}

/// When a wait that begins now ends. The first one ends at once.
fn end(since: u64, now: u64) -> u64 {
    if since == 0 { now } else { now + now.saturating_sub(since) / PART }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_a_tenth_of_the_time_since_the_last_one() {
        assert_eq!([end(0, 500), end(1000, 2000), end(1000, 900)], [500, 2100, 900]);
        assert_eq!(option_env!("DOORBELL_BENCH_PLANTED"), None, "the tests are of the usual build");
        let mut planted = Planted::default();
        (0..EVERY).for_each(|_| planted.work());
        assert_eq!((planted.calls, planted.since), (0, 0));
        (0..EVERY).for_each(|_| planted.count());
        assert!(planted.calls == 0 && planted.since > 0);
    }
}
