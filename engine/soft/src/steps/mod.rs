//! The steps of the data plane, and the domain that runs them and carries out the commands of the
//! control plane.
//!
//! A message passes, in this order: `requester`, or `deferred` where it is published later → the
//! peer's `poll` → `receive`. A sender lends the bytes of a long message (`lend`), and the receiver
//! copies them once (`borrow`). A one-sided request goes to `responder`, and its response comes
//! back through `read_response`.

pub(crate) mod admission;
mod backlog;
mod borrow;
pub(crate) mod command;
pub(crate) mod deferred;
pub(crate) mod domain;
mod execute;
pub(crate) mod fetch_ahead;
pub(crate) mod lend;
mod local_rdma;
mod poll;
mod poll_shared;
mod read_response;
mod receive;
mod requester;
mod responder;
mod service;
pub(crate) mod sleep;
mod unreliable;
