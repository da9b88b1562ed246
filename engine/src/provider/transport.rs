//! Transports: what a queue pair promises, and to whom it talks.

/// The transport of a queue pair (`enum ibv_qp_type`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum QpType {
    /// Reliable connection: everything arrives once and in order, or the sender hears why not.
    #[default]
    Rc = 2,
    /// Unreliable connection: SEND and WRITE to one peer, which may be lost without a word; a send
    /// is complete when it is on its way (section 2.6).
    Uc = 3,
    /// Unreliable datagrams: SEND to any queue pair of this type that an address handle leads to.
    Ud = 4,
}

impl QpType {
    /// True if nobody tells a sender what became of its message.
    #[inline]
    pub fn is_unreliable(self) -> bool {
        !matches!(self, QpType::Rc)
    }
}
