//! Mapping and dropping leaks nothing. The only test of its file, so that nothing else runs in its
//! process.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;

use doorbell_alloc::{Ask, MapRequest, Mapping, Place};

const ROUNDS: usize = 100;

/// Mapped areas, open descriptors, and the line that counts the huge pages of this process.
fn in_use() -> (usize, usize, String) {
    let areas = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let huge = status.lines().find(|line| line.starts_with("HugetlbPages:")).unwrap_or_default();
    (areas, fs::read_dir("/proc/self/fd").unwrap().count(), huge.to_owned())
}

fn round(len: usize) {
    for ask in [Ask::Huge2M, Ask::Transparent, Ask::Plain] {
        for (shared, guard) in [(false, false), (true, false), (false, true), (true, true)] {
            let request = MapRequest::new(len).pages(ask).shared(shared).guard(guard);
            let mapping = request.place(Place::Prefer(0)).map().unwrap();
            if let Some(fd) = mapping.memfd() {
                let fd = fd.try_clone_to_owned().unwrap();
                Mapping::from_memfd(fd, len).unwrap();
            }
        }
        MapRequest::new(usize::MAX / 2).pages(ask).shared(true).map().unwrap_err();
        MapRequest::new(1 << 60).pages(ask).shared(true).map().unwrap_err();
    }
}

#[test]
fn odd_lengths_leak_no_area_and_no_descriptor() {
    round(1);
    let (areas, descriptors, huge) = in_use();
    for turn in 0..ROUNDS {
        round([1, 4095, 4097, 65_537][turn % 4]);
    }
    let (areas_after, descriptors_after, huge_after) = in_use();
    assert_eq!(descriptors_after, descriptors);
    assert_eq!(huge_after, huge);
    // The heap may grow by an area or two; a leak would be at least one for each round.
    assert!(areas_after < areas + ROUNDS / 2, "{areas} areas before, {areas_after} after");
}
