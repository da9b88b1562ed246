//! What a sender says of a message whose bytes it lends: the receiver copies them from the sender's
//! memory, once.

/// The bytes of a message, or of a piece of one, in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The address of the bytes, in the sender's process.
    pub(crate) addr: u64,
    /// The key of the region that they lie in.
    pub(crate) key: u32,
    pub(crate) length: u32,
    /// The sender's word in its table, [`crate::model::pd::qp_word`]. It changes when the queue
    /// pair fails, goes or connects again.
    pub(crate) word: u64,
}

/// The most bytes of one record of this kind: longer messages are cut, so that a poll that copies
/// them comes back soon. Half a round trip of 256 KiB that nobody reads, between near cores, takes
/// 6.4 us in one record and 12 us in four.
pub(crate) const OFFER_MAX: u32 = 256 << 10;

impl Offer {
    /// As the operands of a record.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; 3] {
        [self.addr, u64::from(self.key) | u64::from(self.length) << 32, self.word]
    }

    /// From the operands of a record; `None` if no honest sender offers as much.
    pub(crate) fn of([addr, rest, word]: [u64; 3]) -> Option<Offer> {
        let (key, length) = (rest as u32, (rest >> 32) as u32);
        (length <= OFFER_MAX).then_some(Offer { addr, key, length, word })
    }
}
