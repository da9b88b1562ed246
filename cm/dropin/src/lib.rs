//! The C interface of libibverbs over the soft device: load this library before the real one
//! (`LD_PRELOAD`), and programs for RDMA run as they are, without a NIC, a kernel module or root.
//!
//! A call comes in through a symbol of the library, or through a table of functions in the context.
//! Each looks up its object ([`abi`] has the structures that programs see), and passes the call to
//! the device. A call that the device does not support returns EOPNOTSUPP.
//!
//! | file | holds |
//! |---|---|
//! | `abi` | the structures of the C header |
//! | `border` | objects by address, errno, panics |
//! | `queue` | queues of events that a program waits for |
//! | `progress` | the thread that polls where the program does not |
//! | `context`, `device` | open devices and their queries |
//! | `memory`, `cq`, `srq`, `ah`, `qp`, `post`, `extended_post` | calls by noun |
//! | `attr`, `requests` | attributes; lists of requests |
//! | `scatter`, `building` | receives of several pieces; extended posts as they are put together |
//! | `cm` | the calls of librdmacm |
//! | `shared`, `forked`, `pages`, `maps` | program memory that peers can map |
//! | `paths` | files that programs look for |
//! | `absent` | calls that are not supported |

pub mod abi;
mod absent;
mod ah;
mod attr;
mod border;
mod building;
pub mod cm;
mod context;
mod cq;
mod device;
mod extended_post;
mod forked;
mod maps;
mod memory;
mod pages;
mod paths;
mod post;
mod progress;
mod qp;
mod queue;
mod requests;
mod scatter;
mod shared;
mod srq;
