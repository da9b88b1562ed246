//! What can go wrong between workers on any device: the traps of credits, of long messages, of the
//! end of a peer, who a peer is and why it is refused, and datagrams. Runs on `soft0`, or on the
//! device that `DOORBELL_DEVICE` names, at the address in `DOORBELL_ADDR`. Most tests have
//! two workers, which take turns on this thread.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "scenarios/bed.rs"]
mod bed;
#[path = "scenarios/connected.rs"]
mod connected;
#[path = "scenarios/datagrams.rs"]
mod datagrams;
#[path = "scenarios/ends.rs"]
mod ends;
#[path = "scenarios/half.rs"]
mod half;
#[path = "scenarios/identity.rs"]
mod identity;
#[path = "scenarios/killed.rs"]
mod killed;
#[path = "scenarios/placed.rs"]
mod placed;
#[path = "scenarios/requests.rs"]
mod requests;
