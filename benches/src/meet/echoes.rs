//! What a side can do whose messages come back.

use crate::error::Failure;
use crate::meet::tally::Tally;

/// A side whose messages come back.
pub(crate) trait Echoes {
    /// Echoes received so far; the next one has this number.
    fn echoes(&mut self) -> u64;

    /// Echoes that differ from what was sent.
    fn wrong(&mut self) -> u64;

    /// Sends message `number`, and waits until it is back.
    fn round(&mut self, payload: &[u8], number: u64) -> Result<(), Failure>;

    /// Measuring begins on both sides.
    fn begin(&mut self) -> Result<(), Failure>;

    /// Measuring ends on both sides. Returns what this side did since it began.
    fn end(&mut self) -> Result<Tally, Failure>;
}
