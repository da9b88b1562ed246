//! What a process could leave behind for a peer that was killed.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Instant;

use crate::{LOOK, SOON};

/// The resources that could leak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Belongings {
    descriptors: usize,
    /// Mappings of shared memory.
    memfds: usize,
    /// Locked memory, where locking is allowed: buffers and blocks.
    locked_kb: u64,
    /// Files and folders in the places where such things are kept. Other programs may remove theirs
    /// meanwhile, so only new ones count.
    files: BTreeSet<String>,
    /// Sockets of this process with a name in the abstract name space.
    sockets: BTreeSet<String>,
    /// Free huge pages of the whole machine, because a memfd of huge pages is in no folder.
    huge_pages: u64,
}

pub(crate) fn belongings() -> Belongings {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let runtime = std::env::var("XDG_RUNTIME_DIR").unwrap_or_else(|_| "/run/doorbell".to_owned());
    let folders = ["/dev/shm", "/dev/hugepages", &*runtime].into_iter().flat_map(fs::read_dir);
    let files = folders.flatten().flatten().map(|entry| entry.path().display().to_string());
    Belongings {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        memfds: maps.lines().filter(|line| line.contains("memfd:")).count(),
        locked_kb: number("/proc/self/status", "VmLck:"),
        files: files.filter(|name| name.contains("doorbell")).collect(),
        sockets: sockets(),
        huge_pages: huge_pages_free(),
    }
}

/// The names of this process's sockets.
fn sockets() -> BTreeSet<String> {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    let open: BTreeSet<String> = open.map(|what| what.display().to_string()).collect();
    let all = fs::read_to_string("/proc/net/unix").unwrap();
    let all = all.lines().map(|line| line.split_ascii_whitespace().skip(6).collect::<Vec<_>>());
    let ours = all.filter(|socket| open.contains(&format!("socket:[{}]", socket[0])));
    ours.filter_map(|socket| socket.get(1).map(|name| (*name).to_owned())).collect()
}

fn huge_pages_free() -> u64 {
    number("/proc/meminfo", "HugePages_Free:")
}

/// The number with this name in a file of the kernel; 0 if there is none.
fn number(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |rest| rest.split_ascii_whitespace().next().unwrap().parse().unwrap())
}

/// Fails if there is more or less now than before. Huge pages belong to the whole machine, so other
/// programs may use some for a while.
pub(crate) fn assert_nothing_left(before: &Belongings) {
    let end = Instant::now() + SOON;
    while huge_pages_free() != before.huge_pages && Instant::now() < end {
        thread::sleep(LOOK);
    }
    let mut after = belongings();
    after.files = after.files.difference(&before.files).cloned().collect();
    assert_eq!(after, Belongings { files: BTreeSet::new(), ..before.clone() });
}
