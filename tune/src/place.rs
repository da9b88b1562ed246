//! Puts a thread where a plan says: on its CPUs, with memory of its nodes.
#![expect(unsafe_code, reason = "set_mempolicy is a system call without a wrapper")]

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::Ids;
use crate::mask;
use crate::root::Root;

/// How strictly memory comes from the given nodes (set_mempolicy(2)). Default: [`Memory::Bind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// Only from these nodes. If they are full, the kernel kills the program.
    #[default]
    Bind,
    /// From these nodes while they have free memory, then from others. Several nodes need Linux
    /// 5.15.
    Prefer,
    /// From the node where the thread runs when it first touches a page.
    Any,
}

/// Why a thread is not where it should be.
#[derive(Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The kernel does not let the thread run there.
    #[error(
        "cannot run on CPUs {cpus}: {source}; this program may use CPUs {allowed}, and isolated \
         ones of its cpuset: make a plan for this machine (tune plan)"
    )]
    Cpus {
        /// The CPUs asked for.
        cpus: Ids,
        /// The CPUs that the thread may run on, as before.
        allowed: Ids,
        /// The error of sched_setaffinity(2).
        source: io::Error,
    },
    /// The kernel accepted only some of the CPUs.
    #[error(
        "asked to run on CPUs {cpus}, got {got}: the others are offline, do not exist, or are not \
         in this program's cpuset; make a plan for this machine (tune plan)"
    )]
    FewerCpus {
        /// The CPUs asked for.
        cpus: Ids,
        /// The CPUs that the thread may run on now.
        got: Ids,
    },
    /// The kernel gives no memory of these nodes.
    #[error("cannot take memory of nodes {nodes} only: {source}; {fix}")]
    Memory {
        /// The nodes asked for.
        nodes: Ids,
        /// The error of set_mempolicy(2).
        source: io::Error,
        /// What to do about it.
        fix: &'static str,
    },
}

impl fmt::Debug for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Restricts the calling thread to `cpus`, which may be isolated ones. Threads and processes that
/// it starts later inherit that.
///
/// # Errors
/// One of them does not exist, is offline, or is not in the cpuset. The thread then runs on the
/// others; if there are none, it stays where it was.
pub fn run_on(cpus: &Ids) -> Result<(), PlaceError> {
    if let Err(source) = mask::set(cpus.as_slice()) {
        let allowed = mask::cores().into_iter().collect();
        return Err(PlaceError::Cpus { cpus: cpus.clone(), allowed, source });
    }
    let got: Ids = mask::cores().into_iter().collect();
    if got != *cpus {
        return Err(PlaceError::FewerCpus { cpus: cpus.clone(), got });
    }
    Ok(())
}

/// Makes the calling thread take its memory from `nodes`. Threads and processes that it starts
/// later inherit that. Pages that it already has stay where they are.
///
/// # Errors
/// A node does not exist, has no memory, or is not in the cpuset; or the kernel forbids the choice.
pub fn take_memory(memory: Memory, nodes: &Ids) -> Result<(), PlaceError> {
    let (mode, nodes) = match (memory, nodes.len()) {
        (Memory::Any, _) => (libc::MPOL_DEFAULT, Ids::default()),
        (Memory::Bind, _) => (libc::MPOL_BIND, nodes.clone()),
        (Memory::Prefer, 0 | 1) => (libc::MPOL_PREFERRED, nodes.clone()),
        (Memory::Prefer, _) => (MPOL_PREFERRED_MANY, nodes.clone()),
    };
    let source = match set_policy(mode, &nodes) {
        Ok(()) => return Ok(()),
        Err(source) => source,
    };
    match fix(source.raw_os_error(), mode, has_nodes()) {
        Some(fix) => Err(PlaceError::Memory { nodes, source, fix }),
        None => Ok(()),
    }
}

/// What to do about an error of set_mempolicy(2). `None`: nothing is wrong, because one node has
/// all memory.
fn fix(error: Option<i32>, mode: libc::c_int, has_nodes: bool) -> Option<&'static str> {
    match error {
        // A kernel without NUMA has no such call, and a container may forbid it.
        Some(libc::ENOSYS | libc::EPERM) if !has_nodes => None,
        Some(libc::EPERM) => {
            Some("give the container the capability SYS_NICE, or set memory = \"any\" in the plan")
        }
        Some(libc::EINVAL) if mode == MPOL_PREFERRED_MANY => Some(
            "before Linux 5.15 a thread prefers one node at most: set memory = \"bind\" in the \
             plan; on a newer one the nodes must have memory and be in cpuset.mems: make a plan \
             for this machine (tune plan)",
        ),
        _ => Some(
            "the nodes must have memory and be in cpuset.mems: make a plan for this machine (tune \
             plan)",
        ),
    }
}

/// To prefer several nodes: Linux 5.15. From `include/uapi/linux/mempolicy.h`; newer than the C
/// library's list.
const MPOL_PREFERRED_MANY: libc::c_int = 5;

fn has_nodes() -> bool {
    Root::system().ids("/sys/devices/system/node/online").is_some_and(|nodes| nodes.len() > 1)
}

fn set_policy(mode: libc::c_int, nodes: &Ids) -> io::Result<()> {
    let mask = mask::of(nodes.as_slice());
    // The kernel reads one bit less than this number (set_mempolicy(2), bugs).
    let (bits, pointer) = match nodes.is_empty() {
        true => (0, std::ptr::null()),
        false => (mask.len() * mask::WORD + 1, mask.as_ptr()),
    };
    // SAFETY: the mask, if there is one, has `bits - 1` bits and lives through the call, which only
    // reads it.
    let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, pointer, bits) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_call_is_no_error_where_it_would_change_nothing() {
        for error in [libc::ENOSYS, libc::EPERM] {
            assert_eq!(fix(Some(error), libc::MPOL_BIND, false), None);
        }
        let bind = |error, has_nodes| fix(Some(error), libc::MPOL_BIND, has_nodes).unwrap();
        assert!(bind(libc::EPERM, true).contains("SYS_NICE"));
        assert!(bind(libc::EINVAL, false).contains("tune plan"));
        assert!(bind(libc::ENOSYS, true).contains("tune plan"));
    }

    #[test]
    fn an_old_kernel_that_prefers_one_node_only_is_named() {
        for (mode, named) in [(MPOL_PREFERRED_MANY, true), (libc::MPOL_PREFERRED, false)] {
            let text = fix(Some(libc::EINVAL), mode, true).unwrap();
            assert_eq!(text.contains("Linux 5.15") && text.contains("\"bind\""), named, "{text}");
            assert!(text.contains("tune plan"), "{text}");
        }
    }
}
