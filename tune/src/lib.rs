//! Placement of threads and memory on a machine, and what slows programs down there.
//!
//! - [`cores`] lists the cores that this thread may run on, [`choose()`] picks some that share as
//!   little as possible, and [`pin()`] moves the thread to one of them and checks that it is there.
//! - [`Root`] is where a machine's files are read: on the machine itself, or in a recorded copy.
//! - [`Machine`] is what a machine has: packages, nodes, cores, caches, NICs.
//! - [`Plan`] says where workers run on it. [`Plan::enter`] makes a program run there.
//! - [`Measured`] has the figures that plans are based on: latency between cores, bandwidth of
//!   nodes.
//! - [`check`] finds what costs latency or rate on a machine, and fixes it.
//!
//! Read the cores once, at the start: a pinned thread sees only its own core, and so do the threads
//! and processes that it starts.
//!
//! Read a machine, make a plan, and pin a worker to its CPU:
//!
//! ```
//! use doorbell_tune::{Machine, Memory, Plan, Request, Root};
//!
//! let machine = Machine::read(&Root::system())?;
//! let plan = Plan::make(
//!     &machine,
//!     &Request {
//!         workers: 1,
//!         device: None, // near to no device; or Some("mlx5_0".to_owned())
//!         housekeeping: 0,
//!         siblings: false,
//!         memory_bytes: 64 << 20,
//!         memory: Memory::Bind,
//!     },
//! )?;
//! let cpu = plan.workers[0].cpu;
//! std::thread::spawn(move || {
//!     doorbell_tune::run_on(&[cpu].into_iter().collect()).expect("the CPU is usable");
//!     doorbell_tune::pin(cpu).expect("the CPU is allowed now");
//! })
//! .join()
//! .expect("the worker is pinned");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod list;

mod ids;

mod mask;

mod pin;

mod root;

mod machine;

mod choose;

mod place;

mod plan;

mod measure;

pub mod check;

pub use choose::{ChooseError, choose};
pub use ids::{Ids, IdsError};
pub use list::CoreList;
#[cfg(feature = "numa")]
pub use machine::HwlocError;
pub use machine::{
    Cache, Core, Cpus, Device, DeviceKind, Link, Machine, MachineError, Node, Package,
};
pub use mask::cores;
pub use measure::{Bandwidth, MeasureError, Measured, Scope, floor};
pub use pin::{PinError, pin};
pub use place::{Memory, PlaceError, run_on, take_memory};
pub use plan::{MakeError, PLAN_VARIABLE, Plan, PlanError, Request, Worker};
pub use root::{ReadError, Root};
