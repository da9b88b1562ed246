//! Events of the control plane for `tracing`, with the feature of that name; without it nothing.
//! The data plane has none. The target of all is `doorbell`.
#![cfg_attr(
    not(feature = "tracing"),
    expect(unused_variables, reason = "without the feature nobody is told")
)]

use std::fmt;
use std::net::SocketAddr;

use doorbell_engine::worker::Refusal;
use doorbell_fabric::EventKind;

/// An address, if it is known.
#[cfg(feature = "tracing")]
fn known(addr: Option<SocketAddr>) -> String {
    addr.map_or_else(|| "unknown".to_owned(), |addr| addr.to_string())
}

/// A dial begins.
pub(crate) fn connecting(peer: SocketAddr) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "doorbell", %peer, "connecting");
}

/// A listener has handed a request to a worker.
pub(crate) fn accepted(peer: Option<SocketAddr>) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "doorbell", peer = known(peer), "accepted");
}

/// A listener has refused a request.
pub(crate) fn refused(peer: Option<SocketAddr>, why: &Refusal) {
    #[cfg(feature = "tracing")]
    {
        let reason = why.reason();
        tracing::warn!(target: "doorbell", peer = known(peer), ?reason, %why, "refused");
    }
}

/// A connection is up, on this side.
pub(crate) fn connected(peer: Option<SocketAddr>, qp: u32) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: "doorbell", peer = known(peer), qp, "connected");
}

/// A connection has not come up: the event that said so, and the peer's reason if it gave one.
pub(crate) fn failed(
    peer: Option<SocketAddr>,
    event: EventKind,
    status: i32,
    why: Option<&Refusal>,
) {
    #[cfg(feature = "tracing")]
    {
        let (peer, why) = (known(peer), why.map(ToString::to_string).unwrap_or_default());
        tracing::warn!(target: "doorbell", peer, ?event, status, why, "not connected");
    }
}

/// A connection has ended. `why`: `None` if this side wanted it.
pub(crate) fn ended(peer: Option<SocketAddr>, qp: u32, why: Option<&str>) {
    #[cfg(feature = "tracing")]
    match why {
        Some(why) => {
            tracing::warn!(target: "doorbell", peer = known(peer), qp, why, "ended");
        }
        None => tracing::info!(target: "doorbell", peer = known(peer), qp, "ended"),
    }
}

/// A part of a runtime has failed, such as a worker whose handler panicked: everything ends.
pub(crate) fn lost(part: &str, error: &dyn fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "doorbell", part, %error, "lost");
}
