//! What a request would give on recorded machines: every limit is read before it is met.
//!
//! `machines/two-nodes.txt` was recorded by `machines/record.sh`: two nodes of 2 GiB, with 16 and
//! 4 free pages of 2 MiB, root, no limits. The tests change in it what is in question.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_alloc::{
    Ask, Bound, Got, Lack, Machine, MapError, MapRequest, Pages, Place, Shortfall, Why,
};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// A recorded machine, unpacked into a folder of its own for the time of a test.
struct Recorded(PathBuf);

impl Recorded {
    /// The machine with two nodes, with some of its files changed; `None` takes a file away.
    fn with(changes: &[(&str, Option<&str>)]) -> Self {
        // Relaxed: the number has to be unique, nothing is published with it.
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

    fn outlook(&self, request: MapRequest) -> Result<Got, MapError> {
        request.outlook(&Machine::recorded(&self.0))
    }

    /// The outlook of a strict request must be an error about pages: why.
    fn no_pages(&self, request: MapRequest) -> Why {
        match self.outlook(request.strict(true)) {
            Err(MapError::NoPages { why, .. }) => why,
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
fn what_is_there_is_foreseen_as_had() {
    let machine = Recorded::with(&[]);
    for (pages, node) in [(16, 0), (4, 1)] {
        for place in [Place::Only(node), Place::Prefer(node)] {
            let got = machine.outlook(huge(pages).place(place).strict(true)).unwrap();
            assert_eq!((got.got(), got.node(), got.locked()), (Pages::Huge2M, Some(node), true));
            assert!(got.notes().is_empty(), "{got}");
        }
    }
    assert!(machine.outlook(huge(20).strict(true)).is_ok());
    let got = machine.outlook(plain(GIB).place(Place::Only(1)).strict(true)).unwrap();
    assert_eq!((got.got(), got.node(), got.locked()), (Pages::Plain, Some(1), true));
}

#[test]
fn a_pool_that_is_short_on_the_node_is_named_with_its_file() {
    let machine = Recorded::with(&[]);
    let error = machine.outlook(huge(5).place(Place::Only(1)).strict(true)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "asked 5 pages of 2 MiB, the pool of node 1 has 4 free; mend: echo 5 > \
         /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
    );
    // The node counts for more than the page, or the page for more than the node.
    let got = machine.outlook(huge(5).place(Place::Only(1))).unwrap();
    assert_eq!((got.got(), got.node()), (Pages::Transparent, Some(1)));
    let got = machine.outlook(huge(5).place(Place::Prefer(1))).unwrap();
    assert_eq!((got.got(), got.node()), (Pages::Huge2M, None));
    let [Shortfall::Place { asked: Place::Prefer(1), why }] = got.notes() else { panic!("{got}") };
    assert!(matches!(why, Why::TooFewFree { free: 4, node: Some(1), .. }), "{why:?}");

    let error = machine.outlook(huge(21).strict(true)).unwrap_err();
    let short = matches!(error, MapError::NoHugePages { needed: 21, free: 20, node: None, .. });
    assert!(short, "{error:?}");
}

#[test]
fn without_huge_pages_all_falls_back_to_plain_ones_with_a_note_for_each() {
    let off = "always madvise [never]\n";
    let none = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
    let machine = Recorded::with(&[
        (none, None),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", Some("0\n")),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", Some("0\n")),
        ("/sys/kernel/mm/transparent_hugepage/enabled", Some(off)),
    ]);
    let request = MapRequest::new(GIB).pages(Ask::Huge1G);
    let got = machine.outlook(request).unwrap();
    assert_eq!((got.asked(), got.got()), (Pages::Huge1G, Pages::Plain));
    let whys: Vec<&Why> = got
        .notes()
        .iter()
        .map(|note| match note {
            Shortfall::Pages { got: Pages::Plain, why, .. } => why,
            note => panic!("{note}"),
        })
        .collect();
    let pool = Why::TooFewFree { page: 2 * MIB, needed: 512, free: 0, pool: 512, node: None };
    let off = Why::TransparentOff { shared: false };
    assert_eq!(whys, [&Why::NoPool { page: GIB }, &pool, &off]);
    assert_eq!(machine.no_pages(request), Why::NoPool { page: GIB });
}

#[test]
fn nodes_that_cannot_give_memory_are_told_apart() {
    let ask = |machine: &Recorded, node| {
        let request = plain(MIB).place(Place::Only(node));
        match machine.outlook(request) {
            Err(MapError::Place { why: Why::Node { node: named, lacks, choose }, .. }) => {
                assert_eq!(named, node);
                // The same node, if it is only preferred, is a note.
                let got = machine.outlook(plain(MIB).place(Place::Prefer(node))).unwrap();
                assert!(matches!(got.notes(), [Shortfall::Place { .. }]), "{got}");
                assert_eq!(got.node(), None);
                (lacks, choose)
            }
            other => panic!("{other:?}"),
        }
    };
    let (online, memory) =
        ("/sys/devices/system/node/online", "/sys/devices/system/node/has_memory");
    let status = "VmLck:\t0 kB\nCapEff:\t0\nMems_allowed_list:\t1\n";

    let machine = Recorded::with(&[(online, Some("0\n"))]);
    assert_eq!(ask(&machine, 1), (Lack::Online, "0".into()));
    let machine = Recorded::with(&[(online, Some("0-2\n")), (memory, Some("0,2\n"))]);
    assert_eq!(ask(&machine, 1), (Lack::Memory, "0".into()));
    let machine = Recorded::with(&[("/proc/self/status", Some(status))]);
    assert_eq!(ask(&machine, 0), (Lack::Leave, "1".into()));
    assert_eq!(ask(&machine, 1023), (Lack::Online, "1".into()));
}

#[test]
fn a_node_without_room_is_named_though_the_machine_has_room() {
    let full = "Node 1 MemTotal: 2060864 kB\nNode 1 MemFree: 1000 kB\n\
                Node 1 Active(file): 300 kB\nNode 1 Inactive(file): 20 kB\n\
                Node 1 SReclaimable: 4 kB\n";
    let machine = Recorded::with(&[("/sys/devices/system/node/node1/meminfo", Some(full))]);
    let request = plain(2 * MIB).place(Place::Only(1));
    let bound = Bound::Node(1);
    let want = Why::Bound { needed: 2 << 20, left: 1324 << 10, bound };
    assert_eq!(machine.no_pages(request), want);
    let got = machine.outlook(plain(2 * MIB).place(Place::Prefer(1))).unwrap();
    assert_eq!(got.notes(), [Shortfall::Place { asked: Place::Prefer(1), why: want }]);
    assert!(machine.outlook(plain(2 * MIB).place(Place::Only(0)).strict(true)).is_ok());
    // What is not touched needs no room yet.
    let lazy = request.lock(false).prefault(false);
    assert_eq!(machine.outlook(lazy).unwrap().node(), None);
}

#[test]
fn more_than_the_machine_has_is_refused_before_it_is_touched() {
    let machine = Recorded::with(&[]);
    let left = 3_774_628 << 10;
    let want = Why::Bound { needed: 0xe800_0000, left, bound: Bound::Machine };
    assert_eq!(machine.no_pages(plain(0xe800_0000)), want);
    assert!(machine.outlook(plain(3_774_628 << 10)).is_ok());
    assert!(machine.outlook(plain(0xe800_0000).lock(false).prefault(false)).is_ok());
    // Promising more than all there is fails even untouched, unless overcommit is without bounds.
    let vast = plain(5 * GIB).lock(false).prefault(false);
    assert!(matches!(machine.no_pages(vast), Why::Bound { bound: Bound::Machine, .. }));
    let always = Recorded::with(&[("/proc/sys/vm/overcommit_memory", Some("1\n"))]);
    assert!(always.outlook(vast).is_ok());
}

#[test]
fn strict_overcommit_is_counted() {
    let machine = Recorded::with(&[("/proc/sys/vm/overcommit_memory", Some("2\n"))]);
    let (limit, promised) = (1_985_816_u64 << 10, 12_288 << 10);
    let lazy = plain(2 * GIB).lock(false).prefault(false);
    let bound = Bound::Commit(limit);
    let want = Why::Bound { needed: 2 << 30, left: limit - promised, bound };
    assert_eq!(machine.no_pages(lazy), want);
    assert!(machine.outlook(plain(GIB)).is_ok());
    // Pages of the reserved pool are not counted.
    assert!(machine.outlook(huge(16).strict(true)).is_ok());
}

const STATUS: &str = "VmLck:\t      16 kB\nCapEff:\t0000000000000000\nMems_allowed_list:\t0-1\n";
const MEMLOCK: &str = "\
Max locked memory         65536                65536                bytes     \n";

#[test]
fn sixty_four_kib_of_lockable_memory_are_foreseen() {
    let small = [("/proc/self/limits", Some(MEMLOCK)), ("/proc/self/status", Some(STATUS))];
    let machine = Recorded::with(&small);
    let note = |len| Shortfall::Lock { len, limit: Some(65536), held: 16384, errno: None };
    let got = machine.outlook(plain(MIB)).unwrap();
    assert_eq!((got.locked(), got.notes()), (false, &[note(MIB)][..]));
    let error = machine.outlook(plain(MIB).strict(true)).unwrap_err();
    assert!(matches!(&error, MapError::Lock(found) if *found == note(MIB)), "{error:?}");
    // What is held already counts, to the byte.
    assert!(machine.outlook(plain(49152).strict(true)).unwrap().locked());
    assert!(machine.outlook(plain(49153).strict(true)).is_err());
    // Huge pages need no lock, and the capability passes the limit.
    assert!(machine.outlook(huge(4).strict(true)).unwrap().locked());
    let root = Recorded::with(&small[..1]);
    assert!(root.outlook(plain(MIB).strict(true)).unwrap().locked());
}

#[test]
fn groups_of_version_2_bound_what_lies_below_them() {
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
    let group = |file: &str, limit| {
        let file = format!("/sys/fs/cgroup/pod/{file}");
        Bound::Group { file, limit }
    };
    // 10 MiB are left, and 5 MiB of files can be dropped.
    assert!(machine.outlook(plain(15 * MIB)).is_ok());
    let bound = group("memory.max", 100 << 20);
    let want = Why::Bound { needed: 16 << 20, left: 15 << 20, bound };
    assert_eq!(machine.no_pages(plain(16 * MIB)), want);
    assert_eq!(want.cure().to_string(), "echo 105906176 > /sys/fs/cgroup/pod/memory.max");

    let bound = group("one/hugetlb.2MB.max", 6 << 20);
    let want = Why::Bound { needed: 6 << 20, left: 4 << 20, bound };
    assert_eq!(machine.no_pages(huge(3)), want);
    let bound = group("hugetlb.2MB.rsvd.max", 2 << 20);
    let want = Why::Bound { needed: 4 << 20, left: 2 << 20, bound };
    assert_eq!(machine.no_pages(huge(2)), want);
    assert!(machine.outlook(huge(1).strict(true)).is_ok());
    let got = machine.outlook(huge(2)).unwrap();
    assert_eq!((got.asked(), got.got()), (Pages::Huge2M, Pages::Transparent));
}

#[test]
fn groups_of_version_1_are_read_where_they_are_mounted() {
    // A container that sees its group as the top of the mount, and the host's path of it.
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
    let bound = Bound::Group { file, limit: 16 << 20 };
    let want = Why::Bound { needed: 10 << 20, left: 9 << 20, bound };
    assert_eq!(machine.no_pages(plain(10 * MIB)), want);
    assert!(machine.outlook(plain(9 * MIB)).is_ok());
    let file = "/sys/fs/cgroup/hugetlb/inner/hugetlb.2MB.limit_in_bytes".to_owned();
    let bound = Bound::Group { file, limit: 4 << 20 };
    assert_eq!(machine.no_pages(huge(1)), Why::Bound { needed: 2 << 20, left: 0, bound });
}

#[test]
fn files_that_say_nonsense_or_nothing_are_no_limit_and_no_panic() {
    let nonsense = "18446744073709551616 \u{fffd} kB\n:::\n-\n\n";
    let machine = Recorded::with(&[]);
    for file in include_str!("machines/two-nodes.txt").split("== ").skip(1) {
        let (path, before) = file.split_once('\n').unwrap();
        for text in [nonsense, ""] {
            machine.write(path, text);
            for request in [huge(4), plain(4 * MIB), MapRequest::new(GIB).pages(Ask::Huge1G)] {
                for place in [Place::Anywhere, Place::Prefer(1), Place::Only(1)] {
                    // Whatever comes of it, it comes.
                    let _ = machine.outlook(request.place(place));
                }
            }
        }
        machine.write(path, before);
    }
    // A machine of which nothing is known has plain pages and one node.
    let nothing = Machine::recorded(Path::new(env!("CARGO_TARGET_TMPDIR")).join("none"));
    assert_eq!(huge(4).outlook(&nothing).unwrap().got(), Pages::Plain);
    assert!(plain(4 * MIB).place(Place::Only(0)).outlook(&nothing).is_ok());
}

#[test]
fn the_outlook_on_this_machine_is_what_mapping_gives() {
    for ask in [Ask::Huge1G, Ask::Huge2M, Ask::Plain] {
        for shared in [false, true] {
            let request = MapRequest::new(3 * MIB).pages(ask).shared(shared).guard(true);
            let request = request.place(Place::Prefer(0));
            let (foreseen, got) =
                (request.outlook(&Machine::this()).unwrap(), request.map().unwrap());
            let got = got.got();
            // The kernel need not find transparent pages; all else is certain on a quiet machine.
            if foreseen.got() != Pages::Transparent {
                assert_eq!(foreseen.got(), got.got(), "{foreseen}\n{got}");
                assert_eq!(foreseen.notes().len(), got.notes().len(), "{foreseen}\n{got}");
            }
            assert_eq!((foreseen.locked(), foreseen.guarded()), (got.locked(), got.guarded()));
        }
    }
}
