//! Mappings on the running kernel, whatever pages it has.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![expect(unsafe_code, reason = "reads and writes mapped bytes through pointers")]

use std::fs;
use std::os::unix::process::ExitStatusExt;

use doorbell_alloc::{Ask, MapError, MapRequest, Mapping, Pages, Reason, Shortfall, SizeError};

const MIB: usize = 1 << 20;

fn bytes(mapping: &Mapping) -> Vec<u8> {
    // SAFETY: the range is mapped while `mapping` is borrowed, and no test writes at the same time.
    unsafe { std::slice::from_raw_parts(mapping.as_ptr(), mapping.len()) }.to_vec()
}

/// Free pages of the 2 MiB pool: 0 if there is no such pool.
fn free_huge_pages() -> usize {
    let count = |name: &str| -> usize {
        let file = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
        fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    count("free_hugepages") + count("nr_overcommit_hugepages")
}

/// The flags the kernel keeps for the area that starts where `mapping` does.
fn area_flags(mapping: &Mapping) -> String {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", mapping.as_ptr().addr());
    let mut lines =
        text.lines().skip_while(|line| !line.trim_start_matches('0').starts_with(&start));
    lines.find(|line| line.starts_with("VmFlags:")).unwrap().to_owned()
}

#[test]
fn every_kind_gives_whole_zeroed_writable_pages() {
    for ask in [Ask::Best, Ask::Huge1G, Ask::Huge2M, Ask::Transparent, Ask::Plain] {
        for shared in [false, true] {
            for len in [1, 4095, 4097, 3 * MIB + 1] {
                let mapping = MapRequest::new(len).pages(ask).shared(shared).map().unwrap();
                let report = mapping.report();
                assert!(mapping.len() >= len);
                assert!(mapping.len().is_multiple_of(mapping.pages().bytes()), "{mapping:?}");
                assert!(mapping.as_ptr().addr().is_multiple_of(mapping.pages().bytes()));
                assert!(bytes(&mapping).iter().all(|&byte| byte == 0));
                assert_eq!(report.shared(), shared);
                assert_eq!(mapping.fd().is_some(), shared);
                assert_eq!(report.pages(), mapping.pages());
                // There is a note about pages if and only if they are smaller than requested.
                let noted = report.notes().iter().any(|n| matches!(n, Shortfall::Pages { .. }));
                assert_eq!(noted, report.pages() > report.asked(), "{report}");
            }
        }
    }
}

#[test]
fn only_private_bytes_are_lent_as_a_slice() {
    let mut private = Mapping::plain(10_000).unwrap();
    private.as_mut_slice().unwrap()[9_999] = 1;
    assert_eq!(bytes(&private)[9_999], 1);
    let mut shared = MapRequest::new(10_000).shared(true).map().unwrap();
    assert!(shared.as_mut_slice().is_none());
}

#[test]
fn children_inherit_shared_memory_and_not_private_memory() {
    let private = Mapping::plain(MIB).unwrap();
    assert!(area_flags(&private).split(' ').any(|flag| flag == "dc"));
    let readable = MapRequest::new(MIB).pages(Ask::Plain).readable(true).map().unwrap();
    assert!(area_flags(&readable).split(' ').any(|flag| flag == "dc"));
    let shared = MapRequest::new(MIB).pages(Ask::Plain).shared(true).map().unwrap();
    assert!(!area_flags(&shared).split(' ').any(|flag| flag == "dc"));
}

#[test]
fn memory_is_in_core_dumps_only_on_request() {
    for shared in [false, true] {
        for ask in [Ask::Plain, Ask::Best] {
            let request = MapRequest::new(MIB).pages(ask).shared(shared);
            let (kept, dumped) = (request.map().unwrap(), request.dump(true).map().unwrap());
            assert!(!kept.report().dumped() && dumped.report().dumped());
            assert!(area_flags(&kept).split(' ').any(|flag| flag == "dd"));
            assert!(!area_flags(&dumped).split(' ').any(|flag| flag == "dd"));
        }
    }
}

/// The rights of the areas that end where `mapping` starts and start where it ends.
fn neighbours(mapping: &Mapping) -> (Option<String>, Option<String>) {
    let text = fs::read_to_string("/proc/self/maps").unwrap();
    let start = mapping.as_ptr().addr();
    let areas = text.lines().map(|line| {
        let (area, rest) = line.split_once(' ').unwrap();
        let (low, high) = area.split_once('-').unwrap();
        let number = |hex| usize::from_str_radix(hex, 16).unwrap();
        (number(low), number(high), rest[..4].to_owned())
    });
    let areas: Vec<_> = areas.collect();
    let below = areas.iter().find(|(_, high, _)| *high == start);
    let above = areas.iter().find(|(low, _, _)| *low == start + mapping.len());
    (below.map(|area| area.2.clone()), above.map(|area| area.2.clone()))
}

#[test]
fn guards_lie_on_both_sides_of_every_kind() {
    for ask in [Ask::Huge1G, Ask::Huge2M, Ask::Transparent, Ask::Plain] {
        for shared in [false, true] {
            let request = MapRequest::new(3 * MIB + 1).pages(ask).shared(shared);
            let mapping = request.guard(true).map().unwrap();
            assert!(mapping.report().guarded());
            let none = Some("---p".to_owned());
            assert_eq!(neighbours(&mapping), (none.clone(), none), "{mapping:?}");
            assert!(bytes(&mapping).iter().all(|&byte| byte == 0));
            assert!(!request.map().unwrap().report().guarded());
        }
    }
}

#[test]
fn an_access_beyond_a_guarded_mapping_ends_the_process() {
    const CHILD: &str = "DOORBELL_ALLOC_TEST_BEYOND";
    if let Ok(offset) = std::env::var(CHILD) {
        let mapping = MapRequest::new(4096).pages(Ask::Plain).guard(true).map().unwrap();
        let at = mapping.as_ptr().wrapping_offset(offset.parse().unwrap());
        // SAFETY: inside for one offset; for the two outside, the guard turns the write into a
        // signal.
        unsafe { at.write_volatile(1) };
        return;
    }
    let child = |offset: isize| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "an_access_beyond_a_guarded_mapping_ends_the_process"]);
        child.env(CHILD, offset.to_string()).output().unwrap().status
    };
    assert!(child(4095).success());
    for offset in [-1, 4096] {
        assert_eq!(child(offset).signal(), Some(libc::SIGSEGV), "offset {offset}");
    }
}

#[test]
fn impossible_lengths_are_typed_errors() {
    let error = Mapping::plain(0).unwrap_err();
    assert!(matches!(error, MapError::Size { len: 0, source: SizeError::Zero }), "{error:?}");
    for ask in [Ask::Best, Ask::Huge1G, Ask::Huge2M, Ask::Transparent, Ask::Plain] {
        for len in [usize::MAX, isize::MAX as usize] {
            let error = MapRequest::new(len).pages(ask).map().unwrap_err();
            let overflow = MapError::Size { len, source: SizeError::Zero };
            assert_eq!(
                std::mem::discriminant(&error),
                std::mem::discriminant(&overflow),
                "{ask:?}: {error:?}"
            );
        }
    }
}

#[test]
fn more_than_the_machine_has_is_an_error_with_a_fix() {
    let error = Mapping::plain(1 << 60).unwrap_err();
    let predicted = matches!(error, MapError::NoPages { reason: Reason::OverLimit { .. }, .. });
    assert!(predicted, "{error:?}");
    assert!(error.to_string().contains("fix: "), "{error}");
    // Not touched, so only address space is needed; that much does not exist either.
    let request = MapRequest::new(1 << 60).pages(Ask::Plain).lock(false).prefault(false);
    let error = request.map().unwrap_err();
    let call = matches!(error, MapError::System { call: "mmap", .. });
    assert!(call || matches!(error, MapError::NoPages { .. }), "{error:?}");
}

#[test]
fn a_strict_request_for_missing_huge_pages_names_the_command() {
    let free = free_huge_pages();
    // More than are free, so that the pool is short on a machine with huge pages too.
    let needed = free + 3;
    for shared in [false, true] {
        let request = MapRequest::new(needed * 2 * MIB - 1).pages(Ask::Huge2M).shared(shared);
        let error = request.strict(true).map().unwrap_err();
        let MapError::NoHugePages { asked: Pages::Huge2M, needed: said, free: left, fix, .. } =
            &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(*said, needed);
        assert!(*left <= free);
        let number = fix.strip_prefix("echo ").and_then(|rest| rest.split_once(" > ")).unwrap().0;
        assert!(number.parse::<usize>().unwrap() >= needed - free, "{fix}");
        assert!(error.to_string().contains(fix), "{error}");
    }
}

#[test]
fn other_requests_for_missing_huge_pages_take_less_and_say_why() {
    if free_huge_pages() != 0 {
        println!("skipped: this machine has free 2 MiB pages");
        return;
    }
    let mapping = Mapping::huge(5 * MIB).unwrap();
    let first = mapping.report().notes().first().unwrap();
    let Shortfall::Pages { asked: Pages::Huge2M, got, reason } = first else {
        panic!("{first:?}");
    };
    assert_eq!(*got, mapping.pages());
    let no_pool = matches!(reason, Reason::NoPool { .. });
    assert!(
        no_pool || matches!(reason, Reason::TooFewFree { needed: 3, free: 0, .. }),
        "{reason:?}"
    );
}

#[test]
fn free_huge_pages_are_obtained_and_returned() {
    let free = free_huge_pages();
    if free < 16 {
        println!(
            "skipped: {free} free 2 MiB pages; 16 are needed, since other tests take some too"
        );
        return;
    }
    for shared in [false, true] {
        let request = MapRequest::new(3 * MIB).pages(Ask::Huge2M).strict(true).shared(shared);
        let mapping = request.map().unwrap();
        assert_eq!((mapping.pages(), mapping.len()), (Pages::Huge2M, 4 * MIB));
        assert!(mapping.report().locked() && mapping.report().notes().is_empty());
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        assert!(text.contains("KernelPageSize:     2048 kB"));
    }
    let again =
        MapRequest::new(3 * MIB).pages(Ask::Huge2M).strict(true).shared(true).map().unwrap();
    let fd = again.memfd().unwrap().try_clone_to_owned().unwrap();
    let peer = Mapping::from_memfd(fd, 3 * MIB).unwrap();
    assert_eq!((peer.pages(), peer.len()), (Pages::Huge2M, 4 * MIB));
}

#[test]
fn transparent_pages_are_reported_only_after_they_were_touched() {
    let request = MapRequest::new(4 * MIB).pages(Ask::Transparent).lock(false);
    let mapping = request.prefault(false).map().unwrap();
    assert_eq!(mapping.pages(), Pages::Plain);
    let [Shortfall::Pages { asked: Pages::Transparent, reason, .. }] = mapping.report().notes()
    else {
        panic!("{}", mapping.report());
    };
    assert!(matches!(reason, Reason::NotTouched | Reason::TransparentOff { .. }), "{reason:?}");

    let error = request.prefault(false).strict(true).map().unwrap_err();
    assert!(matches!(error, MapError::NoPages { asked: Pages::Transparent, .. }), "{error:?}");
}

#[test]
fn pages_are_not_touched_without_prefault() {
    let resident = |mapping: &Mapping| -> usize {
        let mut states = vec![0_u8; mapping.len() / 4096];
        // SAFETY: the range is mapped, and there is one byte of room for each page.
        let answer =
            unsafe { libc::mincore(mapping.as_ptr().cast(), mapping.len(), states.as_mut_ptr()) };
        assert_eq!(answer, 0);
        states.iter().filter(|&&state| state & 1 != 0).count()
    };
    let request = MapRequest::new(MIB).pages(Ask::Plain).lock(false);
    assert_eq!(resident(&request.prefault(false).map().unwrap()), 0);
    let touched = request.map().unwrap();
    assert_eq!(resident(&touched), touched.len() / 4096);
    assert!(!touched.report().locked());
}
