//! What two processes leave behind when both have ended: processes, sockets, files, shared memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use crate::side::{PAUSE, Side, command};

/// Names the processes of a round, and all that they start.
const MARK: &str = "DOORBELL_ROUND";
/// How long the kernel may take to clear away what a killed process had.
const SOON: std::time::Duration = std::time::Duration::from_secs(5);

/// What there was before a round, and how to know what belongs to it.
pub(crate) struct Belongings {
    port: u16,
    mark: String,
    /// Where the processes run and keep their files. Nothing else writes there.
    folder: PathBuf,
    shared: BTreeSet<String>,
}

impl Belongings {
    pub(crate) fn of(port: u16) -> Belongings {
        static ROUNDS: AtomicU32 = AtomicU32::new(0);
        let round = ROUNDS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}.{round}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("round {mark}"));
        fs::create_dir_all(&folder).unwrap();
        Belongings { port, mark, folder, shared: shared_memory() }
    }

    /// Marks a process of this round.
    pub(crate) fn mark(&self, command: &mut Command) {
        command.env(MARK, &self.mark).env("TMPDIR", &self.folder).current_dir(&self.folder);
    }

    /// What is left some time after all of its processes should have ended.
    pub(crate) fn left(&self) -> Vec<String> {
        let until = Instant::now() + SOON;
        loop {
            let found = self.found();
            if found.is_empty() || Instant::now() > until {
                return found;
            }
            thread::sleep(PAUSE);
        }
    }

    fn found(&self) -> Vec<String> {
        let mut found: Vec<String> =
            processes(&self.mark).into_iter().map(|id| format!("process {id}")).collect();
        let end = format!(":{}", self.port);
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
        let ours = names.filter(|name| name.contains("doorbell") && name.ends_with(&end));
        found.extend(ours.map(|name| format!("socket {name}")));
        let files = fs::read_dir(&self.folder).unwrap().flatten();
        found.extend(files.map(|file| format!("file {}", file.path().display())));
        let new = shared_memory();
        // Other programs of this machine have their memory mapped.
        let new = new.difference(&self.shared).filter(|name| !is_mapped(name));
        found.extend(new.map(|name| format!("shared memory {name}")));
        found
    }
}

impl Drop for Belongings {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Processes that were started with that mark.
fn processes(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let all = fs::read_dir("/proc").unwrap().flatten();
    let marked = all.filter(|entry| {
        let text = fs::read(entry.path().join("environ")).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    });
    marked.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The names of shared memory: of POSIX and of System V.
fn shared_memory() -> BTreeSet<String> {
    let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: BTreeSet<String> = files.map(|file| file.path().display().to_string()).collect();
    let old = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let segments = old.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Nobody has it attached.
        (words.get(6) == Some(&"0")).then(|| format!("segment {}", words[1]))
    });
    names.extend(segments);
    names
}

fn is_mapped(name: &str) -> bool {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut maps = all.map(|entry| fs::read_to_string(entry.path().join("maps")));
    maps.any(|text| text.is_ok_and(|text| text.contains(name)))
}

/// A program that leaves one of each kind: the search finds them.
#[test]
fn what_is_left_is_found() {
    let belongings = Belongings::of(1);
    let name = format!("/dev/shm/left-{}", std::process::id());
    // A child goes on: it closes what the test reads from.
    let leaves = format!(": > {name}; : > left; exec 2>&-; sleep 50 >&- &");
    let mut leaver = command(&["sh", "-c", &leaves]).unwrap();
    belongings.mark(&mut leaver);
    assert!(Side::start(leaver).end().is_ok());
    let found = belongings.found();
    let sleeper = processes(&belongings.mark);
    fs::remove_file(&name).unwrap();
    assert_eq!(sleeper.len(), 1, "{found:?}");
    assert!(Command::new("kill").args(&sleeper).status().unwrap().success());
    for what in [format!("process {}", sleeper[0]), format!("shared memory {name}")] {
        assert!(found.contains(&what), "{what} is not in {found:?}");
    }
    assert!(found.iter().any(|what| what.starts_with("file ")), "{found:?}");
    fs::remove_file(belongings.folder.join("left")).unwrap();
    assert_eq!(belongings.left(), [""; 0]);
}
