//! What costs latency or rate on a machine: one table of conditions, each of which can be read,
//! judged and fixed.
//!
//! In data order: a [`Host`] is what is read; the families of checks ([`memory`] to [`cgroup`])
//! judge it; a [`Report`] is the result; [`script()`] writes the shell script that fixes it, and
//! [`undo`] reverts that; [`boot`] does the same at every start of the machine.

mod fix;

mod host;

mod condition;

mod judge;

pub mod cgroup;
pub mod cpu;
pub mod device;
pub mod irq;
pub mod memory;
pub mod pci;
pub mod time;

mod table;

mod report;

mod script;

pub mod boot;
mod state;

pub use condition::{Check, Severity, Verdict};
pub use fix::{Fix, Rule, Setting, Step};
pub use host::{Host, Unread, Wants};
pub use report::{Finding, Report, run};
pub use script::{STATE, run_script, script};
pub use state::{UndoError, Undone, undo};
pub use table::{FAMILIES, checks};
