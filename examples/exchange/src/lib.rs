//! An exchange over RDMA: order entry in OUCH 5.0, a matching engine, and market data in ITCH 5.0.
#![doc = include_str!("../README.md")]

pub mod accounts;
pub mod book;
mod codec_tests;
pub mod engine;
mod engine_tests;
pub mod exchange;
pub mod feed;
mod feed_tests;
mod field;
pub mod flow;
pub mod itch;
pub mod log;
pub mod mold;
pub mod ouch;
pub mod trader;
pub mod view;
pub mod wire;

pub use field::{Side, Symbol};
