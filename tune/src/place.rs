//! Putting a thread where a plan says: on its CPUs, with memory of its nodes.
#![expect(unsafe_code, reason = "set_mempolicy is a system call without a wrapper")]

use std::io;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::ids::Ids;
use crate::mask;
use crate::root::Root;

/// How strictly memory comes from certain nodes (set_mempolicy(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// From them alone: where they are full, the program ends.
    #[default]
    Bind,
    /// From them while they have some, then from others.
    Prefer,
    /// From wherever the thread runs when it first touches a page.
    Any,
}

/// Why a thread is not where it was to be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The kernel does not let the thread run there.
    #[error(
        "asked to run on CPUs {cpus}, the system answered: {source}; this program may use CPUs \
         {allowed}, and isolated ones of its cpuset: make a plan for this machine (tune plan)"
    )]
    Cpus {
        /// The CPUs.
        cpus: Ids,
        /// Those the thread may run on, as before.
        allowed: Ids,
        /// What sched_setaffinity(2) answered.
        source: io::Error,
    },
    /// The kernel left some out.
    #[error(
        "asked to run on CPUs {cpus}, got {got}: the others are switched off, not there, or not in \
         this program's cpuset; make a plan for this machine (tune plan)"
    )]
    FewerCpus {
        /// The CPUs.
        cpus: Ids,
        /// Those the thread runs on now.
        got: Ids,
    },
    /// The kernel does not give memory from there.
    #[error("asked for memory of nodes {nodes} only, the system answered: {source}; {cure}")]
    Memory {
        /// The nodes.
        nodes: Ids,
        /// What set_mempolicy(2) answered.
        source: io::Error,
        /// What to do about it.
        cure: &'static str,
    },
}

/// Makes the calling thread run on `cpus`, and the threads and processes it starts later. Isolated
/// CPUs may be among them.
///
/// # Errors
/// One of them is not there, is switched off, or is not in the cpuset. The thread then runs on the
/// others, or where it was if there are none.
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

/// Makes the calling thread get its memory from `nodes`, and the threads and processes it starts
/// later. Pages it has already stay where they are.
///
/// # Errors
/// A node is not there, has no memory, or is not in the cpuset; or the kernel lets nobody choose.
pub fn take_memory(memory: Memory, nodes: &Ids) -> Result<(), PlaceError> {
    // Linux has named its policies since 2.6.7; to prefer several nodes, since 5.15.
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
    let cure = match source.raw_os_error() {
        // A kernel without NUMA has one node, and all memory is there.
        Some(libc::ENOSYS) if !has_nodes() => return Ok(()),
        Some(libc::EPERM) => {
            "a container needs the capability SYS_NICE for it; or memory = \"any\""
        }
        _ => {
            "they must have memory and be in cpuset.mems: make a plan for this machine (tune plan)"
        }
    };
    Err(PlaceError::Memory { nodes, source, cure })
}

/// `include/uapi/linux/mempolicy.h`; newer than the C library's list.
const MPOL_PREFERRED_MANY: libc::c_int = 5;

fn has_nodes() -> bool {
    Root::system().ids("/sys/devices/system/node/online").is_some_and(|nodes| nodes.len() > 1)
}

fn set_policy(mode: libc::c_int, nodes: &Ids) -> io::Result<()> {
    let mask = mask::of(nodes.as_slice());
    // The kernel takes one bit less than it is told (set_mempolicy(2), bugs).
    let (bits, pointer) = match nodes.is_empty() {
        true => (0, std::ptr::null()),
        false => (mask.len() * mask::WORD + 1, mask.as_ptr()),
    };
    // SAFETY: the mask, if there is one, has `bits - 1` bits and lives through the call, which only
    // reads it.
    let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, pointer, bits) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
