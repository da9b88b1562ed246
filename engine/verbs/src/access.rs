//! Access rights as rdma-core takes them.

use crate::rdma_core::ibv_access_flags as Flags;

use crate::provider::Access;

/// The access as `ibv_reg_mr` takes it.
pub(super) fn access_flags(access: Access) -> i32 {
    let mut flags = 0;
    for (ours, theirs) in [
        (Access::LOCAL_WRITE, Flags::IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, Flags::IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, Flags::IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, Flags::IBV_ACCESS_REMOTE_ATOMIC),
        (Access::MW_BIND, Flags::IBV_ACCESS_MW_BIND),
    ] {
        if access.contains(ours) {
            flags |= theirs.0.cast_signed();
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_bits_are_those_of_the_headers() {
        assert_eq!(access_flags(Access::empty()), 0);
        assert_eq!(access_flags(Access::all()), 31);
        assert_eq!(access_flags(Access::REMOTE_READ), 4);
    }
}
