//! Sockets of librdmacm (rsockets) over the drop-in.

use std::fs;
use std::path::{Path, PathBuf};

use crate::pairs::{HERE, Meets, PORT, Sides};
use crate::side::has;

/// Streams, blocking and not, and memory that one side writes and the other watches.
#[test]
fn streams_carry_bytes_both_ways() {
    let runs: &[(&str, &[&str])] = &[
        ("rstream", &["-T", "v"]),
        ("rstream", &["-T", "b", "-T", "v"]),
        ("rstream", &["-T", "n", "-T", "v"]),
        ("riostream", &["-T", "v"]),
    ];
    for (program, more) in runs {
        // More messages than the first credits allow (384).
        let base: Vec<&str> =
            [&[*program, "-p", PORT, "-C", "500", "-I", "3", "-S", "3000"], *more].concat();
        let client = [base.as_slice(), &["-s", HERE]].concat();
        let sides = Sides::new(&base, &client, Meets::Soft);
        let Some(text) = sides.run_client() else { continue };
        assert!(text.contains("custom"), "{program} {more:?}: {text}");
        assert!(!text.contains("verification failed"), "{program} {more:?}: {text}");
    }
}

#[test]
fn a_file_is_copied() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (folder.join("copied from"), folder.join("copied to"));
    let bytes: Vec<u8> =
        (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    let _ = fs::remove_file(&to);
    let target = format!("{HERE}:{}", to.display());
    let server = ["rcopy", "-p", PORT];
    let client = ["rcopy", from.to_str().unwrap(), &target, "-p", PORT];
    let sides = Sides::new(&server, &client, Meets::Soft).goes_on();
    if sides.run().is_some() {
        assert!(fs::read(&to).unwrap() == bytes, "the copy differs");
    }
}

/// The library that puts rsockets in place of the system's sockets.
fn rsockets() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let mut files = folders.map(|folder| folder.join("rsocket/librspreload.so"));
    files.find(|file| Path::is_file(file))
}

#[test]
fn programs_for_sockets_run_over_it() {
    let Some(library) = rsockets().filter(|_| has("iperf3")) else { return };
    let preload = format!("LD_PRELOAD=$LD_PRELOAD:{} exec iperf3 -4 -p {PORT}", library.display());
    let (server, client) = (format!("{preload} -s -1"), format!("{preload} -c {HERE} -n 20M"));
    let (server, client) = (["sh", "-c", &server], ["sh", "-c", &client]);
    let sides = Sides::new(&server, &client, Meets::Soft);
    for text in sides.run().into_iter().flatten() {
        assert!(text.contains("receiver"), "{text}");
    }
}
