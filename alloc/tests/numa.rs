//! Placement and limits on a machine with two nodes. The tests change its pools and control groups,
//! so they run only in the virtual machine (`xtask/vm/numa.sh`), which sets `DOORBELL_NUMA`.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::env;
use std::fs;
use std::process::{Command, id};

use doorbell_alloc::{
    Ask, Limit, MapError, MapRequest, Mapping, NodeFault, Pages, Place, Reason, Shortfall, where_is,
};

const MIB: usize = 1 << 20;
const CHILD: &str = "DOORBELL_ALLOC_TEST_CHILD";

/// Whether this is the machine with two nodes. If `DOORBELL_NUMA` is set, it must have them.
fn two_nodes() -> bool {
    if env::var_os("DOORBELL_NUMA").is_none() {
        println!("skipped: for the virtual machine with two nodes, see xtask/vm/numa.sh");
        return false;
    }
    let online = fs::read_to_string("/sys/devices/system/node/online").unwrap();
    assert_eq!(online.trim(), "0-1", "DOORBELL_NUMA is set, but there are not two nodes");
    true
}

fn number(path: &str) -> usize {
    fs::read_to_string(path).unwrap().trim().parse().unwrap()
}

/// Sets a node's share of the pool of 2 MiB pages.
fn pool(node: u32, pages: usize) {
    let folder = format!("/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
    fs::write(format!("{folder}/nr_hugepages"), pages.to_string()).unwrap();
    assert_eq!(number(&format!("{folder}/nr_hugepages")), pages, "no {pages} pages on {node}");
    assert_eq!(number(&format!("{folder}/free_hugepages")), pages, "pages of {node} are in use");
}

/// The line of /proc/self/numa_maps (numa_maps in numa(7)) for the area where `mapping` starts.
fn numa_maps(mapping: &Mapping) -> String {
    let text = fs::read_to_string("/proc/self/numa_maps").unwrap();
    let start = format!("{:x} ", mapping.as_ptr().addr());
    text.lines().find(|line| line.starts_with(&start)).unwrap().to_owned()
}

/// The nodes that such a line lists with pages: `N1=2048`.
fn nodes_of(line: &str) -> Vec<u32> {
    let number = |word: &str| word.strip_prefix('N')?.split_once('=')?.0.parse().ok();
    line.split(' ').filter_map(number).collect()
}

/// Carries out a fix of the form `echo TEXT > FILE`.
fn apply(fix: &str) {
    let (text, file) = fix.strip_prefix("echo ").unwrap().split_once(" > ").unwrap();
    fs::write(file, text).unwrap_or_else(|error| panic!("{fix}: {error}"));
}

fn request(ask: Ask, place: Place) -> MapRequest {
    MapRequest::new(8 * MIB - 5).pages(ask).place(place).strict(true)
}

#[test]
fn memory_requested_on_a_node_is_on_it() {
    if !two_nodes() {
        return;
    }
    pool(0, 8);
    pool(1, 8);
    for node in [0, 1] {
        for place in [Place::Only(node), Place::Prefer(node)] {
            for ask in [Ask::Plain, Ask::Transparent, Ask::Huge2M] {
                for (shared, guard) in [(false, false), (false, true), (true, false)] {
                    if shared && ask == Ask::Transparent {
                        fs::write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise")
                            .unwrap();
                    }
                    let mapping = request(ask, place).shared(shared).guard(guard).map().unwrap();
                    let what = format!("{ask:?} {place} {shared}: {mapping:?}");
                    assert_eq!(mapping.report().node(), Some(node), "{what}");
                    let seen = mapping.where_is(0..mapping.len()).unwrap();
                    assert_eq!(seen.node(), Some(node), "{what}: {seen}");
                    assert_eq!(seen.bytes_on(node), mapping.len(), "{what}");
                    let line = numa_maps(&mapping);
                    assert_eq!(nodes_of(&line), [node], "{what}: {line}");
                    let policy = match place {
                        Place::Only(_) => format!(" bind:{node} "),
                        _ => format!(" prefer:{node} "),
                    };
                    assert!(line.contains(&policy), "{what}: {line}");
                }
            }
        }
    }
}

#[test]
fn parts_are_on_the_node_and_untouched_memory_is_on_none() {
    if !two_nodes() {
        return;
    }
    let mapping = request(Ask::Plain, Place::Only(1)).map().unwrap();
    let part = mapping.where_is(5000..9000).unwrap();
    assert_eq!((part.bytes_on(1), part.absent()), (4000, 0));
    assert_eq!(mapping.where_is(0..usize::MAX).unwrap().bytes_on(1), mapping.len());
    let start = mapping.as_ptr().cast_const();
    assert_eq!(where_is(start..start.wrapping_add(1)).unwrap().node(), Some(1));
    let lazy = request(Ask::Plain, Place::Only(1)).lock(false).prefault(false).map().unwrap();
    assert_eq!(lazy.report().node(), None);
    assert_eq!(lazy.where_is(0..4096).unwrap().absent(), 4096);
}

#[test]
fn too_few_huge_pages_on_the_node_are_an_error_or_a_fallback_and_can_be_fixed() {
    if !two_nodes() {
        return;
    }
    pool(0, 16);
    pool(1, 1);
    // The machine has 4 free pages, but the node has not.
    let error = request(Ask::Huge2M, Place::Only(1)).map().unwrap_err();
    let MapError::NoHugePages { needed: 4, free: 1, node: Some(1), fix, .. } = &error else {
        panic!("{error:?}");
    };

    let smaller = request(Ask::Huge2M, Place::Only(1)).strict(false).map().unwrap();
    assert!(!smaller.pages().is_reserved() && smaller.report().node() == Some(1), "{smaller:?}");
    let short = Reason::TooFewFree { page: 2 * MIB, needed: 4, free: 1, pool: 4, node: Some(1) };
    let got = smaller.pages();
    let note = Shortfall::Pages { asked: Pages::Huge2M, got, reason: short.clone() };
    assert_eq!(smaller.report().notes()[0], note);

    let elsewhere = request(Ask::Huge2M, Place::Prefer(1)).strict(false).map().unwrap();
    assert_eq!(elsewhere.pages(), Pages::Huge2M);
    let seen = elsewhere.where_is(0..elsewhere.len()).unwrap();
    assert_eq!((seen.bytes_on(0), seen.bytes_on(1)), (6 * MIB, 2 * MIB), "{seen}");
    let note = Shortfall::Place { asked: Place::Prefer(1), reason: short };
    assert_eq!(elsewhere.report().notes(), [note]);
    drop(elsewhere);
    let error = request(Ask::Huge2M, Place::Prefer(1)).map().unwrap_err();
    assert!(matches!(error, MapError::Place { asked: Place::Prefer(1), .. }), "{error:?}");

    apply(fix);
    let fixed = request(Ask::Huge2M, Place::Only(1)).map().unwrap();
    assert_eq!((fixed.pages(), fixed.report().node()), (Pages::Huge2M, Some(1)));
}

#[test]
fn a_page_of_1_gib_is_obtained_on_its_node_and_returned() {
    if !two_nodes() {
        return;
    }
    let folder = "/sys/devices/system/node/node1/hugepages/hugepages-1048576kB";
    let set = |pages: &str| fs::write(format!("{folder}/nr_hugepages"), pages).unwrap();
    let free = || number(&format!("{folder}/free_hugepages"));
    set("1");
    assert_eq!(free(), 1, "no whole GiB of node 1 is free: give the machine more memory");
    let request = MapRequest::new(MIB).pages(Ask::Huge1G).strict(true);
    for (shared, guard) in [(false, false), (false, true), (true, false)] {
        let request = request.shared(shared).guard(guard);
        let error = request.place(Place::Only(0)).map().unwrap_err();
        let short = matches!(error, MapError::NoHugePages { free: 0, node: Some(0), .. });
        assert!(short, "{error:?}");
        let mapping = request.place(Place::Only(1)).map().unwrap();
        assert_eq!((mapping.len(), mapping.pages()), (1024 * MIB, Pages::Huge1G));
        assert_eq!(mapping.report().node(), Some(1));
        assert_eq!(mapping.where_is(0..mapping.len()).unwrap().bytes_on(1), 1024 * MIB);
        assert_eq!(nodes_of(&numa_maps(&mapping)), [1]);
        assert_eq!(free(), 0);
        drop(mapping);
        assert_eq!(free(), 1);
    }
    set("0");
}

#[test]
fn a_missing_node_is_reported_with_the_usable_ones() {
    if !two_nodes() {
        return;
    }
    for node in [2, 63, 64, 1023, 1024, u32::MAX] {
        let error = request(Ask::Plain, Place::Only(node)).strict(false).map().unwrap_err();
        let MapError::Place {
            reason: Reason::Node { fault: NodeFault::Offline, usable, .. }, ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(usable, "0-1");
        let other = request(Ask::Plain, Place::Prefer(node)).strict(false).map().unwrap();
        assert!(matches!(other.report().notes(), [Shortfall::Place { .. }]), "{other:?}");
        assert_eq!(other.report().node(), None);
    }
}

#[test]
fn several_threads_obtain_long_memory_and_end() {
    if !two_nodes() {
        return;
    }
    let tasks = || fs::read_dir("/proc/self/task").unwrap().count();
    let before = tasks();
    let request = MapRequest::new(256 * MIB).pages(Ask::Plain).place(Place::Only(1)).lock(false);
    let mapping = request.map().unwrap();
    // A joined thread may stay in the list for a moment.
    let left = (0..1_000_000).any(|_| tasks() <= before);
    assert!(left, "{} threads before, {} after", before, tasks());
    assert_eq!(mapping.report().node(), Some(1));
    assert_eq!(nodes_of(&numa_maps(&mapping)), [1]);
}

/// The counters of the reserved pools, and how many areas this process has.
fn in_use() -> (Vec<String>, usize) {
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let huge = memory.lines().filter(|line| line.starts_with("HugePages_"));
    let areas = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (huge.map(str::to_owned).collect(), areas)
}

#[test]
fn odd_lengths_leak_nothing() {
    if !two_nodes() {
        return;
    }
    pool(0, 8);
    pool(1, 8);
    let round = |len: usize, guard: bool| {
        for shared in [false, true] {
            for ask in [Ask::Plain, Ask::Huge2M, Ask::Transparent] {
                let request = MapRequest::new(len).pages(ask).shared(shared).guard(guard);
                let mapping = request.place(Place::Only(1)).map().unwrap();
                assert!(mapping.len() >= len);
                request.place(Place::Only(7)).map().unwrap_err();
                MapRequest::new(1 << 60).pages(ask).shared(shared).map().unwrap_err();
            }
        }
    };
    round(1, true);
    let (huge, areas) = in_use();
    for turn in 0..12 {
        round([1, 4097, 2 * MIB + 1, 4 * MIB - 1][turn % 4], turn % 3 == 0);
    }
    let (huge_after, areas_after) = in_use();
    assert_eq!(huge_after, huge);
    assert!(areas_after < areas + 12, "{areas} areas before, {areas_after} after");
}

/// Runs the test `name` in a child process, with `group` in the variable `CHILD`.
fn in_group(name: &str, group: &str) {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(CHILD, group);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // A process that the kernel kills for its memory has no exit code.
    assert!(output.status.success() && text.contains("the child ran"), "{group}: {output:?}");
}

/// In the child: joins its group. In the parent: does nothing.
fn join() -> Option<String> {
    let group = env::var(CHILD).ok()?;
    fs::write(format!("{group}/cgroup.procs"), id().to_string()).unwrap();
    Some(group)
}

/// The folder of the group that the script made for the tests.
fn group() -> String {
    env::var("DOORBELL_GROUP").unwrap()
}

/// The file of a limit, which has a name of its own in each version of control groups.
fn limit(group: &str, one: &str, two: &str) -> String {
    let first = format!("{group}/{one}");
    if fs::exists(&first).unwrap() { first } else { format!("{group}/{two}") }
}

#[test]
fn a_groups_limit_on_huge_pages_is_reported_and_can_be_fixed() {
    if !two_nodes() {
        return;
    }
    let Some(group) = join() else {
        pool(0, 8);
        let group = group();
        for kind in ["", ".rsvd"] {
            let one = format!("hugetlb.2MB{kind}.limit_in_bytes");
            let file = limit(&group, &one, &format!("hugetlb.2MB{kind}.max"));
            fs::write(&file, (4 * MIB).to_string()).unwrap();
            in_group("a_groups_limit_on_huge_pages_is_reported_and_can_be_fixed", &group);
            let now = number(&file);
            assert!(now >= 8 * MIB, "{file} was not fixed: {now}");
        }
        return;
    };
    let strict = request(Ask::Huge2M, Place::Only(0));
    let error = strict.map().unwrap_err();
    let MapError::NoPages { asked: Pages::Huge2M, reason } = &error else { panic!("{error:?}") };
    let Reason::OverLimit { needed, left, limit: Limit::Group { file, bytes } } = reason else {
        panic!("{reason:?}");
    };
    assert_eq!((*needed, *left, *bytes), (8 << 20, 4 << 20, 4 << 20));
    assert!(file.starts_with(&group), "{file}");
    let smaller = strict.strict(false).map().unwrap();
    assert_eq!(smaller.report().asked(), Pages::Huge2M);
    assert!(
        matches!(smaller.report().notes()[0], Shortfall::Pages { .. })
            && !smaller.pages().is_reserved()
    );
    apply(&reason.fix().to_string());
    assert_eq!(strict.map().unwrap().pages(), Pages::Huge2M);
    println!("the child ran");
}

#[test]
fn a_groups_limit_on_memory_is_an_error_and_not_the_end_of_the_process() {
    if !two_nodes() {
        return;
    }
    let Some(group) = join() else {
        let group = group();
        let file = limit(&group, "memory.limit_in_bytes", "memory.max");
        fs::write(&file, (48 * MIB).to_string()).unwrap();
        in_group("a_groups_limit_on_memory_is_an_error_and_not_the_end_of_the_process", &group);
        fs::write(&file, (1024 * MIB).to_string()).unwrap();
        return;
    };
    for ask in [Ask::Plain, Ask::Transparent] {
        for shared in [false, true] {
            let request = MapRequest::new(256 * MIB).pages(ask).shared(shared);
            let error = request.map().unwrap_err();
            let MapError::NoPages { asked: Pages::Plain, reason } = &error else {
                panic!("{error:?}");
            };
            let Reason::OverLimit { limit: Limit::Group { file, bytes }, .. } = reason else {
                panic!("{reason:?}");
            };
            assert!(file.starts_with(&group) && *bytes == 48 << 20, "{reason:?}");
            // Memory that is not touched does not count yet.
            request.lock(false).prefault(false).map().unwrap();
            MapRequest::new(16 * MIB).pages(ask).shared(shared).map().unwrap();
        }
    }
    println!("the child ran");
}

#[test]
fn a_cpuset_without_the_node_is_reported() {
    if !two_nodes() {
        return;
    }
    if join().is_none() {
        let group = group();
        fs::write(format!("{group}/cpuset.mems"), "0").unwrap();
        in_group("a_cpuset_without_the_node_is_reported", &group);
        fs::write(format!("{group}/cpuset.mems"), "0-1").unwrap();
        return;
    }
    let error = request(Ask::Plain, Place::Only(1)).map().unwrap_err();
    let MapError::Place {
        reason: Reason::Node { node: 1, fault: NodeFault::NotAllowed, usable },
        ..
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(usable, "0");
    let here = request(Ask::Plain, Place::Only(0)).map().unwrap();
    assert_eq!(here.report().node(), Some(0));
    println!("the child ran");
}
