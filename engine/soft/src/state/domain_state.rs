//! What a domain holds. Only the thread that is inside the domain touches it.

use crate::state::link_scheduler::Links;
use crate::state::predicted::PredictedReceive;
use crate::state::transport::Transport;

/// What a domain holds: its links, and what serves them. Only the thread that is inside the domain
/// touches it.
pub(crate) struct DomainState {
    pub(crate) links: Links,
    /// The message a poll waits for.
    pub(crate) predicted: PredictedReceive,
    pub(crate) transport: Transport,
}
