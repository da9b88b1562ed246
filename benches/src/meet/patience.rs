//! How long a side waits for the other one.

use std::time::Duration;

/// How long a side waits for a sign of life.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a finished run waits for the other side to hang up.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// Look at the control plane after this many empty turns. They take some milliseconds, so no
/// measured message ever waits for it.
pub(crate) const COLD_TURNS: u32 = 1 << 18;

/// How long that many connections may take to come or to go.
pub(crate) fn patience(connections: u32) -> Duration {
    PATIENCE + Duration::from_millis(20) * connections
}
