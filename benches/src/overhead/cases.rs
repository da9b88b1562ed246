//! What is counted: every size, path and kind of side.

use crate::measure::record::Path;

/// Messages to a doorbell of a stream.
pub(crate) const BATCH: u32 = 16;

/// One case. Callgrind writes a file for each, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) size: u32,
    pub(crate) path: Path,
    /// With worker and handler on both sides, or the device alone.
    pub(crate) worker: bool,
}

impl Case {
    /// The cases of all sizes. The device alone comes before the worker.
    pub(crate) fn all(sizes: &[u32]) -> Vec<Case> {
        let mut all = Vec::new();
        for &size in sizes {
            for path in [Path::Echo, Path::Stream] {
                all.extend([false, true].map(|worker| Case { size, path, worker }));
            }
        }
        all
    }
}
