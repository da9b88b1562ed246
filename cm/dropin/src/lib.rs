//! The C interface of libibverbs over the soft device: load this library before the real one
//! (`LD_PRELOAD`), and programs for RDMA run as they are, without a NIC, a kernel module or root.
//!
//! A call comes in through a symbol of the library, or through a table of functions in the context.
//! Each looks up its object ([`abi`] has the structures that programs see), and passes the call to
//! the device. A call that the device does not support returns EOPNOTSUPP.
//!
//! | file | holds |
//! |---|---|
//! | `abi` and others of that name | the structures of the C header |
//! | `border` | objects by address, errno, panics |
//! | `queue` | queues of events that a program waits for |
//! | `per_process` | values that a child of fork makes anew |
//! | `progress` | the thread that polls where the program does not |
//! | `context`, `open`, `device` | open devices, their tables of functions, their queries |
//! | `memory`, `rereg`, `window`, `cq`, `srq`, `ah`, `qp`, `post` | calls by noun |
//! | `cq_ex`, `reader` | extended completion queues |
//! | `create_ex`, `extended_post` | extended queue pairs; the extended post |
//! | `xrc`, `domains` | XRC; thread domains and parent domains |
//! | `flow`, `filter`, `wq` | raw packets: flows, and work queues |
//! | `attr`, `requests` | attributes; lists of requests |
//! | `scatter`, `building` | receives of several pieces; extended posts as they are put together |
//! | `cm` | the calls of librdmacm |
//! | `shared`, `forked`, `pages`, `maps` | program memory that peers can map |
//! | `paths` | files that programs look for |
//! | `texts`, `rates`, `fork_calls` | calls that need no device |
//! | `loader`, `onward`, `next` | programs that call `dlopen`; functions that lead on |
//! | `absent`, `absent_newer` | calls that are not supported |

pub mod abi;
pub mod abi_context;
pub mod abi_ext;
pub mod abi_raw;
mod absent;
mod absent_newer;
mod ah;
mod attr;
mod border;
mod building;
pub mod cm;
mod context;
mod cq;
mod cq_ex;
mod create_ex;
#[cfg(test)]
mod datagram_tests;
mod device;
mod domains;
mod extended_post;
mod filter;
mod flow;
mod fork_calls;
mod forked;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod loader;
mod maps;
mod memory;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod next;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod onward;
mod open;
mod pages;
mod paths;
mod per_process;
mod post;
mod progress;
mod qp;
mod queue;
mod rates;
mod reader;
mod requests;
mod rereg;
mod scatter;
mod shared;
mod srq;
#[cfg(test)]
mod state_tests;
mod texts;
mod window;
mod wq;
mod xrc;
