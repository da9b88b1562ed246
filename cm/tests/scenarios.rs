//! What goes wrong between workers, on whichever device: the traps of credits, of long messages, of
//! the end of a peer, and datagrams. On `soft0`, or on the device that `DOORBELL_DEVICE` names, at
//! the address in `DOORBELL_ADDR`. Each has two workers, which turn on this thread in turn.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "scenarios/bed.rs"]
mod bed;
#[path = "scenarios/connected.rs"]
mod connected;
#[path = "scenarios/datagrams.rs"]
mod datagrams;
#[path = "scenarios/placed.rs"]
mod placed;
