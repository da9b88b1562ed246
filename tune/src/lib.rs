//! Placement: cores, nodes, and what is wrong with them.
//!
//! - [`cores`] are the cores this thread may run on;
//! - [`choose`] picks some of them, with as little in common as there is;
//! - [`pin()`] moves the thread to one of them, and looks whether it is there;
//! - [`Root`] is where a machine is read: its own files, or a recorded copy of them;
//! - [`Machine`] is what it has: packages, nodes, cores, caches, NICs;
//! - [`Plan`] is where workers run on it, and a program that enters one runs there;
//! - [`Measured`] is what such a plan rests on: latency between cores, bandwidth of nodes;
//! - [`check`] says what costs latency or rate there, and mends it.
//!
//! Cores are read once, at the start: a thread that is pinned, and every thread and process it
//! starts, sees one core only.

pub mod check;
mod choose;
mod ids;
mod list;
mod machine;
mod mask;
mod measure;
mod pin;
mod place;
mod plan;
mod root;

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
