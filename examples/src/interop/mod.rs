//! The counterparts of well-known RDMA programs, one module for each, named after it. Each
//! counterpart checks the length and the status of everything it receives, and returns an error if
//! the peer behaves differently from its program.

mod common;

mod rdma;

mod rping;

mod ucmatose;

mod xrdma;

mod udaddy;

mod mckey;

mod pingpong;

mod srq_pingpong;

mod rstream;

mod cmtime;

pub use cmtime::CmtimeServer;
pub use common::{LIMIT, Plan};
pub use mckey::{Mckey, MckeyReceiver, MckeySender};
pub use pingpong::Pingpong;
pub use rdma::{RdmaClient, RdmaServer};
pub use rping::{RpingClient, RpingServer};
pub use rstream::{Rstream, RstreamClient, RstreamServer};
pub use srq_pingpong::SrqPingpong;
pub use ucmatose::{UcmatoseClient, UcmatoseServer};
pub use udaddy::{UdaddyClient, UdaddyServer};
pub use xrdma::{RdmaXclient, RdmaXserver};
