//! Decisions of the data plane that cost time and never correctness, each apart from what carries
//! it out: how long to spin after a reply, whether a record goes by the mailbox slot, and when a
//! poll stops serving a link. (How far the ring is used before it wraps is
//! [`super::wrap_policy`].)

pub(super) mod contention;
pub(super) mod idle;
pub(super) mod spin;
