//! Doorbell sends messages between threads, processes and machines without the kernel: over any
//! RDMA NIC, or, without one, over shared memory. The program is the same.
//!
//! # The first program
//!
//! An echo server, and a client that sends one message and waits for the answer. A [`Worker`]
//! calls its [`Handler`]. A [`Runtime`] runs workers on threads of their own, connects them, and
//! ends them all at the first failure.
//!
//! ```
//! # #[cfg(feature = "std")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::thread;
//!
//! use doorbell::prelude::*;
//!
//! struct Echo;
//!
//! impl<P: Provider> Handler<P> for Echo {
//!     fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
//!         Verdict::Reply { len: message.len() } // the same block goes back: no copy
//!     }
//! }
//!
//! struct Client {
//!     answer: Option<Vec<u8>>,
//!     stop: Stop,
//! }
//!
//! impl<P: Provider> Handler<P> for Client {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         out.send(peer, b"hello").expect("a new peer has room");
//!     }
//!
//!     fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
//!         self.answer = Some(message.bytes().to_vec());
//!         self.stop.stop();
//!         Verdict::Done
//!     }
//!
//!     fn on_peer_down(&mut self, _: PeerId, _: DownReason, _out: &mut Outbox<'_, P>) {
//!         self.stop.stop(); // without this, a client whose server is gone would wait for ever
//!     }
//! }
//!
//! let nic = SoftDevice::open()?;
//! let mut server = Runtime::new(&nic, &Config::DEFAULT);
//! server.add(Echo)?;
//! let addr = server.listen("127.0.0.1:0")?; // a free port
//!
//! let mut client = Runtime::new(&nic, &Config::DEFAULT);
//! client.add(Client { answer: None, stop: client.stopper() })?;
//! client.dial(addr)?;
//!
//! let stop = server.stopper();
//! thread::scope(|scope| {
//!     scope.spawn(move || server.run()); // usually another process
//!     let result = client.run(); // returns the first failure of any part
//!     stop.stop();
//!     result
//! })?;
//! assert_eq!(client.workers()[0].handler().answer.as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "std"))]
//! # fn main() {}
//! ```
//!
//! On a NIC only the device changes: [`Device::choose`] finds the one that owns an address, and
//! runs a [`Program`] on it. A production server gives each worker a core: [`Runtime::on_cores`].
//!
//! [`guide`] has an example for every other feature.
//!
//! [`Worker`]: worker::Worker
//! [`Handler`]: worker::Handler
#![no_std]

#[cfg(feature = "std")]
pub mod guide;
pub mod prelude;

pub use doorbell_alloc as alloc;
#[cfg(feature = "std")]
pub use doorbell_cm::*;
pub use doorbell_engine::{large, latency, metrics, rpc, worker};
#[cfg(feature = "sim")]
pub use doorbell_seam::prng;
pub use doorbell_seam::{error, event, provider, remote, wc, wr};
pub use doorbell_soft as soft;
#[cfg(feature = "numa")]
pub use doorbell_tune as tune;
#[cfg(feature = "verbs")]
pub use doorbell_verbs as verbs;

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../../README.md")]
struct RepositoryReadme;
