//! Echo, and programs that talk to real RDMA peers.

pub mod interop;
