//! A short example for each feature of Doorbell. Documentation only.
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
//! # Memory that a peer reads and writes by itself
//!
//! The owner tells its peers where the memory is, its length and what they may do. A request that
//! the owner's device would refuse, and then end the connection, is an error before it is posted.
//! A worker tells peers about its memory by
//! [`Outbox::remote_memory`](crate::worker::Outbox::remote_memory), and refuses a request whose
//! pieces have another length than was checked. Only
//! [`RequestOp::unchecked`](crate::remote::RequestOp::unchecked) takes an operation as it is.
//!
//! ```
//! use doorbell::Exposed;
//! use doorbell::prelude::*;
//! use std::sync::atomic::Ordering;
//!
//! let device = SoftDevice::open()?;
//! let memory = Exposed::new(&device, 4096, Access::REMOTE_READ | Access::REMOTE_ATOMIC)?;
//! memory.word(8)?.store(7, Ordering::Relaxed);
//! let message = memory.remote_memory(8, 64)?.to_bytes(); // for the peer
//!
//! let there = RemoteMemory::from_bytes(&message); // at the peer
//! let read = there.read(0, 8)?; // the `op` of a worker's request with 8 bytes of pieces
//! # let _ = read.op();
//! let refused = there.write(0, 8).unwrap_err();
//! assert!(refused.to_string().contains("needs Access::REMOTE_WRITE"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Calls and answers
//!
//! ```
//! use doorbell::prelude::*;
//! use doorbell::rpc::{self, Calls, Incoming};
//!
//! /// Asks each new peer for the length of a word, and answers such calls.
//! struct Lengths {
//!     calls: Calls,
//! }
//!
//! impl<P: Provider> Handler<P> for Lengths {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         let _ = self.calls.call(out, peer, b"doorbell", 1, None);
//!     }
//!
//!     fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
//!         let length = match self.calls.incoming(out, &message) {
//!             Incoming::Call(word) => word.len() as u8,
//!             Incoming::Answer { key, bytes } => {
//!                 assert_eq!((key, bytes), (1, &[8][..]));
//!                 return Verdict::Done;
//!             }
//!             _ => return Verdict::Done,
//!         };
//!         let written = rpc::answer(&mut message, |room| {
//!             room[0] = length;
//!             1
//!         });
//!         written.map_or(Verdict::Done, |len| Verdict::Reply { len })
//!     }
//! }
//! # let _ = Lengths { calls: Calls::new(16, 64, 0) };
//! ```
//!
//! # The numbers of a worker
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
//! # Who may connect
//!
//! A listener shows its program each request before it accepts: the address, up to 32 bytes that
//! the dialing program sent, and on `soft` the process and user. The program accepts, chooses a
//! worker, or refuses with words that the other side's error repeats. The bytes come again with
//! the peer: [`Outbox::peer_info`](crate::worker::Outbox::peer_info).
//!
//! What is dialed has a handle, which names the peer of the worker, says how the connection stands,
//! and ends it.
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
//! that this was no failure. A worker that is just dropped ends its connections too, but what was
//! on its way is lost. The listener goes on with its other workers, and takes new ones.
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
//!
//! # Memory in huge pages
//!
//! ```
//! use doorbell::alloc::{Ask, MapRequest};
//!
//! let memory = MapRequest::new(1 << 20).pages(Ask::Plain).map()?;
//! for note in memory.report().notes() {
//!     eprintln!("{note}"); // what was asked, what came out, and the command that fixes it
//! }
//! # Ok::<(), doorbell::alloc::MapError>(())
//! ```
//!
//! # A file as memory
//!
//! [`FileUse::Copy`](crate::alloc::FileUse::Copy) brings bytes that nobody else can change or
//! shorten. [`FileUse::Shared`](crate::alloc::FileUse::Shared) is the file itself: locked, fully
//! allocated, and writable by this user only.
//!
//! ```
//! use doorbell::alloc::FileUse;
//! use doorbell::prelude::*;
//! use doorbell::{Buffer, Exposed};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = std::env::temp_dir().join(format!("doorbell-guide-{}", std::process::id()));
//! # std::fs::write(&path, [7; 8192])?;
//! let device = SoftDevice::open()?;
//! let file = std::fs::File::options().read(true).write(true).open(&path)?;
//!
//! let copy = Mapping::file(file.try_clone()?, 8192, FileUse::Copy)?;
//! let pages = Buffer::over(&device, copy, 2, 4096)?; // each is a plain slice
//! assert_eq!(pages[1][0], 7);
//!
//! let journal = Mapping::file(file.try_clone()?, 8192, FileUse::Shared)?;
//! let journal = Exposed::over(&device, journal, 8192, Access::REMOTE_WRITE)?;
//! journal.write(0, b"entry")?; // and peers write there by themselves
//! file.sync_data()?; // now it is on the disk
//! # assert_eq!(&std::fs::read(&path)?[..6], b"entry\x07");
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Messages into memory of your own
//!
//! Messages arrive in the memory that you choose, and the handler borrows them there: huge pages,
//! a buffer of the program, or a copy of a file. Memory that another process may map is refused,
//! because the handler gets plain slices.
//!
//! ```
//! use doorbell::prelude::*;
//!
//! struct Last(Stop, Vec<u8>);
//!
//! impl<P: Provider> Handler<P> for Last {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         out.send(peer, b"hello").expect("a new peer has room");
//!     }
//!     fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//!         self.1 = message.bytes().to_vec(); // a slice of `own`, which needs no copy
//!         self.0.stop();
//!         Verdict::Done
//!     }
//! }
//!
//! let config = Config { peers: 4, recv_blocks: 128, ..Config::DEFAULT };
//! let own: &'static mut [u8] = vec![0; config.recv_bytes()].leak();
//! let mut runtime = Runtime::new(&SoftDevice::open()?, &config);
//! runtime.receive_into(Mapping::from_static(own))?;
//! runtime.add(Last(runtime.stopper(), Vec::new()))?;
//! let addr = runtime.listen("127.0.0.1:0")?;
//! runtime.dial(addr)?; // it greets itself
//! runtime.run()?;
//! assert_eq!(runtime.workers()[0].handler().1, b"hello");
//! # Ok::<(), CmError>(())
//! ```
//!
//! # Messages from a worker's own memory
//!
//! No peer may read or write a region of [`Worker::adopt_own`](crate::worker::Worker::adopt_own).
//! Its bytes are plain slices, except those that a request in flight uses. A request sends them, or
//! reads into them, without a copy; `on_send_done` gives them back.
//!
//! ```
//! use doorbell::prelude::*;
//! use doorbell::remote::RequestOp;
//! use doorbell::worker::{OwnRegion, Request};
//! # use doorbell::wc::Status;
//!
//! /// Sends a page of its cache to each new peer.
//! struct Pages {
//!     cache: Option<OwnRegion>,
//! }
//!
//! impl<P: Provider> Handler<P> for Pages {
//!     fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
//!         let Some(cache) = self.cache else { return };
//!         let page = cache.piece(4096, 4096);
//!         if let Ok(bytes) = out.bytes_mut(page) {
//!             bytes.fill(7);
//!         }
//!         let pieces = &[page.into()];
//!         let request = Request { op: RequestOp::SEND, pieces, fence: false, token: 1 };
//!         if out.request(peer, &request).is_ok() {
//!             assert!(out.bytes_mut(page).is_err()); // the device reads it
//!             assert!(out.bytes(page).is_ok()); // so may you
//!         }
//!     }
//! #   fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//! #       Verdict::Done
//! #   }
//!     fn on_send_done(
//!         &mut self,
//!         _: PeerId,
//!         _token: u64,
//!         _: Result<(), Status>,
//!         out: &mut Outbox<'_, P>,
//!     ) {
//!         let page = self.cache.map(|cache| cache.piece(4096, 4096));
//!         assert!(page.is_some_and(|page| out.bytes_mut(page).is_ok())); // it is ours again
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = SoftDevice::open()?;
//! let config = Config::DEFAULT;
//! let shared = SharedRecv::new(&nic, message_memory(&nic, config.recv_bytes())?, &config)?;
//! let memory = message_memory(&nic, config.send_bytes())?;
//! let (mut worker, _intake) = Worker::new(&nic, &shared, memory, Pages { cache: None }, &config)?;
//! let cache = worker.adopt_own(&nic, Mapping::plain(1 << 20)?)?;
//! worker.handler_mut().cache = Some(cache);
//! # Ok(())
//! # }
//! ```
//!
//! # Metrics
//!
//! [`Metrics`](crate::metrics::Metrics) gathers workers, listeners and dialers, and its text is
//! what Prometheus reads. A handle of a worker gives its numbers to any thread. Latency is recorded
//! where a program asks for it: [`Calls::measure`](crate::rpc::Calls::measure), or a
//! [`Latency`](crate::latency::Latency) of its own.
//!
//! ```
//! use doorbell::latency::Latency;
//! use doorbell::metrics::Metrics;
//! use doorbell::prelude::*;
//! # struct Echo;
//! # impl<P: Provider> Handler<P> for Echo {
//! #     fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
//! #         Verdict::Done
//! #     }
//! # }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = SoftDevice::open()?;
//! let mut listener = Listener::bind(&nic, "127.0.0.1:0".parse()?)?;
//! # let config = Config::DEFAULT;
//! # let shared = SharedRecv::new(&nic, message_memory(&nic, config.recv_bytes())?, &config)?;
//! # let memory = message_memory(&nic, config.send_bytes())?;
//! let (worker, intake) = Worker::new(&nic, &shared, memory, Echo, &config)?;
//! listener.feed(intake);
//! let handle = worker.handle(); // for the thread that gathers
//!
//! let mut latency = Latency::new();
//! latency.record(1_800); // nanoseconds
//!
//! let mut metrics = Metrics::new();
//! metrics.worker("0", &handle.stats());
//! listener.report("quotes", &mut metrics);
//! let help = "Time from an order to its answer.";
//! metrics.latency("order_seconds", help, &[("book", "main")], &latency, 1e-9);
//! let text = metrics.to_string();
//! assert!(text.contains("doorbell_listener_connections{listener=\"quotes\"} 0\n"));
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
//!
//! # A look into a running program
//!
//! [`Runtime::export`](crate::Runtime::export) shows a program's metrics to its own user, and
//! `doorbell-top` (`cargo install --path cm/top`) makes a table of them every second. A program
//! without a [`Runtime`](crate::Runtime) steps an [`Export`](crate::Export) in its control plane;
//! there is no thread behind it.
//!
//! ```
//! use doorbell::metrics::Metrics;
//! use doorbell::worker::Stats;
//! use doorbell::{Export, read_metrics};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut export = Export::open()?; // one for a process
//! let reader = std::thread::spawn(|| read_metrics(std::process::id())); // as doorbell-top does
//! while !reader.is_finished() {
//!     export.step(|| {
//!         let mut metrics = Metrics::new();
//!         metrics.worker("0", &Stats { peers: 2, ..Stats::default() });
//!         metrics
//!     });
//! }
//! let text = reader.join().map_err(|_| "the reader panicked")??;
//! assert!(text.contains("doorbell_worker_peers{worker=\"0\"} 2\n"));
//! # Ok(())
//! # }
//! ```
//!
//! # Events
//!
//! With the feature `tracing`, the control plane tells the crate `tracing` of connections:
//! `connecting`, `accepted`, `connected`, `refused` and `not connected` with the reason, `ended`,
//! and `lost` for a part of a [`Runtime`](crate::Runtime) that has failed. The data plane tells
//! nothing. A subscriber picks them by their target:
//!
//! ```sh
//! RUST_LOG=doorbell=info ./server # with tracing_subscriber::fmt::init() in its main
//! ```
//!
//! # Probes
//!
//! With the feature `probes`, the worker has static probes where a message passes: `message`,
//! `send`, `reply`, `request`, `request_done`, `doorbell`, `credit_stall`, `peer_up`, `peer_down`.
//! All together they cost a message 4 to 12 instructions while no tracer looks, and nothing without
//! the feature. `readelf -n` lists them, and bpftrace counts with them in a running program:
//!
//! ```sh
//! readelf -n ./server | grep -A2 stapsdt
//! sudo bpftrace -p $PID -e 'usdt:./server:doorbell:message { @bytes = hist(arg1); }'
//! sudo bpftrace -p $PID -e 'usdt:./server:doorbell:credit_stall { @peer[arg0] = count(); }'
//! ```
//!
//! # A NIC
//!
//! With the feature `verbs`, `doorbell::verbs::Verbs::open("mlx5_0")` opens one by its name. It is
//! a [`Fabric`], as [`SoftDevice`](crate::soft::SoftDevice) is, and the rest of the program is the
//! same.

#[cfg(doc)]
use crate::{Device, Fabric, Port, Program};
