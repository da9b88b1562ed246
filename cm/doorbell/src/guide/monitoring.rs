//! A look at a running program: metrics, events, probes.
//!
//! # Metrics
//!
//! [`Metrics`](crate::metrics::Metrics) gathers workers, listeners and dialers, and its text is
//! what Prometheus reads. A handle of a worker gives its counters to any thread. Latency is
//! recorded only where a program asks for it: [`Calls::measure`](crate::rpc::Calls::measure), or a
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
//! let process = std::process::id().to_string();
//! let reader = std::thread::spawn(move || read_metrics(&process)); // as doorbell-top does
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
