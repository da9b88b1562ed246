//! The verbs device on a real RDMA stack: soft-RoCE in the virtual machine, or a NIC. Both ends are
//! in this process. Without an RDMA device each test says so and passes.
#![cfg(feature = "verbs")]
#![expect(unsafe_code, clippy::expect_used, reason = "posts vouch for their buffers; it is a test")]

mod connect;
mod data;
mod errors;
mod rig;
mod spare;
