//! What a client has learned of a server: its clock, and in which slots keys were.

use crate::server::Clock;

/// What is known of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) server: u64,
    /// The client's own clock, before the server read that.
    pub(crate) own: u64,
}

impl Sample {
    /// No less than the server's clock now. The two clocks run equally fast but for one part in
    /// 1024.
    fn latest(self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.own);
        self.server.saturating_add(passed).saturating_add(passed / 1024 + 1)
    }
}

/// True if the server's clock may have reached that time.
pub(crate) fn may_be_over(sample: Option<Sample>, expires: u64, clock: &Clock) -> bool {
    sample.is_none_or(|sample| sample.latest(clock()) >= expires)
}

/// Keys whose places are remembered.
const HINTS: usize = 1 << 14;

/// In which slot after its home a key was found. A hint may be wrong: then the search begins at the
/// home, so only keys that lie elsewhere have one.
pub(crate) struct Hints(Vec<u16>);

impl Hints {
    pub(crate) fn new() -> Hints {
        Hints(vec![0; HINTS])
    }

    /// Where a key with that hash has its hint, and what the hint begins with. The lowest bits of
    /// the hash choose the home.
    fn at(hash: u64) -> (usize, u16) {
        ((hash >> 40) as usize % HINTS, (hash >> 56) as u16)
    }

    /// The probe by which the key was found; 0 if that is not known.
    pub(crate) fn probe(&self, hash: u64) -> usize {
        let (at, tag) = Hints::at(hash);
        let hint = self.0[at];
        if hint >> 8 == tag { usize::from(hint & 0xff) } else { 0 }
    }

    /// The key was found by that probe.
    pub(crate) fn remember(&mut self, hash: u64, probe: usize) {
        let (at, tag) = Hints::at(hash);
        if probe > 0 {
            self.0[at] = tag << 8 | (probe as u16 & 0xff);
        } else if self.0[at] >> 8 == tag {
            self.0[at] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_for_its_key() {
        let mut hints = Hints::new();
        let (key, other, far) =
            (0x1234_5678_9abc_def0, 0x2234_5678_9abc_def0, 0x1200_0000_0000_0000);
        hints.remember(key, 2);
        assert_eq!([key, other, far].map(|hash| hints.probe(hash)), [2, 0, 0]);
        hints.remember(other, 1);
        assert_eq!([key, other].map(|hash| hints.probe(hash)), [0, 1]);
        hints.remember(other, 0);
        assert_eq!(hints.probe(other), 0);
    }
}
