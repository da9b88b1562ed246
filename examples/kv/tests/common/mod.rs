//! What the tests share: histories with their checker, and a client that makes them.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod actor;
pub(crate) mod history;
