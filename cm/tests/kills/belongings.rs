//! What a process could have left over of a peer that was killed.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Instant;

use crate::{LOOK, SOON};

/// What could be left behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Belongings {
    descriptors: usize,
    /// Mappings of memory that is shared.
    memfds: usize,
    /// Memory that is locked, as far as that is allowed: buffers and blocks.
    locked_kb: u64,
    /// Where such things are kept.
    files: BTreeSet<String>,
    /// Sockets of this process that have a name, in the abstract name space.
    sockets: BTreeSet<String>,
    /// Huge pages that nobody has, on the whole machine: a memfd of them is a file nowhere.
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

/// Names of this process's sockets.
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

/// The number of that name in a file of the kernel's; 0 if it has none.
fn number(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |rest| rest.split_ascii_whitespace().next().unwrap().parse().unwrap())
}

/// Fails if there is anything now that was not there before, or less. Huge pages are the machine's,
/// of which others may have some for a while.
pub(crate) fn assert_nothing_left(before: &Belongings) {
    let end = Instant::now() + SOON;
    while huge_pages_free() != before.huge_pages && Instant::now() < end {
        thread::sleep(LOOK);
    }
    assert_eq!(belongings(), *before);
}
