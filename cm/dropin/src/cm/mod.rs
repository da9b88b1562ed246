//! The C interface of librdmacm: `addr`, `channel`, `id`, `qp` and `srq` (what belongs to an id),
//! `xrcd`, `event`, `ep`.

pub mod abi;
mod absent;
mod addr;
mod channel;
mod ep;
mod event;
mod id;
mod qp;
mod srq;
#[cfg(test)]
mod tests;
mod told;
mod xrcd;
