//! Doorbell in programs that run on tokio.
//!
//! An [`AsyncWorker`] is a worker on a thread of its own, with a core of its own if you give it
//! one. Tasks connect, accept, send, receive and make requests as futures. What a [`Service`]
//! answers never leaves the worker's thread, so only the side that waits in a task pays for the
//! crossing.
//!
//! ```
//! use std::time::Duration;
//!
//! use doorbell::prelude::*;
//! use doorbell_tokio::{AsyncWorker, Options, Service};
//!
//! struct Shout;
//!
//! impl Service for Shout {
//!     fn request(&mut self, _: PeerId, room: &mut [u8], len: usize) -> Option<usize> {
//!         room[..len].make_ascii_uppercase(); // the answer, in place
//!         Some(len)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = SoftDevice::open()?;
//! let options = Options::DEFAULT; // for production: a core for each worker
//!
//! let server = AsyncWorker::start(&nic, Shout, &options)?; // usually another process
//! let addr = server.listen("127.0.0.1:0".parse()?).await?;
//!
//! let client = AsyncWorker::start(&nic, (), &options)?;
//! let connection = client.connect(addr, Duration::from_secs(20)).await?;
//! let answer = connection.request(b"hello", Duration::from_secs(1)).await?;
//! assert_eq!(answer, b"HELLO");
//! client.close().await?;
//! # server.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! A send or a request is a job. [`Options::jobs`] of them are made at the start, each with memory
//! for a block. A future takes one, or waits until one is free, so a program that asks for more
//! than the worker can do is slowed down, and nothing is lost. The job goes to the worker through a
//! queue without locks; the worker runs it between two polls, and sends it back in the same way. It
//! writes to a descriptor only if the task that takes the jobs back rests. That task also steps the
//! control plane. The worker's thread allocates nothing for a job, and takes no lock.
//!
//! A job that finds no room at its peer waits on the worker, behind the earlier ones of that peer,
//! and holds up no other peer. Deadlines are timers of the worker. A future that is dropped takes
//! its job back, wherever it is; an answer that comes later is dropped. When a peer or the worker
//! ends, each of its futures ends with the reason.
//!
//! A message for a task ([`Connection::recv`]) is copied once, and the worker keeps its block until
//! the task has taken it. So a task that is slow stops its peer by credit, and the copies need no
//! more room than the receives.
//!
//! # Without a thread
//!
//! [`Readiness`] waits in a task for a worker, a listener or a dialer that the task itself turns
//! and steps. The example `async_fd` of the repository is a program around it.

// What the program's tasks have.
mod connection;
mod error;
mod service;
mod untaken;
mod worker;

// The crossing between the tasks and the worker's thread.
mod crossing;
mod inbox;
mod job;
mod slots;

// At either end of it.
mod bridge;
mod driver;
mod waiting;

mod readiness;

pub use connection::Connection;
pub use error::{Ended, Failed};
pub use readiness::Readiness;
pub use service::{Recipient, Service};
pub use worker::{AsyncWorker, Options};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
