//! What one side does without a worker: its [`memory`], one queue pair ([`device`]) and how it is
//! made and connected ([`open`]), both sides of echoes ([`echo`]), the serving side of bandwidth
//! ([`target`]).

pub(crate) mod device;
pub(crate) mod echo;
pub(crate) mod memory;
pub(crate) mod open;
pub(crate) mod target;
