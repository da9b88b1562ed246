//! Decisions of the data plane that affect speed and never correctness, each apart from its
//! mechanism: how long to spin after a reply, whether a record uses the mailbox slot, and when a
//! poll stops serving a link. (How much of the ring is used before it wraps:
//! [`super::wrap_policy`].)

pub(super) mod contention;
pub(super) mod idle;
pub(super) mod spin;
