//! The C interface of librdmacm: `addr`, `id`, `qp` (what belongs to an id), `event`, `ep`.

pub mod abi;
mod absent;
mod addr;
mod ep;
mod event;
mod id;
mod qp;
