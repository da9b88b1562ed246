//! Doorbell sends messages between threads, processes and machines without the kernel: over any
//! RDMA NIC, or, without one, over shared memory. The program is the same.
//!
//! # The first program
//!
//! An echo server, and a client that sends one message and waits for the answer. A [`Worker`]
//! calls its [`Handler`]; [`Listener`] and [`Dialer`] connect workers.
//!
//! ```
//! # #[cfg(feature = "std")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::error::Error;
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::thread;
//! use std::time::{Duration, Instant};
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
//! #[derive(Default)]
//! struct Client {
//!     answer: Option<Vec<u8>>,
//! }
//!
//! impl<P: Provider> Handler<P> for Client {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         out.send(peer, b"hello").expect("a new peer has room");
//!     }
//!
//!     fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
//!         self.answer = Some(message.bytes().to_vec());
//!         Verdict::Done
//!     }
//! }
//!
//! type Side<F, H> = (Worker<F, H>, Intake<F>);
//!
//! /// A worker with memory of its own, and where the control plane puts its connections.
//! fn worker<F: Fabric, H: Handler<F>>(nic: &F, handler: H) -> Result<Side<F, H>, Box<dyn Error>> {
//!     let config = Config { peers: 4, ..Config::DEFAULT };
//!     let shared = SharedRecv::new(nic, Mapping::plain(config.recv_bytes())?, &config)?;
//!     Ok(Worker::new(nic, &shared, Mapping::plain(config.send_bytes())?, handler, &config)?)
//! }
//!
//! let nic = SoftDevice::open()?;
//! let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse()?)?;
//! let addr = listener.local_addr().ok_or("it is bound")?;
//! let (mut server, intake) = worker(&nic, Echo)?;
//! listener.feed(intake);
//! let (mut client, intake) = worker(&nic, Client::default())?;
//!
//! let stop = &AtomicBool::new(false);
//! let answer = thread::scope(|scope| {
//!     scope.spawn(move || server.run(stop)); // a core of its own, in earnest
//!     scope.spawn(move || listener.run(stop)); // the control plane
//!     let begin = Instant::now();
//!     let dialed = Dialer::new(&nic).and_then(|mut dialer| {
//!         dialer.dial(addr, &intake, Duration::from_secs(5)).map(|()| dialer)
//!     });
//!     while dialed.is_ok()
//!         && client.handler().answer.is_none()
//!         && begin.elapsed() < Duration::from_secs(30)
//!     {
//!         client.turn();
//!     }
//!     stop.store(true, Ordering::Relaxed);
//!     dialed.map(|_| client.handler().answer.take())
//! })?;
//! assert_eq!(answer.as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "std"))]
//! # fn main() {}
//! ```
//!
//! On a NIC only the device changes: [`Device::choose`] finds the one that owns an address, and
//! runs a [`Program`] on it. A production server gets its memory with [`Mapping::huge`], and a core
//! for each worker.
//!
//! [`guide`] has an example for every other feature.
//!
//! [`Worker`]: worker::Worker
//! [`Handler`]: worker::Handler
//! [`Mapping::huge`]: alloc::Mapping::huge
#![no_std]

#[cfg(feature = "std")]
pub mod guide;
pub mod prelude;

pub use doorbell_alloc as alloc;
#[cfg(feature = "std")]
pub use doorbell_cm::*;
pub use doorbell_engine::{large, rpc, worker};
#[cfg(feature = "sim")]
pub use doorbell_seam::prng;
pub use doorbell_seam::{error, event, provider, wc, wr};
pub use doorbell_soft as soft;
#[cfg(feature = "numa")]
pub use doorbell_tune as tune;
#[cfg(feature = "verbs")]
pub use doorbell_verbs as verbs;

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../../README.md")]
struct RepositoryReadme;
