//! Which NUMA node memory is requested on.

use core::fmt;

/// The NUMA node that memory is requested on. The memory is bound before its first touch, so the
/// kernel takes the pages from that node at once and never has to move them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Wherever the policy of the process says (set_mempolicy(2), numactl(8)). By default that is
    /// the node of the thread that touches a page first.
    #[default]
    Anywhere,
    /// On this node while it has pages of the requested kind (`MPOL_PREFERRED`). The kind of page
    /// is more important than the node. Memory on another node is a note, or an error if the
    /// request is strict.
    Prefer(u32),
    /// On this node or not at all (`MPOL_BIND`). The node is more important than the kind of page:
    /// unless the request is strict, smaller pages on the same node are tried.
    Only(u32),
}

impl Place {
    /// The requested or preferred node, if any.
    #[must_use]
    pub const fn node(self) -> Option<u32> {
        match self {
            Self::Anywhere => None,
            Self::Prefer(node) | Self::Only(node) => Some(node),
        }
    }

    /// The node of [`Place::Only`].
    #[must_use]
    pub const fn only(self) -> Option<u32> {
        match self {
            Self::Only(node) => Some(node),
            Self::Anywhere | Self::Prefer(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anywhere => f.write_str("any node"),
            Self::Prefer(node) => write!(f, "node {node} preferred"),
            Self::Only(node) => write!(f, "node {node} only"),
        }
    }
}
