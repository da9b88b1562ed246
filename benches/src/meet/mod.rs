//! How two sides meet: the serving side is started or called ([`other`]), they agree on a run
//! ([`mod@line`]), mark its begin and end inside the connection ([`wire`]), count what they do
//! ([`tally`]), and wait only so long for each other ([`patience`]). [`echoes`] is what every side
//! that gets its messages back can do.

pub(crate) mod echoes;
pub(crate) mod line;
pub(crate) mod other;
pub(crate) mod patience;
pub(crate) mod tally;
pub(crate) mod wire;
