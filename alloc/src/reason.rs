//! Why a request could not be met, and what to do about it.

use core::fmt;
use std_alloc::string::String;

/// Why memory could not be had as requested. Its text is one line and ends with "fix: " and what
/// to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The reserved pool holds too few free pages.
    TooFewFree {
        /// Size of a page of the pool, bytes.
        page: usize,
        /// Pages needed.
        needed: usize,
        /// Pages that are free and not reserved by other mappings.
        free: usize,
        /// The size to set the pool to, pages.
        pool: usize,
        /// The node whose share of the pool is short; `None` for the whole machine.
        node: Option<u32>,
    },
    /// The kernel has no pool of this size.
    NoPool {
        /// The size asked for, bytes.
        page: usize,
    },
    /// The pool's counters showed enough pages, but the kernel did not give them.
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
        /// Whether this is the switch for shared memory.
        shared: bool,
    },
    /// The kernel found huge pages for only a part of the memory.
    Partly {
        /// Bytes that huge pages back.
        huge: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// The memory was not touched yet, so the kernel has not chosen its pages.
    NotTouched,
    /// A limit leaves less than is needed. The request was not tried, because touching the memory
    /// later would end this process: by a signal, or by the kernel's out-of-memory killer.
    OverLimit {
        /// Bytes needed.
        needed: u64,
        /// Bytes that the limit leaves.
        left: u64,
        /// The limit.
        limit: Limit,
    },
    /// The requested node cannot give memory to this process.
    Node {
        /// The node.
        node: u32,
        /// What is wrong with it.
        fault: NodeFault,
        /// The nodes that can give memory, in the kernel's list format: `0-1,3`.
        usable: String,
    },
    /// Some pages are on other nodes than the requested one.
    Elsewhere {
        /// The requested node.
        node: u32,
        /// Bytes that are on it.
        there: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// The kernel refused the call that binds memory to a node, or the one that says on which node
    /// memory is.
    Denied {
        /// The call.
        call: &'static str,
        /// The system's error number.
        errno: i32,
    },
}

/// A limit on memory, read before any memory is touched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// A control group's limit on memory or on huge pages (cgroups(7)).
    Group {
        /// The file that sets it.
        file: String,
        /// The limit, bytes.
        bytes: u64,
    },
    /// The memory that the machine can free: `MemAvailable` and free swap (proc_meminfo(5)).
    Machine,
    /// The memory that this node can free.
    Node(u32),
    /// The memory that these nodes can free, in the kernel's list format: `0-1,3`. The cpuset of
    /// this process or the memory policy of this thread contains no others (cpuset(7),
    /// set_mempolicy(2)).
    Nodes(String),
    /// The commit limit under strict overcommit (`vm.overcommit_memory` of 2), bytes.
    Overcommit(u64),
}

/// Why a node gives no memory to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeFault {
    /// The node does not exist or is offline.
    Offline,
    /// The node has no memory.
    NoMemory,
    /// The cpuset of this process does not contain the node (cpuset(7)).
    NotAllowed,
}

impl Reason {
    /// What to do about it, without the reason: a command, or what to change.
    #[must_use]
    pub const fn fix(&self) -> impl fmt::Display {
        Fix(self)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewFree { needed, free, node: None, .. } => {
                write!(f, "{free} of {needed} huge pages free")
            }
            Self::TooFewFree { needed, free, node: Some(node), .. } => {
                write!(f, "{free} of {needed} huge pages free on node {node}")
            }
            Self::NoPool { page } => write!(f, "the kernel has no pool of {page} byte pages"),
            Self::Refused { page, needed, errno: 23 | 24 } => write!(
                f,
                "this process may open no more files, and shared memory of {needed} huge pages of \
                 {page} bytes needs one"
            ),
            Self::Refused { page, needed, errno } => write!(
                f,
                "the kernel refused {needed} huge pages of {page} bytes, although the pool had \
                 enough, errno {errno}"
            ),
            Self::TransparentOff { shared: false } => f.write_str("transparent pages are off"),
            Self::TransparentOff { shared: true } => {
                f.write_str("transparent pages are off for shared memory")
            }
            Self::Partly { huge, len } => write!(f, "huge pages back {huge} of {len} bytes"),
            Self::NotTouched => f.write_str("the memory was not touched yet"),
            Self::OverLimit { needed, left, limit } => {
                write!(f, "{limit} leaves {left} of {needed} bytes")
            }
            Self::Node { node, fault: NodeFault::Offline, .. } => {
                write!(f, "node {node} is not online")
            }
            Self::Node { node, fault: NodeFault::NoMemory, .. } => {
                write!(f, "node {node} has no memory")
            }
            Self::Node { node, fault: NodeFault::NotAllowed, .. } => {
                write!(f, "the cpuset of this process does not contain node {node}")
            }
            Self::Elsewhere { node, there, len } => {
                write!(f, "{there} of {len} bytes are on node {node}")
            }
            Self::Denied { call, errno } => write!(f, "{call} answered errno {errno}"),
        }?;
        write!(f, "; fix: {}", self.fix())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { file, bytes } => {
                write!(f, "the control group's limit of {bytes} ({file})")
            }
            Self::Machine => f.write_str("the machine's memory"),
            Self::Node(node) => write!(f, "the memory of node {node}"),
            Self::Nodes(nodes) => {
                write!(f, "the memory of nodes {nodes}, to which this thread is restricted,")
            }
            Self::Overcommit(bytes) => write!(f, "strict overcommit with a limit of {bytes}"),
        }
    }
}

/// Displays what to do about a [`Reason`].
struct Fix<'a>(&'a Reason);

impl fmt::Display for Fix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Reason::TooFewFree { page, pool, node: None, .. } => {
                let kib = page / 1024;
                write!(f, "echo {pool} > /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages")
            }
            Reason::TooFewFree { page, pool, node: Some(node), .. } => write!(
                f,
                "echo {pool} > /sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/\
                 nr_hugepages",
                page / 1024
            ),
            Reason::NoPool { page } => {
                write!(f, "boot with hugepagesz={}M hugepages=N", page >> 20)
            }
            // ENFILE, EMFILE.
            Reason::Refused { errno: 23 | 24, .. } => {
                f.write_str("close files, or raise ulimit -n")
            }
            Reason::Refused { .. } => f.write_str(
                "reserve pages with nr_hugepages, not with nr_overcommit_hugepages; check the \
                 memory policy and the control group; use kernel 5.14 or newer",
            ),
            Reason::TransparentOff { shared: false } => {
                f.write_str("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
            }
            Reason::TransparentOff { shared: true } => {
                f.write_str("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")
            }
            Reason::Partly { .. } => {
                f.write_str("echo 1 > /proc/sys/vm/compact_memory, then map again")
            }
            Reason::NotTouched => f.write_str("request it with prefault(true)"),
            Reason::OverLimit { needed, left, limit } => limit.fix(f, needed.saturating_sub(*left)),
            Reason::Node { node, fault: NodeFault::NotAllowed, usable } => {
                write!(f, "choose a node of {usable}, or add {node} to the group's cpuset.mems")
            }
            Reason::Node { usable, .. } => write!(f, "choose a node of {usable}"),
            Reason::Elsewhere { node, .. } => {
                write!(f, "free memory on node {node}, or request Place::Only({node})")
            }
            Reason::Denied { .. } => f.write_str(
                "give the process CAP_SYS_NICE (docker run --cap-add SYS_NICE), on a kernel built \
                 with CONFIG_NUMA",
            ),
        }
    }
}

impl Limit {
    /// Writes how to get `more` bytes.
    fn fix(&self, f: &mut fmt::Formatter<'_>, more: u64) -> fmt::Result {
        match self {
            Self::Group { file, bytes } => {
                write!(f, "echo {} > {file}", bytes.saturating_add(more))
            }
            Self::Machine => write!(f, "free {more} bytes of memory, or request less"),
            Self::Node(node) => {
                write!(f, "free {more} bytes on node {node}, or choose another node")
            }
            Self::Nodes(nodes) => write!(
                f,
                "free {more} bytes on nodes {nodes}, or add nodes to the group's cpuset.mems or to \
                 the plan, whichever leaves them out"
            ),
            Self::Overcommit(_) => {
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

    fn limit(limit: Limit) -> Reason {
        Reason::OverLimit { needed: 300, left: 100, limit }
    }

    fn node(fault: NodeFault) -> Reason {
        Reason::Node { node: 7, fault, usable: "0-1".to_string() }
    }

    fn too_few(node: Option<u32>) -> Reason {
        Reason::TooFewFree { page: 2 << 20, needed: 3, free: 0, pool: 11, node }
    }

    #[test]
    fn every_reason_says_what_to_do() {
        let group = Limit::Group { file: "/g/memory.max".to_string(), bytes: 1000 };
        let reasons = [
            too_few(None),
            too_few(Some(1)),
            Reason::NoPool { page: 1 << 30 },
            Reason::Refused { page: 2 << 20, needed: 3, errno: 12 },
            Reason::Refused { page: 2 << 20, needed: 3, errno: 24 },
            Reason::TransparentOff { shared: false },
            Reason::TransparentOff { shared: true },
            Reason::Partly { huge: 0, len: 4096 },
            Reason::NotTouched,
            limit(group),
            limit(Limit::Machine),
            limit(Limit::Node(1)),
            limit(Limit::Nodes("0-1".to_string())),
            limit(Limit::Overcommit(500)),
            node(NodeFault::Offline),
            node(NodeFault::NoMemory),
            node(NodeFault::NotAllowed),
            Reason::Elsewhere { node: 1, there: 0, len: 4096 },
            Reason::Denied { call: "mbind", errno: 1 },
        ];
        let mut texts = Vec::new();
        for reason in &reasons {
            let (text, fix) = (reason.to_string(), reason.fix().to_string());
            let (reason, after) = text.split_once("; fix: ").expect("a reason and a fix");
            assert!(!reason.is_empty() && !fix.is_empty() && !text.contains('\n'), "{text}");
            assert_eq!(after, fix);
            texts.push(text);
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), reasons.len(), "two reasons read the same");
    }

    #[test]
    fn fixes_are_commands_with_the_figure_to_set() {
        let group = Limit::Group { file: "/g/memory.max".to_string(), bytes: 1000 };
        assert_eq!(limit(group).fix().to_string(), "echo 1200 > /g/memory.max");
        assert_eq!(
            too_few(None).fix().to_string(),
            "echo 11 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        assert_eq!(
            too_few(Some(1)).fix().to_string(),
            "echo 11 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
        );
        assert_eq!(
            Reason::NoPool { page: 1 << 30 }.fix().to_string(),
            "boot with hugepagesz=1024M hugepages=N"
        );
    }
}
