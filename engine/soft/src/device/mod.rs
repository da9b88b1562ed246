//! What the queue pairs of a device share: its tables, protection domains, and its neighbours on
//! this machine.

pub(crate) mod host;
pub(crate) mod nic;
pub(crate) mod path;
pub(crate) mod pd;
