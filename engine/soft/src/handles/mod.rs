//! What programs hold: the device, queue pairs, pollers, regions, shared receive queues; and the
//! core traits of the seam.

pub(crate) mod create_qp;
mod datagram;
pub(crate) mod device;
pub(crate) mod poller;
pub(crate) mod qp_control;
pub(crate) mod queue_pair;
pub(crate) mod region;
mod seam;
pub(crate) mod srq;
