//! Placement: cores, nodes, and what is wrong with them.
//!
//! - [`cores`] are the cores this thread may run on;
//! - [`choose`] picks some of them, with as little in common as there is;
//! - [`pin()`] moves the thread to one of them, and looks whether it is there;
//! - [`Root`] is where a machine is read: its own files, or a recorded copy of them.
//!
//! Cores are read once, at the start: a thread that is pinned, and every thread and process it
//! starts, sees one core only.

mod cpus;
mod ids;
mod list;
mod mask;
mod pin;
mod root;
mod topology;

pub use cpus::Cpus;
pub use ids::{Ids, IdsError};
pub use list::CoreList;
pub use mask::cores;
pub use pin::{PinError, pin};
pub use root::{ReadError, Root};
pub use topology::{ChooseError, choose};
