//! What a domain holds: links with their policies, queue pairs, completion queues, the prediction.

pub(crate) mod again;
pub(crate) mod completion;
pub(crate) mod completions;
pub(crate) mod domain_state;
pub(crate) mod inboxes;
pub(crate) mod lending;
pub(crate) mod link;
pub(crate) mod link_scheduler;
pub(crate) mod link_shared;
pub(crate) mod next_look;
pub(crate) mod place;
pub(crate) mod policy;
pub(crate) mod predicted;
pub(crate) mod qp;
pub(crate) mod qp_table;
pub(crate) mod quiet;
pub(crate) mod ready;
pub(crate) mod receives;
pub(crate) mod resources;
pub(crate) mod responses;
pub(crate) mod service_queue;
pub(crate) mod signaled;
pub(crate) mod transport;
