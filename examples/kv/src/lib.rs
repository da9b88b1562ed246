//! A key-value store over RDMA. A client gets by one-sided READ from the table of the worker that
//! owns the key; put and delete go to that worker by SEND.
#![doc = include_str!("../README.md")]

pub mod bench;
pub mod caller;
pub mod client;
pub mod guest;
pub mod host;
mod learned;
pub mod memory;
pub mod message;
#[path = "../../src/place.rs"]
pub mod place;
pub mod plant;
pub mod search;
pub mod server;
pub mod shard;
pub mod slot;
pub mod table;
