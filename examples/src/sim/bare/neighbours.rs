//! What the devices of a simulation know of each other, so that datagrams find their way: inboxes
//! by the names of their files, and the members of each group. A device never gets the inbox of a
//! queue pair, but the inbox of a relay to it.
#![expect(unsafe_code, reason = "a table that another device writes is read")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell::alloc::{Ask, MapRequest, Mapping};
use doorbell::error::{Code, SetupError};
use doorbell::provider::Gid;
use doorbell::soft::sim::Relay;
use doorbell::soft::{
    Changes, DIRECTORY_BYTES, FileName, INBOX_BYTES, Member, Membership, Neighbours, Openers,
    RemoteMap,
};

#[derive(Default)]
struct Known {
    /// Relays that the wire does not have yet.
    relays: Vec<Relay>,
    /// The inbox of the relay, by the descriptor of the queue pair's inbox.
    bags: BTreeMap<u32, u32>,
    members: Vec<(Gid, Member)>,
    /// What joins and leaves change, once somebody sends to groups.
    changes: Option<Arc<Changes>>,
    /// Devices, by the descriptor of their table.
    devices: BTreeMap<u32, Arc<RemoteMap>>,
}

impl Known {
    /// Somebody has joined or left a group.
    fn note(&self) {
        if let Some(changes) = &self.changes {
            changes.note();
        }
    }
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Forgets everything for a new simulation.
pub fn clear() {
    KNOWN.take();
}

/// Relays made since the last call.
pub fn relays() -> Vec<Relay> {
    KNOWN.with_borrow_mut(|known| std::mem::take(&mut known.relays))
}

/// A device's view of the others.
pub fn all() -> Neighbours {
    Neighbours {
        process: 1,
        memory: shared,
        remote_map,
        attach,
        name_notifier: |_| None,
        notifier: |_, _| None,
        join,
        members,
        changes,
    }
}

/// Memory that can be mapped a second time.
///
/// # Errors
/// There is too little.
pub fn shared(len: usize) -> Result<Mapping, SetupError> {
    let request = MapRequest::new(len).pages(Ask::Plain).shared(true).lock(false).prefault(false);
    request.map().map_err(|error| {
        SetupError::new(Code::NoMemory, format!("{len} bytes of shared memory"), error.to_string())
    })
}

/// The name by which others find such memory.
pub fn name_file(memory: &Mapping) -> Option<FileName> {
    Some(FileName { fd: memory.fd()?.as_raw_fd().try_into().ok()?, inode: 0 })
}

/// Maps it a second time.
fn again(fd: u32, len: usize) -> Option<Mapping> {
    let path = format!("/proc/self/fd/{fd}");
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    Mapping::from_memfd(file.into(), len).ok()
}

fn remote_map(process: i32, directory: FileName) -> Option<Arc<RemoteMap>> {
    let known = KNOWN.with_borrow(|known| known.devices.get(&directory.fd).cloned());
    if known.is_some() {
        return known;
    }
    let view = again(directory.fd, DIRECTORY_BYTES)?;
    let table = NonNull::new(view.as_ptr())?;
    let openers = Openers { attach, look: |_, _, _| None, notifier: |_, _| None };
    // SAFETY: the view is kept, and nobody writes through it.
    let map = unsafe { RemoteMap::new(table, Arc::new(view), process, openers) };
    let map = Arc::new(map);
    KNOWN.with_borrow_mut(|known| known.devices.insert(directory.fd, map.clone()));
    Some(map)
}

/// Maps the inbox of the relay to the queue pair whose own inbox has that name.
fn attach(_: i32, inbox: FileName, _: u64) -> Option<Mapping> {
    KNOWN.with_borrow_mut(|known| {
        if let Some(bag) = known.bags.get(&inbox.fd) {
            return again(*bag, INBOX_BYTES);
        }
        let bag = shared(INBOX_BYTES).ok()?;
        let name = name_file(&bag)?;
        let senders = again(name.fd, INBOX_BYTES)?;
        known.relays.push(Relay::new(bag, again(inbox.fd, INBOX_BYTES)?)?);
        known.bags.insert(inbox.fd, name.fd);
        Some(senders)
    })
}

/// Membership, which ends when it is dropped.
struct Stays(Gid, Member);

impl Drop for Stays {
    fn drop(&mut self) {
        let (gone, member) = (self.0, self.1);
        KNOWN.with_borrow_mut(|known| {
            known.members.retain(|known| *known != (gone, member));
            known.note();
        });
    }
}

fn join(_: &str, group: Gid, member: Member) -> Result<Membership, SetupError> {
    KNOWN.with_borrow_mut(|known| {
        known.members.push((group, member));
        known.note();
    });
    Ok(Box::new(Stays(group, member)))
}

fn members(_: &str, group: Gid) -> Vec<Member> {
    KNOWN.with_borrow(|known| {
        let of = known.members.iter().filter(|(gid, _)| *gid == group);
        of.map(|(_, member)| *member).collect()
    })
}

fn changes(_: &str) -> Result<Arc<Changes>, SetupError> {
    if let Some(known) = KNOWN.with_borrow(|known| known.changes.clone()) {
        return Ok(known);
    }
    let refused = || SetupError::new(Code::Invalid, "a count of joins", "the memory has no room");
    let changes = Changes::new(shared(Changes::BYTES)?).ok_or_else(refused)?;
    let changes = Arc::new(changes);
    KNOWN.with_borrow_mut(|known| known.changes = Some(changes.clone()));
    Ok(changes)
}
