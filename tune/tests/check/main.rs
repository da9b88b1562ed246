//! `tune check` on recorded machines: each condition is made bad, found, fixed by the printed
//! script, and undone.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

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
