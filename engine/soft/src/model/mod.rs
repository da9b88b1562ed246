//! Verbs semantics that know no wire: keys, receive queues, completion queues, send slots.

pub(crate) mod buffers;
pub(crate) mod cq;
pub(crate) mod limits;
pub(crate) mod local_waker;
pub(crate) mod memory;
pub(crate) mod reads;
pub(crate) mod recvq;
pub(crate) mod send_queue;
