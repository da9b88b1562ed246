//! What a domain holds. Only the thread that is inside the domain touches it.

use super::link_scheduler::Links;
use super::predicted::PredictedReceive;
use super::transport::Transport;

/// What a domain holds: its links, and what serves them. Only the thread that is inside the domain
/// touches it.
pub(super) struct DomainState {
    pub(super) links: Links,
    /// The message a poll waits for.
    pub(super) predicted: PredictedReceive,
    pub(super) transport: Transport,
}
