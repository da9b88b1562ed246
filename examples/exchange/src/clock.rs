//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970, UTC.
pub fn since_epoch() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since midnight, UTC.
pub fn since_midnight() -> u64 {
    since_epoch() % Duration::from_secs(24 * 60 * 60).as_nanos() as u64
}
