//! Decisions of the data plane that affect speed and never correctness, each apart from its
//! mechanism: how long to spin after a reply, whether a record uses the mailbox slot, whether an
//! acknowledgement waits for a reply, whether both sides send, when a poll stops serving a link,
//! and what to do besides the copy of a long message. (How much of the ring is used before it
//! wraps: [`crate::shm::wrap_policy`].)

pub(crate) mod contention;
pub(crate) mod copying;
pub(crate) mod idle;
pub(crate) mod reply;
pub(crate) mod share;
pub(crate) mod spin;
