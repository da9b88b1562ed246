//! The conformance suite: what every device must do, generic over `Fabric`.
//!
//! It runs on `soft0`, or on the device that `DOORBELL_DEVICE` names, at the address in
//! `DOORBELL_ADDR`. Tests are named after the clauses that they check. A case that a device cannot
//! run, or may legally do differently, is skipped with the reason printed; on `soft0` that is a
//! failure.
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

#[macro_use]
mod harness;

mod agreed;
mod bed;
mod beside;
mod cm_events;
mod completions;
mod cq_ex;
mod datagrams;
mod devices;
mod domains;
mod drops;
mod endpoints;
mod events;
mod extended;
mod external;
mod failures;
mod frames;
mod groups;
mod hazards;
mod ids;
mod lives;
mod many;
mod migrate;
mod one_sided;
mod options;
mod order;
mod parents;
mod processes;
mod promises;
mod queues;
mod raw;
mod receive_queues;
mod regions;
mod rss;
mod segments;
mod sends;
mod sizes;
mod states;
mod toy;
mod unreliable;
mod windows;
mod xrc;
