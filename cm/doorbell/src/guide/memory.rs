//! Memory: huge pages, files, one-sided requests of peers, and messages in memory of your own.
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
//! # Memory for one-sided requests of peers
//!
//! The owner tells its peers where the memory is, its length and what they may do. A request that
//! the owner's device would refuse ends the connection, so it is refused before it is posted.
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
//! # Messages into memory of your own
//!
//! Messages arrive in the memory that you choose, and the handler borrows them there: huge pages,
//! a buffer of the program, or a copy of a file. Memory that another process may write is refused,
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
