//! Predictions for requests on recorded machines: every limit is read before it is hit.
//!
//! `machines/two-nodes.txt` was recorded by `machines/record.sh`: two nodes of 2 GiB, with 16 and
//! 4 free pages of 2 MiB, root, no limits. Each test changes the files that it is about.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_alloc::{
    Ask, Limit, Machine, MapError, MapReport, MapRequest, NodeFault, Pages, Place, Reason,
    Shortfall,
};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A recorded machine, unpacked into a folder of its own for one test.
struct Recorded(PathBuf);

impl Recorded {
    /// The machine with two nodes, with some of its files changed; `None` removes a file.
    fn with(changes: &[(&str, Option<&str>)]) -> Self {
        // Relaxed: the number only has to be unique; it publishes nothing.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("machine-{}-{number}", std::process::id());
        let recorded = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        for file in include_str!("machines/two-nodes.txt").split("== ").skip(1) {
            let (path, text) = file.split_once('\n').unwrap();
            recorded.write(path, text);
        }
        for &(path, text) in changes {
            match text {
                Some(text) => recorded.write(path, text),
                None => fs::remove_file(recorded.path(path)).unwrap(),
            }
        }
        recorded
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn outlook(&self, request: MapRequest) -> Result<MapReport, MapError> {
        request.outlook(&Machine::recorded(&self.0))
    }

    /// The reason why a strict request is predicted to fail for lack of pages.
    fn no_pages(&self, request: MapRequest) -> Reason {
        match self.outlook(request.strict(true)) {
            Err(MapError::NoPages { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn huge(pages: usize) -> MapRequest {
    MapRequest::new(pages * 2 * MIB).pages(Ask::Huge2M)
}

fn plain(len: usize) -> MapRequest {
    MapRequest::new(len).pages(Ask::Plain)
}

#[test]
fn available_memory_is_predicted_without_notes() {
    let machine = Recorded::with(&[]);
    for (pages, node) in [(16, 0), (4, 1)] {
        for place in [Place::Only(node), Place::Prefer(node)] {
            let report = machine.outlook(huge(pages).place(place).strict(true)).unwrap();
            assert_eq!(
                (report.pages(), report.node(), report.locked()),
                (Pages::Huge2M, Some(node), true)
            );
            assert!(report.notes().is_empty(), "{report}");
        }
    }
    assert!(machine.outlook(huge(20).strict(true)).is_ok());
    let report = machine.outlook(plain(GIB).place(Place::Only(1)).strict(true)).unwrap();
    assert_eq!((report.pages(), report.node(), report.locked()), (Pages::Plain, Some(1), true));
}

#[test]
fn a_short_pool_of_a_node_is_reported_with_its_file() {
    let machine = Recorded::with(&[]);
    let error = machine.outlook(huge(5).place(Place::Only(1)).strict(true)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "asked 5 pages of 2 MiB, the pool of node 1 has 4 free; fix: echo 5 > \
         /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    );
    // `Only` keeps the node and takes smaller pages; `Prefer` keeps the pages and takes another
    // node.
    let report = machine.outlook(huge(5).place(Place::Only(1))).unwrap();
    assert_eq!((report.pages(), report.node()), (Pages::Transparent, Some(1)));
    let report = machine.outlook(huge(5).place(Place::Prefer(1))).unwrap();
    assert_eq!((report.pages(), report.node()), (Pages::Huge2M, None));
    let [Shortfall::Place { asked: Place::Prefer(1), reason }] = report.notes() else {
        panic!("{report}")
    };
    assert!(matches!(reason, Reason::TooFewFree { free: 4, node: Some(1), .. }), "{reason:?}");

    let error = machine.outlook(huge(21).strict(true)).unwrap_err();
    let short = matches!(error, MapError::NoHugePages { needed: 21, free: 20, node: None, .. });
    assert!(short, "{error:?}");
}

#[test]
fn without_huge_pages_a_request_falls_back_with_a_note_for_each_kind() {
    let off = "always madvise [never]\n";
    let none = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
    let machine = Recorded::with(&[
        (none, None),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", Some("0\n")),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", Some("0\n")),
        ("/sys/kernel/mm/transparent_hugepage/enabled", Some(off)),
    ]);
    let request = MapRequest::new(GIB).pages(Ask::Huge1G);
    let report = machine.outlook(request).unwrap();
    assert_eq!((report.asked(), report.pages()), (Pages::Huge1G, Pages::Plain));
    let reasons: Vec<&Reason> = report
        .notes()
        .iter()
        .map(|note| match note {
            Shortfall::Pages { got: Pages::Plain, reason, .. } => reason,
            note => panic!("{note}"),
        })
        .collect();
    let pool = Reason::TooFewFree { page: 2 * MIB, needed: 512, free: 0, pool: 512, node: None };
    let off = Reason::TransparentOff { shared: false };
    assert_eq!(reasons, [&Reason::NoPool { page: GIB }, &pool, &off]);
    assert_eq!(machine.no_pages(request), Reason::NoPool { page: GIB });
}

#[test]
fn each_reason_why_a_node_gives_no_memory_is_reported() {
    let ask = |machine: &Recorded, node| {
        let request = plain(MIB).place(Place::Only(node));
        match machine.outlook(request) {
            Err(MapError::Place {
                reason: Reason::Node { node: named, fault, usable }, ..
            }) => {
                assert_eq!(named, node);
                // If the same node is only preferred, that is a note.
                let report = machine.outlook(plain(MIB).place(Place::Prefer(node))).unwrap();
                assert!(matches!(report.notes(), [Shortfall::Place { .. }]), "{report}");
                assert_eq!(report.node(), None);
                (fault, usable)
            }
            other => panic!("{other:?}"),
        }
    };
    let (online, memory) =
        ("/sys/devices/system/node/online", "/sys/devices/system/node/has_memory");
    let status = "VmLck:\t0 kB\nCapEff:\t0\nMems_allowed_list:\t1\n";

    let machine = Recorded::with(&[(online, Some("0\n"))]);
    assert_eq!(ask(&machine, 1), (NodeFault::Offline, "0".into()));
    let machine = Recorded::with(&[(online, Some("0-2\n")), (memory, Some("0,2\n"))]);
    assert_eq!(ask(&machine, 1), (NodeFault::NoMemory, "0".into()));
    let machine = Recorded::with(&[("/proc/self/status", Some(status))]);
    assert_eq!(ask(&machine, 0), (NodeFault::NotAllowed, "1".into()));
    assert_eq!(ask(&machine, 1023), (NodeFault::Offline, "1".into()));
}

#[test]
fn a_full_node_is_reported_although_the_machine_has_room() {
    let full = "Node 1 MemTotal: 2060864 kB\nNode 1 MemFree: 1000 kB\n\
                Node 1 Active(file): 300 kB\nNode 1 Inactive(file): 20 kB\n\
                Node 1 SReclaimable: 4 kB\n";
    let machine = Recorded::with(&[("/sys/devices/system/node/node1/meminfo", Some(full))]);
    let request = plain(2 * MIB).place(Place::Only(1));
    let limit = Limit::Node(1);
    let want = Reason::OverLimit { needed: 2 << 20, left: 1324 << 10, limit };
    assert_eq!(machine.no_pages(request), want);
    let report = machine.outlook(plain(2 * MIB).place(Place::Prefer(1))).unwrap();
    assert_eq!(report.notes(), [Shortfall::Place { asked: Place::Prefer(1), reason: want }]);
    assert!(machine.outlook(plain(2 * MIB).place(Place::Only(0)).strict(true)).is_ok());
    // Memory that is not touched needs no room yet.
    let lazy = request.lock(false).prefault(false);
    assert_eq!(machine.outlook(lazy).unwrap().node(), None);
}

#[test]
fn full_nodes_of_a_restricted_process_are_reported_although_others_have_room() {
    let full = "Node 1 MemFree: 1000 kB\nNode 1 Active(file): 300 kB\n";
    let node = ("/sys/devices/system/node/node1/meminfo", Some(full));
    let limit = Limit::Nodes("1".into());
    let want = Reason::OverLimit { needed: 2 << 20, left: 1300 << 10, limit };

    let status = STATUS.replace("list:\t0-1", "list:\t1");
    let cpuset = Recorded::with(&[node, ("/proc/self/status", Some(&status))]);
    assert_eq!(cpuset.no_pages(plain(2 * MIB).lock(false)), want);
    let preferred = plain(2 * MIB).lock(false).place(Place::Prefer(1));
    assert_eq!(cpuset.no_pages(preferred), want);
    assert!(cpuset.outlook(plain(MIB).lock(false).strict(true)).is_ok());

    for policy in ["bind:1", "bind=static:1"] {
        let maps = format!("55d0c000 {policy} file=/bin/x mapped=5 N0=5\n55d1 bind:0 anon=1\n");
        let bound = Recorded::with(&[node, ("/proc/self/numa_maps", Some(&maps))]);
        assert_eq!(bound.no_pages(plain(2 * MIB)), want);
        // A place of its own replaces the policy of the thread.
        assert!(bound.outlook(plain(2 * MIB).place(Place::Only(0)).strict(true)).is_ok());
        assert!(bound.outlook(plain(2 * MIB).place(Place::Prefer(0)).strict(true)).is_ok());
    }
    for policy in ["default", "prefer:1", "interleave:0-1", "bind:0-1"] {
        let maps = format!("55d0c000 {policy} file=/bin/x mapped=5 N0=5\n");
        let free = Recorded::with(&[node, ("/proc/self/numa_maps", Some(&maps))]);
        assert!(free.outlook(plain(2 * MIB).strict(true)).is_ok(), "{policy}");
    }
}

#[test]
fn more_than_the_machine_has_is_refused_before_it_is_touched() {
    let machine = Recorded::with(&[]);
    let left = 3_774_628 << 10;
    let want = Reason::OverLimit { needed: 0xe800_0000, left, limit: Limit::Machine };
    assert_eq!(machine.no_pages(plain(0xe800_0000)), want);
    assert!(machine.outlook(plain(3_774_628 << 10)).is_ok());
    assert!(machine.outlook(plain(0xe800_0000).lock(false).prefault(false)).is_ok());
    // To map more than the machine has fails even untouched, unless overcommit is unlimited.
    let vast = plain(5 * GIB).lock(false).prefault(false);
    assert!(matches!(machine.no_pages(vast), Reason::OverLimit { limit: Limit::Machine, .. }));
    let always = Recorded::with(&[("/proc/sys/vm/overcommit_memory", Some("1\n"))]);
    assert!(always.outlook(vast).is_ok());
}

#[test]
fn strict_overcommit_is_checked() {
    let machine = Recorded::with(&[("/proc/sys/vm/overcommit_memory", Some("2\n"))]);
    let (bytes, committed) = (1_985_816_u64 << 10, 12_288 << 10);
    let lazy = plain(2 * GIB).lock(false).prefault(false);
    let limit = Limit::Overcommit(bytes);
    let want = Reason::OverLimit { needed: 2 << 30, left: bytes - committed, limit };
    assert_eq!(machine.no_pages(lazy), want);
    assert!(machine.outlook(plain(GIB)).is_ok());
    // Pages of the reserved pool do not count.
    assert!(machine.outlook(huge(16).strict(true)).is_ok());
}

const STATUS: &str = "VmLck:\t      16 kB\nCapEff:\t0000000000000000\nMems_allowed_list:\t0-1\n";
const MEMLOCK: &str = "\
Max locked memory         65536                65536                bytes     \n";

#[test]
fn a_limit_of_64_kib_on_locked_memory_is_predicted() {
    let small = [("/proc/self/limits", Some(MEMLOCK)), ("/proc/self/status", Some(STATUS))];
    let machine = Recorded::with(&small);
    let note = |len| Shortfall::Lock { len, limit: Some(65536), held: 16384, errno: None };
    let report = machine.outlook(plain(MIB)).unwrap();
    assert_eq!((report.locked(), report.notes()), (false, &[note(MIB)][..]));
    let error = machine.outlook(plain(MIB).strict(true)).unwrap_err();
    assert!(matches!(&error, MapError::Lock(found) if *found == note(MIB)), "{error:?}");
    // Memory that is already locked counts, to the byte.
    assert!(machine.outlook(plain(49152).strict(true)).unwrap().locked());
    assert!(machine.outlook(plain(49153).strict(true)).is_err());
    // Huge pages need no lock, and the capability lifts the limit.
    assert!(machine.outlook(huge(4).strict(true)).unwrap().locked());
    let root = Recorded::with(&small[..1]);
    assert!(root.outlook(plain(MIB).strict(true)).unwrap().locked());
}

#[test]
fn the_capability_of_a_user_namespace_lifts_no_limit() {
    let with = |map| {
        let changes = [("/proc/self/limits", Some(MEMLOCK)), ("/proc/self/uid_map", Some(map))];
        Recorded::with(&changes).outlook(plain(MIB)).unwrap().locked()
    };
    assert!(!with("         0     100000      65536\n"));
    assert!(!with("         0          0          1\n         1     100000      65536\n"));
    assert!(with("         0          0 4294967295\n"));
}

#[test]
fn limits_of_version_2_groups_apply_to_all_groups_below() {
    let machine = Recorded::with(&[
        ("/proc/self/cgroup", Some("0::/pod/one\n")),
        ("/sys/fs/cgroup/pod/one/memory.max", Some("max\n")),
        ("/sys/fs/cgroup/pod/one/memory.current", Some("1048576\n")),
        ("/sys/fs/cgroup/pod/memory.max", Some("104857600\n")),
        ("/sys/fs/cgroup/pod/memory.current", Some("94371840\n")),
        ("/sys/fs/cgroup/pod/memory.stat", Some("inactive_file 4194304\nactive_file 1048576\n")),
        ("/sys/fs/cgroup/pod/one/hugetlb.2MB.max", Some("6291456\n")),
        ("/sys/fs/cgroup/pod/one/hugetlb.2MB.current", Some("2097152\n")),
        ("/sys/fs/cgroup/pod/hugetlb.2MB.rsvd.max", Some("2097152\n")),
        ("/sys/fs/cgroup/pod/hugetlb.2MB.rsvd.current", Some("0\n")),
    ]);
    let group = |file: &str, bytes| {
        let file = format!("/sys/fs/cgroup/pod/{file}");
        Limit::Group { file, bytes }
    };
    // 10 MiB are left, and 5 MiB of cached files can be dropped.
    assert!(machine.outlook(plain(15 * MIB)).is_ok());
    let limit = group("memory.max", 100 << 20);
    let want = Reason::OverLimit { needed: 16 << 20, left: 15 << 20, limit };
    assert_eq!(machine.no_pages(plain(16 * MIB)), want);
    assert_eq!(want.fix().to_string(), "echo 105906176 > /sys/fs/cgroup/pod/memory.max");

    let limit = group("one/hugetlb.2MB.max", 6 << 20);
    let want = Reason::OverLimit { needed: 6 << 20, left: 4 << 20, limit };
    assert_eq!(machine.no_pages(huge(3)), want);
    let limit = group("hugetlb.2MB.rsvd.max", 2 << 20);
    let want = Reason::OverLimit { needed: 4 << 20, left: 2 << 20, limit };
    assert_eq!(machine.no_pages(huge(2)), want);
    assert!(machine.outlook(huge(1).strict(true)).is_ok());
    let report = machine.outlook(huge(2)).unwrap();
    assert_eq!((report.asked(), report.pages()), (Pages::Huge2M, Pages::Transparent));
}

#[test]
fn version_1_groups_are_read_where_they_are_mounted() {
    // A container sees its group as the top of the mount, but under the path it has on the host.
    let mounts = "\
30 24 0:24 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:25 /docker/f00 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 30 0:26 /docker/f00 /sys/fs/cgroup/hugetlb rw - cgroup cgroup rw,hugetlb
33 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    let groups = "5:memory:/docker/f00\n4:hugetlb:/docker/f00/inner\n0::/docker/f00\n";
    let machine = Recorded::with(&[
        ("/proc/self/mountinfo", Some(mounts)),
        ("/proc/self/cgroup", Some(groups)),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", Some("16777216\n")),
        ("/sys/fs/cgroup/memory/memory.usage_in_bytes", Some("8388608\n")),
        (
            "/sys/fs/cgroup/memory/memory.stat",
            Some("inactive_file 1\ntotal_inactive_file 1048576\n"),
        ),
        ("/sys/fs/cgroup/hugetlb/inner/hugetlb.2MB.limit_in_bytes", Some("4194304\n")),
        ("/sys/fs/cgroup/hugetlb/inner/hugetlb.2MB.usage_in_bytes", Some("4194304\n")),
        ("/sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", Some("9223372036852678656\n")),
    ]);
    let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned();
    let limit = Limit::Group { file, bytes: 16 << 20 };
    let want = Reason::OverLimit { needed: 10 << 20, left: 9 << 20, limit };
    assert_eq!(machine.no_pages(plain(10 * MIB)), want);
    assert!(machine.outlook(plain(9 * MIB)).is_ok());
    let file = "/sys/fs/cgroup/hugetlb/inner/hugetlb.2MB.limit_in_bytes".to_owned();
    let limit = Limit::Group { file, bytes: 4 << 20 };
    assert_eq!(machine.no_pages(huge(1)), Reason::OverLimit { needed: 2 << 20, left: 0, limit });
}

/// The recorded machine's memory, and 8 GiB of free swap.
fn with_swap() -> String {
    let text = include_str!("machines/two-nodes.txt");
    let (_, text) = text.split_once("== /proc/meminfo\n").unwrap();
    let (text, _) = text.split_once("== ").unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("Swap"));
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    lines + "SwapTotal: 8388608 kB\nSwapFree: 8388608 kB\n"
}

#[test]
fn a_version_2_group_swaps_out_no_more_than_it_may() {
    let memory = with_swap();
    let machine = Recorded::with(&[
        ("/proc/meminfo", Some(&memory)),
        ("/proc/self/cgroup", Some("0::/pod/one\n")),
        ("/sys/fs/cgroup/pod/one/memory.max", Some("1073741824\n")),
        ("/sys/fs/cgroup/pod/one/memory.current", Some("943718400\n")),
    ]);
    let one = |file: &str| format!("/sys/fs/cgroup/pod/one/memory.swap.{file}");
    let limit = Limit::Group { file: "/sys/fs/cgroup/pod/one/memory.max".into(), bytes: 1 << 30 };
    let left = |left| Reason::OverLimit { needed: 512 << 20, left, limit: limit.clone() };
    // Without a limit of swap, the group may use all of the machine's.
    assert!(machine.outlook(plain(512 * MIB)).is_ok());
    machine.write(&one("max"), "max\n");
    machine.write(&one("current"), "0\n");
    assert!(machine.outlook(plain(512 * MIB)).is_ok());
    machine.write(&one("max"), "0\n");
    assert_eq!(machine.no_pages(plain(512 * MIB)), left(124 << 20));
    // What it has swapped out already counts.
    machine.write(&one("max"), "536870912\n");
    assert!(machine.outlook(plain(512 * MIB)).is_ok());
    machine.write(&one("current"), "268435456\n");
    assert_eq!(machine.no_pages(plain(512 * MIB)), left(380 << 20));
    // So does the limit of a group above.
    machine.write(&one("max"), "max\n");
    machine.write("/sys/fs/cgroup/pod/memory.swap.max", "1048576\n");
    assert_eq!(machine.no_pages(plain(512 * MIB)), left(125 << 20));
}

#[test]
fn a_version_1_group_has_a_limit_of_memory_and_swap_together() {
    let memory = with_swap();
    let mounts = "31 30 0:25 / /cg rw - cgroup cgroup rw,memory\n";
    let machine = Recorded::with(&[
        ("/proc/meminfo", Some(&memory)),
        ("/proc/self/mountinfo", Some(mounts)),
        ("/proc/self/cgroup", Some("5:memory:/\n")),
        ("/cg/memory.limit_in_bytes", Some("1073741824\n")),
        ("/cg/memory.usage_in_bytes", Some("943718400\n")),
        ("/cg/memory.stat", Some("total_inactive_file 1048576\n")),
    ]);
    assert!(machine.outlook(plain(512 * MIB)).is_ok());
    machine.write("/cg/memory.memsw.limit_in_bytes", "1342177280\n");
    machine.write("/cg/memory.memsw.usage_in_bytes", "1006632960\n");
    let limit = Limit::Group { file: "/cg/memory.memsw.limit_in_bytes".into(), bytes: 1280 << 20 };
    let want = Reason::OverLimit { needed: 512 << 20, left: 321 << 20, limit };
    assert_eq!(machine.no_pages(plain(512 * MIB)), want);
    assert!(machine.outlook(plain(321 * MIB)).is_ok());
}

#[test]
fn garbled_or_empty_files_set_no_limit_and_never_panic() {
    let nonsense = "18446744073709551616 \u{fffd} kB\n:::\n-\n\n";
    let machine = Recorded::with(&[]);
    for file in include_str!("machines/two-nodes.txt").split("== ").skip(1) {
        let (path, before) = file.split_once('\n').unwrap();
        for text in [nonsense, ""] {
            machine.write(path, text);
            for request in [huge(4), plain(4 * MIB), MapRequest::new(GIB).pages(Ask::Huge1G)] {
                for place in [Place::Anywhere, Place::Prefer(1), Place::Only(1)] {
                    // Any result is fine; it must not panic.
                    let _ = machine.outlook(request.place(place));
                }
            }
        }
        machine.write(path, before);
    }
    // A machine without any file counts as having plain pages and one node.
    let nothing = Machine::recorded(Path::new(env!("CARGO_TARGET_TMPDIR")).join("none"));
    assert_eq!(huge(4).outlook(&nothing).unwrap().pages(), Pages::Plain);
    assert!(plain(4 * MIB).place(Place::Only(0)).outlook(&nothing).is_ok());
}

#[test]
fn the_prediction_for_this_machine_is_what_mapping_gives() {
    for ask in [Ask::Huge1G, Ask::Huge2M, Ask::Plain] {
        for shared in [false, true] {
            let request = MapRequest::new(3 * MIB).pages(ask).shared(shared).guard(true);
            let request = request.place(Place::Prefer(0));
            let (predicted, mapping) =
                (request.outlook(&Machine::this()).unwrap(), request.map().unwrap());
            let report = mapping.report();
            // The kernel may fail to find transparent pages; the rest is certain on a quiet
            // machine.
            if predicted.pages() != Pages::Transparent {
                assert_eq!(predicted.pages(), report.pages(), "{predicted}\n{report}");
                assert_eq!(predicted.notes().len(), report.notes().len(), "{predicted}\n{report}");
            }
            assert_eq!(
                (predicted.locked(), predicted.guarded()),
                (report.locked(), report.guarded())
            );
        }
    }
}
