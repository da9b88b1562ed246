//! Requests in flight over all peers of a worker, which share one completion queue.

/// Requests that are posted or reserved ([`super::inline`]), and not over.
pub(super) struct InFlight {
    pub(super) count: u32,
    /// The number that the completion queue has room for.
    limit: u32,
    /// From here on every post asks for a completion, so that idle peers never hold what others
    /// need: half of the limit.
    watermark: u32,
}

impl InFlight {
    pub(super) fn new(limit: u32) -> InFlight {
        InFlight { count: 0, limit, watermark: limit / 2 }
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

    /// True from half of the watermark on: the review of the peers then ends what is in flight to
    /// quiet ones. Otherwise thousands of quiet peers, with an unsignaled send or two each, would
    /// keep all others at the watermark, where a message takes 90 ns in place of 50 (half a round
    /// trip of 32 bytes beside 9 999 quiet peers, near cores).
    pub(super) fn is_high(&self) -> bool {
        self.count >= self.watermark / 2
    }

    /// True if `more` requests would exceed the watermark.
    #[inline(always)]
    pub(super) fn exceeds_watermark(&self, more: u32) -> bool {
        self.count + more > self.watermark
    }

    /// True if the completion queue had no room for the completions of `more` requests, should all
    /// requests fail.
    #[inline(always)]
    pub(super) fn exceeds_limit(&self, more: u32) -> bool {
        self.count + more > self.limit
    }
}
