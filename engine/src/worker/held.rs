//! What a send in flight holds until it is over, in one word.

/// Nothing, a block, or a request with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held(u32);

/// A [`Held`], taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Nothing: the payload was inline, or its memory is not the worker's.
    Nothing,
    /// A block of the shared receive memory.
    RecvBlock(u32),
    /// A block of the worker's send memory.
    SendBlock(u32),
    /// A request with a token, by its index.
    Request(u32),
}

const SEND_BLOCK: u32 = 1 << 31;
const REQUEST: u32 = 1 << 30;

impl Held {
    pub(super) const NOTHING: Held = Held(u32::MAX);

    pub(super) const fn recv_block(block: u32) -> Held {
        Held(block)
    }

    pub(super) const fn send_block(block: u32) -> Held {
        Held(SEND_BLOCK | block)
    }

    pub(super) const fn request(index: u32) -> Held {
        Held(REQUEST | index)
    }

    #[inline(always)]
    pub(super) fn is_nothing(self) -> bool {
        self == Held::NOTHING
    }

    #[inline(always)]
    pub(super) fn holds(self) -> Holds {
        match self {
            Held::NOTHING => Holds::Nothing,
            Held(held) if held & SEND_BLOCK != 0 => Holds::SendBlock(held & !SEND_BLOCK),
            Held(held) if held & REQUEST != 0 => Holds::Request(held & !REQUEST),
            Held(block) => Holds::RecvBlock(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_comes_back_as_it_was() {
        for n in [0, 1, (1 << 24) - 1] {
            assert_eq!(Held::recv_block(n).holds(), Holds::RecvBlock(n));
            assert_eq!(Held::send_block(n).holds(), Holds::SendBlock(n));
            assert_eq!(Held::request(n).holds(), Holds::Request(n));
        }
        assert_eq!(Held::NOTHING.holds(), Holds::Nothing);
    }
}
