//! The memory that a process shares with its peers, as another process finds it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use doorbell_soft::{INBOX_BYTES, LINK_BYTES};

/// Where a link of colour 0 has the slot of 18 lines, with a word of each side, and behind it the
/// directions, those of messages and those of responses: each two lines of the sender, two of the
/// receiver, and data. Each other colour moves all this by two more lines.
const SLOT: u64 = 256;
pub(crate) const HEAD: u64 = SLOT + 18 * 64;
pub(crate) const LINES: u64 = 256;
pub(crate) const DATA: [u64; 2] = [64 << 10, 16 << 10];
pub(crate) const RESPONSES: u64 = HEAD + 2 * (LINES + DATA[0]);
const COLOURS: u64 = 32;
const COLOUR: u64 = 128;
const COLOUR_AT: u64 = 12;

/// The bytes by which the colour of a link moves what is behind its header.
pub(crate) fn moved(link: &File) -> u64 {
    let mut colour = [0; 4];
    link.read_exact_at(&mut colour, COLOUR_AT).unwrap();
    u64::from(u32::from_le_bytes(colour)) % COLOURS * COLOUR
}

/// What a process shares: its links, and the inboxes of its datagrams.
pub(crate) fn shared(id: u32) -> Vec<File> {
    let files = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let memory = files.filter(|file| {
        fs::read_link(file.path()).is_ok_and(|name| name.to_string_lossy().contains("memfd:"))
    });
    let open = |path| OpenOptions::new().read(true).write(true).open(path).ok();
    let files = memory.filter_map(|file| open(file.path()));
    let lengths = [LINK_BYTES, INBOX_BYTES].map(|bytes| bytes.next_multiple_of(4096) as u64);
    files.filter(|file| lengths.contains(&file.metadata().unwrap().len())).collect()
}

/// True if messages have gone both ways over a link of that process.
pub(crate) fn talks(id: u32) -> bool {
    let is_set = |file: &File, at| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).is_ok() && bytes != [0; 8]
    };
    let has_sent = |file: &File, side| {
        [SLOT + 8 * side, HEAD + side * (LINES + DATA[0])]
            .into_iter()
            .any(|at| is_set(file, moved(file) + at))
    };
    shared(id).iter().any(|file| (0..2).all(|side| has_sent(file, side)))
}

#[test]
fn the_layout_is_that_of_a_link() {
    let end = RESPONSES + 2 * (LINES + DATA[1]);
    assert_eq!(end + (COLOURS - 1) * COLOUR, LINK_BYTES as u64);
}
