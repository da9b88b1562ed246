//! Why something could not be had, and the cure.

use core::fmt;
use std_alloc::string::String;

/// Why memory could not be had as it was asked. Its text ends with the cure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The reserved pool holds too few free pages.
    TooFewFree {
        /// Size of a page of the pool, bytes.
        page: usize,
        /// Pages needed.
        needed: usize,
        /// Pages free and not promised to others.
        free: usize,
        /// The pool size that would do, pages.
        pool: usize,
        /// The node whose share of the pool it is; `None` for the whole machine.
        node: Option<u32>,
    },
    /// The kernel has no pool of this size.
    NoPool {
        /// The size asked for, bytes.
        page: usize,
    },
    /// The pool counted enough pages (free or still to be found), yet the kernel refused them.
    Refused {
        /// Size of a page of the pool, bytes.
        page: usize,
        /// Pages needed.
        needed: usize,
        /// The system's error number.
        errno: i32,
    },
    /// Transparent huge pages are switched off.
    TransparentOff {
        /// Whether it is the switch for shared memory.
        shared: bool,
    },
    /// The kernel found huge pages for a part only.
    Partly {
        /// Bytes that huge pages back.
        huge: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// Nothing was touched yet, so the kernel has not chosen pages.
    NotTouched,
    /// A limit leaves less than is needed. To touch the memory would fail later, by a signal or
    /// by the kernel ending this process, so it was not tried.
    Bound {
        /// Bytes needed.
        needed: u64,
        /// Bytes left.
        left: u64,
        /// The limit.
        bound: Bound,
    },
    /// The node named cannot give memory to this process.
    Node {
        /// The node.
        node: u32,
        /// What it lacks.
        lacks: Lack,
        /// The nodes that can, as the kernel lists them: `0-1,3`.
        choose: String,
    },
    /// Pages lie on other nodes than the one named.
    Elsewhere {
        /// The node.
        node: u32,
        /// Bytes that lie on it.
        there: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// The kernel did not take the call that binds memory to a node, or the one that says where
    /// it lies.
    Denied {
        /// The call.
        call: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

/// A limit on memory that is read before any is touched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// A control group's limit, on memory or on huge pages (cgroups(7)).
    Group {
        /// The file that sets it.
        file: String,
        /// What it says, bytes.
        limit: u64,
    },
    /// What the machine can free for new memory: `MemAvailable` and free swap, proc_meminfo(5).
    Machine,
    /// What the node can.
    Node(u32),
    /// The limit on promised memory under strict overcommit (`vm.overcommit_memory` of 2), bytes.
    Commit(u64),
}

/// What keeps a node from giving memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// There is no such node, or it is offline.
    Online,
    /// It has no memory.
    Memory,
    /// The cpuset of this process leaves it out (cpuset(7)).
    Leave,
}

impl Why {
    /// The cure alone: a command, or what to change.
    #[must_use]
    pub const fn cure(&self) -> impl fmt::Display {
        Cure(self)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewFree { needed, free, node: None, .. } => {
                write!(f, "{free} of {needed} huge pages free")
            }
            Self::TooFewFree { needed, free, node: Some(node), .. } => {
                write!(f, "{free} of {needed} huge pages free on node {node}")
            }
            Self::NoPool { page } => write!(f, "the kernel has no pool of {page} byte pages"),
            Self::Refused { page, needed, errno } => write!(
                f,
                "the kernel refused {needed} huge pages of {page} bytes that the pool promised, \
                 errno {errno}"
            ),
            Self::TransparentOff { shared: false } => f.write_str("transparent pages are off"),
            Self::TransparentOff { shared: true } => {
                f.write_str("transparent pages are off for shared memory")
            }
            Self::Partly { huge, len } => write!(f, "huge pages back {huge} of {len} bytes"),
            Self::NotTouched => f.write_str("no page was touched yet"),
            Self::Bound { needed, left, bound } => {
                write!(f, "{bound} leaves {left} of {needed} bytes")
            }
            Self::Node { node, lacks: Lack::Online, .. } => write!(f, "node {node} is not online"),
            Self::Node { node, lacks: Lack::Memory, .. } => write!(f, "node {node} has no memory"),
            Self::Node { node, lacks: Lack::Leave, .. } => {
                write!(f, "the cpuset of this process leaves out node {node}")
            }
            Self::Elsewhere { node, there, len } => {
                write!(f, "{there} of {len} bytes lie on node {node}")
            }
            Self::Denied { call, errno } => write!(f, "{call} answered errno {errno}"),
        }?;
        write!(f, "; mend: {}", self.cure())
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { file, limit } => {
                write!(f, "the control group's limit of {limit} ({file})")
            }
            Self::Machine => f.write_str("the machine's memory"),
            Self::Node(node) => write!(f, "the memory of node {node}"),
            Self::Commit(limit) => write!(f, "strict overcommit with a limit of {limit}"),
        }
    }
}

/// Displays the cure of a [`Why`].
struct Cure<'a>(&'a Why);

impl fmt::Display for Cure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Why::TooFewFree { page, pool, node: None, .. } => {
                let kib = page / 1024;
                write!(f, "echo {pool} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages")
            }
            Why::TooFewFree { page, pool, node: Some(node), .. } => write!(
                f,
                "echo {pool} > /sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/\
                 nr_hugepages",
                page / 1024
            ),
            Why::NoPool { page } => {
                write!(f, "boot with hugepagesz={}M hugepages=N", page >> 20)
            }
            Why::Refused { .. } => f.write_str(
                "reserve by nr_hugepages rather than nr_overcommit_hugepages, look for the limit \
                 of a memory policy or a control group, run kernel 5.14 or newer",
            ),
            Why::TransparentOff { shared: false } => {
                f.write_str("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
            }
            Why::TransparentOff { shared: true } => {
                f.write_str("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")
            }
            Why::Partly { .. } => {
                f.write_str("echo 1 > /proc/sys/vm/compact_memory, then map again")
            }
            Why::NotTouched => f.write_str("ask with prefault(true)"),
            Why::Bound { needed, left, bound } => bound.cure(f, needed.saturating_sub(*left)),
            Why::Node { lacks: Lack::Leave, choose, .. } => {
                write!(f, "name a node of {choose}, or add it to cpuset.mems of the group")
            }
            Why::Node { choose, .. } => write!(f, "name a node of {choose}"),
            Why::Elsewhere { node, .. } => {
                write!(f, "free memory on node {node}, or ask for Place::Only({node})")
            }
            Why::Denied { .. } => f.write_str(
                "give the process CAP_SYS_NICE (docker run --cap-add SYS_NICE), on a kernel built \
                 with CONFIG_NUMA",
            ),
        }
    }
}

impl Bound {
    /// Writes the cure for a lack of `more` bytes.
    fn cure(&self, f: &mut fmt::Formatter<'_>, more: u64) -> fmt::Result {
        match self {
            Self::Group { file, limit } => {
                write!(f, "echo {} > {file}", limit.saturating_add(more))
            }
            Self::Machine => write!(f, "free {more} bytes of memory, or ask for less"),
            Self::Node(node) => {
                write!(f, "free {more} bytes of node {node}, or take another node")
            }
            Self::Commit(_) => {
                f.write_str("raise vm.overcommit_ratio, or sysctl vm.overcommit_memory=0")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::string::ToString;
    use std_alloc::vec::Vec;

    fn bound(bound: Bound) -> Why {
        Why::Bound { needed: 300, left: 100, bound }
    }

    fn node(lacks: Lack) -> Why {
        Why::Node { node: 7, lacks, choose: "0-1".to_string() }
    }

    fn too_few(node: Option<u32>) -> Why {
        Why::TooFewFree { page: 2 << 20, needed: 3, free: 0, pool: 11, node }
    }

    #[test]
    fn every_reason_names_its_cure() {
        let group = Bound::Group { file: "/g/memory.max".to_string(), limit: 1000 };
        let reasons = [
            too_few(None),
            too_few(Some(1)),
            Why::NoPool { page: 1 << 30 },
            Why::Refused { page: 2 << 20, needed: 3, errno: 12 },
            Why::TransparentOff { shared: false },
            Why::TransparentOff { shared: true },
            Why::Partly { huge: 0, len: 4096 },
            Why::NotTouched,
            bound(group),
            bound(Bound::Machine),
            bound(Bound::Node(1)),
            bound(Bound::Commit(500)),
            node(Lack::Online),
            node(Lack::Memory),
            node(Lack::Leave),
            Why::Elsewhere { node: 1, there: 0, len: 4096 },
            Why::Denied { call: "mbind", errno: 1 },
        ];
        let mut texts = Vec::new();
        for why in &reasons {
            let (text, cure) = (why.to_string(), why.cure().to_string());
            let (reason, after) = text.split_once("; mend: ").expect("a reason and a cure");
            assert!(!reason.is_empty() && !cure.is_empty() && !text.contains('\n'), "{text}");
            assert_eq!(after, cure);
            texts.push(text);
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), reasons.len(), "two reasons read the same");
    }

    #[test]
    fn cures_are_commands_with_the_figure_that_would_do() {
        let group = Bound::Group { file: "/g/memory.max".to_string(), limit: 1000 };
        assert_eq!(bound(group).cure().to_string(), "echo 1200 > /g/memory.max");
        assert_eq!(
            too_few(None).cure().to_string(),
            "echo 11 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        assert_eq!(
            too_few(Some(1)).cure().to_string(),
            "echo 11 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
        );
        assert_eq!(
            Why::NoPool { page: 1 << 30 }.cure().to_string(),
            "boot with hugepagesz=1024M hugepages=N"
        );
    }
}
