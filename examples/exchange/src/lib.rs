//! An exchange over RDMA: order entry in OUCH 5.0, a matching engine, and market data in ITCH 5.0.
#![doc = include_str!("../README.md")]

#[path = "codec_tests.rs"]
mod codec;
mod field;
pub mod itch;
pub mod mold;
pub mod ouch;

pub use field::{Side, Symbol};
