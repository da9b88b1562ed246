//! What workers do besides messages: configuration, calls, datagrams, other event loops.
//!
//! # The configuration of a worker
//!
//! [`Config::builder`](crate::worker::Config::builder) chooses them from what a program wants, and
//! reports what it chose and why, and how much memory that takes. With the feature `serde` a file
//! can hold them: a missing field has its default, and an unknown one is an error.
//!
//! ```
//! use doorbell::worker::{Config, Goal};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let wanted = Config::builder().peers(200).message_bytes(512).memory(16 << 20);
//! let (config, report) = wanted.goal(Goal::Latency).build()?;
//! println!("{report}");
//! assert!(report.bytes_per_worker() <= 16 << 20);
//!
//! // The same from a file, with other numbers in it.
//! let file = "peers = 200\nblock_bytes = 512\nrecv_blocks = 4096\n[retry]\nack_timeout = 14\n";
//! let from_file: Config = toml::from_str(file)?;
//! from_file.check()?;
//! assert_eq!(from_file.peers, config.peers);
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting for room
//!
//! A send may be refused for back-pressure: the peer has promised no receive, or the send queue is
//! full. Then nothing was sent, and the worker does not call when there is room again. So keep what
//! waits, and try it again after each message and in each idle turn.
//!
//! ```
//! use std::collections::VecDeque;
//!
//! use doorbell::prelude::*;
//!
//! /// Sends 1000 messages to its first peer, as fast as the peer takes them.
//! struct Sender {
//!     waiting: VecDeque<[u8; 8]>,
//!     peer: Option<PeerId>,
//!     stop: Stop,
//! }
//!
//! impl Sender {
//!     fn send<P: Provider>(&mut self, out: &mut Outbox<'_, P>) {
//!         let Some(peer) = self.peer else { return };
//!         while let Some(bytes) = self.waiting.front() {
//!             match out.send(peer, bytes) {
//!                 Ok(()) => drop(self.waiting.pop_front()),
//!                 Err(error) if error.is_back_pressure() => return, // there is more to come
//!                 Err(SendError::NotConnected) => return,           // on_peer_down says why
//!                 Err(error) => panic!("it will never be sent: {error}"),
//!             }
//!         }
//!         out.finish(peer); // on_peer_down follows when the peer has everything
//!     }
//! }
//!
//! impl<P: Provider> Handler<P> for Sender {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         self.peer = Some(peer);
//!         self.send(out);
//!     }
//!     fn on_message(&mut self, _: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
//!         self.send(out); // the message may have brought credit
//!         Verdict::Done
//!     }
//!     fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
//!         self.send(out);
//!     }
//!     fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
//!         self.peer = None;
//!         self.stop.stop();
//!     }
//! }
//!
//! # #[derive(Default)]
//! # struct Count(u64);
//! # impl<P: Provider> Handler<P> for Count {
//! #     fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//! #         self.0 += 1;
//! #         Verdict::Done
//! #     }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = SoftDevice::open()?;
//! # let mut server = Runtime::new(&nic, &Config::DEFAULT);
//! # server.add(Count::default())?;
//! # let addr = server.listen("127.0.0.1:0")?;
//! let mut client = Runtime::new(&nic, &Config::DEFAULT);
//! let waiting = (0..1000_u64).map(u64::to_le_bytes).collect();
//! client.add(Sender { waiting, peer: None, stop: client.stopper() })?;
//! client.dial(addr)?;
//! # let stop = server.stopper();
//! # std::thread::scope(|scope| {
//! #     let serving = scope.spawn(|| server.run());
//! #     let result = client.run();
//! #     stop.stop();
//! #     serving.join().expect("it does not panic")?;
//! #     result
//! # })?;
//! # assert!(client.workers()[0].handler().waiting.is_empty());
//! # assert_eq!(server.workers()[0].handler().0, 1000);
//! # Ok(())
//! # }
//! ```
//!
//! # Calls and answers
//!
//! [`Calls`](crate::rpc::Calls) makes requests and answers of messages. The answering side needs no
//! state: it writes the answer into the block of the call. Each call ends once: with its answer,
//! its deadline, or its peer.
//!
//! ```
//! use doorbell::prelude::*;
//! use doorbell::rpc::{self, Calls, Incoming};
//!
//! /// Asks the peer that it dialed for the length of a word, and answers such calls.
//! struct Lengths {
//!     calls: Calls,
//!     length: Option<u8>,
//!     stop: Stop,
//! }
//!
//! impl<P: Provider> Handler<P> for Lengths {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         if out.peer_info(peer).is_some_and(|peer| peer.is_dialed()) {
//!             let deadline = out.now() + 60_000_000_000; // a time of the clock, in nanoseconds
//!             let call = self.calls.call(out, peer, b"doorbell", 1, Some(deadline));
//!             call.expect("a new peer has room"); // later, see "Waiting for room"
//!         }
//!     }
//!
//!     fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
//!         match self.calls.incoming(out, &message) {
//!             Incoming::Call(word) => {
//!                 let length = word.len() as u8;
//!                 let answer = rpc::answer(&mut message, |room| {
//!                     room[0] = length;
//!                     1 // byte of the room
//!                 });
//!                 return answer.map_or(Verdict::Done, |len| Verdict::Reply { len });
//!             }
//!             Incoming::Answer { key: 1, bytes } => {
//!                 self.length = bytes.first().copied();
//!                 self.stop.stop();
//!             }
//!             _ => {} // late, or not made by `Calls`
//!         }
//!         Verdict::Done
//!     }
//!
//!     fn on_timer(&mut self, timer: u64, _: &mut Outbox<'_, P>) {
//!         if let Some(key) = self.calls.expired(timer) {
//!             eprintln!("call {key} had no answer in time");
//!             self.stop.stop();
//!         }
//!     }
//!
//!     fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
//!         while let Some(key) = self.calls.lost(out, peer) {
//!             eprintln!("call {key} has no answer: {why}");
//!         }
//!         self.stop.stop();
//!     }
//! }
//!
//! let mut runtime = Runtime::new(&SoftDevice::open()?, &Config::DEFAULT);
//! // 16 calls at a time, each of 64 bytes at most; their timers have the keys from 0 on.
//! let calls = Calls::new(16, 64, 0);
//! runtime.add(Lengths { calls, length: None, stop: runtime.stopper() })?;
//! let addr = runtime.listen("127.0.0.1:0")?;
//! runtime.dial(addr)?; // it calls itself
//! runtime.run()?;
//! assert_eq!(runtime.workers()[0].handler().length, Some(8));
//! # Ok::<(), CmError>(())
//! ```
//!
//! # Datagrams of a worker
//!
//! A worker that was made with [`Config::datagrams`](crate::worker::Config::datagrams) takes them;
//! [`Port::open`] gives it an address.
//!
//! ```
//! use doorbell::prelude::*;
//! use doorbell::worker::Datagram;
//!
//! #[derive(Default)]
//! struct Count(u64);
//!
//! impl<P: Provider> Handler<P> for Count {
//!     fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//!         Verdict::Done
//!     }
//!     fn on_datagram(&mut self, _: Datagram<'_>, _: &mut Outbox<'_, P>) {
//!         self.0 += 1;
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = SoftDevice::open()?;
//! let config = Config { datagrams: 16, ..Config::DEFAULT };
//! let shared = SharedRecv::new(&nic, message_memory(&nic, config.recv_bytes())?, &config)?;
//! let memory = message_memory(&nic, config.send_bytes())?;
//! let (mut worker, intake) = Worker::new(&nic, &shared, memory, Count::default(), &config)?;
//! let port = Port::open(&nic, "127.0.0.1:0".parse()?, &intake)?;
//! worker.turn();
//! assert_ne!(port.local_addr().map_or(0, |addr| addr.port()), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # tokio, epoll
//!
//! The crate `doorbell-tokio` runs a worker on a thread of its own, and connects, accepts, sends,
//! receives and makes requests as futures. A loop of one's own waits for the descriptors of a
//! worker ([`WakeFd`](crate::WakeFd)), a listener and a dialer: it arms the worker
//! ([`Worker::arm`](crate::worker::Worker::arm)) before each wait, and so loses no wake-up. The
//! examples `futures`, `async_fd` and `epoll` of the repository are such programs.

#[cfg(doc)]
use crate::Port;
