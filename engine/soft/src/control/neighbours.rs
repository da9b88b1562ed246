//! Other soft devices of this machine, for datagrams: their memory, and the members of groups.
//!
//! A member of a multicast group binds a socket in the abstract name space. The socket's name holds
//! group, process, inbox and number. Nobody connects to it. The kernel lists such names in
//! `/proc/net/unix`, and removes them when the process ends.
//!
//! A process that sends to groups of a device names its [`Changes`] in the same way. A process
//! that joins or leaves looks for these names, and changes the word of each sender. A sender
//! announces its word before it looks for members, and a member its socket before it looks for
//! senders: so at least one of the two finds the other.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use doorbell_alloc::{Ask, MapRequest, Mapping};
use doorbell_seam::error::{Code, SetupError};
use doorbell_seam::provider::Gid;

use super::files;
use super::sys::{self, Socket, Uncancelled};
use crate::{Changes, FileName, Member, Membership, Neighbours, RemoteMap};

/// The calls by which soft devices of this process reach others.
pub(super) fn neighbours() -> Neighbours {
    Neighbours {
        process: process(),
        memory,
        remote_map,
        attach: files::attach,
        name_notifier: files::name_of,
        notifier: files::open_notifier,
        join,
        members,
        changes,
    }
}

/// Linux has no numbers beyond 2^22.
fn process() -> i32 {
    i32::try_from(std::process::id()).unwrap_or(0)
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

/// What all callers in this process share, by key, as long as somebody has it.
struct Shared<K, V>(Mutex<Option<HashMap<K, Weak<V>>>>);

impl<K: Eq + Hash, V> Shared<K, V> {
    /// The value of that key, which `make` makes if nobody has it.
    fn get<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        all.retain(|_, value| value.strong_count() > 0);
        if let Some(value) = all.get(&key).and_then(Weak::upgrade) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        all.insert(key, Arc::downgrade(&value));
        Ok(value)
    }
}

/// The memory of a peer's device, if it can be mapped. The key is process and name of its table.
pub(super) fn remote_map(process: i32, directory: FileName) -> Option<Arc<RemoteMap>> {
    let _uncancelled = Uncancelled::new();
    static ALL: Shared<(i32, FileName), RemoteMap> = Shared(Mutex::new(None));
    ALL.get((process, directory), || files::remote_map(process, directory).ok_or(())).ok()
}

/// The word that joins and leaves change. A child of fork has a word of its own.
fn changes(device: &str) -> Result<Arc<Changes>, SetupError> {
    static ALL: Shared<(i32, String), Changes> = Shared(Mutex::new(None));
    ALL.get((process(), device.to_owned()), || announce(device))
}

/// Makes the word, and announces it to those who join.
fn announce(device: &str) -> Result<Changes, SetupError> {
    let failed = |error: &std::io::Error| {
        let code = error.raw_os_error().map_or(Code::Errno(5), Code::from_errno);
        SetupError::new(code, format!("send to groups on {device}"), error.to_string())
    };
    let memory = memory(Changes::BYTES)?;
    let file = memory.fd().and_then(files::name_of);
    let FileName { fd, inode } = file.ok_or_else(|| failed(&std::io::Error::last_os_error()))?;
    let unfit = || failed(&std::io::Error::from_raw_os_error(libc::EINVAL));
    let changes = Changes::new(memory).ok_or_else(unfit)?;
    let socket = Socket::new().map_err(|error| failed(&error))?;
    let name = format!("{}{:08x}{fd:08x}{inode:016x}", senders(device), process());
    socket.bind(&name).map_err(|error| failed(&error))?;
    Ok(changes.announced(Box::new(socket)))
}

/// Somebody has joined or left: tells all senders.
fn tell_senders(device: &str) {
    for name in names(&senders(device)) {
        let Some((process, file)) = place(&name) else { continue };
        // A sender that has just ended has no memory, and anybody may have taken such a name.
        let memory = files::attach(process, file, Changes::BYTES as u64);
        if let Some(changes) = memory.and_then(Changes::found) {
            changes.note();
        }
    }
}

/// The prefix of the names of a device's senders. The second part of a group's has 32 digits.
fn senders(device: &str) -> String {
    format!("doorbell/{:x}/{device}/senders/", sys::user())
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
    tell_senders(device);
    Ok(Box::new(Joined { socket: Some(socket), device: device.to_owned() }))
}

/// A member's socket.
struct Joined {
    socket: Option<Socket>,
    device: String,
}

impl Drop for Joined {
    fn drop(&mut self) {
        // It leaves the list before the senders look there.
        self.socket = None;
        tell_senders(&self.device);
    }
}

fn members(device: &str, group: Gid) -> Vec<Member> {
    names(&prefix(device, group)).iter().filter_map(|name| member(name)).collect()
}

/// The rest of each name that begins so.
fn names(prefix: &str) -> Vec<String> {
    let _uncancelled = Uncancelled::new();
    // Without the list, as on a machine without /proc, nobody is found.
    let list = fs::read(LIST).unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let names = list.lines().filter_map(|line| line.split_ascii_whitespace().last());
    let rests = names.filter_map(|name| name.strip_prefix('@')?.strip_prefix(prefix));
    rests.map(str::to_owned).collect()
}

/// Where the kernel lists the sockets of this network name space.
const LIST: &str = "/proc/net/unix";

/// The member that the rest of a name describes.
fn member(text: &str) -> Option<Member> {
    let (at, number) = text.split_at_checked(32)?;
    let (process, inbox) = place(at)?;
    let qp = u32::from_str_radix(number, 16).ok().filter(|_| number.len() == 6)?;
    Some(Member { process, inbox, qp })
}

/// The process and the file that 32 digits describe.
fn place(text: &str) -> Option<(i32, FileName)> {
    let part = |from: usize, to: usize| u64::from_str_radix(text.get(from..to)?, 16).ok();
    if text.len() != 32 {
        return None;
    }
    let process = i32::try_from(part(0, 8)?).ok()?;
    Some((process, FileName { fd: u32::try_from(part(8, 16)?).ok()?, inode: part(16, 32)? }))
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

    /// Senders look up the members again only when the word has changed.
    #[test]
    fn joins_and_leaves_change_the_word_of_the_device() {
        let (device, other) = ("changed", "unchanged");
        let words = [device, other].map(|device| changes(device).unwrap());
        let counts = || [words[0].count(), words[1].count()];
        let [first, elsewhere] = counts();
        let joined = join(device, GROUP, someone(9)).unwrap();
        let [second, same] = counts();
        assert!(second != first && same == elsewhere);
        drop(joined);
        assert_ne!(counts()[0], second);
        assert!(Arc::ptr_eq(&words[0], &changes(device).unwrap()), "one word for all");
        assert_eq!(names(&senders(device)).len(), 1);
        drop(words);
        assert!(names(&senders(device)).is_empty(), "nobody sends any more");
    }

    /// Anybody may take the name of a sender, and name memory that is something else.
    #[test]
    fn a_join_changes_no_other_memory() {
        let memory = memory(Changes::BYTES).unwrap();
        let FileName { fd, inode } = files::name_of(memory.fd().unwrap()).unwrap();
        let name = format!("{}{:08x}{fd:08x}{inode:016x}", senders("taken"), process());
        let socket = Socket::new().unwrap();
        socket.bind(&name).unwrap();
        drop(join("taken", GROUP, someone(3)).unwrap());
        let bytes = fs::read(format!("/proc/self/fd/{fd}")).unwrap();
        assert!(bytes.len() == Changes::BYTES && bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn other_names_are_nobodys() {
        for text in ["", "1", &"x".repeat(38), &"ä".repeat(19), &"f".repeat(38), &"0".repeat(39)] {
            assert_eq!(member(text), None, "{text}");
        }
    }
}
