//! Verbs semantics that know no wire: keys, receive queues, completion queues, send slots.
//!
//! Registered memory, from the entry to the whole: `pd` (who), `slot` (which bytes), `table` (all
//! slots), `memory` (makes keys, lends bytes), `buffers` (the bytes).

pub(crate) mod atomic;
pub(crate) mod biased;
pub(crate) mod buffers;
pub(crate) mod cq;
pub(crate) mod limits;
pub(crate) mod local_waker;
pub(crate) mod memory;
pub(crate) mod pd;
pub(crate) mod reads;
pub(crate) mod recvq;
pub(crate) mod send_queue;
pub(crate) mod slot;
pub(crate) mod table;
