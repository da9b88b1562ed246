//! What few programs use: raw frames with TSO and RSS, XRC, extended completion queues, the states
//! SQD and RESET, and the traits of the seam's extensions.

pub(crate) mod cq_ex;
mod extension;
pub(crate) mod raw;
mod reset_sqd;
pub(crate) mod xrc;
mod xrc_create;
pub(crate) mod xrc_part;
mod xrc_receive;
