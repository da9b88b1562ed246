//! The services that a device needs from its system and from other devices of the machine.

use core::any::Any;

use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::error::SetupError;
use crate::model::biased::Threads;
use crate::model::slot::FileName;
use crate::provider::Gid;
use crate::provider::wake::Notifier;
use crate::shm::changes::Changes;
use crate::shm::inbox::OpenNotifier;
use crate::shm::remote_map::{Attach, RemoteMap};

/// The services that the device needs from its system.
#[derive(Clone, Copy)]
pub struct Host {
    /// Nanoseconds that never go back. Read only while a peer waits for a receive, and for
    /// completions that record it.
    pub clock: fn() -> u64,
    /// Nanoseconds since 1970. Read only for completions that record it.
    pub wallclock: fn() -> u64,
    /// Random bytes, from which region keys are derived. Equal bytes give equal keys.
    pub seed: [u8; 32],
    /// The file behind memory, by which another process can find it.
    pub name_file: fn(&Mapping) -> Option<FileName>,
    /// Makes a notifier; without one nobody can sleep on this device.
    pub notifier: fn() -> Option<Notifier>,
    /// Makes each thread of each process that shares a link with this one pass a full memory
    /// barrier before it returns.
    pub barrier: fn(),
    /// For the locks that several threads of this process take.
    pub threads: Threads,
    /// Other devices, for datagrams; without it there are no UD queue pairs.
    pub neighbours: Option<Neighbours>,
}

impl Host {
    /// A host for devices within one address space whose keys need not be secret: tests and
    /// simulations. One clock serves as both clocks.
    pub fn alone(clock: fn() -> u64) -> Host {
        Host {
            clock,
            wallclock: clock,
            seed: [0; 32],
            name_file: |_| None,
            notifier: || None,
            barrier: || (),
            threads: Threads::UNKNOWN,
            neighbours: None,
        }
    }
}

/// The services that a device needs to send and receive datagrams.
#[derive(Clone, Copy)]
pub struct Neighbours {
    /// The number of this process.
    pub process: i32,
    /// Memory of that many bytes, zeroed, that other processes can find by the name of its file.
    pub memory: fn(usize) -> Result<Mapping, SetupError>,
    /// Finds the device of a process whose table has that name.
    pub remote_map: fn(process: i32, directory: FileName) -> Option<Arc<RemoteMap>>,
    /// Maps an inbox.
    pub attach: Attach,
    /// The name of a notifier of this process, by its descriptor, if others can open it.
    pub name_notifier: fn(i32) -> Option<FileName>,
    /// Opens a notifier by its name.
    pub notifier: OpenNotifier,
    /// Publishes a queue pair's membership of a group to all devices of that name. The membership
    /// ends when the returned value is dropped or the process ends.
    pub join: fn(device: &str, group: Gid, member: Member) -> Result<Membership, SetupError>,
    /// The current members of a group.
    pub members: fn(device: &str, group: Gid) -> Vec<Member>,
    /// What each later call of [`Neighbours::join`] changes, by whichever process, and the end of
    /// each membership: for all devices of that name in this process.
    pub changes: fn(device: &str) -> Result<Arc<Changes>, SetupError>,
}

/// The identity of a queue pair, as all processes know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its process.
    pub process: i32,
    /// Its inbox.
    pub inbox: FileName,
    /// Its number.
    pub qp: u32,
}

/// Keeps a queue pair a member of a group until it is dropped.
pub type Membership = Box<dyn Any + Send + Sync>;

/// The GID of the device whose table has that name.
pub(crate) fn gid_of(process: i32, directory: FileName) -> Gid {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&process.to_be_bytes());
    gid[4..8].copy_from_slice(&directory.fd.to_be_bytes());
    gid[8..].copy_from_slice(&directory.inode.to_be_bytes());
    Gid(gid)
}

/// Process and table that a GID names.
pub(crate) fn device_of(Gid(gid): Gid) -> (i32, FileName) {
    let four = |at: usize| core::array::from_fn(|n| gid[at + n]);
    let inode = u64::from_be_bytes(core::array::from_fn(|n| gid[8 + n]));
    (i32::from_be_bytes(four(0)), FileName { fd: u32::from_be_bytes(four(4)), inode })
}
