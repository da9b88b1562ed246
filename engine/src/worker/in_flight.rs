//! Requests in flight over all peers of a worker, which share one completion queue.

use super::config::Config;

/// Requests posted and not over, with those that are reserved ([`super::inline`]).
pub(super) struct InFlight {
    pub(super) count: u32,
    /// The completion queue has room for this many.
    limit: u32,
    /// From here on every post asks for a completion, so that peers at rest never hold what others
    /// need: half of the limit.
    watermark: u32,
}

impl InFlight {
    pub(super) fn new(config: &Config) -> InFlight {
        InFlight { count: 0, limit: config.sends, watermark: config.sends / 2 }
    }

    /// Requests that may be posted below the watermark.
    #[inline(always)]
    pub(super) fn below_watermark(&self) -> u32 {
        self.watermark.saturating_sub(self.count)
    }

    /// True if no request may be posted below the watermark.
    #[inline(always)]
    pub(super) fn is_at_watermark(&self) -> bool {
        self.count >= self.watermark
    }

    /// True if that many more exceed the watermark.
    #[inline(always)]
    pub(super) fn exceeds_watermark(&self, more: u32) -> bool {
        self.count + more > self.watermark
    }

    /// True if that many more would find no room in the completion queue, should all fail.
    #[inline(always)]
    pub(super) fn exceeds_limit(&self, more: u32) -> bool {
        self.count + more > self.limit
    }
}
