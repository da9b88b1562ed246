//! An exchange over RDMA: order entry in OUCH 5.0, a matching engine, and market data in ITCH 5.0.
#![doc = include_str!("../README.md")]

pub mod accounts;
pub mod book;
pub mod capture;
pub mod clock;
mod codec_tests;
pub mod engine;
mod engine_tests;
pub mod exchange;
pub mod feed;
mod feed_tests;
mod field;
pub mod flow;
pub mod follower;
pub mod itch;
pub mod kept;
pub mod latency;
pub mod load;
pub mod log;
pub mod mold;
pub mod orders;
pub mod ouch;
#[path = "../../src/place.rs"]
pub mod place;
pub mod recorder;
pub mod replay;
pub mod run;
pub mod snapshot;
pub mod taker;
pub mod trader;
pub mod view;
pub mod wire;

pub use field::{Side, Symbol};
