//! What is counted: every size, path, number of messages in flight and kind of side.

use crate::measure::record::Path;

/// Messages to a doorbell of a stream.
pub(crate) const BATCH: u32 = 16;

/// Messages of a round of echoes: each rings for itself, and the other side finds all of them.
const IN_FLIGHT: [u32; 3] = [1, 2, 8];

/// One case. Callgrind writes a file for each, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) size: u32,
    pub(crate) path: Path,
    /// Messages of a round.
    pub(crate) round: u32,
    /// With worker and handler on both sides, or the device alone.
    pub(crate) worker: bool,
}

impl Case {
    /// The cases of all sizes. The device alone comes before the worker.
    pub(crate) fn all(sizes: &[u32]) -> Vec<Case> {
        let mut all = Vec::new();
        let echoes = IN_FLIGHT.map(|round| (Path::Echo, round));
        for &size in sizes {
            for (path, round) in echoes.into_iter().chain([(Path::Stream, BATCH)]) {
                all.extend([false, true].map(|worker| Case { size, path, round, worker }));
            }
        }
        all
    }
}
