//! Echo, and programs that talk to real RDMA peers.
