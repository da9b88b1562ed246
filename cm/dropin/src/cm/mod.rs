//! The C interface of librdmacm: `addr`, `channel`, `id`, `qp` (what
//! belongs to an id), `event`, `ep`.

pub mod abi;
mod absent;
mod addr;
mod channel;
mod ep;
mod event;
mod id;
mod qp;
mod told;
