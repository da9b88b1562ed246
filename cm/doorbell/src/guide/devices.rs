//! Choosing a device, and using it without workers, as the man pages describe it.
//!
//! # Any device
//!
//! A [`Program`] is generic over the device; [`Device::choose`] takes the NIC that owns an address,
//! or else the device in software.
//!
//! ```
//! use doorbell::prelude::*;
//!
//! struct Name;
//!
//! impl Program for Name {
//!     type Output = String;
//!     fn run<F: Fabric>(self, fabric: F) -> String {
//!         fabric.caps().device.clone()
//!     }
//! }
//!
//! let addr = "127.0.0.1".parse().ok();
//! assert_eq!(Device::choose(None, addr)?.run(Name), "soft0");
//! # Ok::<(), CmError>(())
//! ```
//!
//! A complete program with workers:
//!
//! ```no_run
//! use std::net::SocketAddr;
//!
//! use doorbell::prelude::*;
//!
//! struct Echo;
//!
//! impl<P: Provider> Handler<P> for Echo {
//!     fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//!         Verdict::Reply { len: message.len() }
//!     }
//! }
//!
//! struct Server(SocketAddr);
//!
//! impl Program for Server {
//!     type Output = Result<Why, CmError>;
//!     fn run<F: Fabric>(self, fabric: F) -> Self::Output {
//!         let mut runtime = Runtime::new(&fabric, &Config::DEFAULT);
//!         runtime.add(Echo)?;
//!         runtime.listen(self.0)?;
//!         runtime.stop_on_signals()?;
//!         runtime.run()
//!     }
//! }
//!
//! fn main() -> Result<(), CmError> {
//!     let addr = SocketAddr::from(([127, 0, 0, 1], 7471)); // or one of a NIC
//!     let why = Device::choose(None, Some(addr.ip()))?.run(Server(addr))?;
//!     println!("it has ended: {why:?}");
//!     Ok(())
//! }
//! ```
//!
//! # Endpoints, as in the man pages
//!
//! A buffer belongs to whoever may touch it: a post takes it, its completion gives it back.
//!
//! ```
//! use std::time::Duration;
//!
//! use doorbell::prelude::*;
//! use doorbell::wr::{SendFlags, SendOp};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(5);
//! let device = SoftDevice::open()?;
//! let init = QpInit::rc().send_wr(2).recv_wr(2).signal_all(true);
//!
//! let here = AddrInfo::resolve("127.0.0.1", "0", &Hints::passive())?;
//! let mut listener = Endpoint::create(&device, &here, Some(&init))?;
//! listener.listen(1)?;
//! let addr = listener.local_addr().ok_or("it is bound")?;
//!
//! let serving = device.clone();
//! let server = std::thread::spawn(move || -> Result<Vec<u8>, CmError> {
//!     let mut id = listener.get_request(Some(limit))?;
//!     id.queues().post_recv(Buffer::new(&serving, 64)?)?;
//!     id.accept(&ConnParam::default())?;
//!     let received = id.queues().next_recv(limit)?.ok()?;
//!     Ok(received.bytes().to_vec())
//! });
//!
//! let there = AddrInfo::of(addr, &Hints::active());
//! let mut id = Endpoint::create(&device, &there, Some(&init))?;
//! id.connect(&ConnParam::default())?;
//! let mut buffer = Buffer::new(&device, 64)?;
//! buffer[..5].copy_from_slice(b"hello");
//! id.queues().post_send(buffer, 5, SendOp::Send, SendFlags::empty())?;
//! id.queues().next_send(limit)?.ok()?;
//! assert_eq!(server.join().map_err(|_| "the server panicked")??, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # A NIC
//!
//! With the feature `verbs`, `doorbell::verbs::Verbs::open("mlx5_0")` opens one by its name. It is
//! a [`Fabric`], as [`SoftDevice`](crate::soft::SoftDevice) is, and the rest of the program is the
//! same.

#[cfg(doc)]
use crate::{Device, Fabric, Program};
