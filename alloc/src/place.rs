//! Where memory is asked to lie.

use core::fmt;

/// The NUMA node that memory is asked on. It is bound before its first touch, so the kernel takes
/// the pages there from the start and never has to move them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Wherever the policy of the process says (set_mempolicy(2), numactl(8)): mostly the node
    /// of the thread that touches a page first.
    #[default]
    Anywhere,
    /// On this node as far as it has pages of the kind asked (`MPOL_PREFERRED`). The kind of page
    /// counts for more than the node: what lies elsewhere is a note, or an error if the request
    /// is strict.
    Prefer(u32),
    /// On this node or not at all (`MPOL_BIND`). The node counts for more than the kind of page:
    /// unless the request is strict, smaller pages of the same node are tried.
    Only(u32),
}

impl Place {
    /// The node named, if one is.
    #[must_use]
    pub const fn node(self) -> Option<u32> {
        match self {
            Self::Anywhere => None,
            Self::Prefer(node) | Self::Only(node) => Some(node),
        }
    }

    /// The node that all pages must come from, if that was asked.
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
