//! Other soft devices of this machine, for datagrams: their memory, and the members of groups.
//!
//! A member of a multicast group binds a socket in the abstract name space. The socket's name holds
//! group, process, inbox and number. Nobody connects to it. The kernel lists such names in
//! `/proc/net/unix`, and removes them when the process ends.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use doorbell_alloc::{Ask, MapRequest, Mapping};
use doorbell_seam::error::{Code, SetupError};
use doorbell_seam::provider::Gid;

use super::files;
use super::sys::{self, Socket};
use crate::{FileName, Member, Membership, Neighbours, RemoteMap};

/// The calls by which soft devices of this process reach others.
pub(super) fn neighbours() -> Neighbours {
    Neighbours {
        // Linux has no numbers beyond 2^22.
        process: i32::try_from(std::process::id()).unwrap_or(0),
        memory,
        remote_map,
        attach: files::attach,
        name_notifier: files::name_of,
        notifier: files::open_notifier,
        join,
        members,
    }
}

fn memory(len: usize) -> Result<Mapping, SetupError> {
    let request = MapRequest::new(len).pages(Ask::Plain).shared(true).lock(false);
    request.map().map_err(|error| {
        SetupError::new(
            Code::from_errno(error.errno()),
            format!("{len} bytes of shared memory"),
            error.to_string(),
        )
    })
}

/// Devices by process and name of their table.
type RemoteMaps = HashMap<(i32, FileName), Weak<RemoteMap>>;

/// The memory of a peer's device, if it can be mapped; shared by all callers.
pub(super) fn remote_map(process: i32, directory: FileName) -> Option<Arc<RemoteMap>> {
    static ALL: Mutex<Option<RemoteMaps>> = Mutex::new(None);
    // Poisoning says that another thread panicked between two whole steps: still in order.
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    all.retain(|_, map| map.strong_count() > 0);
    if let Some(map) = all.get(&(process, directory)).and_then(Weak::upgrade) {
        return Some(map);
    }
    let map = Arc::new(files::remote_map(process, directory)?);
    all.insert((process, directory), Arc::downgrade(&map));
    Some(map)
}

/// The prefix of the names of a group's members.
fn prefix(device: &str, group: Gid) -> String {
    let mut name = format!("doorbell/{:x}/{device}/", sys::user());
    for byte in group.0 {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    name.push('/');
    name
}

fn join(device: &str, group: Gid, member: Member) -> Result<Membership, SetupError> {
    let asked = || format!("join the group {group} on {device}");
    let failed = |error: std::io::Error| {
        let code = error.raw_os_error().map_or(Code::Errno(5), Code::from_errno);
        SetupError::new(code, asked(), error.to_string())
    };
    let Member { process, inbox, qp } = member;
    let (fd, inode) = (inbox.fd, inbox.inode);
    let name = format!("{}{process:08x}{fd:08x}{inode:016x}{qp:06x}", prefix(device, group));
    let socket = Socket::new().map_err(failed)?;
    socket.bind(&name).map_err(failed)?;
    Ok(Box::new(socket))
}

fn members(device: &str, group: Gid) -> Vec<Member> {
    // Without the list, as on a machine without /proc, nobody is found.
    let list = fs::read(LIST).unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let prefix = format!("@{}", prefix(device, group));
    let names = list.lines().filter_map(|line| line.split_ascii_whitespace().last());
    names.filter_map(|name| name.strip_prefix(&prefix)).filter_map(member).collect()
}

/// Where the kernel lists the sockets of this network name space.
const LIST: &str = "/proc/net/unix";

/// The member that the rest of a name describes.
fn member(text: &str) -> Option<Member> {
    let part = |from: usize, to: usize| u64::from_str_radix(text.get(from..to)?, 16).ok();
    if text.len() != 38 {
        return None;
    }
    let process = i32::try_from(part(0, 8)?).ok()?;
    let inbox = FileName { fd: u32::try_from(part(8, 16)?).ok()?, inode: part(16, 32)? };
    Some(Member { process, inbox, qp: u32::try_from(part(32, 38)?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Gid = Gid([0xff; 16]);

    fn someone(qp: u32) -> Member {
        Member { process: 0x3f_ffff, inbox: FileName { fd: u32::MAX, inode: u64::MAX }, qp }
    }

    /// The longest name fits, and names its member.
    #[test]
    fn members_are_listed_until_they_leave() {
        let device = "abcdefghijklmnop";
        let one = join(device, GROUP, someone(0x00ff_ffff)).unwrap();
        let two = join(device, GROUP, someone(7)).unwrap();
        let other = Gid([0xfe; 16]);
        let _elsewhere = join(device, other, someone(8)).unwrap();
        let numbers = || {
            let mut all: Vec<u32> = members(device, GROUP).iter().map(|found| found.qp).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(numbers(), [7, 0x00ff_ffff]);
        assert_eq!(members(device, other), [someone(8)]);
        assert!(members("another", GROUP).is_empty());
        assert_eq!(join(device, GROUP, someone(7)).err().unwrap().code(), Code::AddrInUse);
        drop(one);
        assert_eq!(numbers(), [7]);
        drop(two);
        assert!(numbers().is_empty());
    }

    #[test]
    fn other_names_are_nobodys() {
        for text in ["", "1", &"x".repeat(38), &"ä".repeat(19), &"f".repeat(38), &"0".repeat(39)] {
            assert_eq!(member(text), None, "{text}");
        }
    }
}
