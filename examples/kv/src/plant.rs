//! Mistakes to plant, so that a check can show that it finds them.

/// A mistake of a server or of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The client trusts every slot.
    Unsealed,
    /// The seal covers the head alone, as a version in front of the value would.
    HeadSealed,
    /// The server answers a put before it writes the value.
    EarlyAnswer,
    /// The client returns what it has read, expired or not.
    Immortal,
    /// The server does not mark the old table while it fills the next one.
    Unmarked,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 5] = [
        Mistake::Unsealed,
        Mistake::HeadSealed,
        Mistake::EarlyAnswer,
        Mistake::Immortal,
        Mistake::Unmarked,
    ];
}
