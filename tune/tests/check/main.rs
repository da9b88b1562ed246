//! `tune check` on recorded machines: each condition made bad, named, mended by the printed script,
//! and undone.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod boot;
mod cgroup;
mod command;
mod cpu;
mod device;
mod irq;
mod machine;
mod memory;
mod pci;
mod time;
