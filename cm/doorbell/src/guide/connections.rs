//! How connections begin and end.
//!
//! # Who may connect
//!
//! A listener shows its program each request before it accepts: the address, up to 32 bytes that
//! the dialing program sent, and on `soft` the process and user. The program accepts, chooses a
//! worker, or refuses with a reason that the other side's error shows. The bytes are also known
//! for each peer that is up: [`Outbox::peer_info`](crate::worker::Outbox::peer_info).
//!
//! A dial returns a handle. It names the peer of the worker, says how the connection stands, and
//! ends it.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::time::Duration;
//!
//! use doorbell::prelude::*;
//!
//! /// Notes the name that each peer gave, behind the secret.
//! #[derive(Default)]
//! struct Names(Vec<Vec<u8>>);
//!
//! impl<P: Provider> Handler<P> for Names {
//!     fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//!         Verdict::Done
//!     }
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         let info = out.peer_info(peer).expect("a peer that is up is known");
//!         self.0.push(info.data().get(16..).unwrap_or_default().to_vec());
//!     }
//! }
//!
//! # fn worker(nic: &SoftDevice)
//! # -> Result<(Worker<SoftDevice, Names>, Intake<SoftDevice>), Box<dyn std::error::Error>> {
//! #     let config = Config { peers: 4, ..Config::DEFAULT };
//! #     let shared = SharedRecv::new(nic, message_memory(nic, config.recv_bytes())?, &config)?;
//! #     let memory = message_memory(nic, config.send_bytes())?;
//! #     Ok(Worker::new(nic, &shared, memory, Names::default(), &config)?)
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const SECRET: &[u8; 16] = b"not for everyone";
//!
//! let nic = SoftDevice::open()?;
//! let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse()?)?;
//! let addr = listener.local_addr().ok_or("it is bound")?;
//! let (mut server, intake) = worker(&nic)?;
//! listener.feed(intake);
//! listener.on_request(|request| match request.data().split_first_chunk::<16>() {
//!     // Every byte is compared, so that the time does not tell how many are right.
//!     Some((secret, _)) if secret.iter().zip(SECRET).fold(0, |no, (a, b)| no | (a ^ b)) == 0 => {
//!         Answer::accept()
//!     }
//!     _ => Answer::refuse("wrong secret"),
//! });
//!
//! let (mut client, intake) = worker(&nic)?;
//! let mut dialer = Dialer::new(&nic)?;
//! let (stop, limit) = (AtomicBool::new(false), Duration::from_secs(5));
//! let (stranger, friend) = std::thread::scope(|scope| {
//!     scope.spawn(|| listener.run(&stop));
//!     let stranger = dialer.dial_with(addr, b"let me in", &intake, limit);
//!     let friend = dialer.dial_with(addr, b"not for everyone anna", &intake, limit);
//!     stop.store(true, Ordering::Relaxed);
//!     (stranger, friend)
//! });
//! let error = stranger.err().ok_or("it has no secret")?;
//! assert!(error.to_string().contains("its program said: wrong secret"), "{error}");
//!
//! let friend = friend?;
//! client.turn(); // the worker learns of its peer
//! let peer = friend.peer().ok_or("it is up")?;
//! client.outbox().send(peer, b"hello")?;
//! # for _ in 0..1000 {
//! #     client.turn();
//! #     listener.step(Duration::ZERO)?;
//! #     server.turn();
//! # }
//! assert_eq!(server.handler().0, [b" anna"]);
//!
//! friend.end(); // the dialer's next step does it
//! dialer.step(Duration::ZERO)?;
//! assert_eq!(friend.state(), PeerState::Ended);
//! # Ok(())
//! # }
//! ```
//!
//! # An end in order
//!
//! A worker drains before it ends: its peers get everything that was accepted for them, and learn
//! that this was no failure. A worker that is dropped without that ends its connections too, but
//! messages on their way may be lost. The listener goes on with its other workers, and takes new
//! ones.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use doorbell::prelude::*;
//!
//! #[derive(Default)]
//! struct Log {
//!     up: Vec<PeerId>,
//!     got: u32,
//!     down: Option<DownReason>,
//! }
//!
//! impl<P: Provider> Handler<P> for Log {
//!     fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
//!         self.up.push(peer);
//!     }
//!     fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//!         self.got += 1;
//!         Verdict::Done
//!     }
//!     fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
//!         self.down = Some(why);
//!     }
//! }
//!
//! # fn worker(nic: &SoftDevice)
//! # -> Result<(Worker<SoftDevice, Log>, Intake<SoftDevice>), Box<dyn std::error::Error>> {
//! #     let config = Config { peers: 4, ..Config::DEFAULT };
//! #     let shared = SharedRecv::new(nic, message_memory(nic, config.recv_bytes())?, &config)?;
//! #     let memory = message_memory(nic, config.send_bytes())?;
//! #     Ok(Worker::new(nic, &shared, memory, Log::default(), &config)?)
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let nic = SoftDevice::open()?;
//! # let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse()?)?;
//! # let addr = listener.local_addr().ok_or("it is bound")?;
//! # let limit = Duration::from_secs(60);
//! let (mut server, intake) = worker(&nic)?;
//! listener.feed(intake);
//! let (mut client, intake) = worker(&nic)?;
//! let mut dialer = Dialer::new(&nic)?;
//! # std::thread::scope(|scope| {
//! # let dialing = scope.spawn(|| dialer.dial(addr, &intake, limit).map(drop));
//! # while !dialing.is_finished() { listener.step(Duration::from_millis(1))?; }
//! # dialing.join().expect("it ends")
//! # })?;
//! client.turn();
//! let peer = client.handler().up[0];
//! client.outbox().send(peer, b"the last word")?;
//! let end = Instant::now() + limit;
//! let left = client.drain(|| {
//!     server.turn(); // it has a thread of its own, in a program
//!     Instant::now() < end
//! });
//! assert_eq!(left.peers, 0);
//!
//! while server.handler().down.is_none() {
//!     server.turn(); // it learns of the end although nobody steps the listener
//! }
//! assert_eq!((server.handler().got, server.handler().down), (1, Some(DownReason::Finished)));
//!
//! drop(server);
//! listener.step(Duration::ZERO)?;
//! assert_eq!((listener.workers(), listener.lost_workers()), (0, 1));
//! let (_next, intake) = worker(&nic)?;
//! listener.feed(intake);
//! assert_eq!(listener.workers(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # An end of one direction
//!
//! A program that has sent all it has says so, and still gets answers, as with `shutdown(SHUT_WR)`
//! of a socket: [`Outbox::finish_sending`](crate::worker::Outbox::finish_sending). The peer's
//! handler learns of it behind the last message. When both sides have finished, the connection
//! ends, and both see [`Finished`](crate::worker::DownReason::Finished): nothing was lost.
//!
//! ```
//! use doorbell::prelude::*;
//! use doorbell::worker::SendError;
//! # use std::time::Duration;
//!
//! /// Adds up the numbers of its peer, and answers with the sum when there are no more.
//! #[derive(Default)]
//! struct Sums {
//!     up: Vec<PeerId>,
//!     sum: u64,
//!     down: Option<DownReason>,
//! }
//!
//! impl<P: Provider> Handler<P> for Sums {
//!     fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
//!         self.up.push(peer);
//!     }
//!     fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//!         self.sum += message.bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
//!         Verdict::Done
//!     }
//!     fn on_finished_sending(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         // The side that finished first gets an error here, and has nothing more to say.
//!         let _ = out.send(peer, &self.sum.to_le_bytes());
//!         out.finish_sending(peer);
//!     }
//!     fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
//!         self.down = Some(why);
//!     }
//! }
//!
//! # fn worker(nic: &SoftDevice)
//! # -> Result<(Worker<SoftDevice, Sums>, Intake<SoftDevice>), Box<dyn std::error::Error>> {
//! #     let config = Config { peers: 4, ..Config::DEFAULT };
//! #     let shared = SharedRecv::new(nic, message_memory(nic, config.recv_bytes())?, &config)?;
//! #     let memory = message_memory(nic, config.send_bytes())?;
//! #     Ok(Worker::new(nic, &shared, memory, Sums::default(), &config)?)
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let nic = SoftDevice::open()?;
//! # let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse()?)?;
//! # let addr = listener.local_addr().ok_or("it is bound")?;
//! # let (mut server, intake) = worker(&nic)?;
//! # listener.feed(intake);
//! # let (mut client, intake) = worker(&nic)?;
//! # let mut dialer = Dialer::new(&nic)?;
//! # std::thread::scope(|scope| {
//! # let dialing = scope.spawn(|| dialer.dial(addr, &intake, Duration::from_secs(60)).map(drop));
//! # while !dialing.is_finished() { listener.step(Duration::from_millis(1))?; }
//! # dialing.join().expect("it ends")
//! # })?;
//! # client.turn();
//! let peer = client.handler().up[0];
//! let mut out = client.outbox();
//! for number in 1..=4_u64 {
//!     out.send(peer, &number.to_le_bytes())?;
//! }
//! out.finish_sending(peer);
//! assert_eq!(out.send(peer, b"more"), Err(SendError::FinishedSending));
//!
//! while client.handler().down.is_none() || server.handler().down.is_none() {
//!     client.turn();
//!     server.turn(); // it has a thread of its own, in a program
//! }
//! assert_eq!((client.handler().sum, client.handler().down), (10, Some(DownReason::Finished)));
//! assert_eq!(server.handler().down, Some(DownReason::Finished));
//! # Ok(())
//! # }
//! ```
