//! The far end of a link, for a wire that is not shared memory.
//!
//! A domain talks to its peers through links: memory with a ring in each direction. On one machine
//! two domains share that memory, and nothing here is needed. To carry a link any other way, give
//! each side link memory of its own, put a [`Port`] at its far end, and carry [`Record`]s between
//! the two ports. Queue pairs, accounting, keys, receive queues and one-sided rules stay in the
//! domains, which do not know which wire carries their records.
//!
//! ```text
//! domain A ═ link memory ═ Port ─── the wire ─── Port ═ link memory ═ domain B
//! ```
//!
//! # What the wire must do
//! - **Order.** Records of one connection arrive in the order in which [`Port::next_record`] gave
//!   them, each once and whole. On one link the pieces of a message follow each other: no record
//!   of another connection comes between them.
//! - **Acknowledgement.** A record is acknowledged when the far *domain* has taken it, not when it
//!   has arrived. [`Port::next_taking`] reports that at the far end, [`Port::done`] at the near
//!   one. Only this completes a send.
//! - **A window.** Reading a record gives its ring space back, so the domain goes on sending while
//!   its peer takes nothing. The carrier stops reading at a limit of [`Port::outstanding`] bytes,
//!   which bounds what either side of the wire must keep.
//! - **Progress.** Acknowledgements and responses pass even while records wait for space in a ring,
//!   and the port is read even while the wire is full. Otherwise two sides that wait for
//!   completions block each other.
//! - **Refusals.** The far domain decides: a missing receive after the last retry (it counts
//!   retries itself, by the figures in [`crate::Wiring`]), a wrong key, a message that is too long.
//!   [`Taking::Refused`] goes back, behind the acknowledgements of the records taken before, and
//!   becomes [`Port::refuse`]. A wire that gives up does the same with `RetryExceeded`.
//! - **One-sided requests.** They are records like others, and the owner's domain carries them out.
//!   If a wire may deliver a record twice, it must drop the second copy.
//! - **Responses.** The bytes of a READ and the value of an atomic come back beside the records of
//!   the other direction, in an order of their own: [`Port::next_response`] at the far end,
//!   [`Port::write_response`] at the near one. A response must not wait for a record, because the
//!   record may wait for a receive. It is outside the window and has no acknowledgement. A domain
//!   takes responses whenever it polls, so a wire that is full may leave them with their sender.
//! - **Waking.** A port wakes its domain when that sleeps. Before the carrier itself sleeps it
//!   calls [`Port::fall_asleep`], looks once more, and then waits for the notifier that it gave the
//!   domain.
//! - **End.** A link ends when both domains have left it. When [`Port::domain_has_left`] is true,
//!   and the domain's last records are on their way, tell the other side; when the other side says
//!   so, call [`Port::peer_has_left`]. A wire that breaks drops its port. The connection manager
//!   notices the peer's end by itself, and fails the queue pairs.
//! - **Sizes.** A link's memory has [`crate::LINK_BYTES`]; an encoded record has at most
//!   [`Record::ENCODED_MAX`]; longer messages come in pieces.
//!
//! A wire must not map a peer's memory: only links made with a [`crate::RemoteMap`] do that.

mod port;
mod record;

pub use self::port::{Asking, Port, Span, Taking, Way};
pub use self::record::{BadRecord, Psn, Record};
