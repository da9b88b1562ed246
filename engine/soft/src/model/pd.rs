//! Protection domains: who may use which memory (MR-2).

use crate::provider::Access;

/// In a slot's rights: the slot is a memory window, which only peers may use.
pub(super) const WINDOW: u32 = 1 << 31;

/// In a slot's rights: its protection domain.
pub(super) const PD: u32 = 0x7fff_ff00;
const _: () = assert!(Access::all().bits() & (PD | WINDOW) == 0);

/// The most protection domains of one device, over its whole life.
pub(crate) const PDS: u32 = (PD >> 8) + 1;

/// A protection domain, as a slot's rights name it: a key is valid in its own domain only (MR-2).
/// The rights and the domain are in one word, so that one load checks both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PdMark(pub(super) u32);

impl PdMark {
    /// The mark of the domain with this number; `None` for a number that is too high.
    pub(crate) const fn of(number: u32) -> Option<PdMark> {
        if number <= PD >> 8 { Some(PdMark(number << 8)) } else { None }
    }
}

/// The user of an access to memory: a queue pair, and its protection domain.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub(crate) qp: u32,
    pub(crate) pd: PdMark,
}

/// True if a slot's rights include this one, for users in that domain.
pub(crate) fn has_right(access: u32, right: Access, pd: PdMark) -> bool {
    access & (right.bits() | PD) == right.bits() | pd.0
}

/// The word of a queue pair that works. `connection` tells its connections apart: a message that
/// was sent over an earlier one names another word.
pub(crate) fn qp_word(who: Who, connection: u8) -> u64 {
    const _: () = assert!(PD & 0xff == 0);
    let high = who.pd.0 | u32::from(connection);
    u64::from(who.qp << 8 | 1) | u64::from(high) << 32
}

/// The word of a queue pair that accepts one-sided requests with those rights.
pub(crate) fn with_rights(word: u64, rights: Access) -> u64 {
    const _: () = assert!(Access::all().bits() < 1 << 7);
    word | u64::from(rights.bits() << 1)
}

/// The domain in such a word, if the word belongs to the queue pair and has the right.
pub(crate) fn pd_in(word: u64, qp: u32, right: Access) -> Option<PdMark> {
    let high = (word >> 32) as u32;
    let pd = PdMark(high & PD);
    let wanted = with_rights(qp_word(Who { qp, pd }, high as u8), right);
    (word & wanted == wanted && (word as u32) >> 8 == qp).then_some(pd)
}
